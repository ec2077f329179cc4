"""How long a chain of fields a graph asks for."""

from __future__ import annotations

import mirage_dsl as mirage
from mirage_dsl.frontend.trace import trace_function
from mirage_dsl.rewrite.expand import expand
from mirage_dsl.verify.fields import graph_depth
from mirage_dsl.verify.verifier import identity, recheck, verify


def test_a_random_function_reads_what_lies_deep() -> None:
    """|exp(x)| starts anew, but its operand needs a second field."""
    program = trace_function(
        lambda x: mirage.functions.abs(mirage.functions.exp(x * 2)),
        [mirage.spec((4, 5), "float16")],
    )
    assert graph_depth(program).exps == 1
    certificate = verify(expand(program), program)
    assert certificate.equivalent, certificate.reason


def test_a_program_is_itself() -> None:
    """Even one that no trial can decide: 1 / (x - x) is defined nowhere."""
    program = trace_function(lambda x: 1 / (x - x), [mirage.spec((4, 5), "float16")])
    assert not verify(program, program).equivalent
    certificate = identity(program)
    assert certificate.ok
    assert recheck(certificate, program, program)
    found = mirage.superoptimize(program, use_cache=False)
    assert found.best.mugraph == program

"""Certificates of candidates, from the checkpoint or by verification."""

from __future__ import annotations

from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.printer import to_text
from mirage_dsl.search.memory import Remembering
from mirage_dsl.verify.certificate import Certificate


def certified(
    form: KernelGraph, program: KernelGraph, memory: Remembering, seed: int
) -> Certificate:
    """The certificate of a μGraph, which may say that it is wrong."""
    # Here, for a result from the cache needs no compiled code.
    from mirage_dsl.verify.verifier import verify

    key = ""
    if memory.checkpoint is not None:
        key = memory.checkpoint.key("verify", to_text(form), to_text(program), seed)
        known = memory.recall(key, Certificate.from_dict)
        if known is not None:
            return known
    found = verify(form, program, seed=seed)
    if memory.checkpoint is not None:
        memory.checkpoint.store(key, found.to_dict())
    return found


def identity_of(program: KernelGraph, seed: int) -> Certificate:
    """The certificate of a program for itself."""
    from mirage_dsl.verify.verifier import identity

    return identity(program, seed=seed)

"""The bed of false candidates: `python -m benchmarks.bed [--seeds N --part i/n]`.

Every wrong μGraph is put to the verifier under every seed, none may be accepted; every
right one is, and must be.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from itertools import groupby
from operator import itemgetter

from mirage_dsl.verify.verifier import verify
from tests.verify.cases import right_ones, wrong_ones
from tests.verify.false_candidates import HAND_PICKED


def main() -> int:
    """Run the bed; the exit code says whether the verifier kept to it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--part", default="0/1", help="only mutations i modulo n")
    asked = parser.parse_args()
    seeds = range(asked.seeds)
    part, parts = map(int, asked.part.split("/"))
    began = time.perf_counter()
    refused = [
        (right.name, seed)
        for right in right_ones()
        for seed in seeds
        if not verify(
            right.candidate, right.program, seed=seed, stability=False
        ).equivalent
    ]
    print(f"right μGraphs: {len(list(right_ones()))}, refused: {refused}", flush=True)
    wrong = [
        (w.name, w.what, w.program, w.candidate)
        for w in wrong_ones(lambda n: n % parts == part)
    ]
    wrong += [("by hand", make.__name__, p(), make()) for p, make in HAND_PICKED]
    cases = Counter(name for name, *_ in wrong)
    accepted: list[tuple[str, str, int]] = []
    shown = 0
    for name, group in groupby(wrong, key=itemgetter(0)):
        for _, what, program, candidate in group:
            for seed in seeds:
                found = verify(candidate, program, seed=seed, stability=False)
                shown += found.counterexample is not None
                if found.equivalent:
                    accepted.append((name, what, seed))
        print(f"{cases[name]:6d}  {name}", flush=True)
    for name, what, seed in accepted:
        print(f"accepted with seed {seed}: {what} in {name}")
    trials = sum(cases.values()) * len(seeds)
    print(f"wrong μGraphs: {sum(cases.values())}, verdicts: {trials}")
    print(f"accepted: {len(accepted)}, with a counterexample: {shown}")
    print(f"{time.perf_counter() - began:.0f} s")
    return bool(accepted or refused)


if __name__ == "__main__":
    sys.exit(main())

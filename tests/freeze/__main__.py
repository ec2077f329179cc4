"""`python -m tests.freeze`: compare all with what is frozen, or freeze it anew."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from tests.freeze.frozen import (
    GRAPHS,
    SEARCHES,
    emitted,
    found,
    frozen,
    golden,
    programs,
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.freeze", description=__doc__)
    parser.add_argument(
        "--update", action="store_true", help="freeze what there is now"
    )
    parser.add_argument(
        "--only", choices=["triton", "searches"], help="not both, which takes minutes"
    )
    parser.add_argument(
        "--times",
        metavar="FILE",
        type=Path,
        help="keep the seconds of each search there, as JSON",
    )
    chosen = parser.parse_args()
    differing: list[str] = []
    if chosen.only != "searches":
        differing += _triton(chosen.update)
    if chosen.only != "triton":
        differing += _searches(chosen.update, chosen.times)
    print("\n".join(differing) or "nothing differs")
    return bool(differing) and not chosen.update


def _triton(update: bool) -> list[str]:
    differing: list[str] = []
    for name in GRAPHS:
        source, file = emitted(name), golden(name)
        if not file.exists() or file.read_text() != source:
            differing.append(f"{name}: the Triton differs")
            if update:
                file.parent.mkdir(exist_ok=True)
                file.write_text(source)
    return differing


def _searches(update: bool, times: Path | None) -> list[str]:
    before = frozen() if SEARCHES.exists() else {}
    now, seconds, differing = dict(before), dict[str, float](), list[str]()
    for name, program in programs().items():
        began = time.perf_counter()
        now[name] = found(program)
        seconds[name] = round(time.perf_counter() - began, 3)
        if now[name] != before.get(name):
            differing.append(f"{name}: {before.get(name)} -> {now[name]}")
            print(differing[-1], file=sys.stderr, flush=True)
    if update:
        rows = (f"{json.dumps(n)}: {json.dumps(each)}" for n, each in now.items())
        SEARCHES.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    if times is not None:
        times.write_text(json.dumps(seconds, indent=1) + "\n")
    return differing


if __name__ == "__main__":
    sys.exit(main())

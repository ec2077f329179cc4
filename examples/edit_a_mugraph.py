"""Edit what the search found: another tile is accepted, another function is not."""

from __future__ import annotations

import numpy as np

import mirage_dsl as mirage


@mirage.kernel
def gated_mlp(x, gate, up):
    return mirage.silu(x @ gate) * (x @ up)


def main() -> None:
    x = np.full((8, 256), 0.1, np.float16)
    gate, up = np.eye(256, 192, dtype=np.float16), np.ones((256, 192), np.float16)
    bound = gated_mlp.bind(x, gate, up)
    bound.search()
    text = str(bound.mugraph)
    print(text)

    columns = bound.mugraph.blocks[0].grid[-1]
    old, new = (f"{columns.dim} / {tile}" for tile in (columns.tile, 48))
    print("another tile:", bound.use(text.replace(old, new)))

    without_gate = text.replace(" = silu ", " = tanh ")
    assert without_gate != text
    try:
        bound.use(without_gate)
    except mirage.EquivalenceError as error:
        print("another function:", error)
    else:
        raise AssertionError("a wrong μGraph was accepted")


if __name__ == "__main__":
    main()

"""Equal dims are one object, however they are made."""

from __future__ import annotations

import copy
import pickle
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError, replace

import pytest

from mirage_dsl.core.types import Dim


def test_equal_dims_are_one_object() -> None:
    piece = Dim("k", grid=True)
    made = (
        Dim("k", True, False),
        replace(Dim("k", grid=True, loop=True), loop=False),
        copy.deepcopy(piece),
        pickle.loads(pickle.dumps(piece)),
    )
    assert all(other is piece for other in made)
    assert piece.whole is Dim("k")
    assert len({piece, piece.whole, Dim("k", loop=True), Dim("j", grid=True)}) == 4


def test_dims_that_threads_make_at_once_are_one_object() -> None:
    names = [f"dim_{number}" for number in range(200)] * 8
    with ThreadPoolExecutor(8) as threads:
        dims = list(threads.map(Dim, names))
    assert len({id(d) for d in dims}) == len(set(dims)) == 200


def test_dims_are_in_the_order_of_their_names_and_pieces() -> None:
    ordered = [Dim("a"), Dim("a", loop=True), Dim("a", grid=True), Dim("b")]
    shuffled = random.Random(0).sample(ordered, 4)
    assert sorted(shuffled) == ordered
    assert max(shuffled) is ordered[-1]


def test_dims_do_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        setattr(Dim("k"), "name", "j")  # noqa: B010
    assert repr(Dim("k", loop=True)) == "Dim(name='k', grid=False, loop=True)"

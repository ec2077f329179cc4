"""Pickles of graphs: operators go by name, since their facets are functions."""

from __future__ import annotations

import io
import pickle
from typing import Any

from mirage_dsl.ops.definition import Operator
from mirage_dsl.ops.table import OPERATORS


def row(name: str) -> Operator:
    """The operator called `name`."""
    return OPERATORS[name]


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, Operator):
            return row, (obj.name,)
        return NotImplemented


def dumps(value: object) -> bytes:
    """The value as bytes that `pickle.loads` reads."""
    out = io.BytesIO()
    _Pickler(out).dump(value)
    return out.getvalue()

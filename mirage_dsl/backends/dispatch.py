"""What makes a second call fast: prepared calls, found by the signature of a call.

A call goes down three steps, and ends at the first that knows what to do:

1. The call that served last is asked, without a key.  It compares the tensors itself,
   in generated code (`Guarded`), and returns None, doing nothing, for other ones.
2. The signature finds the call that was prepared for such arguments.
3. The call is prepared: arguments are checked, the function is traced, a μGraph chosen,
   kernels compiled.  Only what is kept here is looked at the next time.

Nothing here holds a tensor.  A kernel forgets its calls in one place, where what the
function reads has changed or another μGraph is to run; an executable, which runs one
μGraph, never does.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from mirage_dsl.tile.program import ALIGNMENT

MOST_CALLS = 1024
"""Different signatures that are remembered."""


def signature(tensors: Sequence[Any]) -> tuple[Hashable, ...]:
    """What a prepared call depends on of PyTorch's tensors.

    Raises:
        RuntimeError: One has no strides or no memory, or has to be negated when it is
            read.
    """
    found: list[Hashable] = []
    for t in tensors:
        at = t.data_ptr()
        if not at or t.is_neg():
            raise RuntimeError("a tensor's values are not what lies at its address")
        found.append((t.shape, t.stride(), t.dtype, t.device, at % ALIGNMENT))
    return tuple(found)


@dataclass(frozen=True)
class Guarded:
    """A call for tensors of one kind that tells by itself whether it is meant.

    Attributes:
        count: How many arguments it takes by position.
        call: Takes these, and those by keyword behind them; returns None, and does
            nothing, for tensors of another kind.
        names: The keywords.
    """

    count: int
    call: Callable[..., Any]
    names: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Direct(Guarded):
    """A generated function that launches kernels: `call` returns the list of outputs.

    Attributes:
        first: As `call`, but returns the first output.
    """

    first: Callable[..., Any]


G = TypeVar("G", bound=Guarded)


@dataclass(frozen=True)
class Call(Generic[G]):
    """A call that was prepared for one signature.

    Attributes:
        run: Serves all calls of the signature.
        guarded: The same where no mode, profiler or other device is in the way, and
            other tensors are left alone; None if there is no such function.
    """

    run: Callable[..., Any]
    guarded: G | None = None


class Dispatch(Generic[G]):
    """The calls that were prepared, by signature.

    Attributes:
        last: What served last, to be asked first.
        named: What served last of calls with some keywords, by these.
        age: How often all calls were forgotten.
    """

    def __init__(self) -> None:
        self.last: G | None = None
        self.named: dict[tuple[str, ...], G] = {}
        self.age = 0
        self._calls: dict[Hashable, Call[G]] = {}

    def find(self, key: Hashable) -> Call[G] | None:
        """The call for a signature; from now on it is asked first."""
        found = self._calls.get(key)
        if found is not None and found.guarded is not None:
            self._ask_first(found.guarded)
        return found

    def _ask_first(self, guarded: G) -> None:
        if guarded.names:
            self.named[guarded.names] = guarded
        else:
            self.last = guarded

    def keep(self, key: Hashable, call: Call[G], age: int = 0) -> Call[G]:
        """Remember a call, which has served last.

        Args:
            key: Its signature.
            call: The call.
            age: That when its preparation began: another thread may have forgotten all
                calls since, because of what this one was still made from.
        """
        if age != self.age:
            return call
        if len(self._calls) >= MOST_CALLS:
            self.named.clear()
            self._calls.clear()
        self._calls[key] = call
        if call.guarded is not None:
            self._ask_first(call.guarded)
        return call

    def forget(self) -> None:
        """Prepare all calls anew."""
        self.age += 1
        self.last = None
        self.named.clear()
        self._calls.clear()

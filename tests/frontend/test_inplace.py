"""Code that changes tensors in place: what it means in PyTorch, or a refusal."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy, deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F  # noqa: N812

import mirage_dsl as mirage
from mirage_dsl.core.errors import (
    DTypeError,
    MirageError,
    ShapeError,
    TraceError,
    UnsupportedError,
)
from mirage_dsl.ir.canonical import canonical_hash

Function = Callable[..., Any]


def made(function: Function) -> Function:
    """The function on a value that was made in it."""

    def called(x: Any) -> Any:
        x = x * 1.5
        returned = function(x)
        return x if returned is None else (x, returned)

    return called


def seen_by_an_alias(x: Any) -> Any:
    alias = x
    x += 1
    return alias


def parts(x: Any) -> Any:
    a, b = x.chunk(2, -1)
    b *= 2
    return a, b


def rows(x: Any) -> None:
    for i in range(x.shape[0]):
        x[i] = x[i] * i


def each_row(x: Any) -> None:
    for row in x.unbind(0):
        row -= row.sum()


def rotated(x: Any) -> None:
    even, odd = x[..., ::2].clone(), x[..., 1::2].clone()
    x[..., ::2] = even * 0.5 - odd
    x[..., 1::2] = even + odd * 0.5


def after_a_view_of_a_view(x: Any) -> Any:
    inner = x[1:].T[2:]
    inner.mul_(3)
    return inner, x.reshape(-1)[4:12]


def a_view_reads_what_was_written_to_its_base(x: Any) -> Any:
    column = x[:, 1]
    x.copy_(x.exp())
    x[:, 1:3] = 0.25
    return column, x.T


def copies(x: Any) -> Any:
    found = [x.clone(), x.T.contiguous(), x.T.reshape(-1), x + 0, x**1, x * 1]
    found += [torch.cat([x]), x.repeat_interleave(1, 0), torch.clone(x)]
    x += 1
    return tuple(found)


def copies_of_all(x: Any) -> Any:
    """What moves nothing with these arguments is a copy all the same."""
    found = [F.pad(x, (0, 0)), F.pad(x, (-1, 0)), x.roll(0), x.roll(4, 0), x.flip(())]
    found += [x.repeat(1, 1), x.tile(1), x.tril(4), torch.hstack([x]), deepcopy(x)]
    found += [x[:1].flip(0), x.roll(0, 1), torch.linalg.matrix_power(x, 1)]
    found += [F.pixel_shuffle(x[None], 1), F.pixel_unshuffle(x[None], 1)]
    found += [x.to(copy=True), x[None, None].clone(memory_format=torch.channels_last)]
    x += 1
    for each in found:
        each *= 2
    return tuple(found)


def places_of_what_was(x: Any) -> Any:
    largest, least = x.max(1), x.min(dim=0)
    x[:, 0] = 9
    x[1] = -9
    return largest.indices.float(), least[1].float(), largest.values


def no_copies(x: Any) -> Any:
    found = [x.contiguous(), x.reshape(-1), x.to(x.dtype), x.detach(), x.data, +x]
    found += [x.real, x.to(), x.to(memory_format=torch.contiguous_format)]
    found += [x.view(-1), x.flatten(), x.ravel(), x[None], x.squeeze(), x[...]]
    found += [x.mT, x.permute(1, 0), x.transpose(0, 1), x.swapaxes(0, 1), x.t()]
    found += [x.unsqueeze(1), x.movedim(0, 1), x.to(x)]
    found += [*x.split(2, 1), *x.unbind(1), x.narrow(1, 2, 2), x.type(x.dtype)]
    found += [F.dropout(x, training=False), torch.einsum("ij->ji", x)]
    found += [copy(x), torch.positive(x)]
    x += 1
    return tuple(found)


def a_row_and_a_column(x: Any) -> None:
    totals = x.sum(0)
    x[1] = totals
    x[:, 1] = totals


def split_axes(x: Any) -> Any:
    found = x.view(4, 2, -1), x.unflatten(1, (2, -1)), x.reshape(2, 2, 2, 2)
    found[0][:, 1] *= 2
    found[2][1] += 1
    return found


def under_masks(x: Any) -> None:
    x[x > 0.5] = 0.5
    x[x < 0] *= 2
    mask = x > 0
    x[mask] = 1 - x[mask] / 2
    x[(x > 0.2) & ~(x > 0.4)] += x.sum()


def other_objects(x: Any) -> Any:
    turned = x[:]
    turned.t_().unsqueeze_(0)
    turned += 1
    return turned


def without_reading(x: Any) -> Any:
    y = torch.log(x)
    y.fill_(3)
    z = torch.log(x)
    z.zero_()
    z[0] = float("inf")
    return y, z


def into_zeros(x: Any) -> Any:
    y = torch.zeros_like(x)
    y[:, :2] = x[:, 2:]
    y[0] += x[1]
    z = torch.ones_like(x)
    z += x
    z[1:] *= 2
    return y, z


def interleaved(x: Any) -> Any:
    y = torch.empty_like(x)
    y[:, ::2], y[:, 1::2] = x[:, 1::2], -x[:, ::2]
    return y


def stored_with_out(x: Any) -> Any:
    y, z = x * 2, x * 3
    torch.add(x, 1, out=y)
    np.multiply(y, x, out=z)
    np.copyto(x, y)
    torch.exp(x, out=x)
    np.add.reduce(x * 1, axis=0, out=y[1])
    return y, z


def pairs_with_out(x: Any) -> Any:
    largest, places = torch.empty_like(x[:2]), torch.empty(4, dtype=torch.int64)
    ordered, order = torch.empty_like(x), torch.empty_like(x, dtype=torch.int64)
    pair = torch.max(x, 1, out=(largest[0], places))
    torch.sort(x, 0, out=(ordered, order))
    largest[1] = 0
    found = (places, pair[1], order)
    return largest, pair.values, ordered, *(each.float() for each in found)


def put_at_all(x: Any) -> Any:
    places, values = torch.tensor([[0, -1], [5, 0]]), x[:2, :2]
    y, z, w = x.clone(), x.clone(), x * 2
    y.put_(places, values)
    z.t().put_(places, values, accumulate=True)
    w[1:].put_(places, values)
    return y, z, w, x.put(places, values), torch.put(x, places, values, True)


CHANGES: dict[str, Function] = {
    "pairs with out": pairs_with_out,
    "put": put_at_all,
    "alias": seen_by_an_alias,
    "chunks": parts,
    "rows": rows,
    "each row": each_row,
    "rotated": rotated,
    "views of views": after_a_view_of_a_view,
    "base": a_view_reads_what_was_written_to_its_base,
    "copies": copies,
    "copies of all": copies_of_all,
    "no copies": no_copies,
    "places": places_of_what_was,
    "masks": under_masks,
    "split axes": split_axes,
    "objects": other_objects,
    "unread": without_reading,
    "zeros": into_zeros,
    "interleaved": interleaved,
    "activation": lambda x: F.relu(x, inplace=True),
    "silu": lambda x: F.silu(x, inplace=True),
    "functions": lambda x: (torch.relu_(x), torch.exp_(x), F.elu_(x)),
    "methods": lambda x: x.add_(x, alpha=2).tanh_().clamp_(-0.5, 0.5).neg_(),
    "operands": lambda x: x.addcmul_(x, x).lerp_(x * 2, 0.5).pow_(2).sub_(1),
    "masked_fill_": lambda x: x.masked_fill_(x > 0, -2.0).sigmoid_(),
    "broadcast": lambda x: x[1:].copy_(x[0]),
    "ones in front": lambda x: x.__setitem__(0, x.sum(0)[None] * 2),
    "one column": lambda x: x.__setitem__((slice(None), 1), x.sum(1)),
    "row and column": a_row_and_a_column,
    "product": lambda x: x.addmm_(torch.exp(x), torch.tanh(x)),
    "transposed": lambda x: x.mul_(torch.relu(x.T)),
    "powers": lambda x: x.__ipow__(2),
    "a part of itself": lambda x: x[0].add_(x[1]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes_mean_what_they_mean_in_pytorch(name: str) -> None:
    function = made(CHANGES[name])
    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(1))
    wanted = _flat(function(x.double()))
    found = _flat(mirage.kernel(function)(x))
    assert len(found) == len(wanted)
    for mine, right in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, right.float(), atol=1e-6, rtol=1e-5)


def _flat(found: Any) -> list[Any]:
    if isinstance(found, torch.Tensor):
        return [found]
    return [t for part in found for t in _flat(part)]


def refused(kind: type[MirageError], function: Function, line: str) -> str:
    """What an error says that names a line of the function."""
    with pytest.raises(kind) as caught:
        mirage.kernel(function).trace(mirage.spec((4, 4), "float32"))
    assert caught.value.location is not None
    assert line in caught.value.location.text
    return caught.value.message


def test_arguments_are_not_changed() -> None:
    def added(x: Any) -> Any:
        x += 1
        return x

    def through_a_view(x: Any) -> Any:
        x.T[1].mul_(2)
        return x * 2

    def perhaps(x: Any) -> Any:
        y = x.contiguous()
        y.relu_()
        return y

    def the_object(x: Any) -> Any:
        x.t_()
        return x * 2

    for function, line in (
        (added, "x += 1"),
        (through_a_view, "mul_(2)"),
        (perhaps, "relu_()"),
        (the_object, "x.t_()"),
    ):
        message = refused(TraceError, function, line)
        assert "changes an argument" in message
        assert "clone()" in message
        assert "out=" in message


def test_interpolation_from_the_nearer_end() -> None:
    x, end = torch.tensor([float("inf"), 1.0]), torch.tensor([2.0, float("inf")])
    for weight in (0.25, 0.5, 0.75):
        found = mirage.kernel(lambda x, end, w=weight: torch.lerp(x, end, w))(x, end)
        wanted = torch.lerp(x, end, weight)
        torch.testing.assert_close(found, wanted, equal_nan=True)


def test_lists_and_dicts_of_the_caller_are_not_changed() -> None:
    def replaced(cache: Any) -> Any:
        cache["x"] = cache["x"] * 2
        return cache["x"]

    def appended(xs: Any) -> Any:
        xs.append(xs[0] * 2)
        return xs[0] + 1

    x = torch.randn(4)
    for function, given in ((replaced, {"x": x}), (appended, [x])):
        with pytest.raises(TraceError, match="changes its argument"):
            mirage.kernel(function)(given)

    def popped(*xs: Any, **others: Any) -> Any:
        return xs[0] + others.pop("y")

    torch.testing.assert_close(mirage.kernel(popped)(x, y=x), x + x)


def test_a_change_keeps_shape_and_dtype() -> None:
    def grown(x: Any) -> Any:
        row = x.sum(0)
        row += x
        return row

    message = refused(ShapeError, grown, "row += x")
    assert "(4, 4)" in message
    assert "f32[4]" in message

    def mixed(x: Any, y: Any) -> Any:
        z = x * 1
        z += y
        w = y * 1
        w += x
        return z, w

    given = torch.randn(4, dtype=torch.float16), torch.randn(4)
    for mine, right in zip(mirage.kernel(mixed)(*given), mixed(*given), strict=True):
        assert mine.dtype == right.dtype
        torch.testing.assert_close(mine, right)


def test_what_pytorch_refuses() -> None:
    def expanded(x: Any) -> Any:
        y = x.sum(0).expand(4, 4)
        y += 1
        return y * 2

    assert "expanded" in refused(TraceError, expanded, "y += 1")

    def overlapping(x: Any) -> Any:
        y = x.sum(0)
        y[1:] += y[:-1]
        return y

    assert "shares part of its memory" in refused(TraceError, overlapping, "y[1:] +=")

    def transposed(x: Any) -> Any:
        y = x * 1
        y += y.T
        return y

    assert "shares part of its memory" in refused(TraceError, transposed, "y += y.T")


def test_what_pytorch_refuses_of_shapes_and_results() -> None:
    def product_into_its_operand(x: Any) -> Any:
        y = x * 1
        torch.mm(y, x, out=y)
        return y

    assert "shares part" in refused(TraceError, product_into_its_operand, "torch.mm")

    def viewed(x: Any) -> Any:
        return (x * 1).T.view(-1)

    assert "strides" in refused(TraceError, viewed, "view(-1)")

    for axes in ((1, 0), (0, 2)):
        refused(ShapeError, lambda x, axes=axes: x.flatten(*axes), "x.flatten(*axes)")
    refused(ShapeError, lambda x: x.sum().flatten(0, 1), "flatten(0, 1)")

    def of_another_shape(x: Any) -> Any:
        y = x * 1
        torch.sum(x, 0, out=y)
        return y

    assert "out=" in refused(ShapeError, of_another_shape, "out=y")


def test_what_depends_on_strides_is_not_guessed() -> None:
    # A result's strides follow those of its operands.
    def function(x: Any) -> Any:
        y = x.T * 1
        z = y.reshape(-1)
        z += 1
        return y * 2

    message = refused(TraceError, function, "y * 2")
    assert "depends on strides" in message
    assert "clone()" in message

    def by_channels(x: Any) -> Any:
        y = (x * 1).view(1, 2, 2, 4)
        z = y.to(memory_format=torch.channels_last)
        z += 1
        return y * 2

    assert "depends on strides" in refused(TraceError, by_channels, "y * 2")

    def only_one_is_read(x: Any) -> Any:
        y = x.T * 1
        z = y.reshape(-1)
        z += 1
        return z

    x = torch.randn(4, 4)
    torch.testing.assert_close(
        mirage.kernel(only_one_is_read)(x), only_one_is_read(x.clone())
    )


def test_masks_select_for_writes_only() -> None:
    def counted(x: Any) -> Any:
        return x[x > 0].argmax()

    assert "use where" in refused(UnsupportedError, counted, "x[x > 0]")

    def of_another_mask(x: Any) -> Any:
        y = x * 1
        y[y > 0] = y[y < 1]
        return y

    refused(UnsupportedError, of_another_mask, "y[y > 0] =")

    def numbers(x: Any) -> Any:
        y = x * 1
        y[x] = 0
        return y

    assert "conditions" in refused(UnsupportedError, numbers, "y[x] = 0")

    def another_dtype(x: Any) -> Any:
        y = x * 1
        y[y.sum(1) > 0] = x.half().sum(0)
        return y

    refused(DTypeError, another_dtype, "y[y.sum(1) > 0]")


def test_views_and_copies_are_no_operators() -> None:
    def plain(x: Any) -> Any:
        return (x.T[1:] * 2).reshape(-1)

    def through_copies(x: Any) -> Any:
        y = x.clone().detach().T[...].contiguous()[1:]
        return (y.to(x.dtype) * 2).view(-1)

    def in_place(x: Any) -> Any:
        y = x.T[1:].clone()
        y *= 2
        return y.reshape(-1)

    spec = mirage.spec((4, 4), "float32")
    hashes = {
        canonical_hash(mirage.kernel(f).trace(spec))
        for f in (plain, through_copies, in_place)
    }
    assert len(hashes) == 1


def test_parts_that_were_written_are_joined_once() -> None:
    def function(x: Any) -> Any:
        y = x * 1
        for i in range(4):
            y[i] = x[3 - i]
        first, second = y.chunk(2)
        second += 1
        return y, first

    program = mirage.kernel(function).trace(mirage.spec((4, 4), "float32"))
    text = str(program)
    # Each half, and the whole of the first half's rows and the second.
    assert text.count("= concat") == 3
    assert "slice concat" not in text


def test_changes_inside_of_another_kernel() -> None:
    @mirage.kernel
    def inner(x: Any) -> Any:
        x *= 2
        return x

    def outer(x: Any) -> Any:
        y = x + 1
        inner(y)
        return y

    x = torch.randn(4, 4)
    torch.testing.assert_close(mirage.kernel(outer)(x), (x + 1) * 2)
    with pytest.raises(TraceError, match="changes an argument"):
        inner(x)


def test_changes_of_numpy_arrays() -> None:
    def function(x: Any) -> Any:
        y = x * 1
        y[1:] -= 1
        np.add(y, x, out=y)
        return y

    x = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    np.testing.assert_allclose(mirage.kernel(function)(x), function(x), rtol=1e-6)
    with pytest.raises(TraceError, match="out="):
        mirage.kernel(lambda x: np.add(x, x, out=np.zeros((4, 4), np.float32)))(x)


COPIES_OF_NUMPY: list[Function] = [
    lambda x: +x,
    lambda x: np.positive(x),
    lambda x: x.flatten(),
    lambda x: np.roll(x, 0),
    lambda x: np.tile(x, 1),
    lambda x: copy(x),
    lambda x: x.astype("float32"),
]


@pytest.mark.parametrize("copied", COPIES_OF_NUMPY)
def test_copies_of_numpy_are_copies(copied: Function) -> None:
    def function(x: Any) -> Any:
        y = x * 1
        found = copied(y)
        y += 1
        found *= 3
        return y, found

    x = np.arange(8.0, dtype=np.float32).reshape(2, 4)
    for mine, right in zip(mirage.kernel(function)(x), function(x), strict=True):
        np.testing.assert_array_equal(mine, right)


@pytest.mark.parametrize("reverse", [np.flip, np.flipud, np.fliplr])
def test_reversed_arrays_of_numpy_are_views(reverse: Function) -> None:
    def read(x: Any) -> Any:
        y = x * 1
        turned = reverse(y)
        y += 1
        return turned

    def written(x: Any) -> Any:
        y = x * 1
        reverse(y)[0] = 1
        return y

    x = np.ones((2, 4), np.float32)
    for function in (read, written):
        with pytest.raises(TraceError, match="may share memory"):
            mirage.kernel(function)(x)
    assert (mirage.kernel(lambda x: reverse(x * 2))(x) == 2).all()


def test_floats_are_not_stored_in_integers() -> None:
    def add(x: Any, y: Any) -> Any:
        x += y
        return x

    def divide(x: Any, y: Any) -> Any:
        return x.div_(len(y))

    def store(x: Any, y: Any) -> Any:
        return torch.mul(x, y, out=x)

    x, y = torch.arange(4), torch.randn(4)
    changes = add, divide, store
    for at in range(len(changes)):
        with pytest.raises(RuntimeError, match="can't be cast"):
            changes[at](x.clone(), y)
        with pytest.raises(DTypeError, match="does not hold"):
            mirage.kernel(lambda x, y, n: changes[n](x * 1, y)).trace(x, y, at)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int16, torch.uint8])
def test_numbers_that_are_stored_in_integers(dtype: torch.dtype) -> None:
    def stored(x: Any, y: Any) -> Any:
        z = x * 1
        z[0] = 2.7
        z[1] = True
        z[2:, 1] = 5
        z[:, 2] = x[:, 0]
        z[3] = torch.tensor(3.9)
        w = torch.zeros_like(x)
        w[1] = y[2] * 9
        w[w > 3] = 100.5
        w[2:].fill_(7)
        u = F.pad(x, (1, 0), value=4)
        return z, w, u

    x, y = torch.arange(12).reshape(4, 3).to(dtype), torch.rand(4, 3)
    for mine, right in zip(mirage.kernel(stored)(x, y), stored(x, y), strict=True):
        assert mine.dtype == right.dtype
        assert torch.equal(mine, right)

    def beyond(x: Any, y: Any, number: Any) -> Any:
        z = x * 1
        z[0] = number
        return z, y

    info = torch.iinfo(dtype)
    for number in (info.max + 1, info.min - 1, float("inf"), 1e30):
        with pytest.raises(DTypeError, match="which holds"):
            mirage.kernel(beyond).trace(x, y, number)


def test_changes_where_extents_are_dynamic() -> None:
    def plain(x: Any) -> Any:
        y = x * 2
        flat = y.reshape(-1, 2)
        flat += 1
        y[:, :4] = 0
        y.add_(x)
        return y, flat

    plain.__annotations__["x"] = mirage.f32["m", 8]
    function = mirage.kernel(dynamic=["m"])(plain)
    for count in (3, 5):
        x = torch.randn(count, 8)
        for mine, right in zip(function(x), plain(x), strict=True):
            torch.testing.assert_close(mine, right)


FLOATS = """
acos_ acosh_ asin_ asinh_ atan_ atanh_ ceil_ cos_ cosh_ deg2rad_ expm1_ fix_ floor_
frac_ log10_ log1p_ log2_ rad2deg_ round_ sgn_ sign_ sin_ sinc_ sinh_ tan_ trunc_ tril_
triu_
"""
OF_TWO = "atan2_ copysign_ floor_divide_ fmod_ heaviside_ hypot_ remainder_ xlogy_"
OF_INTEGERS = "bitwise_and_ bitwise_or_ bitwise_xor_ fmod_ remainder_ bitwise_not_"


@pytest.mark.parametrize("name", [*FLOATS.split(), *OF_TWO.split()])
def test_elementary_functions_change_what_views_see(name: str) -> None:
    def function(x: Any, *others: Any) -> Any:
        y = x * 1
        view = y[1:]
        found = getattr(y, name)(*others)
        return y, view, found

    x = torch.rand(4, 3, generator=torch.Generator().manual_seed(2)) + 0.1
    x = x + 1 if name == "acosh_" else x * 0.8
    given = (x, x.flip(0)) if name in OF_TWO.split() else (x,)
    found = mirage.kernel(function)(*given)
    torch.testing.assert_close(found, function(*given))


@pytest.mark.parametrize("name", [*OF_INTEGERS.split(), "cumsum_", "cumprod_"])
def test_integers_change_in_place(name: str) -> None:
    others = {"bitwise_not_": (), "cumsum_": (1,), "cumprod_": (1,)}.get(name, (3,))

    def function(x: Any) -> Any:
        y = x * 1
        view = y.T
        getattr(y, name)(*others)
        return y, view

    x = torch.arange(12).reshape(3, 4) - 4
    for mine, right in zip(mirage.kernel(function)(x), function(x), strict=True):
        assert torch.equal(mine, right)


def test_functions_without_such_a_method_have_none() -> None:
    for name in ("positive_", "rint_", "fmax_", "logaddexp_", "special_expit_"):
        assert not hasattr(torch.ones(1), name)
        with pytest.raises(MirageError, match=name):
            mirage.kernel(lambda x, name=name: getattr(x * 1, name)(x))(torch.ones(3))


def test_a_long_loop_of_writes_is_traced_a_few_times() -> None:
    """Each write makes a slice that does not go with the ones before."""
    runs: list[int] = []

    def function(x: Any) -> Any:
        runs.append(1)
        changed = x * 1.5
        for i, element in enumerate(changed.reshape(-1).unbind(0)):
            element.mul_(i)
        return changed[1:]

    x = torch.randn(4, 12, dtype=torch.float64)
    kernel = mirage.kernel(function)
    found = kernel.reference(x)
    assert len(runs) < 20
    torch.testing.assert_close(found, function(x))


def beside_slices(x: Any) -> Any:
    y, high = x.clone(), x[..., 0, 0] > 0
    y[high, 1:3] = x[0, :2]
    y[high, 2] += 1
    y[high, -1, ::2] = x[high, 0, :2] * x[high, 1, 1:2]
    y[high, None, 0] = 5
    return y


def behind_slices(x: Any) -> Any:
    y, high = x.clone(), x[0] > 0.5
    y[:, high] = -torch.inf
    y[1:, high[0]] = x.sum()
    y[..., high[:, 1], 1] = 3
    y[1, None, high] = 4
    y[None, 0, 1:2, x[0, 0] < 0] = 6
    return y


@pytest.mark.parametrize("function", [beside_slices, behind_slices])
def test_masks_beside_slices(function: Any) -> None:
    x = torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(mirage.kernel(function)(x), function(x))


def test_rows_behind_slices_that_a_mask_selects_are_refused() -> None:
    def function(x: Any) -> Any:
        y = x.clone()
        y[:, x[0] > 0] = x[:, :1]
        return y

    with pytest.raises(UnsupportedError, match="use where"):
        mirage.kernel(function)(torch.ones(3, 4))
    with pytest.raises(ShapeError, match="a mask"):
        mirage.kernel(lambda x: x[:, :3][1:, x[0] > 0])(torch.ones(3, 4, 5))


def test_products_of_matrices_are_in_place_of_no_tensor() -> None:
    def function(x: Any) -> Any:
        y = other = x.clone()
        y @= torch.eye(4).flip(0)
        return y, other

    x = torch.randn(3, 4)
    torch.testing.assert_close(mirage.kernel(function)(x), function(x))


LAYOUTS = {
    "whole": torch.arange(24.0).reshape(4, 6),
    "with gaps": torch.arange(48.0).reshape(4, 12)[:, ::2],
    "of a part": torch.arange(35.0).reshape(5, 7)[1:, 1:],
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_copies_of_arguments_are_written_through_reshapes(name: str) -> None:
    """A copy has no gaps, so that a reshape of it is a view."""

    def function(x: Any) -> Any:
        y, z, w = x.clone(), x[:, 1:].clone() * 2, x.clone()
        y.reshape(-1)[:3] = 1
        z.flatten().add_(x[0, 1])
        w.contiguous()[0] = 5
        return y, z, w

    x = LAYOUTS[name]
    torch.testing.assert_close(mirage.kernel(function)(x), function(x))


def test_copies_of_transposed_arguments_are_in_doubt() -> None:
    def function(x: Any) -> Any:
        y = x.clone()
        y.reshape(-1)[:3] = 1
        return y

    with pytest.raises(TraceError, match="depends on strides"):
        mirage.kernel(function)(torch.ones(6, 4).T)

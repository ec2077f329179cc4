"""Rows of which nobody knows how many there are: masks, `nonzero`, routed experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import mirage_dsl as mirage
from mirage_dsl.backends.triton.running.launch import TritonExecutable
from mirage_dsl.core.errors import MirageError
from tests.end_to_end.tracing import traced

Function = Callable[..., Any]
EXPERTS, TOKENS, HIDDEN, TAKEN = 4, 6, 8, 2


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def of_expert(x: Any, up: Any, down: Any) -> Any:
    gate, other = F.linear(x, up).chunk(2, dim=-1)
    return F.linear(F.silu(gate) * other, down)


def by_hits(x: Any, chosen: Any, w: Any, up: Any, down: Any) -> Any:
    """As transformers routes: a loop over the experts that are hit."""
    found = torch.zeros_like(x)
    mask = F.one_hot(chosen, num_classes=EXPERTS + 1).permute(2, 1, 0)
    hit = torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero()
    for row in hit:
        expert = row[0]
        if expert == EXPERTS:
            continue
        place, token = torch.where(mask[expert])
        y = of_expert(x[token], up[expert], down[expert]) * w[token, place, None]
        found.index_add_(0, token, y.to(found.dtype))
    return found


def by_all(x: Any, chosen: Any, w: Any, up: Any, down: Any) -> Any:
    """A loop over all experts."""
    found = torch.zeros_like(x)
    for expert in range(EXPERTS):
        token, place = (chosen == expert).nonzero(as_tuple=True)
        y = of_expert(x[token], up[expert], down[expert])
        found.index_add_(0, token, w[token, place].unsqueeze(-1) * y)
    return found


def by_led_rows(x: Any, chosen: Any, w: Any, up: Any, down: Any) -> Any:
    """As Mixtral's code was, with an axis before the rows that goes away again."""
    found = torch.zeros_like(x)
    mask = F.one_hot(chosen, num_classes=EXPERTS + 1).permute(2, 1, 0)
    for expert in range(EXPERTS):
        place, token = torch.where(mask[expert])
        rows = x[None, token].reshape(-1, HIDDEN)
        y = of_expert(rows, up[expert], down[expert]) * w[token, place, None]
        found.index_add_(0, token, y.to(x.dtype))
    return found


def by_rows(x: Any, chosen: Any, w: Any, up: Any, down: Any) -> Any:
    """As DeepSeek's own code, rows are read, added to, and written."""
    found = torch.zeros_like(x)
    for expert in range(EXPERTS):
        token, place = torch.where(chosen == expert)
        y = of_expert(x[token], up[expert], down[expert])
        found[token] += y * w[token, place, None]
    return found


def at_the_last(x: Any, w: Any) -> Any:
    """Rows of several places, of which the last one counts, by either coordinate."""
    y, z = x * 1, x[:TAKEN] * 1
    token, place = torch.where(w > 0.3)
    y[token] = x[token] * w[token, place, None] + y[token]
    z[place] -= x[token].exp() * w[token, place].unsqueeze(-1)
    y[token] *= 2
    other, *_ = torch.where(w[:, :, None] > x[:, None, :3])
    y[other] = -1
    return y, z


def by_matrix(x: Any, chosen: Any, w: Any, up: Any, down: Any) -> Any:
    """The dense formula."""
    weight = (F.one_hot(chosen, EXPERTS + 1) * w[..., None]).sum(1)
    found = x * 0
    for expert in range(EXPERTS):
        y = of_expert(x, up[expert], down[expert])
        found = found + y * weight[:, expert, None]
    return found


def routed(x: Any, router: Any, up: Any, down: Any) -> Any:
    scores = (x @ router.T).softmax(-1)
    w, chosen = torch.topk(scores, TAKEN, dim=-1)
    w /= w.sum(dim=-1, keepdim=True)
    return by_hits(x, chosen, w, up, down)


def single(x: Any, mask: Any) -> Any:
    """What is computed row by row and stored by the same mask."""
    y = x * 1
    y[mask] = F.layer_norm(y[mask], (HIDDEN,)).softmax(-1)
    (rows,) = torch.where(mask)
    y[rows] += x[rows, :1].abs()
    y[rows] = y[rows] @ x[:, :HIDDEN].T[:, :1] + y[rows]
    return y


def changed(x: Any, mask: Any) -> Any:
    y, rows = x * 1, x[mask]
    same, left = rows, rows.chunk(2, -1)[0]
    same *= 2
    left += 1
    y[mask] = rows
    y[mask] -= 0.5
    return y


def written_twice(x: Any) -> Any:
    """One mask, computed where it is read and where it is stored by."""
    y = x * 1
    y[x > 0] = x[x > 0] * 2
    y[~(y < 1)] = x.flip(0)[~(y < 1)]
    y[y < 0] = y[y < 0].exp()
    return y


def of_a_later_mask(x: Any, _: Any) -> Any:
    y = x * 1
    y[y < 0] += 2
    y[y < 0] = x[x < 0]
    return y


X, W = normal(TOKENS, HIDDEN), normal(TOKENS, TAKEN, seed=1).abs()
UP, DOWN = normal(EXPERTS, 8, HIDDEN, seed=2), normal(EXPERTS, HIDDEN, 4, seed=3)
# Nobody takes expert 2.
CHOSEN = torch.tensor([[0, 1], [3, 0], [1, 3], [3, 1], [0, 3], [1, 0]])
ALL = [X, CHOSEN, W, UP, DOWN]
MASK = torch.tensor([True, False, True, True, False, False])
CASES: dict[str, tuple[Function, list[torch.Tensor]]] = {
    "experts that are hit": (by_hits, ALL),
    "beyond the last expert": (by_hits, [X, CHOSEN + 1, W, UP, DOWN]),
    "all experts": (by_all, ALL),
    "experts whose rows are written": (by_rows, ALL),
    "experts of rows behind an axis": (by_led_rows, ALL),
    "several places of a row": (at_the_last, [X, W]),
    "no place of any row": (at_the_last, [X, -W]),
    "a matrix of weights": (by_matrix, ALL),
    "routed": (routed, [X, normal(EXPERTS, HIDDEN, seed=5), UP, DOWN]),
    "by one mask": (single, [X, MASK]),
    "changed in place": (changed, [X, MASK]),
    "none": (single, [X, MASK & False]),
    "columns of places": (
        lambda x, m: x.index_add(0, m.nonzero()[:, 0], x[m] * 2),
        [X, MASK],
    ),
    "a flat list of places": (
        lambda x, m: x.index_add(0, m.nonzero().squeeze(-1), x[m].exp()),
        [X, MASK],
    ),
    "one hot": (lambda i: F.one_hot(i, 5), [CHOSEN]),
    "a mask that is written twice": (written_twice, [X]),
}


@pytest.mark.parametrize("name", CASES)
def test_as_pytorch(name: str) -> None:
    function, tensors = CASES[name]
    found, expected = mirage.kernel(function)(*tensors), function(*tensors)
    torch.testing.assert_close(found, expected)


@pytest.mark.sample(1)
@pytest.mark.parametrize("function", [by_hits, by_rows, single])
def test_it_is_searched(function: Function) -> None:
    tensors = [X, MASK] if function is single else ALL
    program = traced(function, tensors)
    best = mirage.superoptimize(
        program, effort="quick", budget_seconds=4, use_cache=False
    ).best
    assert best.certificate.ok
    found = TritonExecutable(best.mugraph, interpret=True)(*tensors)[0]
    torch.testing.assert_close(found, function(*tensors))


def looped(body: Callable[[Any, Any, Any], None], x: Any, m: Any) -> Any:
    y = x * 1
    for row in m.nonzero():
        body(x, y, row)
    return y


def doubled_below(x: Any, m: Any) -> Any:
    def body(x: Any, y: Any, row: Any) -> None:
        if row[0] > 1:
            y[row] = y[row] * 2
        local = x * 1
        local += 1
        y[int(row)] += local[0]

    return looped(body, x, m)


def test_iterations_that_do_not_happen_write_nothing() -> None:
    kernel = mirage.kernel(doubled_below)
    for mask in (MASK, ~MASK, MASK & False):
        torch.testing.assert_close(kernel(X, mask), doubled_below(X, mask))


# -- Refusals --------------------------------------------------------------------------


def counted(x: Any, m: Any) -> Any:
    count = 0
    for _ in m.nonzero():
        count += 1
    return x * count


def numbered(x: Any, m: Any) -> Any:
    y = x * 1
    for number, row in enumerate(m.nonzero()):
        y[row] += number
    return y


def summed(x: Any, m: Any) -> Any:
    total = x[0] * 0
    for row in m.nonzero():
        total = total + x[row[0]]
    return total


def listed(x: Any, m: Any) -> Any:
    return torch.stack([x[row[0]] for row in m.nonzero()])


def left(x: Any, m: Any) -> Any:
    y = x * 1
    for row in m.nonzero():
        if row[0] == 1:
            break
        y[row] += 1
    return y


def first_of(x: Any, m: Any) -> Any:
    for row in m.nonzero():
        return x[row[0]]
    return x[0]


def kept(x: Any, m: Any) -> Any:
    y = x * 1
    for row in [row for row in m.nonzero()]:  # noqa: C416
        y[row] += 1
    return y


def nested(x: Any, m: Any) -> Any:
    y = x * 1
    for row in m.nonzero():
        for other in m.nonzero():
            y[row[0]] += y[other[0]]
    return y


REFUSED: dict[str, tuple[Function, str]] = {
    "an axis before rows": (
        lambda x, m: x[None, torch.where(m)[0]] * 2,
        "nobody knows how many",
    ),
    "a function of an axis before rows": (
        lambda x, m: torch.relu(x[None, torch.where(m)[0]]),
        "nobody knows how many",
    ),
    "counting": (counted, "changes count, which is Python's own"),
    "numbering": (numbered, "changes number, which is Python's own"),
    "a sum of what may not be": (summed, "is used behind it"),
    "a list of what may not be": (listed, "is used behind it"),
    "break": (left, "was left before its end"),
    "return": (first_of, "was left before its end"),
    "a list of places": (kept, "outside of it"),
    "a loop in a loop": (nested, "a loop over nonzero() in another one"),
    "places as a result": (lambda _, m: m.nonzero(), "nobody knows how many there are"),
    "rows as a result": (lambda x, m: x[m], "nobody knows how many there are"),
    "how many": (lambda x, m: x[m].shape[0] * x, "nobody knows how many"),
    "the place of the largest": (lambda x, m: x[m].argmax(0), "nobody knows how many"),
    "a sum over rows, kept": (
        lambda x, m: x[m].sum(0, keepdim=True),
        "nobody knows how many",
    ),
    "rows joined": (lambda x, m: torch.cat([x[m], x]), "cat of the elements"),
    "rows of two masks": (lambda x, m: x.index_add(0, m.nonzero()[:, 0], x[~m]), ""),
    "rows of a mask before a change": (of_a_later_mask, "nobody knows how many"),
    "places that are moved": (
        lambda x, m: x[m.nonzero()[:, 0] + 1] * 2,
        "nobody knows how many",
    ),
    "beside as many rows": (lambda x, m: x[m] * x, "nobody knows how many"),
    "a number of classes": (lambda x, m: F.one_hot(m.long()) * x[0, 0], "num_classes="),
    "as long as there is": (
        lambda x, m: x if m.nonzero() else x * 2,
        "nobody knows how many",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_where(name: str) -> None:
    function, text = REFUSED[name]
    with pytest.raises(MirageError) as error:
        mirage.kernel(function)(X, MASK)
    assert text in str(error.value)
    assert error.value.location is not None


def exchanged(x: Any, i: Any) -> Any:
    y = x[:, :2] * 1
    token, place = torch.where(i == 1)
    y[place, token] = 2.0
    return y


def of_other_places(x: Any, i: Any) -> Any:
    y = x * 1
    token, _ = torch.where(i == 1)
    y[token] = x[torch.where(i == 2)[0]]
    return y


def of_many_places(x: Any, _: Any) -> Any:
    y = x * 1
    row, *_ = torch.where(x[:, :, None] > x.flatten()[:40])
    y[row] = 0.0
    return y


@pytest.mark.parametrize("function", [exchanged, of_other_places, of_many_places])
def test_writes_by_some_coordinates_are_refused(function: Function) -> None:
    with pytest.raises(MirageError, match=r"nobody knows|which is shorter"):
        mirage.kernel(function)(X, CHOSEN)


# -- What must not be accepted ---------------------------------------------------------


def of_next_expert(x: Any, chosen: Any, *others: Any) -> Any:
    return by_matrix(x, (chosen + 1) % EXPERTS, *others)


def by_other_weights(x: Any, chosen: Any, w: Any, *others: Any) -> Any:
    return by_matrix(x, chosen, w.flip(1), *others)


def by_one_choice(x: Any, chosen: Any, w: Any, *others: Any) -> Any:
    return by_matrix(x, chosen[:, :1].expand(TOKENS, TAKEN), w, *others)


def all_experts(x: Any, chosen: Any, w: Any, up: Any, down: Any) -> Any:
    found = by_matrix(x, chosen, w, up, down)
    return found + of_expert(x, up[0], down[0]) * w[:, :1]


def test_the_loop_is_the_dense_formula() -> None:
    program = traced(by_hits, ALL)
    assert mirage.verify(traced(by_matrix, ALL), program).equivalent


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "wrong", [of_next_expert, by_other_weights, by_one_choice, all_experts]
)
def test_other_experts_are_refused(wrong: Function) -> None:
    program = traced(by_hits, ALL)
    for seed in range(5):
        found = mirage.verify(traced(wrong, ALL), program, seed=seed, stability=False)
        assert not found.equivalent, seed

"""Losses of labels that are more than one for each row: sets of them, and sequences.

How many labels a row has is data.  A set is a mask, so that its loss is a formula; all
alignments of a sequence with steps are summed by PyTorch's kernel, of which a loss for
each sequence comes, and what is around it is searched.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mirage_dsl.core.errors import ShapeError
from mirage_dsl.frontend import functions as f
from mirage_dsl.frontend.arguments import is_sequence
from mirage_dsl.frontend.constructors import CONSTRUCTORS, positions
from mirage_dsl.frontend.functions import as_tensor, complement, named
from mirage_dsl.frontend.layers import of_rows
from mirage_dsl.frontend.program import Handle, vars_of
from mirage_dsl.frontend.recorder import integer
from mirage_dsl.frontend.tensor import Tensor
from mirage_dsl.frontend.torch_functions import cross_entropy
from mirage_dsl.ops.table import OPERATORS

# -- Sets ------------------------------------------------------------------------------


def multilabel_margin_loss(input: Any, target: Any, reduction: str = "mean") -> Any:
    """By how much other classes are not below each labelled one by a margin of 1.

    The labels of a row are those before the first one below 0.
    """
    x = as_tensor("multilabel_margin_loss", input)
    labels = as_tensor("multilabel_margin_loss", target)
    single = x.ndim < 2
    if x.ndim > 2 or tuple(x.shape) != tuple(labels.shape):
        raise ShapeError.here(
            f"multilabel_margin_loss of {tuple(x.shape)} with labels "
            f"{tuple(labels.shape)}; expected rows of classes, and labels of their "
            "shape, behind which others are -1"
        )
    x = f.reshape(x, -1, x.numel()) if single else x
    labels = f.reshape(labels, *x.shape)
    there = f.greater_equal(labels, 0)
    known = f.greater(f.cumprod(f.to(there, x), 1), 0)
    at = f.where(known, labels, 0)
    named = f.equal(f.expand_dims(at, 2), positions(x, 1))
    other = complement(f.max(f.bitwise_and(named, f.expand_dims(known, 2)), 1))
    own = f.expand_dims(f.take_along_dim(x, at, 1), 2)
    each = f.maximum(1 - own + f.expand_dims(x, 1), 0)
    counts = f.bitwise_and(f.expand_dims(known, 2), f.expand_dims(other, 1))
    found = f.sum(f.where(counts, each, 0.0), (1, 2)) / x.shape[1]
    return of_rows("multilabel_margin_loss", found, reduction, single=single)


# -- Sequences -------------------------------------------------------------------------


def ctc_loss(
    log_probs: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Any:
    """Minus the logarithm of the probability that steps give a sequence of labels.

    Args:
        log_probs: Logarithmic probabilities [steps, sequences, classes], or of one.
        targets: Labels [sequences, labels], or of all sequences one after the other.
        input_lengths: How many steps of each sequence count.
        target_lengths: How many labels.
        blank: The class that stands for none.
        reduction: PyTorch's; the mean is of losses over how many labels there are.
        zero_infinity: Whether a loss of too few steps is 0.
    """
    x, labels = as_tensor("ctc_loss", log_probs), as_tensor("ctc_loss", targets)
    f.require_float("ctc_loss", x)
    single = x.ndim == 2
    x = f.expand_dims(x, 1) if single else x
    free, classes = integer(blank, "blank"), x.shape[-1]
    if isinstance(classes, int) and not 0 <= free < classes:
        raise ShapeError.here(
            f"ctc_loss with blank={free} of {classes} classes; expected one of them"
        )
    given = _lengths(input_lengths), _lengths(target_lengths)
    numbers = {
        "blank": (free,),
        "infinite": (int(bool(zero_infinity)),),
    }
    found = _aligned((x, *(f.to(t, x) for t in (labels, *given))), numbers)
    if reduction == "mean":
        found = found / f.maximum(f.to(given[1], x), 1)
    return of_rows("ctc_loss", found, reduction, single=single)


def _lengths(given: Any) -> Any:
    """Lengths of sequences as a vector; Python's numbers become one."""
    if is_sequence(given):
        given = CONSTRUCTORS["tensor"](list(given))
    return f.reshape(as_tensor("ctc_loss", given), -1)


def _aligned(
    operands: tuple[Any, ...], numbers: Mapping[str, tuple[int, ...]]
) -> Tensor:
    """The loss of each sequence."""
    recorder = operands[0].recorder
    handles = [recorder.spread(x.handle) for x in operands]
    ranks = {"ranks": tuple(len(h.axes) for h in handles)}
    kept = {0: handles[0].axes[1]}
    made = recorder.library(OPERATORS["ctc_loss"], handles, {**ranks, **numbers}, kept)
    return Tensor.made(recorder, Handle(made.value, (vars_of(made.axes),)), operands)


# -- Of features -----------------------------------------------------------------------


def linear_cross_entropy(
    input: Any,
    linear_weight: Any,
    target: Any,
    *,
    linear_bias: Any = None,
    weight: Any = None,
    reduction: str = "mean",
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    options: Any = None,
) -> Any:
    """The cross entropy of classes of which a linear layer gives the logits."""
    del options
    classes, *others, features = linear_weight.shape
    logits = f.linear(
        input,
        f.reshape(linear_weight, -1, features),
        None if linear_bias is None else f.reshape(linear_bias, -1),
    )
    logits = f.reshape(logits, *input.shape[:-1], classes, *others)
    ignored = -100 if ignore_index is None else ignore_index
    return cross_entropy(logits, target, weight, ignored, reduction, label_smoothing)


LABELS = named(ctc_loss, linear_cross_entropy, multilabel_margin_loss)
"""By PyTorch's names."""

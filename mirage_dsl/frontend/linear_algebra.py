"""Inverses, determinants, solutions and factors of matrices.

PyTorch's kernels compute them, and what is before and behind them is searched.  Their
last two axes are of matrices, all before them of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from mirage_dsl.core.errors import ShapeError
from mirage_dsl.frontend import composites as c
from mirage_dsl.frontend import functions as f
from mirage_dsl.frontend.arguments import Function
from mirage_dsl.frontend.constructors import positions, tril
from mirage_dsl.frontend.drawn import unknown
from mirage_dsl.frontend.functions import as_tensor, formulas, named
from mirage_dsl.frontend.program import shape_text
from mirage_dsl.frontend.recorder import integer, normal_axes
from mirage_dsl.frontend.tensor import Tensor, refuse

# -- Library operators -----------------------------------------------------------------


def _matrices(what: str, x: Any, *, square: bool = False) -> Tensor:
    """The tensor, whose last two axes are of matrices.

    Raises:
        ShapeError: It has fewer axes, or its matrices are not square.
        DTypeError: It is of no dtype that PyTorch has such functions of.
    """
    x = _shaped(what, x, square=square)
    f.require_float(what, x)
    return x


def _shaped(what: str, x: Any, *, square: bool) -> Tensor:
    x = as_tensor(what, x)
    ends = x.handle.shape[-2:]
    if x.ndim < 2 or (square and None not in ends and ends[0] != ends[1]):
        raise ShapeError.here(
            f"{what} of {shape_text(x.handle)}; expected "
            f"{'square ' if square else ''}matrices as the last two axes"
        )
    return x


def _called(
    name: str, *operands: Tensor, columns: bool = False, **numbers: int | bool
) -> Tensor:
    """A library operator's result.

    Args:
        name: Of its row.
        operands: Batches of matrices, of as many each.
        columns: Whether the result's last axis is that of the last operand.
        numbers: Its attributes that are integers.
    """
    recorder = operands[0].recorder
    groups = slice(-2), slice(-2, -1), slice(-1, None)
    kept = {0: 0, 2: len(operands) - 1} if columns else {0: 0}
    handles = [x.handle for x in operands]
    made = recorder.library_by_groups(name, handles, groups, kept, numbers)
    return Tensor.made(recorder, made, None)


def _of_square(name: str) -> Callable[[Any], Any]:
    """A function of square matrices, which has a row of its own."""

    def function(A: Any) -> Any:  # noqa: N803
        return _called(name, _matrices(name, A, square=True))

    function.__name__ = name
    return function


# -- Inverses and determinants ---------------------------------------------------------

inv, det, matrix_exp = map(_of_square, ("inv", "det", "matrix_exp"))


class Slogdet(NamedTuple):
    """PyTorch's pair of a determinant's sign and the logarithm of its size."""

    sign: Any
    logabsdet: Any


def slogdet(A: Any) -> Slogdet:  # noqa: N803
    """The sign of determinants, and the logarithms of their sizes."""
    x = _matrices("slogdet", A, square=True)
    return Slogdet(_called("slogdet_sign", x), _called("slogdet", x))


def logdet(input: Any) -> Any:
    """The logarithms of determinants, NaN of negative ones."""
    sign, size = slogdet(input)
    return f.log(sign) + size


def pinv(
    A: Any,  # noqa: N803
    rcond: Any = None,
    *,
    atol: Any = None,
    rtol: Any = None,
    hermitian: bool = False,
) -> Any:
    """Pseudo-inverses, by singular values that are not too small."""
    x, rtol = _matrices("pinv", A, square=hermitian), rcond if rtol is None else rtol
    x = _symmetric(x) if hermitian else x
    left, values, right = svd(x, full_matrices=False)
    counts = f.greater(values, _limit(x, values, atol, rtol))
    inverse = f.where(counts, 1 / f.where(counts, values, 1.0), 0.0)
    scaled = f.swapaxes(right, -1, -2) * f.expand_dims(inverse, -2)
    return f.matmul(scaled, f.swapaxes(left, -1, -2))


def _symmetric(x: Tensor) -> Any:
    """The symmetric matrices of which the lower triangle is known."""
    return tril(x) + f.swapaxes(tril(x, -1), -1, -2)


def _limit(x: Tensor, values: Any, atol: Any, rtol: Any) -> Any:
    """Up to which size singular values are too small, as PyTorch's defaults are."""
    atol, rtol = (
        f.expand_dims(t, -1) if isinstance(t, Tensor) and t.ndim else t
        for t in (atol, rtol)
    )
    if rtol is None:
        most = max(int(extent) for extent in x.shape[-2:])
        rtol = most * x.handle.value.dtype.epsilon if atol is None else 0.0
    largest = f.max(values, -1, keepdims=True)
    return f.maximum(largest * rtol, 0.0 if atol is None else atol)


def matrix_power(A: Any, n: int) -> Any:  # noqa: N803
    """Products of so many times the same matrix, of its inverse if n is negative."""
    x: Any = _shaped("matrix_power", A, square=True)
    left = integer(n, "n")
    if left < 0:
        x, left = inv(x), -left
    found: Any = None
    while left:
        if left % 2:
            found = x if found is None else f.matmul(found, x)
        left //= 2
        x = f.matmul(x, x) if left else x
    return _one(x) if found is None else found.clone()


def _one(x: Tensor) -> Any:
    """The unit matrix as often as there are matrices."""
    places = (positions(x, axis) for axis in (-2, -1))
    return f.expand(f.to(f.equal(*places), x), *x.shape).clone()


# -- Solutions -------------------------------------------------------------------------


class _System(NamedTuple):
    """Matrices and right sides of as many batches, which may stand for vectors."""

    matrices: Tensor
    sides: Tensor
    vectors: bool

    def found(self, x: Tensor) -> Any:
        return f.squeeze(x, -1) if self.vectors else x


def _system(what: str, a: Any, b: Any, *, vectors: bool) -> _System:
    """A system of equations.

    Args:
        what: What solves it.
        a: Matrices.
        b: Right sides; a vector for each matrix where it has their shape without one
            axis, if `vectors`.
        vectors: See there.
    """
    a, b = _matrices(what, a), as_tensor(what, b)
    shape = tuple(a.shape)
    single = vectors and (b.ndim == 1 or tuple(b.shape) == shape[:-1])
    b = _matrices(what, f.expand_dims(b, -1) if single else b)
    f.require_one_dtype(what, a, b)
    return _System(*_as_many(what, a, b), single)


def _as_many(what: str, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The same, expanded to as many matrices each."""
    leads = tuple(a.shape)[:-2], tuple(b.shape)[:-2]
    if leads[0] == leads[1]:
        return a, b
    try:
        lead = np.broadcast_shapes(*leads)
    except ValueError:
        raise ShapeError.here(
            f"{what} of {shape_text(a.handle)} and {shape_text(b.handle)}, whose axes "
            "before the last two do not broadcast"
        ) from None
    return (
        f.expand(a, *lead, *tuple(a.shape)[-2:]),
        f.expand(b, *lead, *tuple(b.shape)[-2:]),
    )


def solve(A: Any, B: Any, *, left: bool = True) -> Any:  # noqa: N803
    """The X of A X = B, or of X A = B if `left` is False."""
    if not left:
        return f.swapaxes(solve(f.swapaxes(A, -1, -2), f.swapaxes(B, -1, -2)), -1, -2)
    system = _system("solve", A, B, vectors=True)
    _matrices("solve", system.matrices, square=True)
    return system.found(_called("solve", system.matrices, system.sides, columns=True))


def solve_triangular(
    A: Any,  # noqa: N803
    B: Any,  # noqa: N803
    *,
    upper: bool,
    left: bool = True,
    unitriangular: bool = False,
) -> Any:
    """The same for a triangle of A, by substitution."""
    system = _system("solve_triangular", A, B, vectors=False)
    numbers = {"upper": upper, "left": left, "ones": unitriangular}
    operands = system.matrices, system.sides
    return _called("solve_triangular", *operands, columns=True, **numbers)


class Triangular(NamedTuple):
    """PyTorch's pair of a solution and the triangle."""

    solution: Any
    cloned_coefficient: Any


def _triangular_solve(
    input: Any,
    A: Any,  # noqa: N803
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> Triangular:
    """The same by the name and the arguments that PyTorch had before."""
    matrix = f.swapaxes(A, -1, -2) if transpose else A
    turned = upper != transpose
    found = solve_triangular(matrix, input, upper=turned, unitriangular=unitriangular)
    return Triangular(found, A.with_unknown_strides())


def cholesky_solve(input: Any, L: Any, upper: bool = False) -> Any:  # noqa: N803
    """The X of A X = B, of which the right sides come first, by the factor L of A."""
    other = f.swapaxes(L, -1, -2)
    lower, higher = (other, L) if upper else (L, other)
    half = solve_triangular(lower, input, upper=False)
    return solve_triangular(higher, half, upper=True)


def cholesky_inverse(L: Any, upper: bool = False) -> Any:  # noqa: N803
    """The inverse of the matrix of which L is a factor."""
    x = _matrices("cholesky_inverse", L, square=True)
    return cholesky_solve(_one(x), x, upper)


class LeastSquares(NamedTuple):
    """PyTorch's solutions, and what depends on how they were found."""

    solution: Any
    residuals: Any
    rank: Any
    singular_values: Any


def lstsq(
    A: Any,  # noqa: N803
    B: Any,  # noqa: N803
    rcond: Any = None,
    *,
    driver: Any = None,
) -> LeastSquares:
    """The X for which the squares of A X - B are least.

    Raises:
        UnsupportedError: A limit for small singular values is given.
    """
    if driver not in (None, "gels", "gelsy", "gelsd", "gelss"):
        refuse(f"lstsq with driver={driver!r}", "expected None or 'gels'")
    if rcond is not None:
        refuse(
            "lstsq with rcond, which PyTorch has on the CPU alone,",
            "use linalg.pinv(A, rtol=rcond) @ B",
        )
    system = _system("lstsq", A, B, vectors=True)
    found = _called("lstsq", system.matrices, system.sides, columns=True)
    return LeastSquares(
        system.found(found),
        unknown("residuals of lstsq", "take (A @ X - B).square().sum(-2)"),
        unknown("rank of lstsq", "take linalg.matrix_rank(A)"),
        unknown("singular_values of lstsq", "take linalg.svdvals(A)"),
    )


# -- Factors ---------------------------------------------------------------------------


def cholesky(A: Any, upper: bool = False) -> Any:  # noqa: N803
    """The triangular factor of positive definite matrices."""
    x = _matrices("cholesky", A, square=True)
    return _called("cholesky", x, upper=upper)


class QR(NamedTuple):
    """PyTorch's pair of an orthogonal and a triangular factor."""

    Q: Any
    R: Any


def qr(A: Any, mode: str = "reduced") -> QR:  # noqa: N803
    """An orthogonal and a triangular factor.

    Raises:
        UnsupportedError: The mode has another name.
    """
    if mode not in ("reduced", "complete"):
        refuse(f"qr with mode={mode!r}", "take R of 'reduced' or 'complete'")
    x, whole = _matrices("qr", A), mode == "complete"
    return QR(_called("qr_q", x, whole=whole), _called("qr_r", x, whole=whole))


def _qr(input: Any, some: bool = True) -> QR:
    """The same by the name and the argument that PyTorch had before."""
    return qr(input, "reduced" if some else "complete")


class LU(NamedTuple):
    """PyTorch's rows in another order, and both triangular factors."""

    P: Any
    L: Any
    U: Any


def lu(A: Any, *, pivot: bool = True) -> LU:  # noqa: N803
    """Triangular factors, by rows in the order of their largest elements."""
    x = _matrices("lu", A)
    return LU(*(_called(name, x, pivot=pivot) for name in ("lu_p", "lu_l", "lu_u")))


class SVD(NamedTuple):
    """PyTorch's singular vectors and values."""

    U: Any
    S: Any
    Vh: Any


def svd(
    A: Any,  # noqa: N803
    full_matrices: bool = True,
    *,
    driver: Any = None,
) -> SVD:
    """Singular values, and vectors on either side."""
    del driver
    x = _matrices("svd", A)
    names = ("svd_u", "svd_s", "svd_v")
    return SVD(*(_called(name, x, whole=full_matrices) for name in names))


class SingularValues(NamedTuple):
    """PyTorch's older triple, in which the vectors of both sides are columns."""

    U: Any
    S: Any
    V: Any


def _svd(input: Any, some: bool = True, compute_uv: bool = True) -> SingularValues:
    """The same by the name and the arguments that PyTorch had before."""
    if not compute_uv:
        refuse("svd with compute_uv=False", "use linalg.svdvals")
    left, values, right = svd(input, not some)
    return SingularValues(left, values, f.swapaxes(right, -1, -2))


def svdvals(A: Any, *, driver: Any = None) -> Any:  # noqa: N803
    """Singular values, the largest first."""
    del driver
    return _called("svdvals", _matrices("svdvals", A))


class Eigen(NamedTuple):
    """PyTorch's pair of eigenvalues and eigenvectors."""

    eigenvalues: Any
    eigenvectors: Any


def eigh(A: Any, UPLO: str = "L") -> Eigen:  # noqa: N803
    """Eigenvalues and eigenvectors of symmetric matrices, of one triangle."""
    x, upper = _matrices("eigh", A, square=True), _is_upper(UPLO)
    return Eigen(
        _called("eigh", x, upper=upper), _called("eigh_vectors", x, upper=upper)
    )


def eigvalsh(A: Any, UPLO: str = "L") -> Any:  # noqa: N803
    """The eigenvalues of the same."""
    x = _matrices("eigvalsh", A, square=True)
    return _called("eigvalsh", x, upper=_is_upper(UPLO))


def _is_upper(triangle: str) -> bool:
    """Whether a triangle is the upper one, by its letter."""
    if triangle.upper() not in ("L", "U"):
        refuse(f"the triangle {triangle!r} of a matrix", "expected 'L' or 'U'")
    return triangle.upper() == "U"


# -- Of several axes -------------------------------------------------------------------


def tensorinv(A: Any, ind: int = 2) -> Any:  # noqa: N803
    """The inverse of what maps the axes from one on to those before it."""
    x, count = as_tensor("tensorinv", A), integer(ind, "ind")
    rows, columns = tuple(x.shape)[:count], tuple(x.shape)[count:]
    found = inv(f.reshape(x, math.prod(rows), -1))
    return f.reshape(found, *columns, *rows)


def tensorsolve(A: Any, B: Any, dims: Any = None) -> Any:  # noqa: N803
    """The X for which the sum of A X over all axes of X is B."""
    x, right = as_tensor("tensorsolve", A), as_tensor("tensorsolve", B)
    if dims is not None:
        moved = normal_axes(tuple(dims), x.ndim, "tensorsolve")
        kept = [at for at in range(x.ndim) if at not in moved]
        x = f.permute(x, [*kept, *moved])
    columns = tuple(x.shape)[right.ndim :]
    matrix = f.reshape(x, right.numel(), math.prod(columns))
    return f.reshape(solve(matrix, f.reshape(right, -1)), *columns)


# -- Of singular values ----------------------------------------------------------------


def matrix_rank(
    A: Any,  # noqa: N803
    tol: Any = None,
    hermitian: bool = False,
    *,
    atol: Any = None,
    rtol: Any = None,
) -> Any:
    """How many singular values are above a limit, which `tol` says alone."""
    if tol is not None:
        atol, rtol = tol, 0.0
    x = _matrices("matrix_rank", A, square=hermitian)
    x = _symmetric(x) if hermitian else x
    values = svdvals(x)
    return f.sum(f.greater(values, _limit(x, values, atol, rtol)), -1)


def cond(A: Any, p: Any = None) -> Any:  # noqa: N803
    """By how much a solution is less exact than the right side, in some norm."""
    if p in (None, 2, -2):
        values = svdvals(A)
        ends = values[..., 0], values[..., -1]
        return ends[1] / ends[0] if p == -2 else ends[0] / ends[1]
    norms = (norm_of("cond", x, p, (-2, -1), False) for x in (A, inv(A)))
    return f.mul(*norms)


_OF_VALUES: Mapping[Any, Callable[..., Any]] = {2: f.max, -2: f.min, "nuc": f.sum}
"""What a norm makes of singular values, by its order."""


def norm_of(what: str, x: Any, order: Any, axis: Any, keepdims: bool) -> Any:
    """A norm of vectors, or of matrices where there are two axes and an order.

    Args:
        what: What it is called in an error.
        x: The tensor.
        order: In PyTorch's and NumPy's terms; None is Euclidean.
        axis: One axis, two, or None for all.
        keepdims: Leave the axes there, with extent 1.

    Raises:
        UnsupportedError: It is a norm of matrices of another order.
    """
    axes = normal_axes(axis, x.ndim, what)
    if order is None or (order == "fro" and len(axes) == 2):
        return c.norm(x, axes, keepdims)
    if len(axes) == 1 and not isinstance(order, str):
        return c.vector_norm(x, order, axes, keepdims)
    if len(axes) == 2 and order in _OF_VALUES:
        rest = [at for at in range(x.ndim) if at not in axes]
        values = svdvals(f.permute(x, [*rest, *axes]))
        found = _OF_VALUES[order](values, -1)
        return f.expand_dims(found, axes) if keepdims else found
    if len(axes) != 2 or order not in (1, -1, math.inf, -math.inf):
        refuse(f"{what} of order {order}", "use the Euclidean norm, of no stated order")
    inner, outer = axes if order in (1, -1) else axes[::-1]
    sums = f.sum(f.abs(x), inner, keepdims=True)
    found = (f.max if order in (1, math.inf) else f.min)(sums, outer, keepdims=True)
    return found if keepdims else f.squeeze(found, axes)


def norm_named(what: str, order: Any = None, axes: Any = None) -> Function:
    """A library's function of that name, with its own order and axes by default."""

    def norm(
        x: Any,
        ord: Any = order,
        dim: Any = axes,
        keepdim: bool = False,
        *,
        dtype: Any = None,
    ) -> Any:
        x = x if dtype is None else f.to(x, dtype)
        return norm_of(what, x, ord, dim, keepdim)

    return norm


# -- Names -----------------------------------------------------------------------------

_SHARED = named(
    *(cholesky, cond, det, eigh, eigvalsh, inv, matrix_power, pinv),
    *(qr, slogdet, svd, svdvals),
)
"""By the names that `torch.linalg` and `np.linalg` share."""
_OF_LINALG: Mapping[str, Function] = {
    **_SHARED,
    **named(lstsq, lu, matrix_exp, matrix_rank, solve, solve_triangular),
    **named(tensorinv, tensorsolve),
    "matrix_norm": norm_named("torch.linalg.matrix_norm", "fro", (-2, -1)),
    "norm": norm_named("torch.linalg.norm"),
    "vector_norm": c.vector_norm,
}
"""By the names that `torch.linalg` has."""

LINEAR_ALGEBRA: Mapping[str, Function] = {
    **{f"linalg_{name}": function for name, function in _OF_LINALG.items()},
    **named(cholesky, cholesky_inverse, cholesky_solve, det, logdet),
    **named(matrix_exp, matrix_power, slogdet),
    "inverse": inv,
    **formulas(pinverse=lambda input, rcond=1e-15: pinv(input, rcond)),
    "qr": _qr,
    "svd": _svd,
    "triangular_solve": _triangular_solve,
}
"""By PyTorch's names."""


def _numpy_solve(a: Any, b: Any) -> Any:
    """NumPy's: right sides are a vector only where they have a single axis."""
    while 1 < b.ndim < a.ndim:
        b = f.expand_dims(b, 0)
    return solve(a, b)


NUMPYS_LINEAR_ALGEBRA: Mapping[str, Function] = {**_SHARED, "solve": _numpy_solve}
"""By NumPy's names."""

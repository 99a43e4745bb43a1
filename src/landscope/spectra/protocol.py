"""Anything with `shape` and `@`, seen as one thing: a counted, checked product in torch.

Landscope's own operators, dense torch tensors, NumPy arrays, SciPy sparse matrices and
`scipy.sparse.linalg.LinearOperator` all pass through `as_operator`. Torch objects are multiplied where they live and in
their own precision; everything else is multiplied as NumPy float64 on the CPU.
"""

from __future__ import annotations

import operator
from contextlib import AbstractContextManager
from typing import NoReturn, Protocol

import numpy as np
import torch
from torch import Tensor

from landscope.core.errors import NonFiniteProductError, NotApplicableError, OperandError
from landscope.core.parameters import Vectors
from landscope.core.shared_state import plain_arithmetic

DEFAULT_BUDGET = 1000
"""Products that `max_matvecs=None` allows."""

ROUNDING_IN_EPS = 10.0
"""Relative rounding error of one product, in units of eps, where the operator does not state its own."""


class MatrixLike(Protocol):
    """What spectra needs of a symmetric matrix: `shape` and `@` with a vector (P,) and a block (P, k)."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(P, P)."""
        ...

    # Torch, NumPy and SciPy agree on `@` but not on types; a parameter that nothing fits is one that all accept.
    def __matmul__(self, other: NoReturn, /) -> object:
        """Multiply a vector or a block."""
        ...


class CountedOperator:
    """A symmetric matrix whose products are counted and checked; rows of a block are its vectors.

    `vectors` says how long vectors are and what of them lies here, `rounding` is the relative error of one product:
    ‖computed A x − A x‖ ≤ rounding · ‖A‖ ‖x‖. An operator that measures its own may state more after a product than before.
    """

    def __init__(
        self, matrix: MatrixLike, vectors: Vectors, dtype: torch.dtype, device: torch.device, rounding: float
    ) -> None:
        self.vectors = vectors
        self.dtype = dtype
        self.device = device
        self._rounding = rounding
        self.matvecs = 0
        self._matrix = matrix
        self._torch = isinstance(getattr(matrix, "dtype", None), torch.dtype)

    @property
    def size(self) -> int:
        """P."""
        return self.vectors.size

    @property
    def narrow(self) -> bool:
        """Whether vectors are in half precision, which only a recurrence of three of them bears."""
        return self.dtype == torch.bfloat16

    def refuse_narrow(self, what: str) -> None:
        """Raise where vectors are in half precision."""
        if self.narrow:
            raise NotApplicableError(
                f"{what} takes more than vectors in bfloat16 can bear, in which this matrix is held: measure with "
                f"dtype=torch.float32, which takes twice the memory."
            )

    @property
    def rounding(self) -> float:
        """The relative error of one product, as the matrix states it by now."""
        return float(getattr(self._matrix, "rounding", self._rounding))

    def empty(self, *rows: int) -> Tensor:
        """Room for vectors (…, length)."""
        return torch.empty((*rows, self.vectors.length), dtype=self.dtype, device=self.device)

    def dot(self, a: Tensor, b: Tensor) -> Tensor:
        """Inner products of rows with rows, (…, j, length) and (…, k, length) → (…, j, k)."""
        return self.vectors.add_up(a @ b.mT)

    def rows(self, block: Tensor) -> Tensor:
        """Apply A to every row of `block` (b, P); b products.

        Vectors are rows because each must be contiguous to be stored, projected and appended cheaply.
        """
        count = block.shape[0]
        columns = block[0] if count == 1 else block.T
        product = operator.matmul(self._matrix, columns if self._torch else columns.numpy())
        self.matvecs += count
        result = product if isinstance(product, Tensor) else torch.from_numpy(np.asarray(product, dtype=np.float64))
        if result.numel() != block.numel():
            raise OperandError(
                f"the product of the operator with {tuple(columns.shape)} has shape {tuple(result.shape)}; "
                "expected the operand's own shape"
            )
        result = result.detach().reshape(columns.shape)
        if not self.vectors.finite(result):
            raise NonFiniteProductError(
                f"product {self.matvecs} of the operator is not finite. Look for NaN or infinity in the weights and "
                "the loss, or use a wider dtype if the numbers overflow"
            )
        result = result.unsqueeze(0) if count == 1 else result.T
        return result.to(device=self.device, dtype=self.dtype)


def as_operator(matrix: MatrixLike) -> CountedOperator:
    """Wrap `matrix`, with a fresh count.

    >>> A = as_operator(np.diag([3.0, 1.0]))
    >>> A.rows(torch.ones(1, 2, dtype=torch.float64)), A.matvecs
    (tensor([[3., 1.]], dtype=torch.float64), 1)
    >>> as_operator(np.ones((2, 3)))
    Traceback (most recent call last):
    landscope.core.errors.OperandError: expected a square matrix or operator with at least one row, got shape (2, 3)
    """
    shape = tuple(int(n) for n in matrix.shape)
    if len(shape) != 2 or shape[0] != shape[1] or shape[0] < 1:
        raise OperandError(f"expected a square matrix or operator with at least one row, got shape {shape}")
    own = getattr(matrix, "dtype", None)
    if isinstance(own, torch.dtype):
        dtype, device = own, torch.device(getattr(matrix, "device", "cpu"))
        stated = dtype == torch.bfloat16 and hasattr(matrix, "rounding")
        if dtype not in (torch.float32, torch.float64) and not stated:
            raise OperandError(f"expected an operator in float32 or float64, got {dtype}; convert it first")
        eps = torch.finfo(dtype).eps
    else:
        dtype, device = torch.float64, torch.device("cpu")
        numpy_dtype = np.dtype(own if own is not None else np.float64)
        if numpy_dtype.kind not in "fiub":
            raise OperandError(f"expected a real symmetric matrix, got dtype {numpy_dtype}")
        eps = float(np.finfo(numpy_dtype if numpy_dtype.kind == "f" else np.float64).eps)
    vectors = getattr(matrix, "vectors", None) or Vectors(shape[0])
    return CountedOperator(matrix, vectors, dtype, device, ROUNDING_IN_EPS * eps)


def plainly(matrix: MatrixLike) -> AbstractContextManager[None]:
    """Inside, products with `matrix` and what is made of them keep its precision, whatever the caller has switched on."""
    device = getattr(matrix, "device", None)
    return plain_arithmetic(device if isinstance(device, torch.device) else torch.device("cpu"))


def check_budget(max_matvecs: int | None) -> int:
    """Return the number of products that `max_matvecs` allows."""
    budget = DEFAULT_BUDGET if max_matvecs is None else int(max_matvecs)
    if budget < 1:
        raise ValueError(f"max_matvecs must be at least 1, got {max_matvecs}")
    return budget

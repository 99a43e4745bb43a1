"""The contract between curvature and spectra: a symmetric matrix that is known through its products."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

__all__ = ["Operator"]


@runtime_checkable
class Operator(Protocol):
    """A symmetric matrix known through products with a vector (P,) or with a block of vectors (P, k)."""

    @property
    def shape(self) -> tuple[int, int]:
        """(P, P)."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """The type of the numbers in its products."""
        ...

    @property
    def device(self) -> torch.device:
        """Where its products live."""
        ...

    def __matmul__(self, other: Tensor) -> Tensor:
        """The product with a vector or a block."""
        ...

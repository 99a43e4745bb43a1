"""Matrices with prescribed spectra."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]


class DiagonalOperator:
    """A torch operator that is cheap to multiply: sphere probes see the eigenvalues only, so it stands for all."""

    def __init__(self, eigenvalues: Array, dtype: torch.dtype = torch.float64) -> None:
        self.eigenvalues = torch.as_tensor(eigenvalues, dtype=dtype)
        self.shape = (len(eigenvalues),) * 2
        self.dtype = dtype
        self.device = torch.device("cpu")
        self.products = 0

    def __matmul__(self, other: Tensor) -> Tensor:
        self.products += 1 if other.ndim == 1 else other.shape[1]
        return self.eigenvalues * other if other.ndim == 1 else self.eigenvalues[:, None] * other


def prescribed(name: str, size: int) -> Array:
    """Eigenvalues by name."""
    i, rng = np.arange(1.0, size + 1), np.random.default_rng(7)
    if name.startswith("power"):
        return i ** -float(name.removeprefix("power"))
    if name.startswith("geometric"):
        return float(name.removeprefix("geometric")) ** i
    square = rng.normal(size=(size, size))
    return {
        "flat": rng.uniform(0.5, 1.5, size),
        "outliers": np.r_[50, 30, 20, 10, 5, rng.uniform(0, 0.1, size - 5)],
        "two-sided": np.r_[40, -20, 15, -10, 8, -5, 0.3 * rng.normal(size=size - 6)],
        "cancelling": np.r_[i[: size // 2] ** -0.5, -(i[: size - size // 2] ** -0.5)] + 0.01 * rng.normal(size=size),
        "indefinite": rng.normal(size=size),
        "low rank": np.r_[9, 7, 5, 3, 1, np.zeros(size - 5)],
        "near identity": 1 + 1e-3 * rng.normal(size=size),
        "wishart": np.linalg.eigvalsh(square @ square.T / size),
        "lognormal": np.exp(2 * rng.normal(size=size)),
        "zero": np.zeros(size),
        "identity": np.ones(size),
        "rank one": np.r_[3.0, np.zeros(size - 1)],
        "uniform": np.linspace(0, 1, size),
        "conditioned": np.logspace(12, 0, size),
        "negative dominant": np.r_[-9, -8, np.linspace(-1, 1, size - 2)],
        "cluster": np.r_[5 + 1e-5 * np.arange(5), 4, 4, 3, np.linspace(0, 1, size - 8)],
    }[name]


def rotated(eigenvalues: Array, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """A dense symmetric matrix with these eigenvalues."""
    rng = torch.Generator().manual_seed(seed)
    size = len(eigenvalues)
    basis, _ = torch.linalg.qr(torch.randn((size, size), generator=rng, dtype=torch.float64))
    return ((basis * torch.as_tensor(eigenvalues, dtype=torch.float64)) @ basis.T).to(dtype)


@pytest.fixture(scope="session")
def diagonal_operator() -> type[DiagonalOperator]:
    return DiagonalOperator


@pytest.fixture(scope="session")
def eigenvalues_of() -> Callable[[str, int], Array]:
    return prescribed


@pytest.fixture(scope="session")
def matrix_with() -> Callable[..., Tensor]:
    return rotated

"""Linear CKA against the kernel definition, its invariances, its bias and its error bar."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from landscope.core.errors import DataError, OperandError
from landscope.measures.consistency import linear_cka


def features(n: int, *widths: int, seed: int = 0, noise: float = 1.0) -> list[Tensor]:
    """Different views of the same four hidden numbers."""
    rng, fixed = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(77)
    hidden = torch.randn(n, 4, generator=rng).double()
    return [
        hidden @ torch.randn(4, d, generator=fixed).double() + noise * torch.randn(n, d, generator=rng) for d in widths
    ]


def centred_kernel(x: Tensor) -> np.ndarray:
    k = (x @ x.T).numpy()
    h = np.eye(len(k)) - 1 / len(k)
    return h @ k @ h


def unbiased(k: np.ndarray, ell: np.ndarray) -> float:
    """The unbiased HSIC as Song et al. write it, from kernels without their diagonals."""
    n = len(k)
    k, ell = k - np.diag(np.diag(k)), ell - np.diag(np.diag(ell))
    one = np.ones(n)
    total = (
        np.trace(k @ ell)
        + (one @ k @ one) * (one @ ell @ one) / ((n - 1) * (n - 2))
        - 2 / (n - 2) * one @ k @ ell @ one
    )
    return total / (n * (n - 3))


@pytest.mark.parametrize(("n", "widths"), [(40, (3, 5)), (12, (30, 50)), (20, (3, 200))])
def test_is_the_kernel_definition(n: int, widths: tuple[int, ...]) -> None:
    x, y = features(n, *widths)
    k, ell = centred_kernel(x), centred_kernel(y)
    biased = (k * ell).sum() / math.sqrt((k * k).sum() * (ell * ell).sum())
    assert linear_cka([x, y]).mean == pytest.approx(biased, rel=1e-10)
    k, ell = (x @ x.T).numpy(), (y @ y.T).numpy()
    debiased = unbiased(k, ell) / math.sqrt(unbiased(k, k) * unbiased(ell, ell))
    assert linear_cka([x, y], debiased=True).mean == pytest.approx(debiased, rel=1e-9)


@pytest.mark.parametrize("debiased", [False, True])
def test_rotations_scales_and_shifts_change_nothing(debiased: bool) -> None:
    x, y = features(50, 4, 6)
    rotation = torch.linalg.qr(torch.randn(4, 4, generator=torch.Generator().manual_seed(1)).double())[0]
    before = linear_cka([x, y], debiased=debiased)
    after = linear_cka([7 * x @ rotation + 100, y - 3], debiased=debiased)
    assert after.mean == pytest.approx(before.mean, rel=1e-9)
    assert after.data_stderr == pytest.approx(before.data_stderr, rel=1e-7)
    assert linear_cka([x, x @ rotation], debiased=debiased).mean == pytest.approx(1)
    assert linear_cka([x, x @ rotation], debiased=debiased).data_stderr == pytest.approx(0, abs=1e-12)


def test_unrelated_wide_features_look_alike_unless_debiased() -> None:
    rng = torch.Generator().manual_seed(0)
    pairs = [[torch.randn(20, 100, generator=rng) for _ in range(2)] for _ in range(30)]
    assert np.mean([linear_cka(pair).mean for pair in pairs]) > 0.7
    assert abs(np.mean([linear_cka(pair, debiased=True).mean for pair in pairs])) < 0.05


@pytest.mark.parametrize("debiased", [False, True])
@pytest.mark.parametrize(("n", "widths"), [(200, (5, 8)), (60, (30, 40))])
def test_the_error_over_data_is_the_spread_over_data_sets(debiased: bool, n: int, widths: tuple[int, ...]) -> None:
    found = [linear_cka(features(n, *widths, seed=seed), debiased=debiased) for seed in range(100)]
    spread = np.std([one.mean for one in found], ddof=1)
    stated = np.sqrt(np.mean([one.data_stderr**2 for one in found]))
    assert 0.75 < stated / spread < 1.35


def test_pools_of_different_widths() -> None:
    pool = linear_cka(features(60, 3, 5, 8))
    assert pool.matrix.shape == (3, 3)
    np.testing.assert_allclose(np.diag(pool.matrix), 1)
    assert pool.mean == pytest.approx(pool.matrix[np.triu_indices(3, 1)].mean())
    assert pool.stderr is not None


def test_images_of_features_are_flattened() -> None:
    x = torch.randn(10, 2, 3, 3, generator=torch.Generator().manual_seed(0))
    y = features(10, 4)[0]
    assert linear_cka([x, y]).mean == linear_cka([x.flatten(1), y.numpy()]).mean


def test_refusals() -> None:
    x, y = features(10, 3, 3)
    with pytest.raises(OperandError, match="at least two"):
        linear_cka([x])
    with pytest.raises(OperandError, match="same n"):
        linear_cka([x, y[:5]])
    with pytest.raises(OperandError, match="n ≥ 4"):
        linear_cka([x[:3], y[:3]], debiased=True)
    with pytest.raises(DataError, match="model 1 vary over these 10 samples no more than by chance"):
        linear_cka([x, torch.ones(10, 3)])
    with pytest.raises(DataError, match="NaN"):
        linear_cka([x, y * math.nan])

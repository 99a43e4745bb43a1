"""Vectors too long for a basis: the same eigenvalues and densities with three of them."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from landscope.core.seeding import generator, normal
from landscope.spectra import eigen, eigsh, long_pairs, quadrature, spectrum, trace

trace_module = sys.modules["landscope.spectra.trace"]  # the function of that name hides it
SPECTRA = {
    "decay": 1 / torch.arange(1, 401, dtype=torch.float64) ** 1.5,
    "one outlier on a bulk": torch.cat([torch.linspace(-2, 2, 399, dtype=torch.float64), torch.tensor([3.0])]),
    "negative": -torch.cat([torch.linspace(0, 1, 399, dtype=torch.float64), torch.tensor([5.0])]),
    "double": torch.cat([torch.tensor([5.0, 5.0]), torch.linspace(0, 1, 398, dtype=torch.float64)]),
}


@pytest.fixture(autouse=True)
def _everything_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eigen, "LONG_PAIR", 10)
    for module in (quadrature, trace_module):
        monkeypatch.setattr(module, "LONG", 10)


def rotated(values: Tensor, dtype: torch.dtype) -> Tensor:
    q, _ = torch.linalg.qr(
        torch.randn(len(values), len(values), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    )
    return ((q * values) @ q.T).to(dtype)


@pytest.mark.parametrize("values", SPECTRA.values(), ids=SPECTRA)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("which", "end"), [("LA", torch.max), ("SA", torch.min)])
@pytest.mark.parametrize("kept", [True, False])
def test_the_bound_holds(
    values: Tensor, dtype: torch.dtype, which: str, end: object, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not kept:
        monkeypatch.setattr(long_pairs.Basis, "place", staticmethod(lambda _: None))
    A, truth = rotated(values, dtype), float(end(values))  # type: ignore[operator]
    for tol in (1e-2, 1e-5):
        pairs = eigsh(A, which=which, tol=tol)
        assert abs(float(pairs.values[0]) - truth) <= float(pairs.residuals[0])
        if tol == 1e-2:
            assert pairs.converged
        if pairs.vectors.shape[1]:
            v = pairs.vectors[:, 0].double()
            residual = float((A.double() @ v - pairs.values[0] * v).norm())
            assert residual <= float(pairs.residuals[0]) + 1e-12
    assert kept or not pairs.vectors.shape[1]


@pytest.mark.parametrize("work", [lambda A: eigsh(A, tol=1e-4), lambda A: spectrum(A, steps=10, probes=2)])
def test_no_more_than_the_vectors_that_it_says(
    work: Callable[[object], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_pairs.Basis, "place", staticmethod(lambda _: None))
    alive = 0

    class Counted:
        """Counts the vectors that live while it multiplies."""

        shape, dtype, most = (400, 400), torch.float32, 0
        A = rotated(SPECTRA["decay"], torch.float32)

        def __matmul__(self, v: Tensor) -> Tensor:
            import gc

            found = self.A @ v
            held = {t.data_ptr() for t in gc.get_objects() if isinstance(t, Tensor) and t.numel() == 400}
            Counted.most = max(Counted.most, len(held) - alive)
            return found

    import gc

    alive = len({t.data_ptr() for t in gc.get_objects() if isinstance(t, Tensor) and t.numel() == 400})
    work(Counted())
    assert Counted.most <= 3  # the last two and the product


def test_densities_and_traces() -> None:
    values = SPECTRA["decay"]
    A = rotated(values, torch.float64)
    found = spectrum(A, steps=60, probes=3)
    truth, estimate = float(np.exp(values.numpy()).sum()), found.functional(np.exp)
    assert abs(estimate.value - truth) < 3 * estimate.stderr
    assert float(found.nodes.max()) == pytest.approx(1.0, abs=1e-6)
    whole = trace(A, tol=0.05)
    assert abs(whole.value - float(values.sum())) < 3 * whole.stderr


def test_many_normal_numbers_are_normal() -> None:
    count = 2**24 + 1001
    x = normal((count,), generator(0, "many"), torch.float32)
    assert torch.equal(x, normal((count,), generator(0, "many"), torch.float32))
    assert not torch.equal(x, normal((count,), generator(1, "many"), torch.float32))
    assert abs(float(x.mean())) < 5 / count**0.5
    assert abs(float(x.square().mean()) - 1) < 5 * (2 / count) ** 0.5
    assert abs(float((x > 1.959964).float().mean()) - 0.025) < 5 * (0.025 / count) ** 0.5
    assert abs(float((x[1:] * x[:-1]).mean())) < 5 / count**0.5

import math

import numpy as np
import pytest
import torch

from landscope.core.estimate import Estimate, Status, student_factor
from landscope.core.seeding import generator
from landscope.spectra import diagonal, frobenius, trace
from landscope.spectra.probes import left_over, orthonormal_rows, sample, sphere_rows
from landscope.spectra.protocol import as_operator

SAMPLED = [
    ("flat", 200, 0.01, None),
    ("geometric0.9", 200, 0.01, None),
    ("geometric0.9", 1000, 0.05, None),
    ("geometric0.5", 300, 0.01, None),
    ("power0.5", 500, 0.01, None),
    ("power1", 300, 0.01, None),
    ("power1", 300, 0.01, 60),
    ("power1", 300, 0.2, None),
    ("power2", 200, 0.05, None),
    ("power2", 200, 0.01, None),
    ("outliers", 300, 0.01, None),
    ("two-sided", 300, 0.05, None),
    ("cancelling", 200, 0.2, None),
    ("indefinite", 300, 0.01, 60),
    ("near identity", 300, 0.01, None),
    ("wishart", 300, 0.01, None),
    ("lognormal", 300, 0.01, 40),
]


def covered(results: list[Estimate], truth: float) -> float:
    return float(np.mean([abs(r.value - truth) <= 2 * r.stderr for r in results]))


@pytest.mark.parametrize(("name", "size", "tol", "budget"), SAMPLED)
def test_two_standard_errors_hold_the_trace(name, size, tol, budget, diagonal_operator, eigenvalues_of):
    values = eigenvalues_of(name, size)
    op = diagonal_operator(values)
    results = [trace(op, tol, seed, budget) for seed in range(200)]
    assert 0.92 <= covered(results, values.sum()) <= 0.99
    scale = max(abs(values.sum()), np.linalg.norm(values))
    for r in results:
        assert r.status in (Status.CONVERGED, Status.BUDGET_SPENT)
        assert r.status is Status.BUDGET_SPENT or r.stderr <= 1.5 * tol * scale
    if budget is None:
        assert all(r.status is Status.CONVERGED for r in results)


@pytest.mark.slow
@pytest.mark.parametrize("size", [150, 400, 800])
@pytest.mark.parametrize("tol", [0.2, 0.03, 0.01])
@pytest.mark.parametrize(
    "name", ["flat", "power0.7", "power1.3", "geometric0.95", "geometric0.7", "lognormal", "two-sided"]
)
def test_two_standard_errors_hold_the_trace_everywhere(name, tol, size, diagonal_operator, eigenvalues_of):
    values = eigenvalues_of(name, size)
    op = diagonal_operator(values)
    results = [trace(op, tol, seed, 120) for seed in range(1000)]
    if all(r.status is Status.EXACT for r in results):
        pytest.skip("no sampling error")
    assert 0.93 <= covered(results, values.sum()) <= 0.985


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", ["zero", "identity", "rank one", "low rank"])
def test_without_sampling_error_the_bar_is_rounding(name, dtype, matrix_with, eigenvalues_of):
    values = eigenvalues_of(name, 200)
    A = matrix_with(values, dtype=dtype)
    truth = float(A.double().trace())
    rounding = 10 * torch.finfo(dtype).eps * np.linalg.norm(values)
    for seed in range(20):
        r = trace(A, tol=0.01, seed=seed)
        assert abs(r.value - truth) <= 2 * r.stderr
        assert r.stderr <= 20 * rounding
        assert r.details["matvecs"] <= 32


@pytest.mark.parametrize("size", [1, 2, 16])
def test_small_matrices_are_exact(size, matrix_with):
    A = matrix_with(np.linspace(-1, 2, size))
    r = trace(A)
    assert r.status is Status.EXACT
    assert r.details["matvecs"] == size
    assert r.value == pytest.approx(float(A.trace()), abs=1e-14 * size)


def test_exact_where_that_is_cheaper(diagonal_operator, eigenvalues_of):
    values = eigenvalues_of("indefinite", 150)
    r = trace(diagonal_operator(values), tol=1e-3)
    assert r.status is Status.EXACT
    assert r.value == pytest.approx(values.sum(), abs=1e-12)
    assert r.details["matvecs"] < 1.2 * 150


@pytest.mark.parametrize(
    ("name", "most"), [("power2", 35), ("power1", 75), ("geometric0.9", 75), ("outliers", 30), ("flat", 12)]
)
def test_fewer_products_than_hutchinson(name, most, diagonal_operator, eigenvalues_of):
    values = eigenvalues_of(name, 500)
    products = np.mean([trace(diagonal_operator(values), 0.01, seed).details["matvecs"] for seed in range(20)])
    plain = 2 * (values @ values - values.sum() ** 2 / 500) / (0.01 * values.sum()) ** 2
    assert products <= most
    assert products <= max(plain, 10)


def test_the_mean_is_unbiased(diagonal_operator, eigenvalues_of):
    values = eigenvalues_of("power1", 200)
    found = np.array([trace(diagonal_operator(values), 0.05, seed).value for seed in range(400)])
    assert abs(found.mean() - values.sum()) <= 3.5 * found.std() / 20


def test_the_variance_law_of_the_sphere(diagonal_operator, eigenvalues_of):
    """Var ωᵀBω = 2 E‖Bω − (ωᵀBω/n) ω‖² = 2n/(n+2) (‖B‖² − t²/n), in a subspace too."""
    values = eigenvalues_of("indefinite", 30)
    op = as_operator(diagonal_operator(values))
    basis = torch.eye(30, dtype=torch.float64)[:10]
    rows = sphere_rows(40_000, basis, generator(0))
    assert torch.allclose(rows.square().sum(1), torch.tensor(20.0, dtype=torch.float64))
    assert float((rows @ basis.T).abs().max()) < 1e-13
    samples, _ = sample(op, rows[:2000], basis)
    forms = (rows.square() * torch.as_tensor(values)).sum(1)
    inside = values[10:]
    law = 2 * 20 / 22 * (inside @ inside - inside.sum() ** 2 / 20)
    assert samples.variance == pytest.approx(law, rel=0.03)
    assert float(forms.var()) == pytest.approx(law, rel=0.03)
    assert samples.freedom / 2000 == pytest.approx(float(samples.spreads.mean() ** 2 / samples.overlaps.mean()))


def test_one_probe_has_a_wide_bar(diagonal_operator, eigenvalues_of):
    values = eigenvalues_of("power1", 200)
    results = [trace(diagonal_operator(values), 1e-6, seed, max_matvecs=1) for seed in range(200)]
    assert covered(results, values.sum()) >= 0.92
    assert student_factor(1) > 6


def test_sketch_pieces():
    rng = torch.Generator().manual_seed(0)
    rows = torch.randn((6, 40), generator=rng, dtype=torch.float64)
    plain = rows.numpy()
    expected = np.mean([np.linalg.lstsq(np.delete(plain, i, 0).T, plain[i], rcond=None)[1][0] for i in range(6)])
    assert left_over(rows @ rows.T) == pytest.approx(float(expected), rel=1e-9)
    basis = orthonormal_rows(torch.cat((rows, rows[:2] + rows[2:4])), 1e-12)
    assert basis.shape[0] == 6
    assert torch.allclose(basis @ basis.T, torch.eye(6, dtype=torch.float64), atol=1e-13)


@pytest.mark.parametrize("tol", [0.0, -1.0, math.nan])
@pytest.mark.parametrize("function", [trace, frobenius])
def test_tolerances_are_positive(function, tol):
    with pytest.raises(ValueError, match="tol"):
        function(np.eye(3), tol=tol)


@pytest.mark.parametrize(
    ("name", "size", "tol", "budget"),
    [
        ("flat", 200, 0.01, None),
        ("power0.5", 200, 0.01, None),
        ("power1", 200, 0.01, None),
        ("power1", 200, 0.2, None),
        ("geometric0.9", 200, 0.01, 24),
        ("outliers", 300, 0.01, None),
        ("two-sided", 200, 0.05, None),
        ("indefinite", 200, 0.01, None),
        ("wishart", 200, 0.01, 60),
        ("lognormal", 200, 0.01, None),
    ],
)
def test_two_standard_errors_hold_the_frobenius_norm(name, size, tol, budget, diagonal_operator, eigenvalues_of):
    values = eigenvalues_of(name, size)
    op, truth = diagonal_operator(values), np.linalg.norm(values)
    results = [frobenius(op, tol, seed, budget) for seed in range(400)]
    assert 0.92 <= covered(results, truth) <= 0.995
    if budget is None:
        assert all(r.status is not Status.BUDGET_SPENT and r.stderr <= tol * r.value for r in results)


@pytest.mark.parametrize("name", ["zero", "identity", "rank one", "low rank"])
def test_frobenius_without_sampling_error(name, matrix_with, eigenvalues_of):
    values = eigenvalues_of(name, 200)
    for seed in range(10):
        r = frobenius(matrix_with(values), tol=0.01, seed=seed)
        assert abs(r.value - np.linalg.norm(values)) <= 2 * r.stderr
        assert r.stderr <= 1e-12 * np.linalg.norm(values)


def test_one_frobenius_probe_has_a_bar(diagonal_operator, eigenvalues_of):
    values = eigenvalues_of("power1", 200)
    results = [frobenius(diagonal_operator(values), 1e-6, seed, max_matvecs=1) for seed in range(200)]
    assert covered(results, np.linalg.norm(values)) >= 0.92


def test_diagonal_bars_hold(matrix_with, eigenvalues_of):
    A = matrix_with(eigenvalues_of("wishart", 60))
    truth, hits = A.diagonal(), []
    for seed in range(200):
        r = diagonal(A, max_matvecs=12, seed=seed)
        hits.append(((r.values - truth).abs() <= 2 * r.stderr).double().mean())
        assert (r.status, r.matvecs) == (Status.BUDGET_SPENT, 12)
    assert 0.94 <= float(torch.stack(hits).mean()) <= 0.97


def test_diagonal_limits(matrix_with, eigenvalues_of):
    A = matrix_with(eigenvalues_of("wishart", 60))
    exact = diagonal(A, max_matvecs=60)
    assert exact.status is Status.EXACT
    assert torch.allclose(exact.values, A.diagonal(), rtol=1e-14)
    assert bool(torch.isinf(diagonal(A, max_matvecs=1).stderr).all())
    of_diagonal = diagonal(torch.diag(A.diagonal()), max_matvecs=9)
    assert torch.allclose(of_diagonal.values, A.diagonal(), rtol=1e-14)
    assert float(of_diagonal.stderr.max()) < 1e-13
    assert diagonal(A.float(), max_matvecs=9).values.dtype == torch.float32

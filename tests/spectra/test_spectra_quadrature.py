import dataclasses
import json

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from landscope.core.errors import OutOfMemoryError
from landscope.core.estimate import Status
from landscope.spectra import Spectrum, log_det, spectrum

FUNCTIONS = {
    "x": lambda x: x,
    "square": np.square,
    "exp": lambda x: np.exp(-x),
    "soft log": lambda x: np.log(np.abs(x) + 1),
}


def covered(results, truth):
    return float(np.mean([abs(r.value - truth) <= 2 * r.stderr for r in results]))


def replace_probes(s, part):
    return dataclasses.replace(
        s, diagonal=s.diagonal[part], offdiagonal=s.offdiagonal[part], remainder=s.remainder[part]
    )


def test_weights_are_a_measure(matrix_with, eigenvalues_of):
    s = spectrum(matrix_with(eigenvalues_of("outliers", 120)), steps=15, probes=3)
    each, own = s.quadrature
    assert each.shape == own.shape == (3, 15)
    assert (own >= 0).all()
    assert own.sum(1) == pytest.approx(np.ones(3))
    nodes, weights = s.nodes, s.weights
    assert weights.sum() == pytest.approx(1)
    assert (np.diff(nodes) >= 0).all()
    assert s.matvecs == 45


def test_moments_of_the_start_vectors_are_exact(matrix_with, eigenvalues_of):
    """m nodes integrate polynomials of degree < 2m; full depth gives the eigenvalues themselves."""
    A = matrix_with(eigenvalues_of("indefinite", 50))
    shallow, deep = spectrum(A, steps=5, probes=3), spectrum(A, steps=50, probes=3)
    for degree in range(10):
        a, b = ((w * n**degree).sum(1) for n, w in (shallow.quadrature, deep.quadrature))
        assert a == pytest.approx(b, rel=1e-9, abs=1e-9)
    assert deep.quadrature[0][0] == pytest.approx(np.linalg.eigvalsh(A.numpy()), abs=1e-12)


@pytest.mark.parametrize("name", ["flat", "power1", "outliers", "indefinite", "wishart"])
def test_two_standard_errors_hold_the_functional(name, diagonal_operator, eigenvalues_of):
    """Probes are independent, so one long run is many short ones."""
    values = eigenvalues_of(name, 150)
    many = spectrum(diagonal_operator(values), steps=25, probes=3000)
    for probes in (1, 2, 4, 10):
        parts = [slice(at, at + probes) for at in range(0, min(3000, 500 * probes), probes)]
        runs = [replace_probes(many, part) for part in parts]
        for f in FUNCTIONS.values():
            results = [s.functional(f) for s in runs]
            assert covered(results, f(values).sum()) >= 0.92
            assert all(r.stderr > 0 for r in results)
            if probes == 10:
                assert covered(results, f(values).sum()) <= 0.99


def test_separate_seeds_cover_too(diagonal_operator, eigenvalues_of):
    values = eigenvalues_of("power1", 150)
    results = [spectrum(diagonal_operator(values), 25, 3, seed).functional(np.square) for seed in range(200)]
    assert 0.92 <= covered(results, np.square(values).sum()) <= 0.99


def test_functional_identities(matrix_with, eigenvalues_of):
    s = spectrum(matrix_with(eigenvalues_of("wishart", 80)), steps=20, probes=4)
    count = s.functional(np.ones_like)
    assert count.value == pytest.approx(80)
    assert count.stderr < 1e-10
    whole, part = s.functional(np.square), s.functional(np.square, per_parameter=True)
    assert whole.value == pytest.approx(80 * part.value)
    assert whole.stderr == pytest.approx(80 * part.stderr)
    identity = spectrum(torch.eye(40, dtype=torch.float64), steps=10, probes=2)
    assert identity.matvecs == 2
    assert identity.functional(np.exp).value == pytest.approx(40 * np.e)
    assert identity.functional(np.exp).stderr < 1e-11


def test_too_few_steps_are_admitted(diagonal_operator):
    values = np.logspace(-6, 0, 300)
    shallow = spectrum(diagonal_operator(values), steps=6, probes=30).functional(np.log)
    assert shallow.status is Status.BUDGET_SPENT
    assert "steps" in shallow.reason
    assert shallow.stderr > shallow.details["sampling_stderr"]
    deep = spectrum(diagonal_operator(values), steps=300, probes=3).functional(np.log)
    assert deep.status is Status.CONVERGED
    assert deep.details["quadrature_error"] == 0


def test_non_finite_functions_fail_with_a_reason(matrix_with, eigenvalues_of):
    s = spectrum(matrix_with(eigenvalues_of("indefinite", 30)), steps=10, probes=2)
    r = s.functional(np.log)
    assert r.status is Status.FAILED
    assert "Ritz value" in r.reason


def test_log_det(matrix_with, eigenvalues_of):
    values = eigenvalues_of("wishart", 150)
    A = matrix_with(values)
    truth = np.log(values + 0.1).sum()
    results = [log_det(A, shift=0.1, steps=30, probes=4, seed=seed) for seed in range(200)]
    assert covered(results, truth) >= 0.92
    assert log_det(A, shift=-1.0).status is Status.NOT_APPLICABLE
    assert log_det(torch.eye(5, dtype=torch.float64), shift=1.0).value == pytest.approx(5 * np.log(2))


def test_memory_groups_give_the_same(matrix_with, eigenvalues_of):
    A = matrix_with(eigenvalues_of("wishart", 60))
    whole, grouped = spectrum(A, 12, 5, seed=2), spectrum(A, 12, 5, seed=2, max_bytes=2 * 19 * 60 * 8)
    assert grouped.nodes == pytest.approx(whole.nodes, rel=1e-9, abs=1e-10)
    assert grouped.matvecs == whole.matvecs
    with pytest.raises(OutOfMemoryError, match="lower steps"):
        spectrum(A, 12, 5, max_bytes=100)


def test_the_density_and_its_band(diagonal_operator, eigenvalues_of):
    values = eigenvalues_of("wishart", 200)
    grid, sigma = np.linspace(-0.5, 4.5, 41), 0.3
    truth = np.exp(-0.5 * ((grid[:, None] - values) / sigma) ** 2).mean(1) / (sigma * np.sqrt(2 * np.pi))
    hits = []
    for seed in range(200):
        _, density, band = spectrum(diagonal_operator(values), 40, 3, seed).density(grid, sigma)
        assert (density >= 0).all()
        hits.append(np.abs(density - truth) <= 2 * band)
    coverage = np.mean(hits, 0)
    assert coverage.min() >= 0.92
    assert coverage.mean() <= 0.99
    one = spectrum(diagonal_operator(values), 40, 1).density(grid, sigma)[2]
    assert (one > 0).all()


def test_default_grids_integrate_to_one(matrix_with, eigenvalues_of):
    for name in ("outliers", "identity", "zero", "indefinite"):
        grid, density, _ = spectrum(matrix_with(eigenvalues_of(name, 60)), 20, 2).density()
        assert np.trapezoid(density, grid) == pytest.approx(1, abs=1e-3)
    with pytest.raises(ValueError, match="sigma"):
        spectrum(np.eye(3)).density(sigma=0.0)


def test_round_trip(matrix_with, eigenvalues_of):
    s = spectrum(matrix_with(eigenvalues_of("power1", 40)), 8, 3, seed=5)
    back = Spectrum.from_dict(json.loads(json.dumps(s.to_dict(), allow_nan=False)))
    assert np.array_equal(back.nodes, s.nodes)
    assert np.array_equal(back.weights, s.weights)
    assert back.to_dict() == s.to_dict()
    assert back.functional(np.square) == s.functional(np.square)
    single = spectrum(np.eye(1), 1, 1)
    assert Spectrum.from_dict(single.to_dict()).to_dict() == single.to_dict()


def test_plots_take_computed_data(matrix_with, eigenvalues_of, tmp_path):
    s = spectrum(matrix_with(eigenvalues_of("outliers", 100)), 20, 3)
    figure = s.plot()
    assert [ax.get_yscale() for ax in figure.axes] == ["log", "log"]
    assert figure.axes[1].get_xlabel() == "eigenvalue"
    figure.savefig(tmp_path / "spectrum.png")
    own = Figure()
    ax = own.subplots()
    assert s.plot(ax=ax) is own
    assert ax.get_xlabel() == "eigenvalue"
    assert s.matvecs == 60


def test_single_precision(matrix_with, eigenvalues_of):
    values = eigenvalues_of("wishart", 100)
    s = spectrum(matrix_with(values, dtype=torch.float32), steps=100, probes=2)
    assert s.quadrature[0][0] == pytest.approx(np.sort(values), abs=1e-4)
    assert s.rounding > 1e-7


def test_bad_settings():
    for bad in ({"steps": 0}, {"probes": 0}):
        with pytest.raises(ValueError, match="at least 1"):
            spectrum(np.eye(3), **bad)

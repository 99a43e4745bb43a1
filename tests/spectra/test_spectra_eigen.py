import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from landscope.core.errors import OperandError, UnknownNameError
from landscope.spectra import Eigenpairs, eigsh, eigsh_steps
from landscope.spectra.pairs import RitzValues
from landscope.spectra.subspace import Krylov

NAMES = [
    "flat",
    "power1",
    "power2",
    "geometric0.9",
    "outliers",
    "two-sided",
    "indefinite",
    "negative dominant",
    "cluster",
]
DEGENERATE = ["zero", "identity", "rank one", "low rank", "conditioned", "near identity", "uniform"]


def ordered(values, which):
    key = {"LA": -values, "SA": values, "LM": -np.abs(values)}[which]
    return values[np.argsort(key, kind="stable")]


def check(A, values, pairs, k, which, tol):
    """Bounds hold for the nearest eigenvalue; the order is right to the tolerance; vectors are orthonormal."""
    found, bounds, scale = pairs.values.numpy(), pairs.residuals.numpy(), np.abs(values).max()
    nearest = np.abs(found[:, None] - values[None]).min(1)
    assert (nearest <= bounds).all()
    assert pairs.converged
    assert (bounds <= tol * scale).all()
    wanted = ordered(values, which)[:k]
    if which == "LM":
        found, wanted = np.abs(found), np.abs(wanted)
    assert (np.abs(found - wanted) <= bounds + 2 * tol * scale).all()
    eps = torch.finfo(A.dtype).eps
    V = pairs.vectors
    assert torch.allclose(V.T @ V, torch.eye(k, dtype=A.dtype), rtol=0, atol=20 * eps * k)
    true = torch.linalg.vector_norm(A @ V - V * pairs.values.to(A.dtype), dim=0).double().numpy()
    assert (true <= bounds + 20 * eps * scale).all()


@pytest.mark.parametrize("which", ["LA", "SA", "LM"])
@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("name", NAMES)
def test_against_the_truth(name, k, which, matrix_with, eigenvalues_of):
    values = eigenvalues_of(name, 120)
    A = matrix_with(values)
    check(A, values, eigsh(A, k, which), k, which, 1e-3)
    check(A, values, eigsh(A, k, which, tol=1e-4, basis_size=30, max_matvecs=4000), k, which, 1e-4)


@pytest.mark.parametrize("which", ["LA", "SA", "LM"])
@pytest.mark.parametrize("name", [*NAMES, *DEGENERATE])
def test_full_depth_is_eigh(name, which, matrix_with, eigenvalues_of):
    values = eigenvalues_of(name, 60)
    A = matrix_with(values)
    pairs = eigsh(A, 5, which, tol=1e-12)
    check(A, values, pairs, 5, which, 1e-12)
    assert pairs.matvecs <= 60 + 5


@pytest.mark.parametrize("which", ["LA", "SA", "LM"])
@pytest.mark.parametrize("k", [1, 3, 7])
@pytest.mark.parametrize("name", DEGENERATE)
def test_degenerate_matrices(name, k, which, matrix_with, eigenvalues_of):
    values = eigenvalues_of(name, 120)
    A = matrix_with(values)
    check(A, values, eigsh(A, k, which, tol=1e-3), k, which, 1e-3)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("end", [1, -1])
@pytest.mark.parametrize(("copies", "k"), [(2, 2), (3, 3), (5, 5), (10, 10), (3, 5), (5, 3), (10, 4), (2, 10)])
def test_repeated_eigenvalues_are_all_found(copies, k, end, seed, matrix_with):
    values = end * np.r_[np.full(copies, 5.0), 4.0, 4.0, 4.0, 3.0, np.linspace(-1, 1, 150)]
    A = matrix_with(values, seed=seed)
    pairs = eigsh(A, k, "LA" if end > 0 else "SA", tol=1e-6, seed=seed)
    check(A, values, pairs, k, "LA" if end > 0 else "SA", 1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_repeated_eigenvalues_at_both_ends(seed, matrix_with):
    values = np.r_[[5.0] * 3, [-5.0] * 3, [-4.4] * 2, np.linspace(-1, 1, 100)]
    A = matrix_with(values, seed=seed)
    pairs = eigsh(A, 8, "LM", tol=1e-6, seed=seed)
    check(A, values, pairs, 8, "LM", 1e-6)
    assert sorted(pairs.values.round().tolist()) == [-5, -5, -5, -4, -4, 5, 5, 5]


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.integers(-4, 4), min_size=1, max_size=25),
    k=st.integers(1, 25),
    which=st.sampled_from(["LA", "SA", "LM"]),
    seed=st.integers(0, 1000),
)
def test_small_integer_spectra(values, k, which, seed, matrix_with):
    values, k = np.array(values, dtype=float), min(k, len(values))
    A = matrix_with(values, seed=seed)
    check(A, values, eigsh(A, k, which, tol=1e-8, seed=seed), k, which, 1e-8)


@settings(max_examples=25, deadline=None)
@given(size=st.integers(40, 90), k=st.integers(1, 6), distinct=st.integers(1, 12), seed=st.integers(0, 10**4))
def test_random_spectra_with_many_copies(size, k, distinct, seed, matrix_with):
    rng = np.random.default_rng(seed)
    values = rng.choice(rng.normal(size=distinct), size)
    A = matrix_with(values, seed=seed)
    pairs = eigsh(A, k, "LA", tol=1e-7, seed=seed, basis_size=16)
    check(A, values, pairs, k, "LA", 1e-7)


@pytest.mark.parametrize("size", [1, 2, 5, 25])
def test_all_eigenvalues_of_small_matrices(size, matrix_with):
    values = np.random.default_rng(size).normal(size=size)
    A = matrix_with(values)
    pairs = eigsh(A, size, tol=1e-12)
    assert np.allclose(pairs.values, np.linalg.eigvalsh(A.numpy())[::-1], rtol=0, atol=1e-13 * size)
    assert pairs.converged
    assert pairs.matvecs == size


def test_single_precision_stops_where_rounding_ends(matrix_with, eigenvalues_of):
    values = eigenvalues_of("geometric0.9", 200)
    A = matrix_with(values, dtype=torch.float32)
    truth = torch.linalg.eigvalsh(A.double()).flip(0)[:3]
    coarse, impossible = eigsh(A, 3, tol=1e-4), eigsh(A, 3, tol=1e-9)
    assert coarse.converged
    assert not impossible.converged
    assert impossible.matvecs < 100
    for pairs in (coarse, impossible):
        assert bool(((pairs.values - truth).abs() <= pairs.residuals).all())
    assert float(impossible.residuals.max()) < 100 * torch.finfo(torch.float32).eps


@pytest.mark.parametrize("budget", [1, 2, 3, 5, 7, 12])
def test_tiny_budgets(budget, diagonal_operator, eigenvalues_of):
    values = eigenvalues_of("flat", 200)
    op = diagonal_operator(values)
    pairs = eigsh(op, 3, max_matvecs=budget)
    assert pairs.matvecs == op.products <= budget
    assert not pairs.converged
    assert len(pairs.values) == min(3, budget)
    assert (np.abs(pairs.values.numpy()[:, None] - values).min(1) <= pairs.residuals.numpy()).all()


def test_the_basis_is_bounded_and_still_converges(matrix_with, eigenvalues_of):
    values = eigenvalues_of("uniform", 200)
    A = matrix_with(values)
    check(A, values, eigsh(A, 2, tol=1e-5, basis_size=8, max_matvecs=3000), 2, "LA", 1e-5)


def test_a_start_vector_cannot_hide_the_top():
    A = torch.diag(torch.arange(1.0, 51.0, dtype=torch.float64))
    low = torch.zeros(50, dtype=torch.float64)
    low[0] = 1
    assert float(eigsh(A, v0=low).values[0]) == pytest.approx(50, abs=0.05)
    near = torch.zeros(50, dtype=torch.float64)
    near[-1] = 1
    assert float(eigsh(A, v0=near).values[0]) == pytest.approx(50)


def test_seeds_and_repetition(matrix_with, eigenvalues_of):
    A = matrix_with(eigenvalues_of("wishart", 80))
    one, same, other = eigsh(A, 2, seed=1), eigsh(A, 2, seed=1), eigsh(A, 2, seed=2)
    assert torch.equal(one.vectors, same.vectors)
    assert not torch.equal(one.vectors, other.vectors)


def test_a_matrix_that_is_not_symmetric_does_not_pass_for_converged():
    A = torch.randn((60, 60), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert not eigsh(A, 1, max_matvecs=200).converged


def test_errors():
    A = torch.eye(3)
    for k in (0, 4):
        with pytest.raises(OperandError, match="between 1 and"):
            eigsh(A, k)
    with pytest.raises(UnknownNameError, match="LA"):
        eigsh(A, which="LX")
    with pytest.raises(OperandError, match="v0"):
        eigsh(A, v0=torch.ones(2))
    with pytest.raises(OperandError, match="v0"):
        eigsh(A, v0=torch.zeros(3))
    with pytest.raises(ValueError, match="basis_size"):
        eigsh(torch.eye(50), 5, basis_size=6)


@pytest.mark.slow
@pytest.mark.parametrize("tol", [1e-2, 1e-3])
def test_a_start_vector_short_of_the_top_one_is_found_out(tol: float) -> None:
    """400 start vectors: some meet the second eigenvalue first. Without a second look 9 and 1 of them were believed."""
    values = torch.rand(4000, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 0.05
    values[:3] = torch.tensor([1.118, 1.0, 0.6])

    class Diagonal:
        shape, dtype, device = (4000, 4000), torch.float64, torch.device("cpu")

        def __matmul__(self, v: torch.Tensor) -> torch.Tensor:
            return values[:, None] * v if v.dim() > 1 else values * v

    for seed in range(400):
        pairs = eigsh(Diagonal(), k=1, tol=tol, seed=seed)
        assert pairs.converged
        assert abs(float(pairs.values[0]) - 1.118) <= float(pairs.residuals[0]) + 2 * tol * 1.118


@pytest.mark.parametrize("which", ["LA", "SA"])
@pytest.mark.parametrize("noise", [1e-3, 1e-2])
def test_a_pair_found_with_cheap_products_is_certified_by_exact_ones(noise: float, which: str) -> None:
    rng = torch.Generator().manual_seed(3)
    q, _ = torch.linalg.qr(torch.randn(300, 300, dtype=torch.float64, generator=rng))
    values = torch.cat([torch.tensor([10.0, 6.0, -4.0], dtype=torch.float64), torch.rand(297, dtype=torch.float64)])
    exact = (q * values) @ q.T
    blur = torch.randn(300, 300, dtype=torch.float64, generator=rng)
    cheap = exact + noise * 10 * (blur + blur.T) / (2 * 300**0.5)
    true = 10.0 if which == "LA" else -4.0

    class Stated:
        shape, dtype, device, rounding = (300, 300), torch.float64, torch.device("cpu"), 2 * noise

        def __matmul__(self, v: torch.Tensor) -> torch.Tensor:
            return cheap @ v

    steps = [s for s in eigsh_steps(exact, which=which, tol=1e-5, cheap=Stated()) if isinstance(s, RitzValues)]
    assert all(float(s.values[0]) <= 10.0 if which == "LA" else float(s.values[0]) >= -4.0 for s in steps)
    *_, pairs = eigsh_steps(exact, which=which, tol=1e-5, cheap=cheap)
    vector = pairs.vectors[:, 0]
    residual = float((exact @ vector - pairs.values[0] * vector).norm())
    assert pairs.converged
    assert abs(float(pairs.values[0]) - true) <= float(pairs.residuals[0])
    assert residual <= float(pairs.residuals[0]) <= 1e-5 * 10.1
    assert abs(float(eigsh(cheap, tol=1e-8).values[0]) - 10.0) > 1e-5  # the cheap matrix alone is wrong


@pytest.mark.parametrize("noise", [1e-4, 1e-2])
@pytest.mark.parametrize("top", [[10.0, 6.0, 6.0, 5.0], [10.0, 10.0, 9.99, 1.2]])
def test_pairs_found_with_cheap_products_are_certified_by_exact_ones(noise: float, top: list[float]) -> None:
    rng = torch.Generator().manual_seed(5)
    q, _ = torch.linalg.qr(torch.randn(400, 400, dtype=torch.float64, generator=rng))
    values = torch.cat([torch.tensor([*top, -4.0], dtype=torch.float64), torch.rand(395, dtype=torch.float64)])
    exact = (q * values) @ q.T
    blur = torch.randn(400, 400, dtype=torch.float64, generator=rng)
    made = [0]

    class Cheap:
        shape, dtype, device, rounding = (400, 400), torch.float64, torch.device("cpu"), 2 * noise

        def __matmul__(self, v: torch.Tensor) -> torch.Tensor:
            return (exact + noise * 10 * (blur + blur.T) / (2 * 400**0.5)) @ v

    class Exact:
        shape, dtype, device = (400, 400), torch.float64, torch.device("cpu")

        def __matmul__(self, v: torch.Tensor) -> torch.Tensor:
            made[0] += 1 if v.dim() == 1 else v.shape[1]
            return exact @ v

    *_, pairs = eigsh_steps(Exact(), 4, tol=1e-4, cheap=Cheap())
    assert pairs.converged
    assert made[0] <= eigsh(exact, 4, tol=1e-4).matvecs / 2
    assert pairs.hidden == 2 * max(1e-4, 2 * noise) * pairs.scale
    residuals = torch.linalg.vector_norm(exact @ pairs.vectors - pairs.vectors * pairs.values, dim=0)
    assert bool((residuals <= pairs.residuals).all())
    assert bool((pairs.residuals <= 1e-4 * 10.1).all())
    assert torch.allclose(pairs.vectors.T @ pairs.vectors, torch.eye(4, dtype=torch.float64), atol=1e-9)
    assert bool(((pairs.values - torch.tensor(top).double()).abs() <= pairs.residuals + pairs.hidden).all())


@pytest.mark.parametrize("most", [3, 8, 30])
def test_a_budget_of_products_holds_for_several_pairs(most: int) -> None:
    exact = torch.diag(torch.linspace(0, 1, 200, dtype=torch.float64))
    *_, pairs = eigsh_steps(exact, 3, tol=1e-12, max_matvecs=most, cheap=exact)
    assert pairs.matvecs <= most
    assert not pairs.converged


@pytest.mark.parametrize("tol", [1e-3, 1e-10])  # within the basis, and with restarts of a basis of their own
def test_both_ends_share_their_products_and_find_what_each_finds_alone(tol: float) -> None:
    values = torch.cat([torch.linspace(-1, 1, 397), torch.tensor([-1.5, 3.0, 3.1])]).double()
    made = [0]

    class Counting:
        shape, dtype, device = (400, 400), torch.float64, torch.device("cpu")

        def __matmul__(self, v: torch.Tensor) -> torch.Tensor:
            made[0] += 1
            return values * v

    def ends(krylov: Krylov | None, order: str) -> dict[str, Eigenpairs]:
        made[0] = 0
        found = {}
        for which in order.split():
            *_, found[which] = eigsh_steps(Counting(), which=which, tol=tol, basis_size=40, krylov=krylov)
        return found

    alone = ends(None, "LA SA")
    apart = made[0]
    for order in ("LA SA", "SA LA"):
        shared = ends(Krylov(), order)
        assert made[0] <= apart - min(40, min(pairs.matvecs for pairs in alone.values())) + 2
        for which, pairs in alone.items():
            assert torch.equal(shared[which].values, pairs.values)
            assert torch.equal(shared[which].vectors, pairs.vectors)
            assert shared[which].matvecs == pairs.matvecs


def test_another_start_shares_nothing() -> None:
    matrix, krylov = torch.diag(torch.linspace(0, 1, 50, dtype=torch.float64)), Krylov()
    for seed in (0, 1):
        *_, pairs = eigsh_steps(matrix, seed=seed, krylov=krylov)
        assert torch.equal(pairs.vectors, eigsh(matrix, seed=seed).vectors)


def test_a_budget_of_products_holds_with_cheap_ones_too() -> None:
    exact = torch.diag(torch.linspace(0, 1, 200, dtype=torch.float64))
    *_, pairs = eigsh_steps(exact, tol=1e-12, max_matvecs=12, cheap=exact)
    assert pairs.matvecs <= 12
    assert not pairs.converged


@pytest.mark.parametrize("short", [False, True])
def test_the_basis_grows_where_there_is_memory_and_restarts_where_not(
    short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if short:
        monkeypatch.setattr("landscope.spectra.subspace.available_bytes", lambda _: 0)
    values = torch.linspace(0, 1, 400, dtype=torch.float64)
    pairs = eigsh(torch.diag(values), 2, tol=1e-6, max_matvecs=4000)
    assert pairs.converged
    assert torch.allclose(pairs.values, values[-2:].flip(0), atol=1e-4)

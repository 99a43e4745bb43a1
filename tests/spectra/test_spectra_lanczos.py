import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from landscope.core.errors import OperandError
from landscope.spectra.certificate import rules_out_hidden
from landscope.spectra.lanczos import lanczos, orthogonalise

NAMES = ["flat", "outliers", "indefinite", "power1", "low rank", "identity", "zero", "conditioned", "cluster"]


def starts(size, count, dtype=torch.float64, seed=0):
    return torch.randn((size, count), generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", NAMES)
def test_the_decomposition_holds(name, dtype, matrix_with, eigenvalues_of):
    A = matrix_with(eigenvalues_of(name, 60), dtype=dtype)
    d = lanczos(A, starts(60, 3, dtype), steps=20)
    steps = d.diagonal.shape[1]
    T, Q, scale = d.tridiagonal().to(dtype), d.basis, float(torch.linalg.matrix_norm(A, 2))
    last = torch.zeros(steps, dtype=dtype)
    last[-1] = 1
    tolerance = 50 * torch.finfo(dtype).eps
    for i in range(3):
        defect = A @ Q[i].T - Q[i].T @ T[i] - torch.outer(d.residual[i], last)
        assert float(defect.abs().max()) <= tolerance * scale
        assert torch.allclose(Q[i] @ Q[i].T, torch.eye(steps, dtype=dtype), rtol=0, atol=tolerance)
        assert float((Q[i] @ d.residual[i]).abs().max()) <= tolerance * scale
    assert d.matvecs == 3 * steps


@pytest.mark.parametrize("name", ["flat", "indefinite", "power2", "conditioned"])
def test_full_depth_is_eigh(name, matrix_with, eigenvalues_of):
    A = matrix_with(eigenvalues_of(name, 40))
    found = torch.linalg.eigvalsh(lanczos(A, starts(40, 1)[:, 0], steps=100).tridiagonal())[0]
    exact = torch.linalg.eigvalsh(A)
    assert torch.allclose(found, exact, rtol=0, atol=1000 * torch.finfo(torch.float64).eps * float(exact.abs().max()))


def test_stops_when_every_start_is_exhausted(matrix_with, eigenvalues_of):
    assert lanczos(matrix_with(eigenvalues_of("identity", 30)), starts(30, 2), 10).matvecs == 2
    assert lanczos(matrix_with(eigenvalues_of("rank one", 30)), starts(30, 2), 10).matvecs == 4


def test_one_exhausted_start_does_not_stop_the_others():
    A = torch.diag(torch.arange(1.0, 31.0, dtype=torch.float64))
    both = starts(30, 2)
    both[:, 0] = 0
    both[4, 0] = 1
    d = lanczos(A, both, 8)
    assert d.offdiagonal[0, 0] == 0
    assert d.diagonal[0, 0] == pytest.approx(5)
    assert torch.allclose(d.basis[0] @ d.basis[0].T, torch.eye(8, dtype=torch.float64), atol=1e-13)
    alone = lanczos(A, both[:, 1], 8)
    assert torch.allclose(d.diagonal[1], alone.diagonal[0], rtol=1e-12)


def test_lock_step_equals_one_by_one(matrix_with, eigenvalues_of):
    A, block = matrix_with(eigenvalues_of("wishart", 50)), starts(50, 4)
    together = lanczos(A, block, 10)
    for i in range(4):
        assert torch.allclose(together.diagonal[i], lanczos(A, block[:, i], 10).diagonal[0], rtol=1e-10)


def test_bad_starts():
    A = torch.eye(5)
    for bad in (torch.ones(4), torch.ones(5, 2, 2), torch.zeros(5)):
        with pytest.raises(OperandError):
            lanczos(A, bad, 2)
    with pytest.raises(ValueError, match="steps"):
        lanczos(A, torch.ones(5), 0)


@settings(max_examples=40, deadline=None)
@given(size=st.integers(2, 30), count=st.integers(1, 4), seed=st.integers(0, 10**6))
def test_orthogonalise_with_common_and_own_bases(size, count, seed):
    rows = starts(size, count, seed=seed).T
    basis = torch.linalg.qr(starts(size, size // 2, seed=seed + 1)).Q.T
    common, along = orthogonalise(rows, basis)
    own, own_along = orthogonalise(rows, basis.expand(count, -1, -1))
    assert torch.allclose(common, own, atol=1e-13)
    assert torch.allclose(along, own_along, atol=1e-13)
    assert float((common @ basis.T).abs().max()) < 1e-13 * size
    assert torch.allclose(common + along @ basis, rows, atol=1e-12)


def test_the_certificate_is_not_fooled():
    """What a random start hides of an eigenvalue above the level shows before the certificate holds."""
    size, fooled = 400, 0
    values = torch.cat((torch.tensor([1.3], dtype=torch.float64), torch.linspace(0, 1, size - 1, dtype=torch.float64)))
    for seed in range(200):
        d = lanczos(torch.diag(values), starts(size, 1, seed=seed)[:, 0], 25)
        T = d.tridiagonal()[0]
        for n in range(2, 26):
            ritz = torch.linalg.eigvalsh(T[:n, :n])
            if float(ritz[-1]) > 1.2:
                break
            if rules_out_hidden(n, size, float(ritz[0]), float(ritz[-1]), 1.2):
                fooled += 1
                break
    assert fooled <= 4
    assert not rules_out_hidden(1000, 10, 0.0, 1.0, 1.0)

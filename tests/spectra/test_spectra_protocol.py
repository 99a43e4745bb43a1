import numpy as np
import pytest
import scipy.sparse
import torch
from scipy.sparse.linalg import LinearOperator, aslinearoperator

from landscope import spectra
from landscope.core.errors import NonFiniteProductError, OperandError
from landscope.spectra.protocol import as_operator

EPS = torch.finfo(torch.float64).eps


def dense(size: int = 20) -> np.ndarray:
    square = np.random.default_rng(0).normal(size=(size, size))
    return square + square.T


def kinds(A: np.ndarray) -> dict[str, object]:
    return {
        "tensor": torch.from_numpy(A),
        "array": A,
        "sparse array": scipy.sparse.csr_array(A),
        "sparse matrix": scipy.sparse.csr_matrix(A),
        "linear operator": aslinearoperator(A),
        "matvec only": LinearOperator(A.shape, matvec=lambda v: A @ v.ravel(), dtype=np.float64),
    }


@pytest.mark.parametrize("kind", kinds(np.eye(2)))
@pytest.mark.parametrize("block", [1, 3])
def test_products_of_every_kind_agree_and_are_counted(kind, block):
    A = dense()
    rows = torch.randn((block, 20), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    op = as_operator(kinds(A)[kind])
    assert torch.allclose(op.rows(rows), rows @ torch.from_numpy(A), rtol=0, atol=100 * EPS * np.abs(A).sum())
    assert (op.matvecs, op.size, op.dtype) == (block, 20, torch.float64)


@pytest.mark.parametrize("kind", kinds(np.eye(2)))
def test_functions_accept_every_kind(kind):
    A = dense()
    op = kinds(A)[kind]
    assert float(spectra.eigsh(op, tol=1e-10).values[0]) == pytest.approx(np.linalg.eigvalsh(A)[-1], rel=1e-8)
    assert spectra.trace(op, tol=1e-6).value == pytest.approx(np.trace(A), rel=1e-9, abs=1e-9)
    assert spectra.frobenius(op, tol=1e-6).value == pytest.approx(np.linalg.norm(A), rel=1e-9)
    assert np.allclose(spectra.diagonal(op).values, np.diag(A))
    assert spectra.spectrum(op, steps=20, probes=2).quadrature[0][0] == pytest.approx(np.linalg.eigvalsh(A), abs=1e-8)


def test_integer_and_single_precision_arrays():
    assert as_operator(np.eye(3, dtype=np.int64)).rounding == as_operator(np.eye(3)).rounding
    assert as_operator(np.eye(3, dtype=np.float32)).rounding > 1e6 * as_operator(np.eye(3)).rounding


@pytest.mark.parametrize("bad", [np.ones((2, 3)), np.ones(3), np.ones((0, 0)), torch.ones(2, 3)])
def test_not_square(bad):
    with pytest.raises(OperandError, match="square"):
        as_operator(bad)


@pytest.mark.parametrize("bad", [np.eye(2) * 1j, torch.eye(2, dtype=torch.int64), torch.eye(2, dtype=torch.bfloat16)])
def test_unusable_types(bad):
    with pytest.raises(OperandError):
        as_operator(bad)


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize(
    "function", [spectra.eigsh, spectra.trace, spectra.frobenius, spectra.diagonal, spectra.spectrum]
)
def test_non_finite_products_are_an_error(function, value):
    A = np.eye(30)
    A[3, 3] = value
    with pytest.raises(NonFiniteProductError, match="not finite"):
        function(A)


def test_wrong_product_shape(diagonal_operator):
    class Wrong(diagonal_operator):
        def __matmul__(self, other):
            return torch.ones(3, dtype=torch.float64)

    with pytest.raises(OperandError, match="shape"):
        spectra.eigsh(Wrong(np.ones(5)))


def test_the_stated_rounding_enters_every_bar(diagonal_operator):
    values = np.linspace(1, 2, 12)
    coarse = diagonal_operator(values)
    coarse.rounding = 1e-3
    assert float(spectra.eigsh(coarse).residuals) >= 1e-3 * 2
    assert not spectra.eigsh(coarse, tol=1e-4).converged
    assert spectra.trace(coarse).stderr == pytest.approx(1e-3 * np.linalg.norm(values))
    assert spectra.frobenius(coarse).stderr == pytest.approx(1e-3 * np.linalg.norm(values))
    assert float(spectra.diagonal(coarse).stderr.max()) == pytest.approx(2e-3)
    assert spectra.spectrum(coarse, steps=12).functional(lambda x: x).details["rounding_error"] == pytest.approx(
        12**0.5 * 2e-3
    )


@pytest.mark.parametrize("budget", [0, -1])
@pytest.mark.parametrize("function", [spectra.eigsh, spectra.trace, spectra.frobenius, spectra.diagonal])
def test_budgets_are_positive(function, budget):
    with pytest.raises(ValueError, match="max_matvecs"):
        function(np.eye(3), max_matvecs=budget)


@pytest.mark.parametrize("function", [spectra.trace, spectra.frobenius, spectra.diagonal])
@pytest.mark.parametrize("budget", [1, 2, 7, 9, 20, 33])
def test_budgets_are_kept_and_products_reported(function, budget, diagonal_operator, eigenvalues_of):
    op = diagonal_operator(eigenvalues_of("power1", 300))
    result = function(op, max_matvecs=budget)
    reported = result.matvecs if function is spectra.diagonal else result.details["matvecs"]
    assert reported == op.products <= budget


@pytest.mark.parametrize("function", [spectra.trace, spectra.frobenius])
def test_same_seed_same_value_other_seed_other_value(function, diagonal_operator, eigenvalues_of):
    op = diagonal_operator(eigenvalues_of("power1", 300))
    assert function(op, seed=3).to_dict() == function(op, seed=3).to_dict()
    assert function(op, seed=3).value != function(op, seed=4).value

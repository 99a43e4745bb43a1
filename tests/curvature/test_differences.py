"""Hessian products as difference quotients: what they may be trusted with, and what they say of themselves."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import landscope as ls
from landscope.curvature.differences import difference_quotient
from landscope.spectra import eigsh


class Waves(nn.Module):
    """Smooth, and so sharp along some directions that a step that is small for others is large there."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return 3 * self.last(torch.sin(4 * self.first(x)))


@pytest.fixture(scope="module")
def trained() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    net, x, y = Waves().double(), torch.randn(64, 4, dtype=torch.float64), torch.arange(64) % 3
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(300):
        loss = nn.functional.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return net, x, y


def truth(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The Hessian by `torch.func`."""
    names, values = zip(*net.named_parameters(), strict=True)
    sizes = [v.numel() for v in values]

    def loss(flat: Tensor) -> Tensor:
        parts = (p.view_as(v) for p, v in zip(flat.split(sizes), values, strict=True))
        return nn.functional.cross_entropy(
            torch.func.functional_call(net, dict(zip(names, parts, strict=True)), (x,)), y
        )

    return torch.func.hessian(loss)(torch.cat([v.detach().flatten() for v in values]))


def test_an_uncertified_quotient_converges_to_a_wrong_eigenvalue(trained: tuple[nn.Module, Tensor, Tensor]) -> None:
    net, x, y = trained
    probe = ls.Probe(net, (x, y))
    largest = float(torch.linalg.eigvalsh(truth(net, x, y))[-1])
    v = torch.randn(probe.n_params, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for _ in range(500):
        v = v / v.norm()
        product = difference_quotient(probe, v, 1e-2)
        value, before, v = float(v @ product), v, product
    assert float((product - value * before).norm()) < 1e-6 * value  # it has converged,
    assert abs(value - largest) > 0.5 * largest  # to something else
    assert abs(float(eigsh(ls.Hessian(probe, method="difference")).values[0]) - largest) < 1e-3 * largest


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_bound_holds_the_eigenvalue(trained: tuple[nn.Module, Tensor, Tensor], dtype: torch.dtype) -> None:
    net, x, y = trained
    values = torch.linalg.eigvalsh(truth(net, x, y))
    for seed in range(4):
        operator = ls.Hessian(ls.Probe(net, (x, y), dtype=dtype), method="difference")
        found = eigsh(operator, tol=1e-3, seed=seed)
        assert float((values - float(found.values[0])).abs().min()) <= float(found.residuals[0])
        assert abs(float(found.values[0]) - float(values[-1])) <= 1e-2 * float(values[-1])
        assert operator.rounding >= 32 * torch.finfo(dtype).eps
        assert float(found.residuals[0]) >= operator.rounding * float(found.values[0])


def test_each_direction_has_a_step_of_its_own(trained: tuple[nn.Module, Tensor, Tensor]) -> None:
    net, x, y = trained
    probe = ls.Probe(net, (x, y), dtype=torch.float32)
    _, vectors = torch.linalg.eigh(truth(net, x, y))
    operator, exact = ls.Hessian(probe, method="difference"), ls.Hessian(probe)
    for v in (vectors[:, -1].float(), torch.randn(probe.n_params), 1e-6 * vectors[:, -1].float()):
        product = operator @ v
        assert float((product - exact @ v).norm()) <= operator.rounding * 9 * float(v.norm())
        assert float((product - exact @ v).norm()) < 0.01 * float((exact @ v).norm())
    assert not (operator @ torch.zeros(probe.n_params)).any()
    part = operator.restrict("last")
    v = torch.randn(part.shape[0])
    assert float((part @ v - ls.Hessian(probe, params="last") @ v).norm()) < 0.01 * float((part @ v).norm())


@pytest.mark.parametrize("kink", [nn.ReLU(), nn.LeakyReLU(), nn.Hardtanh(), nn.Hardswish(), nn.PReLU(), nn.ReLU6()])
def test_networks_with_kinks_are_refused(kink: nn.Module) -> None:
    net = nn.Sequential(nn.Linear(3, 4), kink, nn.Linear(4, 2))
    probe = ls.Probe(net, (torch.randn(8, 3), torch.arange(8) % 2))
    with pytest.raises(ls.errors.NotApplicableError, match="has kinks"):
        ls.Hessian(probe, method="difference")


def test_ways_that_do_not_exist_are_refused() -> None:
    probe = ls.Probe(nn.Linear(3, 2), (torch.randn(8, 3), torch.arange(8) % 2))
    with pytest.raises(ls.errors.OperandError, match="method must be"):
        ls.Hessian(probe, method="magic")  # type: ignore[arg-type]
    with pytest.raises(ls.errors.OperandError, match="precision='highest'"):
        ls.Hessian(probe, method="difference", precision="tf32")

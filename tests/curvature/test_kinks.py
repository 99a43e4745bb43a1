"""Exactly at a kink difference quotients tell nothing about second derivatives: nothing is refused for them there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import landscope as ls
from landscope import Hessian, Probe, errors

X, Y = torch.randn(24, 4, generator=torch.Generator().manual_seed(0)), torch.arange(24) % 3


def zeros(*layers: nn.Module) -> nn.Sequential:
    model = nn.Sequential(*layers)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return model


def first_layer_zero() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(zeros(nn.Linear(4, 6)), nn.ReLU(), nn.Linear(6, 3))


AT_KINKS: dict[str, Callable[[], nn.Module]] = {
    "relu": lambda: zeros(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)),
    "deep": lambda: zeros(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3)),
    "leaky": lambda: zeros(nn.Linear(4, 6), nn.LeakyReLU(), nn.Linear(6, 3)),
    "prelu": lambda: nn.Sequential(zeros(nn.Linear(4, 6)), nn.PReLU(), zeros(nn.Linear(6, 3))),
    "first_layer": first_layer_zero,
}


@pytest.mark.parametrize("case", AT_KINKS)
def test_a_network_at_a_kink_has_a_hessian(case: str) -> None:
    found = ls.measure(AT_KINKS[case](), (X, Y), "hessian_top_eigenvalue")["hessian_top_eigenvalue"]
    assert found.status.has_value, found.reason
    if case in ("relu", "deep", "leaky"):  # only the last bias has curvature: that of the softmax at equal logits
        assert found.value == pytest.approx(1 / 3, rel=1e-5)


class CutSquare(torch.autograd.Function):
    """x² + x whose backward pass forgets that its own result depends on x."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**2 + x

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        return ((2 * ctx.saved_tensors[0] + 1) * grad).detach()


@pytest.mark.parametrize("sure", [False, True])
def test_what_is_wrong_near_the_kink_is_still_refused(sure: bool) -> None:
    """Also behind outputs so sure that p − y is rounded in steps, which is looked at at another temperature."""

    class Cut(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 3) if sure else first_layer_zero()

        def forward(self, x: Tensor) -> Tensor:
            out = CutSquare.apply(self.inner(x))
            return out + 33 * nn.functional.one_hot(Y[: len(x)], 3) if sure else out

    probe = Probe(Cut(), (X, Y))
    with pytest.raises(errors.DifferentiationError, match="difference quotients"):
        Hessian(probe) @ probe.vector()

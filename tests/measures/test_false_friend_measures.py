"""Closed forms of "Flatness is a False Friend" (Granziol 2020), and Keskar-type limits on linear heads."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from landscope import Hessian, Probe, eigsh, measure, trace
from landscope.models import build


@pytest.mark.parametrize("weights", [(0.5, -1.2, 0.8), (2.0, 1.0, -0.7)])
def test_deep_linear_net_with_exponential_loss(weights: tuple[float, float, float]) -> None:
    """L = exp(−w₁w₂w₃x): H_jk = (∂_j g ∂_k g + ∂_jk g) L with g = −w₁w₂w₃x, entry by entry."""
    x = 1.3
    model = build("deep_linear").double()
    parameters = list(model.parameters())
    assert sum(p.numel() for p in parameters) == 3
    with torch.no_grad():
        for p, w in zip(parameters, weights, strict=True):
            p.fill_(w)
    data = (torch.full((1, 1), x, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64))
    probe = Probe(model, data, "exponential")
    w1, w2, w3 = (float(p) for p in probe.vector())
    loss = math.exp(-w1 * w2 * w3 * x)
    slope = [-w2 * w3 * x, -w1 * w3 * x, -w1 * w2 * x]
    cross = {(0, 1): -w3 * x, (0, 2): -w2 * x, (1, 2): -w1 * x}
    expected = torch.tensor(
        [[(slope[j] * slope[k] + cross.get((min(j, k), max(j, k)), 0.0)) * loss for k in range(3)] for j in range(3)],
        dtype=torch.float64,
    )
    H = Hessian(probe)
    assert torch.allclose(H.dense(), expected, rtol=1e-12)
    closed_trace = x**2 * loss * (w2**2 * w3**2 + w1**2 * w3**2 + w1**2 * w2**2)
    assert trace(H).value == pytest.approx(closed_trace, rel=1e-12)
    top = eigsh(H, k=1)
    assert abs(float(top.values[0]) - float(torch.linalg.eigvalsh(expected)[-1])) <= float(top.residuals[0])
    report = measure(probe, measures=["hessian_trace", "hessian_top_eigenvalue"])
    assert report["hessian_trace"].value == pytest.approx(closed_trace, rel=1e-9)


def test_scaling_a_trained_softmax_regressor_drives_loss_and_curvature_to_zero_together() -> None:
    torch.manual_seed(0)
    centres = 4 * torch.eye(3, 5, dtype=torch.float64)
    y = torch.arange(60) % 3
    x = centres[y] + 0.3 * torch.randn(60, 5, dtype=torch.float64)
    model = nn.Linear(5, 3).double()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=30)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    optimizer.step(closure)
    assert (model(x).argmax(1) == y).all()
    direction = {name: p.detach().clone() for name, p in model.named_parameters()}
    unit = math.sqrt(sum(float(p.square().sum()) for p in direction.values()))
    losses, tops = [], []
    for scale in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0):
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(direction[name] * scale / unit * 2)
        probe = Probe(model, (x, y))
        losses.append(probe.value())
        tops.append(float(eigsh(Hessian(probe), k=1, tol=1e-6).values[0]))
    assert losses == sorted(losses, reverse=True)
    assert tops == sorted(tops, reverse=True)
    assert losses[-1] < 1e-3 * losses[0]
    assert tops[-1] < 1e-2 * tops[0]

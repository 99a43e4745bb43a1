"""Squared norms of what single samples pull back to the parameters, against one gradient at a time."""

from __future__ import annotations

import pytest
import torch
from tests.networks import NETS, Net
from torch import Tensor, nn

from landscope.curvature import Fisher, Hessian
from landscope.curvature.gram.row_norms import row_norms
from landscope.measures.sharpness.traces import fisher_rows
from landscope.probe.probe import Probe


@pytest.mark.parametrize("net", NETS, ids=repr)
def test_norms_of_every_layer_add_up_to_those_of_autograd(net: Net) -> None:
    probe = Probe(net.model(), net.data(n=5))
    batch = next(probe.batches())
    z = probe.outputs(probe.params, batch)
    seeds = torch.randn(7, *z.shape, dtype=z.dtype, generator=torch.Generator().manual_seed(1))
    found = torch.stack(list(row_norms(probe, batch, probe.outputs, lambda _: seeds).values())).sum(0)
    for row in range(batch.size):
        leaves = {name: p.clone().requires_grad_() for name, p in probe.params.items()}
        own = probe.outputs(leaves, batch)[row]
        truth = 0.0
        for seed in seeds[:, row]:
            grads = torch.autograd.grad(
                (own * seed).sum(), list(leaves.values()), retain_graph=True, allow_unused=True, materialize_grads=True
            )
            truth += sum(float(g.square().sum()) for g in grads)
        assert float(found[row]) == pytest.approx(truth, rel=1e-9)


@pytest.mark.parametrize("loss", ["cross_entropy", "binary_cross_entropy", "mse"])
def test_exact_fisher_trace_of_every_likelihood(loss: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1, stride=2, groups=2), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    x = torch.randn(6, 2, 8, 8).double()
    y: Tensor = torch.arange(6) % 3 if loss == "cross_entropy" else torch.rand(6, 3).double().round()
    probe = Probe(model.double(), (x, y), loss)
    rows = fisher_rows(probe)
    assert rows is not None
    trace = float(Fisher(probe).dense().trace())
    assert float(rows[0](next(probe.batches())).mean()) == pytest.approx(trace, rel=1e-9)
    assert float(Hessian(probe).dense().trace()) == pytest.approx(trace, rel=1e-9)

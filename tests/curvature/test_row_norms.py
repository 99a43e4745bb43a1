"""Squared norms of what single samples pull back to the parameters, against one gradient at a time."""

from __future__ import annotations

import pytest
import torch
from tests.networks import NETS, Net
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from landscope import MEASURES, Estimate
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


class Packed(nn.Module):
    """Sequences of several lengths, which go through a recurrent layer that takes no tensors of `torch.func`."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lstm, self.head = nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        return self.head(self.lstm(packed)[1][0][-1])


def test_a_model_that_autograd_alone_can_differentiate() -> None:
    x = torch.randn(6, 7, 4, generator=torch.Generator().manual_seed(0))
    probe = Probe(Packed(), (x, torch.tensor([2, 7, 3, 4, 7, 5]), torch.arange(6) % 3))
    rows = fisher_rows(probe)
    assert rows is not None
    trace = float(Fisher(probe).dense().trace())
    assert float(rows[0](next(probe.batches())).mean()) == pytest.approx(trace, rel=1e-4)
    assert float(gradient_noise(probe).value) == pytest.approx(float(noise_of_rows(probe)), rel=1e-4)


def gradient_noise(probe: Probe) -> Estimate:
    return MEASURES["gradient_noise"]()(probe)


def noise_of_rows(probe: Probe) -> Tensor:
    """tr of the covariance of the samples' gradients, one at a time."""
    grads = []
    for row in next(probe.batches()).pieces(1):
        leaves = {name: p.clone().requires_grad_() for name, p in probe.params.items()}
        grads.append(
            probe.space.flatten(
                dict(zip(leaves, torch.autograd.grad(probe.loss_sum(leaves, row), [*leaves.values()]), strict=True))
            )
        )
    return torch.stack(grads).var(0, correction=0).sum()

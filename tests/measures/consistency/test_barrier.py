"""The loss between two models: points by hand, known barriers, and probes that do not belong together."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from landscope.core.errors import OperandError
from landscope.measures.consistency import loss_barrier
from landscope.probe.probe import Probe


def data(n: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(n, 3, generator=torch.Generator().manual_seed(0)).double()
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long()


def network(seed: int, norm: bool = False) -> nn.Module:
    torch.manual_seed(seed)
    between = [nn.BatchNorm1d(8)] if norm else []
    net = nn.Sequential(nn.Linear(3, 8), *between, nn.ReLU(), nn.Linear(8, 3)).double()
    if norm:
        net[1].running_mean.normal_()
        net[1].running_var.uniform_(0.5, 2)
    return net


def blend(a: nn.Module, b: nn.Module, t: float) -> nn.Module:
    net = copy.deepcopy(a)
    with torch.no_grad():
        for name, value in net.state_dict().items():
            if value.is_floating_point():
                value.copy_((1 - t) * a.state_dict()[name] + t * b.state_dict()[name])
    return net


@pytest.mark.parametrize("norm", [False, True])
def test_every_point_is_the_loss_of_the_blended_model(norm: bool) -> None:
    a, b, (x, y) = network(0, norm), network(1, norm), data()
    found = loss_barrier(Probe(a, (x, y)), Probe(b, (x, y), batch_size=7), points=5)
    expected = [F.cross_entropy(blend(a, b, t).eval()(x), y).item() for t in (0, 0.25, 0.5, 0.75, 1)]
    np.testing.assert_allclose(found.loss, expected, rtol=1e-12)
    line = np.linspace(expected[0], expected[-1], 5)
    assert found.height == pytest.approx(max(np.max(expected - line), 0))
    if found.height > 0:
        assert found.at == np.linspace(0, 1, 5)[np.argmax(expected - line)]


def test_batch_statistics_are_estimated_afresh_at_every_point() -> None:
    a, b, (x, y) = network(0, True), network(1, True), data()
    probes = [Probe(net, [(x, y)], mode="batch_statistics") for net in (a, b)]
    found = loss_barrier(*probes, points=3)
    middle = blend(a, b, 0.5).train()
    assert found.loss[1] == pytest.approx(F.cross_entropy(middle(x), y).item(), rel=1e-12)
    in_eval = loss_barrier(Probe(a, (x, y)), Probe(b, (x, y)), points=3)
    assert found.loss[1] != pytest.approx(in_eval.loss[1], rel=1e-3)


def test_a_permuted_network_has_a_barrier_and_itself_none() -> None:
    a, (x, y) = network(0), data(200)
    optimizer = torch.optim.Adam(a.parameters(), lr=0.02)
    for _ in range(150):
        optimizer.zero_grad()
        F.cross_entropy(a(x), y).backward()
        optimizer.step()
    b = copy.deepcopy(a)
    order = torch.arange(8).roll(1)
    with torch.no_grad():
        b[0].weight.copy_(a[0].weight[order])
        b[0].bias.copy_(a[0].bias[order])
        b[2].weight.copy_(a[2].weight[:, order])
    probe = Probe(a, (x, y))
    found = loss_barrier(probe, Probe(b, (x, y)))
    assert found.loss[0] == pytest.approx(found.loss[-1])
    assert found.height > 0.2
    assert 0 < found.at < 1
    assert found.height > 5 * found.estimate.data_stderr > 0
    flat = loss_barrier(probe, Probe(copy.deepcopy(a), (x, y)))
    assert flat.height == pytest.approx(0, abs=1e-12)


def test_the_error_over_data_is_the_one_of_each_samples_excess() -> None:
    a, b, (x, y) = network(0), network(1), data()
    found = loss_barrier(Probe(a, (x, y)), Probe(b, (x, y)), points=5)
    each = torch.stack([F.cross_entropy(blend(a, b, t)(x), y, reduction="none") for t in (0, 0.5, 1)]).detach()
    excess = each[1] - (each[0] + each[2]) / 2
    assert found.excess[2] == pytest.approx(float(excess.mean()))
    assert found.excess_stderr[2] == pytest.approx(float(excess.std()) / 40**0.5)


def test_parameters_that_are_not_measured_move_too() -> None:
    a, b, (x, y) = network(0), network(1), data()
    whole = loss_barrier(Probe(a, (x, y)), Probe(b, (x, y)), points=3)
    part = loss_barrier(Probe(a, (x, y), params="0"), Probe(b, (x, y), params="0"), points=3)
    np.testing.assert_array_equal(whole.loss, part.loss)


def test_a_loss_per_batch_has_no_error_over_data() -> None:
    loss = lambda z, t: F.cross_entropy(z, t)  # noqa: E731
    a, b, (x, y) = network(0), network(1), data()
    found = loss_barrier(Probe(a, (x, y), loss), Probe(b, (x, y), loss), points=3)
    assert found.estimate.data_stderr is None
    assert found.loss[0] == pytest.approx(F.cross_entropy(a(x), y).item())


def test_probes_that_do_not_belong_together() -> None:
    a, (x, y) = network(0), data()
    probe = Probe(a, (x, y))
    with pytest.raises(OperandError, match="architectures: 1.bias"):
        loss_barrier(probe, Probe(network(1, True), (x, y)))
    with pytest.raises(OperandError, match="n_samples is 40 and 20"):
        loss_barrier(probe, Probe(network(1), (x[:20], y[:20])))
    with pytest.raises(OperandError, match="different data"):
        loss_barrier(probe, Probe(network(1), (x.flip(0), y)))
    with pytest.raises(OperandError, match="temperature"):
        loss_barrier(probe, Probe(network(1), (x, y), temperature=2.0))
    with pytest.raises(ValueError, match="points"):
        loss_barrier(probe, probe, points=2)

"""Lines between models: both ends, barriers, buffers, and states that do not belong."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from networks import BY_NAME
from torch import nn

from landscope.core.errors import NotApplicableError, OperandError
from landscope.measures.consistency import loss_barrier
from landscope.planes import Line, between, line
from landscope.probe.probe import Probe


@pytest.mark.parametrize(
    "name", ["relu_mlp", "residual_batchnorm", "transformer_encoder", "tied_weights", "weight_norm"]
)
def test_both_ends_are_the_models_own_losses(name: str) -> None:
    net = BY_NAME[name]
    a, b, (x, y) = net.model(), net.model(seed=1), net.data()
    probe = Probe(a, (x, y))
    for other in (b, b.state_dict(), {k: v.double() for k, v in b.state_dict().items()}):
        found = between(probe, other, resolution=11)
        at = {t: i for i, t in enumerate(found.t.tolist())}
        for t, model in ((0.0, a), (1.0, b)):
            z = model.eval()(x)
            assert found.loss[at[t]] == pytest.approx(F.cross_entropy(z, y).item(), rel=1e-9)
            assert found.accuracy[at[t]] == pytest.approx((z.argmax(1) == y).double().mean().item())
    assert found.ends == (0.0, 1.0)
    assert (found.t[0], found.t[-1]) == (-0.5, 1.5)


@pytest.mark.parametrize("mode", ["eval", "batch_statistics"])
def test_the_barrier_is_that_of_the_consistency_measures(mode: str) -> None:
    net = BY_NAME["residual_batchnorm"]
    a, b, (x, y) = net.model(), net.model(seed=1), net.data()
    one, two = (Probe(model, [(x, y)], mode=mode) for model in (a, b))
    found, truth = between(one, b, span=(0.0, 1.0), resolution=25), loss_barrier(one, two, points=25)
    np.testing.assert_allclose(found.loss, truth.loss, rtol=1e-10)
    assert found.barrier.height == pytest.approx(truth.height)
    wide = between(one, b, span=(-1.0, 2.0), resolution=73)
    assert len(wide.barrier.t) == 25
    assert wide.barrier.height == pytest.approx(truth.height)


def test_both_ends_are_points_whatever_the_resolution() -> None:
    net = BY_NAME["relu_mlp"]
    found = between(Probe(net.model(), net.data()), net.model(seed=1), span=(-0.37, 1.21), resolution=6)
    assert {0.0, 1.0} <= set(found.t.tolist())
    assert len(found.t) == 8
    assert (np.diff(found.t) > 0).all()


def test_parameters_that_are_not_measured_move_too() -> None:
    net = BY_NAME["relu_mlp"]
    whole, part = (Probe(net.model(), net.data(), params=params) for params in (None, "0"))
    np.testing.assert_allclose(
        between(part, net.model(seed=1), resolution=5).loss,
        between(whole, net.model(seed=1), resolution=5).loss,
        rtol=1e-12,
    )


def test_a_test_set_on_the_same_line() -> None:
    net = BY_NAME["residual_batchnorm"]
    a, b, (x, y) = net.model(), net.model(seed=1), net.data(20)
    train, test = Probe(a, (x[:12], y[:12])), Probe(a, (x[12:], y[12:]))
    found = between(train, b, others={"test": test}, resolution=5)
    np.testing.assert_allclose(found.others["test"].loss, between(test, b, resolution=5).loss, rtol=1e-12)


def test_states_that_do_not_belong() -> None:
    net = BY_NAME["relu_mlp"]
    probe, state = Probe(net.model(), net.data()), net.model(seed=1).state_dict()
    with pytest.raises(OperandError, match="lacks 0.weight"):
        between(probe, {f"module.{key}": value for key, value in state.items()})
    with pytest.raises(OperandError, match="holds 'extra'"):
        between(probe, {**state, "extra": torch.ones(2)})
    with pytest.raises(OperandError, match="expected \\(5, 4\\)"):
        between(probe, {**state, "0.weight": torch.ones(5, 3)})
    with pytest.raises(OperandError, match="state dict or a model"):
        between(probe, [1, 2])
    with pytest.raises(OperandError, match="length zero"):
        between(probe, net.model())
    with pytest.raises(OperandError, match="both models"):
        between(probe, state, span=(0.1, 1.5))
    with pytest.raises(NotApplicableError, match="between two models"):
        line(probe, resolution=3).barrier


def test_wrapped_models_and_missing_buffers() -> None:
    net = BY_NAME["residual_batchnorm"]
    a, b = net.model(), net.model(seed=1)
    probe = Probe(a, net.data())
    wrapped = between(probe, nn.DataParallel(copy.deepcopy(b)), resolution=5)
    np.testing.assert_allclose(wrapped.loss, between(probe, b, resolution=5).loss, rtol=1e-12)
    own_statistics = {name: p for name, p in b.state_dict().items() if "running" not in name}
    mixed = copy.deepcopy(a)
    mixed.load_state_dict({**a.state_dict(), **own_statistics})
    found = between(probe, own_statistics, span=(0.0, 1.0), resolution=3)
    assert found.loss[-1] == pytest.approx(Probe(mixed, net.data()).value(), rel=1e-9)


def test_negative_variances_beyond_the_ends_are_marked() -> None:
    a, b = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2)), nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2))
    b[0].running_var.fill_(0.1)
    found = between(Probe(a, (torch.randn(9, 3), torch.arange(9) % 2)), b, span=(-1.0, 2.0), resolution=13)
    assert found.undefined[found.t > 1.2].all()
    assert not found.undefined[(found.t >= -1) & (found.t <= 1)].any()
    assert np.isinf(found.loss[-1])
    again = Line.from_json(found.to_json())
    assert again == found
    assert np.isinf(again.loss[-1])

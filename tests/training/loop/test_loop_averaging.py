"""Averages against explicit means of snapshots, BatchNorm statistics against the data's, early stopping, convergence."""

from __future__ import annotations

import pytest
import torch
from loop_runs import BASE, EXACT, distance, merged, weights
from torch import Tensor, nn

from landscope.data import load
from landscope.training.averaging import recompute_statistics
from landscope.training.loop.train import train

STEPS = 4 * 6
SIX = {"epochs": 6, "snapshots": list(range(STEPS + 1))}


def snapshots(result: object, name: str) -> dict[int, Tensor]:
    return {step: kept[name] for step, kept in result.snapshots.items()}


def test_swa_is_the_mean_of_the_ends_of_epochs() -> None:
    result = train(merged(BASE, EXACT, SIX, {"averaging": {"kind": "swa", "start": 0.5}}))
    for name, value in result.average.named_parameters():
        ends = [snapshots(result, name)[4 * epoch] for epoch in (4, 5, 6)]
        assert torch.allclose(value, torch.stack(ends).mean(0), rtol=1e-12, atol=1e-12)


def test_ema_decays_from_step_to_step() -> None:
    result = train(merged(BASE, EXACT, SIX, {"averaging": {"kind": "ema", "start": 0.5, "decay": 0.8}}))
    for name, value in result.average.named_parameters():
        kept = snapshots(result, name)
        expected = kept[13]  # epochs of 4 steps: the first one in the second half
        for step in range(14, STEPS + 1):
            expected = 0.8 * expected + 0.2 * kept[step]
        assert torch.allclose(value, expected, rtol=1e-12, atol=1e-12)


def test_gadam_averages_at_a_constant_rate() -> None:
    settings = {"optimizer": {"name": "adam", "lr": 0.01, "decoupled": True}, "averaging": {"start": 0.54, "lr": 0.5}}
    result = train(merged(BASE, SIX, settings))
    assert [row["lr"] for row in result.history[4:]] == [0.005, 0.005]
    assert {"final", "average"} == set(result.scores)


def test_statistics_are_those_of_the_data() -> None:
    """Behind an affine layer and with batches of 30, 30, 30, 10: the mean is the data's, the variance that within batches."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Dropout(0.5)).double()
    x = load("circles").train.x.double()
    net[1].running_mean.fill_(7)
    before = [p.clone() for p in net.parameters()]
    recompute_statistics(net, lambda model, part: model(part), x, batch_size=30)
    z = net[0](x)
    variance = sum(len(part) * part.var(0) for part in z.split(30)) / len(x)
    assert torch.allclose(net[1].running_mean, z.mean(0))
    assert torch.allclose(net[1].running_var, variance)
    assert net[1].momentum == 0.1
    assert net.training
    assert all(map(torch.equal, before, net.parameters()))


def test_the_average_has_statistics_of_its_own() -> None:
    settings = {"averaging": "swa", "model": {"batch_norm": True, "dropout": 0.3}}
    result = train(merged(BASE, settings))
    norm = next(module for module in result.average.modules() if isinstance(module, nn.BatchNorm1d))
    first = next(module for module in result.average.modules() if isinstance(module, nn.Linear))
    expected = first(load("circles").train.x).mean(0)
    assert torch.allclose(norm.running_mean, expected, atol=1e-6)


def test_copies_share_no_storage() -> None:
    result = train(merged(BASE, {"averaging": "ema", "early_stopping": {}, "snapshots": [12]}))
    held = [*weights(result.model), *weights(result.best), *weights(result.average), *result.snapshots[12].values()]
    places = [tensor.untyped_storage().data_ptr() for tensor in held]
    assert len(set(places)) == len(places)


def test_the_best_is_the_best() -> None:
    """A rate so high that epochs get worse: the copy kept is that of the best one."""
    settings = {"optimizer": {"lr": 3.0}, "schedule": {"name": "constant", "warmup": 0.0}, "early_stopping": {}}
    result = train(merged(BASE, settings, {"epochs": 5, "snapshots": list(range(21))}))
    losses = [row["validation_loss"] for row in result.history]
    best = losses.index(min(losses))
    assert best < len(losses) - 1, "otherwise this test shows nothing"
    assert result.scores["best"]["validation_loss"] == losses[best]
    kept = result.snapshots[4 * (best + 1)]
    assert all(torch.equal(value, kept[name]) for name, value in result.best.state_dict().items())


def test_patience() -> None:
    settings = {"optimizer": {"lr": 0.0}, "early_stopping": 2, "epochs": 50}
    result = train(merged(BASE, EXACT, settings))
    assert len(result.history) == 3, "the first epoch is the best, and two more bring nothing"
    assert result.stopped == "early stopping: no better validation loss for 2 epochs"


def test_patience_is_counted_in_epochs_whatever_the_rows() -> None:
    settings = {"optimizer": {"lr": 0.0}, "early_stopping": 5, "epochs": 50, "evaluate_every": 3}
    result = train(merged(BASE, EXACT, settings))
    assert [row["epoch"] for row in result.history] == [3, 6, 9]
    assert result.stopped == "early stopping: no better validation loss for 6 epochs"


def test_swa_averages_every_epoch_whatever_the_rows() -> None:
    spec = merged(BASE, {"averaging": {"kind": "swa", "start": 0.3}, "epochs": 7})
    often, rarely = train(spec), train({**spec, "evaluate_every": 3})
    assert distance(often.average, rarely.average) == 0


@pytest.mark.parametrize(
    ("convergence", "epochs"), [({"relative_change": 0.05}, 2), ({"below": 10.0}, 1), ({"below": 10.0, "after": 3}, 3)]
)
def test_convergence(convergence: dict[str, float], epochs: int) -> None:
    settings = {"optimizer": {"lr": 1e-4}, "convergence": convergence, "epochs": 50}
    result = train(merged(BASE, EXACT, settings))
    assert (len(result.history), result.stopped.split(":")[0]) == (epochs, "converged")


@pytest.mark.parametrize(
    ("convergence", "epochs"), [({"relative_change": 0.05}, 8), ({"below": 10.0}, 4), ({"below": 10.0, "after": 5}, 8)]
)
def test_convergence_looks_at_rows(convergence: dict[str, float], epochs: int) -> None:
    settings = {"optimizer": {"lr": 1e-4}, "convergence": convergence, "epochs": 50, "evaluate_every": 4}
    result = train(merged(BASE, EXACT, settings))
    assert (result.epochs, result.stopped.split(":")[0]) == (epochs, "converged")
    assert "relative_change" not in convergence or result.stopped.endswith("% in the last 4 epochs")

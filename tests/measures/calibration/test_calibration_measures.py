"""Calibration and generalisation as measures at a probe."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from processes import run_together
from torch import nn

import landscope as ls
from landscope.core.estimate import Status
from landscope.measures import MEASURES
from landscope.measures import calibration as cal
from landscope.probe.totals import FORWARD

KEYS = ["accuracy", "error", "nll", "brier", "ece", "ace", "mce", "classwise_ece"]
ALL_FIVE = {"layer_rescaling", "neuron_rescaling", "batchnorm_scaling", "permutation", "logit_shift"}


def network(outputs: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, outputs))


def data(n: int = 50, classes: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(1)
    return torch.randn(n, 4, generator=rng), torch.randint(0, classes, (n,), generator=rng)


@pytest.mark.parametrize("key", KEYS)
def test_a_measure_is_its_function_of_the_logits(key: str) -> None:
    net, (x, y) = network().eval(), data()
    estimate = MEASURES[key]()(ls.Probe(net, (x, y)))
    expected = getattr(cal, key)(net(x), y)
    assert estimate.value == pytest.approx(expected.value, rel=1e-6)
    assert estimate.data_stderr == pytest.approx(expected.data_stderr, rel=1e-5)
    assert estimate.stderr == 0
    assert estimate.status is Status.EXACT
    assert set(MEASURES[key].invariant_to) == ALL_FIVE


def test_all_of_them_share_one_forward_pass() -> None:
    probe = ls.Probe(network(), data())
    report = ls.measure(probe, measures=KEYS)
    assert report.cost.passes == pytest.approx(FORWARD)
    assert all(e.status is Status.EXACT for e in report.values())
    assert report["error"].value == pytest.approx(1 - report["accuracy"].value)


@pytest.mark.parametrize("key", [*KEYS, "loss"])
def test_batches_and_their_order_change_nothing(key: str) -> None:
    x, y = data()
    whole = MEASURES[key]()(ls.Probe(network().double(), (x, y)))
    order = torch.randperm(50, generator=torch.Generator().manual_seed(2))
    batches = [(x[part], y[part]) for part in order.split([7, 30, 13])]
    cut = MEASURES[key]()(ls.Probe(network().double(), batches))
    assert cut.value == pytest.approx(whole.value, rel=1e-9)
    assert cut.data_stderr == pytest.approx(whole.data_stderr, rel=1e-6)


def test_the_temperature_of_the_probe_counts() -> None:
    net, (x, y) = network().eval(), data()
    probe = ls.Probe(net, (x, y))
    assert MEASURES["nll"]()(probe.at_temperature(3.0)).value == pytest.approx(cal.nll(net(x) / 3, y).value, rel=1e-6)
    assert MEASURES["accuracy"]()(probe.at_temperature(3.0)).value == MEASURES["accuracy"]()(probe).value


def test_loss_is_the_mean_loss_whatever_it_is() -> None:
    x, y = data()
    probe = ls.Probe(network(1), (x, x[:, :1]), "mse")
    estimate = MEASURES["loss"]()(probe)
    each = (network(1).eval()(x).detach() - x[:, :1]).square()
    assert estimate.value == pytest.approx(float(each.mean()), rel=1e-5)
    assert estimate.data_stderr == pytest.approx(float(each.std()) / 50**0.5, rel=1e-5)
    reduced = MEASURES["loss"]()(ls.Probe(network(), (x, y), lambda z, t: nn.functional.cross_entropy(z, t)))
    assert reduced.value == pytest.approx(MEASURES["nll"]()(ls.Probe(network(), (x, y))).value, rel=1e-5)
    assert reduced.data_stderr is None


@pytest.mark.parametrize("key", KEYS)
def test_regression_and_label_distributions_have_none(key: str) -> None:
    x, _ = data()
    regression = MEASURES[key]()(ls.Probe(network(1), (x, x[:, :1]), "mse"))
    assert regression.status is Status.NOT_APPLICABLE
    assert "regression" in regression.reason
    soft = MEASURES[key]()(ls.Probe(network(), (x, torch.softmax(x[:, :3], 1))))
    assert soft.status is Status.NOT_APPLICABLE
    assert "human_" in soft.reason


@pytest.mark.parametrize("shape", [(50,), (50, 1)])
def test_one_yes_or_no_output_is_two_classes(shape: tuple[int, ...]) -> None:
    net, (x, y) = network(1).eval(), data(classes=2)
    probe = ls.Probe(net, (x, y.reshape(shape)), "binary_cross_entropy")
    z = net(x)
    two = torch.cat([torch.zeros_like(z), z], 1)
    for key in KEYS:
        assert MEASURES[key]()(probe).value == pytest.approx(getattr(cal, key)(two, y).value, rel=1e-5)
    assert MEASURES["nll"]()(probe).value == pytest.approx(MEASURES["loss"]()(probe).value, rel=1e-5)
    shares = MEASURES["ece"]()(ls.Probe(net, (x, (y * 0.9).reshape(shape)), "binary_cross_entropy"))
    assert "probabilities" in shares.reason


def test_settings_are_checked_and_kept() -> None:
    assert MEASURES["ece"](n_bins=7)(ls.Probe(network(), data())).settings == {
        "seed": 0,
        "n_bins": 7,
        "resamples": 1000,
    }
    with pytest.raises(ValueError, match="n_bins"):
        MEASURES["ece"](n_bins=0)
    with pytest.raises(ValueError, match="resamples"):
        MEASURES["ace"](resamples=1)


def test_the_model_stays_as_it_was() -> None:
    net = network().train()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    ls.measure(net, data(), KEYS)
    assert net.training
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())


def measure_part(rank: int, folder: Path) -> None:
    x, y = data()
    part = slice(0, 13) if rank == 0 else slice(13, 50)
    report = ls.measure(network().double(), (x[part], y[part]), [*KEYS, "loss"])
    torch.save({key: [e.value, e.data_stderr] for key, e in report.items()}, folder / f"{rank}.pt")


def test_two_processes_give_what_one_gives(tmp_path: Path) -> None:
    run_together(measure_part, tmp_path)
    whole = ls.measure(network().double(), data(), [*KEYS, "loss"])
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        for key, estimate in whole.items():
            assert found[key] == pytest.approx([estimate.value, estimate.data_stderr], rel=1e-9)


@pytest.mark.parametrize("shape", [(20,), (20, 1)])
def test_yes_and_no_as_truth_values(shape: tuple[int, ...]) -> None:
    x = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    net = nn.Linear(4, 1)
    yes = (x[:, 0] > 0).reshape(shape)
    found = [ls.Probe(net, (x, y), "binary_cross_entropy") for y in (yes, yes.float())]
    for key in ("accuracy", "error", "nll", "brier", "ece"):
        values = [MEASURES[key]()(probe) for probe in found]
        assert values[0].status.has_value, key
        assert values[0].value == values[1].value, key


@pytest.mark.parametrize("loss", [nn.HuberLoss(), lambda z, y: (z - y).abs().mean()], ids=["huber", "lambda"])
def test_regression_with_any_loss_is_told_that_there_are_no_classes(loss: object) -> None:
    x = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    estimate = MEASURES["accuracy"]()(ls.Probe(nn.Linear(4, 2), (x, x[:, :2]), loss))  # type: ignore[arg-type]
    assert "for classes" in estimate.reason
    assert "real numbers" in estimate.reason

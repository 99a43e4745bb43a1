"""Schedules against closed forms and torch's own."""

from __future__ import annotations

import itertools

import pytest
import torch

from landscope.core.errors import SpecError
from landscope.specs.schema import parse
from landscope.training.schedule import averaging_begins, factor, learning_rate
from landscope.training.spec import ScheduleSpec, TrainingSpec

STEPS = 200


def of_torch(make: object) -> list[float]:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    schedule = make(optimizer)
    rates = []
    for _ in range(STEPS):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return rates


def ours(**settings: object) -> list[float]:
    spec = parse(ScheduleSpec, settings)
    return [factor(step, STEPS, spec) for step in range(STEPS)]


def test_cosine() -> None:
    lr = torch.optim.lr_scheduler
    assert ours(name="cosine") == pytest.approx(of_torch(lambda o: lr.CosineAnnealingLR(o, STEPS)), abs=1e-12)
    assert ours(name="cosine", final=0.1) == pytest.approx(
        of_torch(lambda o: lr.CosineAnnealingLR(o, STEPS, eta_min=0.1)), abs=1e-12
    )


def test_multistep() -> None:
    torchs = of_torch(lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [60, 120, 160], gamma=0.2))
    assert ours(name="multistep", milestones=[0.3, 0.6, 0.8], gamma=0.2) == pytest.approx(torchs)


def test_flat_linear_flat() -> None:
    """The third paper: flat to half time, linear to 1 % at 90 %, flat."""
    rates = ours(name="flat_linear_flat", final=0.01)
    assert set(rates[:101]) == {1.0}
    assert rates[140] == pytest.approx(1 - 0.99 * 0.5)
    assert rates[180:] == pytest.approx([0.01] * 20)
    assert all(a > b for a, b in itertools.pairwise(rates[100:181]))


def test_warm_up_comes_first() -> None:
    rates = ours(name="cosine", warmup=0.1)
    assert rates[:20] == pytest.approx([(step + 1) / 20 for step in range(20)])
    assert rates[20] == 1.0
    assert rates[110] == pytest.approx(0.5), "the cosine takes what warm-up leaves"
    assert ours(name="multistep", milestones=[0.5], warmup=0.1)[99:101] == pytest.approx([1.0, 0.1])


def test_the_rate_while_averaging() -> None:
    settings = {
        "model": "mlp",
        "epochs": 10,
        "schedule": "cosine",
        "optimizer": {"lr": 2.0},
        "averaging": {"start": 0.54, "lr": 0.5},
    }
    spec = parse(TrainingSpec, settings)
    assert averaging_begins(spec) == 6
    assert [learning_rate(spec, step, 10) for step in (60, 99)] == [1.0, 1.0]
    assert learning_rate(spec, 59, 10) == pytest.approx(2 * factor(59, 100, spec.schedule))


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "multistep"},
        {"milestones": [0.5]},
        {"name": "multistep", "milestones": [0.6, 0.3]},
        {"name": "flat_linear_flat", "end": 0.4},
    ],
)
def test_settings_that_contradict_each_other(wrong: dict[str, object]) -> None:
    with pytest.raises(SpecError):
        parse(ScheduleSpec, wrong)

"""How a measure is taken, where that differs from the others of its split: rows, mode, augmentation, checkpoints, seed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from study_runs import do_here
from torch import nn

from landscope import Probe
from landscope.core.errors import LandscopeError
from landscope.core.seeding import generator
from landscope.data import Augmentation
from landscope.studies.record import MeasuredModel
from landscope.studies.store.parts import part_keys
from landscope.studies.study import Study
from landscope.studies.work.meter import ModelMeter
from landscope.training.averaging import recompute_statistics
from landscope.training.loop.train import train

DATA = "landscope:enlarged_grey_digits"
TRAINING = {
    "data": DATA,
    "model": {"name": "lenet5", "batch_norm": True},
    "epochs": 1,
    "augmentation": {"crop": 2, "flip": True},
    "snapshots": [1],
}
MEASURES = {
    "loss": None,
    "batches": {"measure": "loss", "mode": "batch_statistics"},
    "augmented": {"measure": "loss", "augmented": True},
    "few": {"measure": "loss", "augmented": True, "rows": 40},
    "l2_norm": {"checkpoints": ["step 1"]},
}


def study(folder: Path, seeds: int = 1, **measuring: object) -> Study:
    wanted = {"checkpoints": ["final", "step 1"], "splits": {"train": {"measures": MEASURES}}, "batch_size": 32}
    spec = {"name": "takings", "training": TRAINING, "seeds": seeds, "measuring": {**wanted, **measuring}}
    return do_here(Study.of(spec, folder))


def values(subject: MeasuredModel) -> dict[str, float]:
    return {name: estimate.value for name, estimate in subject.reports["train"].estimates.items()}


def test_each_measure_is_taken_in_its_own_way(tmp_path: Path) -> None:
    done = study(tmp_path)
    final, step = done.records()[0].subjects
    trained = train({**TRAINING, "seed": 0}, progress=False)
    meter = ModelMeter(trained_task(), done.spec.measuring, torch.device("cpu"))
    x, y = meter.rows("train")
    moved = Augmentation(crop=2, flip=True)

    def loss(inputs: torch.Tensor, mode: str = "eval") -> float:
        return Probe(trained.model, (inputs, y), mode=mode, batch_size=32).value()  # type: ignore[arg-type]

    own = values(final)
    assert own["loss"] == pytest.approx(loss(x), rel=1e-6)
    assert own["batches"] == pytest.approx(loss(x, "batch_statistics"), rel=1e-6)
    assert own["augmented"] == pytest.approx(loss(moved(x, generator(0, "measured augmentation"))), rel=1e-6)
    assert len({own[name] for name in ("loss", "batches", "augmented", "few")}) == 4
    assert "l2_norm" not in own
    assert "l2_norm" in values(step)
    settings = final.reports["train"].estimates["few"].settings
    assert (settings["rows"], settings["augmented"]) == (40, True)


def trained_task():  # type: ignore[no-untyped-def]
    from landscope.training.spec import training_spec
    from landscope.training.task import make_task

    return make_task(training_spec({**TRAINING, "seed": 0}))


def test_statistics_are_computed_afresh_on_augmented_samples(tmp_path: Path) -> None:
    done = study(tmp_path, statistics="augmented", splits={"train": {"measures": ["loss"]}})
    trained = train({**TRAINING, "seed": 0}, progress=False)
    meter = ModelMeter(trained_task(), done.spec.measuring, torch.device("cpu"))
    x, y = meter.rows("train")
    moved = Augmentation(crop=2, flip=True)(x, generator(0, "measured augmentation"))
    net: nn.Module = trained.model
    before = Probe(net, (x, y)).value()
    recompute_statistics(net, lambda model, rows: model(rows), moved, 128)
    expected = Probe(net, (x, y)).value()
    assert values(done.records()[0].subjects[0])["loss"] == pytest.approx(expected, rel=1e-6)
    assert expected != pytest.approx(before, rel=1e-4)


def test_each_model_may_have_draws_of_its_own(tmp_path: Path) -> None:
    splits = {"train": {"measures": {"random_sharpness": {"samples": 3}}}}
    same = study(tmp_path / "same", 2, splits=splits, checkpoints=["final"]).records()
    own = study(tmp_path / "own", 2, splits=splits, checkpoints=["final"], seed="run").records()

    def seeds(records: list) -> list[object]:  # type: ignore[type-arg]
        return [r.subjects[0].reports["train"].estimates["random_sharpness"].settings["seed"] for r in records]

    assert (seeds(same), seeds(own)) == ([0, 0], [0, 1])
    assert values(same[0].subjects[0]) == values(own[0].subjects[0])
    assert values(same[1].subjects[0]) != values(own[1].subjects[0])


def test_what_changes_a_number_changes_its_key() -> None:
    def keys(measures: object, **measuring: object) -> dict[object, str]:
        splits = {"train": {"measures": measures}}
        return part_keys({"training": {"model": {"name": "mlp"}}, "measuring": {"splits": splits, **measuring}})

    place = ("final", 0, "train", "loss")
    usual = keys({"loss": None})[place]
    assert keys({"loss": {"checkpoints": ["final"]}})[place] == usual
    assert keys({"loss": {"mode": "eval"}})[place] == usual
    others = [{"mode": "batch_statistics"}, {"augmented": True}, {"rows": 9}]
    found = [keys({"loss": settings})[place] for settings in others]
    found += [keys({"loss": None}, statistics="augmented")[place], keys({"loss": None}, seed="run")[place]]
    assert len({usual, *found}) == 1 + len(found)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"rows": 0}, "rows: must be an integer ≥ 1"),
        ({"mode": "train"}, "mode: must be one of 'eval', 'batch_statistics'"),
        ({"augmented": 3}, "augmented: must be true or false"),
        ({"checkpoints": ["finl"]}, "'finl'"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, object], said: str, tmp_path: Path) -> None:
    measuring = {"splits": {"train": {"measures": {"loss": settings}}}}
    with pytest.raises(LandscopeError, match=said):
        Study.of({"name": "bad", "training": TRAINING, "measuring": measuring}, tmp_path)

"""One run from its spec to its record, and a study from its runs to its table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from study_runs import do_here

from landscope import Probe, measure
from landscope.core.errors import RunStoppedError, SpecError
from landscope.data import load
from landscope.models import build
from landscope.papers.explicit_regularisation.as_published import unconverged_temperature
from landscope.studies.record import MeasuredModel, Record
from landscope.studies.store.parts import TAKEN
from landscope.studies.study import Study
from landscope.studies.work import attempt
from landscope.studies.work import run as running
from landscope.studies.work.measure import measure_model
from landscope.studies.work.meter import WeightsAtTemperatures
from landscope.studies.work.run import run_in_folder

SPEC: dict[str, object] = {
    "name": "circles",
    "training": {
        "data": "circles",
        "model": {"name": "mlp", "widths": [4]},
        "epochs": 3,
        "batch_size": 20,
        "optimizer": {"lr": 0.1},
        "early_stopping": {},
        "snapshots": [5],
    },
    "axes": {"regulariser": {"none": {}, "decay": {"optimizer.weight_decay": 0.05}}},
    "seeds": 2,
    "measuring": {
        "checkpoints": ["final", "best", "step 5"],
        "temperature": "both",
        "splits": {"train": ["loss", "error", "l2_norm", "relative_flatness"], "test": ["loss", "error", "ece"]},
        "layers": True,
        "landscape": 3,
    },
}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    made = Study.of(SPEC, tmp_path_factory.mktemp("study"))
    return do_here(made)


def test_every_run_leaves_a_whole_record(study: Study) -> None:
    records = study.records()
    assert [(r.condition, r.seed) for r in records] == [("none", 0), ("none", 1), ("decay", 0), ("decay", 1)]
    for record in records:
        assert [s.checkpoint for s in record.subjects] == ["final", "final", "best", "best", "step 5", "step 5"]
        assert len(record.history) == 3
        assert record.environment["torch"] == torch.__version__
        assert record.seconds > 0
        assert record.peak_memory > 1e6
        assert Record.from_dict(json.loads(json.dumps(record.to_dict()))) == record


def test_the_numbers_are_those_of_the_weights(study: Study) -> None:
    record = study.records()[0]
    weights = load_file(study.store.run(record.run).path("training/final.safetensors"))
    net = build("mlp", in_features=2, widths=(4,), num_classes=2)
    net.load_state_dict(weights)
    data = load("circles")
    truth = measure(Probe(net, data.train), measures=["loss", "l2_norm", "relative_flatness"])
    found = record.subjects[0].reports["train"]
    for name, estimate in truth.items():
        assert found[name].value == pytest.approx(estimate.value, rel=1e-6)
    assert found["loss"].value == pytest.approx(record.history[-1]["train_loss"], rel=0.5)  # type: ignore[arg-type]


def test_models_at_a_training_loss_are_measured_where_it_was_reached(tmp_path: Path) -> None:
    training = {
        "model": {"name": "mlp", "widths": [8]},
        "data": "circles",
        "epochs": 12,
        "snapshots_below": [0.6, 1e-9],
    }
    spec = {
        "name": "levels",
        "training": training | {"batch_size": 16, "optimizer": {"lr": 0.1}},
        "seeds": 2,
        "measuring": {"checkpoints": ["loss 1e-9", "final", "loss 0.6"], "splits": {"train": ["loss"]}},
        "analysis": {"outcomes": ["train.loss"], "checkpoint": "final"},
    }
    for record in do_here(Study.of(spec, tmp_path)).records():
        assert [subject.checkpoint for subject in record.subjects] == ["final", "loss 0.6"]
        final, level = (subject.reports["train"]["loss"].value for subject in record.subjects)
        noted = next(row["evaluated_loss"] for row in record.history if row["evaluated_loss"] <= 0.6)
        assert level == pytest.approx(noted, rel=1e-5)
        assert final < level <= 0.6


def test_the_same_weights_under_two_names_are_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str] = []

    def noted(point: WeightsAtTemperatures, checkpoint: str, *given: object, **rest: object) -> MeasuredModel:
        measured.append(checkpoint)
        return measure_model(point, checkpoint, *given, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(running, "measure_model", noted)
    training = {**SPEC["training"], "epochs": 1, "snapshots": [2]}  # type: ignore[dict-item]
    measuring = {**SPEC["measuring"], "checkpoints": ["final", "step 2", "best"]}  # type: ignore[dict-item]
    study = do_here(Study.of({**SPEC, "training": training, "measuring": measuring, "seeds": 1, "axes": {}}, tmp_path))
    (record,) = study.records()
    assert measured == ["final", "final", "step 2", "step 2"]
    final, best = record.subjects[:2], record.subjects[4:]
    assert [subject.checkpoint for subject in best] == ["best", "best"]
    assert [s.reports["train"] for s in final] == [s.reports["train"] for s in best]
    assert [s.temperature for s in final] == [s.temperature for s in best]
    assert set(final[0].extras) == {"reliability", "layers", "landscape"}
    assert set(best[0].extras) == {"reliability"}


def test_only_what_is_asked_for_is_measured_again_at_a_temperature(tmp_path: Path) -> None:
    splits = {"train": {"measures": ["loss", "l2_norm"], "tempered": ["loss"]}, "test": ["loss", "ece"]}
    measuring = {"temperature": "both", "splits": splits}
    study = do_here(Study.of({**SPEC, "seeds": 1, "axes": {}, "measuring": measuring}, tmp_path))
    plain, scaled = study.records()[0].subjects
    assert list(plain.reports["train"]) == ["loss", "l2_norm"]
    assert list(scaled.reports["train"]) == ["loss"]
    assert list(scaled.reports["test"]) == list(plain.reports["test"])
    splits["train"] = {"measures": ["loss"], "tempered": ["l2_norm"]}
    with pytest.raises(SpecError, match="l2_norm"):
        Study.of({**SPEC, "measuring": measuring}, tmp_path / "wrong")


def test_a_third_temperature_is_that_of_a_papers_code(tmp_path: Path) -> None:
    measures = {"loss": None, "l2_norm": None, "root": {"measure": "fisher_rao_homogeneous", "layers": 6}}
    splits = {"train": {"measures": measures, "tempered": ["loss", "root"]}, "test": ["ece"]}
    measuring = {"temperature": ["none", "fitted", "explicit-regularisation/temperature"], "splits": splits}
    study = do_here(Study.of({**SPEC, "seeds": 1, "axes": {}, "measuring": measuring}, tmp_path))
    (record,) = study.records()
    plain, scaled, coded = record.subjects
    assert list(plain.reports["train"]) == list(measures)
    assert list(scaled.reports["train"]) == list(coded.reports["train"]) == ["loss", "root"]
    assert ["reliability" in subject.extras for subject in record.subjects] == [True, True, False]  # "after" is ours
    net = build("mlp", in_features=2, widths=(4,), num_classes=2)
    net.load_state_dict(load_file(study.store.run(record.run).path("training/final.safetensors")))
    x, y = load("circles").validation
    assert coded.temperature == pytest.approx(unconverged_temperature(net.eval()(x), y).value, rel=1e-5)
    assert coded.temperature == coded.reports["calibration"]["temperature"].value != scaled.temperature


def test_a_measure_may_have_fewer_rows_than_its_split(tmp_path: Path) -> None:
    measures = {"loss": None, "few": {"measure": "loss", "rows": 8}, "gradient_norm": {"rows": 8}}
    splits = {"train": {"measures": measures, "tempered": ["few"]}, "test": ["ece"]}
    measuring = {"temperature": ["none", "fitted", "explicit-regularisation/temperature"], "splits": splits}
    study = do_here(Study.of({**SPEC, "seeds": 1, "axes": {}, "measuring": measuring}, tmp_path))
    plain, scaled, coded = study.records()[0].subjects
    train = plain.reports["train"]
    assert list(train) == list(measures)
    assert train["loss"].value != train["few"].value
    assert [train[name].settings.get("rows") for name in measures] == [None, 8, 8]
    # a group of rows that is left out at one temperature is found again at the next
    assert len({subject.reports["train"]["few"].value for subject in (plain, scaled, coded)}) == 3
    for wrong in ({"loss": {"rows": 0}}, {"loss": {"rows": True}}):
        with pytest.raises(SpecError, match="rows: must be"):
            Study.of({**SPEC, "measuring": {"splits": {"train": {"measures": wrong}}}}, tmp_path / "wrong")
    with pytest.raises(SpecError, match="unknown fit of a temperature"):
        Study.of({**SPEC, "measuring": {"temperature": ["none", "explicit-regularisation/none"]}}, tmp_path / "wrong")


def test_temperature_is_fitted_on_validation_rows_and_changes_no_prediction(study: Study) -> None:
    for record in study.records():
        plain, scaled = record.subjects[:2]
        assert plain.temperature == 1.0
        assert "calibration" not in plain.reports
        assert scaled.temperature == scaled.reports["calibration"]["temperature"].value
        assert plain.reports["test"]["error"].value == scaled.reports["test"]["error"].value


def test_figures_are_made_for_the_first_seed_only(study: Study) -> None:
    for record in study.records():
        extras = record.subjects[0].extras
        assert ("landscape" in extras) == ("layers" in extras) == (record.seed == 0)
        assert set(extras["reliability"]) == {"before"}
        assert set(record.subjects[1].extras["reliability"]) == {"before", "after"}


def test_consistency_is_that_of_the_predictions(study: Study) -> None:
    table = study.table()
    for condition in ("none", "decay"):
        rows = table[(table.condition == condition) & (table.checkpoint == "final") & (table.temperature == 1.0)]
        outputs = [load_file(study.store.run(run).path("outputs/final.safetensors"))["test"] for run in rows.run]
        apart = float((outputs[0].argmax(1) != outputs[1].argmax(1)).float().mean())
        assert rows["consistency.disagreement"].tolist() == pytest.approx([apart, apart])
    assert (table["gap.loss"] - (table["test.loss"] - table["train.loss"])).abs().max() < 1e-12


@pytest.mark.parametrize("after", [7, 15])
def test_a_run_goes_on_where_it_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, study: Study, after: int
) -> None:
    """Stopped in the middle of an epoch, and in the first of six measurements."""
    again = Study.of(SPEC, tmp_path)
    key, run = next(iter(again.runs.items()))
    folder = again.store.add(run.plain)
    asked = 0

    def from_then_on() -> bool:
        nonlocal asked
        asked += 1
        return asked > after

    monkeypatch.setattr(attempt, "stop_requested", from_then_on)
    monkeypatch.setattr(attempt, "request_stop", lambda: None)
    with pytest.raises(RunStoppedError), folder.claim():
        run_in_folder(folder.spec(), str(folder.folder))
    assert not folder.done()
    assert folder.path("training/final.safetensors").exists() == (after == 15)
    assert folder.path(TAKEN).exists() == (after == 15)
    monkeypatch.setattr(attempt, "stop_requested", lambda: False)
    with folder.claim():
        run_in_folder(folder.spec(), str(folder.folder))
    one = Record.from_dict(folder.record())
    other = Record.from_dict(study.store.run(key).record())
    assert [_values(subject) for subject in one.subjects] == [_values(subject) for subject in other.subjects]


def _values(subject: MeasuredModel) -> dict[str, dict[str, float]]:
    return {split: {name: e.value for name, e in report.items()} for split, report in subject.reports.items()}


def test_models_that_exist(tmp_path: Path) -> None:
    files = []
    for seed in range(2):
        path = tmp_path / f"net{seed}.safetensors"
        save_file(build("mlp", seed=seed, in_features=64, widths=(4,)).state_dict(), path)
        files.append(str(path))
    taken = {"files": files, "model": {"name": "mlp", "widths": [4]}, "data": "digits"}
    spec = {"name": "mine", "checkpoints": taken, "measuring": {"splits": {"train": ["l2_norm"], "test": ["error"]}}}
    made = Study.of(spec, tmp_path / "store")
    do_here(made)
    table = made.table()
    assert table.condition.tolist() == ["net0", "net1"]
    truth = build("mlp", seed=1, in_features=64, widths=(4,))
    norm = sum(float(p.detach().square().sum()) for p in truth.parameters()) ** 0.5
    assert table["train.l2_norm"].tolist()[1] == pytest.approx(norm, rel=1e-6)


def test_a_checkpoint_of_another_network_is_refused_in_words(tmp_path: Path) -> None:
    save_file(build("mlp", in_features=64, widths=(5,)).state_dict(), tmp_path / "net.safetensors")
    taken = {"files": [str(tmp_path / "net.safetensors")], "model": {"name": "mlp", "widths": [4]}, "data": "digits"}
    made = Study.of({"name": "mine", "checkpoints": taken}, tmp_path / "store")
    with pytest.raises(ValueError, match="does not fit the model"):
        do_here(made)
    (status,) = made.statuses().values()
    assert status.state.value == "failed"
    assert "does not fit" in status.error


def test_what_a_training_did_not_make_is_said() -> None:
    with pytest.raises(SpecError, match="needs early_stopping"):
        Study.of({**SPEC, "training": {"data": "circles", "model": "mlp"}}, "unused")

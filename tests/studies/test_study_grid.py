"""From a study file to its runs: combinations, names, keys, and mistakes that are found before anything starts."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from landscope.core.errors import DataFileError, SpecError
from landscope.specs.schema import parse, to_plain
from landscope.studies.grid import levels, runs_of
from landscope.studies.spec import StudySpec
from landscope.studies.study import Study

BASE: dict[str, object] = {
    "name": "tiny",
    "training": {"data": "circles", "model": {"name": "mlp", "widths": [4]}, "epochs": 2},
    "axes": {
        "regulariser": {"none": {}, "decay": {"optimizer.weight_decay": 1e-3}, "SAM": {"sam.rho": 0.1}},
        "rate": {"optimizer.lr": [0.1, 0.2]},
    },
    "seeds": [3, 5],
}


def changed(**changes: object) -> StudySpec:
    return parse(StudySpec, {**BASE, **changes})


def test_every_combination_for_every_seed() -> None:
    runs = runs_of(changed())
    assert len(runs) == 3 * 2 * 2
    assert runs[0].condition == "none · optimizer.lr=0.1"
    last = runs[-1]
    assert last.axes == {"regulariser": "SAM", "rate": 0.2}
    assert last.training is not None
    assert (last.training.sam.rho, last.training.optimizer.lr, last.training.seed) == (0.1, 0.2, 5)  # type: ignore[union-attr]


@pytest.mark.parametrize("order", [("rate", "momentum"), ("momentum", "rate")])
def test_an_axis_that_sets_a_mapping_leaves_what_another_sets_inside_it(order: tuple[str, str]) -> None:
    axes = {"rate": {"optimizer.lr": [0.2, 0.3]}, "momentum": {"low": {"optimizer": {"momentum": 0.5}}}}
    runs = runs_of(changed(axes={name: axes[name] for name in order}, seeds=1))
    found = [(run.training.optimizer.lr, run.training.optimizer.momentum) for run in runs]  # type: ignore[union-attr]
    assert found == [(0.2, 0.5), (0.3, 0.5)]


def test_levels_that_six_digits_do_not_tell_apart_have_names_of_their_own() -> None:
    close = levels("rate", {"optimizer.lr": [0.12345671, 0.12345672]})
    assert [level.name for level in close] == ["optimizer.lr=0.12345671", "optimizer.lr=0.12345672"]


def test_axes_open_names_that_were_written_short() -> None:
    runs = runs_of(changed(training={"data": "circles", "model": "mlp"}, axes={"width": {"model.widths": [[4], [8]]}}))
    assert [run.training.model.options["widths"] for run in runs[::2]] == [[4], [8]]  # type: ignore[union-attr]


def test_keys_depend_on_what_decides_the_numbers_only(tmp_path: Path) -> None:
    def keys(**changes: object) -> set[str]:
        return set(Study(changed(**changes), tmp_path).runs)

    same = keys()
    assert len(same) == 12
    assert keys(name="other", question="why?", notes={"a": 1}, analysis={"outcomes": ["test.loss"]}) == same
    renamed = {"rule": BASE["axes"]["regulariser"], "rate": BASE["axes"]["rate"]}  # type: ignore[index]
    assert keys(axes=renamed) == same, "what an axis is called decides nothing"
    assert not keys(measuring={"seed": 1}) & same
    assert len(keys(seeds=[3]) & same) == 6


def test_one_level_per_condition_and_grids_by_value() -> None:
    assert [level.name for level in levels("lr", {"optimizer.lr": [0.1, 1]})] == ["lr=0.1", "lr=1"]
    assert [level.value for level in levels("lr", {"optimizer.lr": [0.1, 1]})] == [0.1, 1]


YAML = """\
name: tiny
training:
  data: circles
  model: {name: mlp}
  epochs: 2
axes:
  regulariser:
    none: {}
    decay: {optimizer.wieght_decay: 1e-3}
    smooth: {label_smoothing: 2}
  batch:
    batch_size: [8, 0]
measuring:
  splits:
    train: [hessian_trase]
"""


def test_every_mistake_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(YAML.replace("hessian_trase", "hessian_trace"))
    with pytest.raises(SpecError) as caught:
        Study.of(file, tmp_path)
    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    assert lines[0].startswith(f"{file}:12: axes.batch.batch_size[1]: batch_size: must be an integer ≥ 1")
    assert any(
        line.startswith(f"{file}:9: axes.regulariser.decay") and "did you mean 'weight_decay'" in line for line in lines
    )
    assert any(line.startswith(f"{file}:10: axes.regulariser.smooth: label_smoothing: must be") for line in lines)
    file.write_text(YAML)
    with pytest.raises(SpecError, match=r"study\.yaml:15: measuring\.splits\.train: unknown measure 'hessian_trase'"):
        Study.of(file, tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"training": None}, "either training .* or checkpoints"),
        ({"axes": {"a": {}}}, "at least one level"),
        ({"axes": {"a": {"epochs": []}}}, "axes.a.epochs: an axis needs at least one level"),
        (
            {"axes": {"a": {"none": {}, "again": {"epochs": 2}}}},
            "'none' and 'again' are the same training; remove one",
        ),
        (
            {"axes": {"a": {"p": {"epochs": 1}, "p · q": {}}, "b": {"q · r": {}, "r": {"optimizer.lr": 0.1}}}},
            "two conditions would both be called 'p · q · r'",
        ),
        (
            {"analysis": {"baseline": "non · optimizer.lr=0.1"}},
            "analysis.baseline: unknown condition .* did you mean 'none",
        ),
        (
            {"analysis": {"outcomes": ["test.error", "test.eror"]}},
            r"analysis.outcomes\[1\]: unknown column of the split test 'test.eror'; did you mean 'test.error'",
        ),
        (
            {"analysis": {"measures": ["train.published.igs"]}},
            r"analysis.measures\[0\]: unknown column of the split train",
        ),
        ({"analysis": {"given": "validation.loss"}}, "'validation.loss' is of a split that is not measured"),
        ({"name": "../elsewhere"}, "without a slash"),
        ({"name": ""}, "a folder is named after it"),
        ({"name": "x" * 300}, "expected a short name"),
        ({"measuring": {"checkpoints": ["5"]}}, "got '5'"),
        ({"axes": {"a": {"x": 3}}}, "a condition is a mapping of changes"),
        ({"axes": {"a": {"epochs": [1, 2]}, "b": {"epochs": [3]}}}, "changed by two axes"),
        ({"axes": {"a": {"epochs.x": [1]}}}, "which has no keys"),
        ({"axes": {"a": {"training.epochs": [1, 2]}}}, "write its own key, epochs"),
        ({"seeds": [1, 1]}, "expected different numbers"),
        ({"analysis": {"checkpoint": "best"}}, "analysis.checkpoint: expected one of measuring.checkpoints"),
        ({"training": {"model": "mlpp"}, "axes": {}}, "did you mean 'mlp'"),
        ({"training": {"model": {"name": "mlp", "width": 3}}, "axes": {}}, "did you mean 'widths'"),
        ({"training": {"model": "math:no_network"}, "axes": {}}, "has no function 'no_network'"),
        ({"training": {"model": "mlp", "seed": 3}}, "belong under `seeds`"),
        ({"measuring": {"checkpoints": ["best"]}}, '"best" needs early_stopping'),
        ({"measuring": {"checkpoints": ["average"]}}, '"average" needs averaging'),
        ({"measuring": {"checkpoints": ["step 5"]}}, "needs snapshots"),
        ({"measuring": {"checkpoints": ["loss 0.1"]}}, r"needs snapshots_below: \[0\.1\] in the training"),
        ({"measuring": {"checkpoints": ["loss ten"]}}, '"step N" or "loss X", got \'loss ten\''),
        ({"measuring": {"checkpoints": ["last"]}}, "got 'last'"),
        ({"measuring": {"splits": {"training": "all"}}}, "expected the splits train, validation and test"),
        ({"measuring": {"splits": {"train": ["fam/neuronwse"]}}}, "did you mean 'fam/neuronwise'"),
        ({"measuring": {"corruptions": {"names": ["fogg"]}}}, "did you mean 'fog'"),
    ],
)
def test_impossible_combinations(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        Study(changed(**changes), tmp_path)


def test_missing_data_is_found_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANDSCOPE_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(DataFileError, match="landscope data get cifar10"):
        Study(changed(training={"data": "cifar10", "model": "resnet20"}, axes={}), tmp_path / "s")


def test_a_study_is_kept_and_opened_again(tmp_path: Path) -> None:
    study = Study(changed(), tmp_path / "shared")
    study.save(tmp_path / "one")
    again = Study.open(tmp_path / "one")
    assert again.spec == study.spec
    assert again.runs.keys() == study.runs.keys()
    assert again.store.root == study.store.root
    with pytest.raises(SpecError, match="no such folder"):
        Study.open(tmp_path / "two")


def test_specs_survive_being_written_out() -> None:
    spec = changed(measuring={"splits": {"train": {"measures": {"hessian_trace": {"tol": 0.1}}}}, "landscape": 9})
    assert parse(StudySpec, to_plain(spec)) == spec


@pytest.mark.parametrize("part", ["data", "model", "axis", "data axis"])
def test_an_edited_function_of_ones_own_is_another_run(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    training: dict[str, object] = {"model": "mlp", "data": "circles"}
    axes: dict[str, object] = {}
    if part == "axis":
        axes = {"net": {"own": {"model": "own_part:build"}}}
    elif part == "data axis":
        axes = {"rows": {"data": ["circles", "own_part:build"]}}
    else:
        training[part] = "own_part:build"
    kept: dict[str, list[str]] = {}
    for text in ("1", "2", "1"):
        (tmp_path / "own_part.py").write_text(f"def build(**options):\n    return {text}\n")
        monkeypatch.delitem(sys.modules, "own_part", raising=False)
        importlib.invalidate_caches()
        study = Study.of({"name": "own", "training": training, "axes": axes, "seeds": 1}, tmp_path / "s")
        assert kept.setdefault(text, list(study.runs)) == list(study.runs)
    assert kept["1"] != kept["2"]
    study.save(tmp_path / "s")
    (tmp_path / "own_part.py").write_text("def build(**options):\n    return 3\n")
    assert list(Study.open(tmp_path / "s").runs) == kept["1"]  # what was run stays what it was


def test_an_edited_measure_of_ones_own_is_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    keys = []
    for text in ("pass", "limit = 1", "pass"):
        (tmp_path / "own_measure.py").write_text(
            f"import landscope\nclass Own(landscope.Measure):\n    {text}\n    _measure = passes = None\n"
        )
        monkeypatch.delitem(sys.modules, "own_measure", raising=False)
        importlib.invalidate_caches()
        measured = {"measures": {"mine": {"measure": "own_measure:Own"}}}
        spec = {"name": "own", "training": {"model": "mlp"}, "measuring": {"splits": {"train": measured}}, "seeds": 1}
        keys += list(Study.of(spec, tmp_path / "s").runs)
    assert keys[0] == keys[2] != keys[1]


def test_data_of_ones_own_that_is_not_there_is_named_with_its_line(tmp_path: Path) -> None:
    spec = tmp_path / "study.yaml"
    spec.write_text("name: own\ntraining:\n  model: mlp\n  data: no_such_module:rows\n")
    with pytest.raises(SpecError, match=r"study.yaml:4: no_such_module:rows"):
        Study.of(spec, tmp_path / "s")

"""An edit makes only what it changes: trainings and estimates of runs that a study no longer names are taken over."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file
from study_runs import do_here

from landscope.core.errors import LandscopeError
from landscope.measures import Report
from landscope.models import build
from landscope.specs.code import file_version, source_version
from landscope.studies.orphans import held_by_orphans, orphans_of, remove, take_over, why_changed
from landscope.studies.store import RunState
from landscope.studies.store.parts import model_key, part_keys
from landscope.studies.study import KeptStudy, Study
from landscope.studies.work import measure as measuring
from landscope.studies.work import run as running
from landscope.training.loop.train import train

SPEC: dict[str, Any] = {
    "name": "tiny",
    "training": {"data": "circles", "model": {"name": "mlp", "widths": [4]}, "epochs": 2, "batch_size": 20},
    "axes": {"method": {"plain": {}, "SAM": {"sam.rho": 0.1}}},
    "seeds": 2,
    "measuring": {"splits": {"train": ["loss", "hessian_trace"], "test": ["error", "ece"]}, "layers": True},
}
MORE = {**SPEC, "measuring": {**SPEC["measuring"], "splits": {"train": ["loss", "gradient_norm", "hessian_trace"],
                                                               "test": ["error", "ece"]}}}  # fmt: skip


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """What is trained and measured from here on."""
    found: dict[str, list[str]] = {"trained": [], "measured": []}
    measured = measuring.measured

    def note(probe: Any, chosen: Any, **how: Any) -> Report:
        found["measured"] += chosen
        return measured(probe, chosen, **how)

    def training(spec: Any, *, folder: Path, **how: Any) -> Any:
        if not (folder / "history.json").exists():
            found["trained"].append(folder.parent.name)
        return train(spec, folder=folder, **how)

    monkeypatch.setattr(measuring, "measured", note)
    monkeypatch.setattr(running, "train", training)
    return found


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module of the user's own; it is imported afresh wherever a test asks for a study."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(tmp_path))])
    monkeypatch.setitem(sys.modules, "own_nets", None)  # so that it is gone afterwards
    del sys.modules["own_nets"]
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "own_nets.py").write_text(
        "from torch import nn\n\ndef block():\n    return nn.Linear(2, 3)\n\n"
        "def build():\n    return nn.Sequential(block(), nn.ReLU(), nn.Linear(3, 2))\n\n"
        "def other():\n    return nn.Linear(2, 2)\n"
    )
    return tmp_path


OWN = {**SPEC, "training": {**SPEC["training"], "model": "own_nets:build"}}


def numbers(study: Study) -> Any:
    columns = [
        "condition",
        "seed",
        "train.loss",
        "train.hessian_trace",
        "train.gradient_norm",
        "test.error",
        "test.ece",
    ]
    return study.table()[columns].to_dict("list")


def test_a_measure_more_costs_that_measure(tmp_path: Path, noted: dict[str, list[str]]) -> None:
    do_here(Study.of(SPEC, tmp_path / "a"))
    for list_ in noted.values():
        list_.clear()
    study = Study.of(MORE, tmp_path / "a")
    assert study.progress().done == 0
    taken = take_over(study, study.runs)
    assert (taken.runs, taken.trainings, taken.estimates) == (4, 4, 16)
    assert {status.state for status in study.statuses().values()} == {RunState.WAITING}
    do_here(study)
    assert noted == {"trained": [], "measured": ["gradient_norm"] * 4}
    assert numbers(study) == numbers(do_here(Study.of(MORE, tmp_path / "fresh")))
    records = {record.run: record for record in study.records()}
    first = records[next(iter(study.runs))]
    assert list(first.subjects[0].reports["train"]) == ["loss", "gradient_norm", "hessian_trace"]
    assert "layers" in first.subjects[0].extras
    assert all(record.seconds > 0 for record in records.values())


def test_files_are_shared_and_outlive_their_first_owner(tmp_path: Path) -> None:
    before = do_here(Study.of(SPEC, tmp_path))
    study = Study.of(MORE, tmp_path)
    take_over(study, study.runs)
    there, here = (tmp_path / "runs" / next(iter(of.runs)) / "training/final.safetensors" for of in (before, study))
    assert there.samefile(here)
    orphans = list(orphans_of(study))
    assert {orphan.folder.key for orphan in orphans} == {*before.runs}
    assert orphans[0].title.startswith("mlp on circles, seed ")
    assert 0 < orphans[0].size < sum(path.stat().st_size for path in orphans[0].folder.folder.rglob("*"))
    assert all(map(remove, orphans))
    assert here.exists()
    assert not list(orphans_of(study))
    assert do_here(study).progress().done == 4


def test_what_a_living_process_works_on_stays(tmp_path: Path) -> None:
    before = do_here(Study.of(SPEC, tmp_path))
    study = Study.of(MORE, tmp_path)
    key = next(iter(before.runs))
    os.remove(tmp_path / "runs" / key / "record.json")
    with before.store.run(key).claim():
        assert [remove(orphan) for orphan in orphans_of(study)].count(False) == 1


def test_an_interrupted_training_is_taken_over(tmp_path: Path, noted: dict[str, list[str]]) -> None:
    before = Study.of(SPEC, tmp_path)
    key, run = next(iter(before.runs.items()))
    folder = before.store.add(run.plain).path("training")
    assert not train(run.training, folder=folder, should_stop=lambda: True, progress=False).finished  # type: ignore[arg-type]
    study = Study.of(MORE, tmp_path)
    assert take_over(study, study.runs).trainings == 1
    assert do_here(study).progress().done == 4
    assert numbers(study) == numbers(do_here(Study.of(MORE, tmp_path / "fresh")))
    assert key not in study.runs


def test_what_failed_or_was_cut_short_is_measured_again(tmp_path: Path, noted: dict[str, list[str]]) -> None:
    before = do_here(Study.of({**SPEC, "axes": {}, "seeds": 1}, tmp_path))
    run = before.store.run(next(iter(before.runs)))
    record: Any = run.record()
    estimates = record["subjects"][0]["reports"]["train"]["estimates"]
    estimates["hessian_trace"] |= {"status": "failed", "value": None, "reason": "out of memory"}
    os.remove(run.path("record.json"))
    with run.claim():
        run.finish(record)
    noted["measured"].clear()
    study = Study.of({**MORE, "axes": {}, "seeds": 1}, tmp_path)
    assert take_over(study, study.runs).estimates == 3
    do_here(study)
    assert noted["measured"] == ["gradient_norm", "hessian_trace"]


def test_temperatures_and_checkpoints(tmp_path: Path, noted: dict[str, list[str]]) -> None:
    spec = {**SPEC, "axes": {}, "seeds": 1, "training": {**SPEC["training"], "early_stopping": {}}}
    spec["measuring"] = {"splits": {"train": ["loss"]}, "temperature": "both", "checkpoints": ["final", "best"]}
    do_here(Study.of(spec, tmp_path))
    wider = {**spec, "measuring": {**spec["measuring"], "splits": {"train": ["loss"], "test": ["loss"]}}}
    study = Study.of(wider, tmp_path)
    assert take_over(study, study.runs).estimates == 4
    fresh = do_here(Study.of(wider, tmp_path / "fresh"))
    noted["measured"].clear()
    columns = ["checkpoint", "temperature", "train.loss", "test.loss"]
    assert do_here(study).table()[columns].equals(fresh.table()[columns])
    assert set(noted["measured"]) == {"loss"}
    assert len(noted["measured"]) <= 4


OTHERS: list[tuple[str, Any]] = [
    ("mode", "batch_statistics"),
    ("batch_size", 7),
    ("dtype", "float64"),
    ("seed", 1),
    ("seconds", 1.0),
    ("splits", {"train": {"measures": ["loss"], "samples": 9}}),
    ("splits", {"train": {"measures": {"loss": {"measure": "hessian_trace"}}}}),
    ("splits", {"validation": ["loss"]}),
    ("temperature", "fitted"),
]


@pytest.mark.parametrize(("key", "value"), OTHERS)
def test_what_decides_an_estimate_decides_its_key(key: str, value: Any) -> None:
    def keys(measuring: Any) -> set[str]:
        study = Study.of({**SPEC, "measuring": {"splits": {"train": ["loss"]}, **measuring}}, "no/such/folder")
        keys = part_keys(next(iter(study.runs.values())).plain)
        return {part for (*_, split, name), part in keys.items() if split in study.spec.measuring.splits and name}

    assert not keys({}) & keys({key: value})


def test_what_decides_a_training_decides_its_key(own: Path) -> None:
    plain: Any = next(iter(Study.of(OWN, own).runs.values())).plain
    assert plain["versions"].keys() == {"data", "networks"}
    others = [
        {**plain, "versions": {**plain["versions"], "data": "another"}},
        {**plain, "versions": {**plain["versions"], "networks": ["own_nets:build 0"]}},
        {**plain, "training": {**plain["training"], "epochs": 3}},
        {**plain, "training": {**plain["training"], "seed": 3}},
    ]
    assert len({model_key(spec) for spec in (plain, *others)}) == 5
    same = [
        {**plain, "figures": False},
        {**plain, "measuring": {"seed": 3}},
        {
            **plain,
            "versions": {**plain["versions"], "networks": [*plain["versions"]["networks"], "z:z 1"], "measures": [1]},
        },
    ]
    assert {model_key(spec) for spec in same} == {model_key(plain)}
    assert model_key({"pool": {}}) is model_key({"seed": 1}) is None


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    sys.modules.pop(file.stem, None)


def test_a_comment_changes_nothing_and_code_says_what_it_changed(own: Path) -> None:
    before = Study.of(OWN, own / "store")
    before.save(own)
    edit(own / "own_nets.py", "def block", "# of two inputs\ndef block")
    edit(own / "own_nets.py", "nn.Linear(2, 2)", "nn.Linear(2, 2, bias=False)")
    study = Study.of(OWN, own / "store")
    assert study.runs.keys() == before.runs.keys()
    assert KeptStudy.read(own).is_of(study)
    edit(own / "own_nets.py", "nn.Linear(2, 3)", "nn.Linear(2, 3, bias=False)")
    study = Study.of({**OWN, "seeds": 3}, own / "store")
    assert not study.runs.keys() & before.runs.keys()
    assert not KeptStudy.read(own).is_of(study)
    [(reason, keys)] = why_changed(Study.open(own), study).items()
    assert reason == "the code of own_nets:build has changed (own_nets.block)"
    assert [study.runs[key].seed for key in keys] == [0, 1, 0, 1]  # the third seed is new, not changed


def test_another_network_on_an_axis_leaves_the_others_as_they_were(own: Path, noted: dict[str, list[str]]) -> None:
    axes = {"net": {"model": ["own_nets:build"]}}
    do_here(Study.of({**OWN, "axes": axes}, own / "store"))
    noted["trained"].clear()
    study = Study.of({**OWN, "axes": {"net": {"model": ["own_nets:build", "own_nets:other"]}}}, own / "store")
    assert take_over(study, study.runs).trainings == 2
    do_here(study)
    assert {study.runs[key].condition for key in noted["trained"]} == {"model=own_nets:other"}


def test_the_reasons_that_an_edit_has(tmp_path: Path) -> None:
    before = Study.of(SPEC, tmp_path)
    changed = {**MORE, "training": {**SPEC["training"], "epochs": 5}}
    assert [*why_changed(before, Study.of(changed, tmp_path))] == [
        "training.epochs was 2 and is 5; measuring.splits.train.measures: gradient_norm added"
    ]
    fewer = {**SPEC, "measuring": {**SPEC["measuring"], "splits": {"train": ["loss"]}, "dtype": "float64"}}
    [reason] = why_changed(before, Study.of(fewer, tmp_path))
    assert "measuring.splits.train.measures: hessian_trace removed" in reason
    assert 'measuring.dtype was not set and is "float64"' in reason
    assert [*why_changed(before, Study.of({**SPEC, "seeds": [1, 0]}, tmp_path))] == [
        "another seed comes first, and figures are made for the first"
    ]
    assert why_changed(before, Study.of({**SPEC, "question": "Why?", "seeds": 3}, tmp_path)) == {}


def old_store(root: Path) -> Study:
    """A store whose runs are recognised by the whole file of their network, as version 0.1 left it."""
    new = Study.of(OWN, root / "elsewhere")
    old = Study(new.spec, root, versions={"data": "computed", "networks": [file_version("own_nets:build")]})
    do_here(old).save(root)
    kept = json.loads((root / "study.json").read_text())
    assert kept.keys() == {"name", "store", "versions", "spec"}
    return old


def test_runs_of_an_older_version_are_found_and_taken_over(own: Path, noted: dict[str, list[str]]) -> None:
    old = old_store(own / "store")
    study = Study.of(OWN, own / "store")
    assert study.versions["networks"] == [source_version("own_nets:build")]
    assert study.runs.keys() == old.runs.keys()
    assert study.progress().done == 4
    study.save(own / "store")
    assert Study.open(own / "store").runs.keys() == old.runs.keys()
    edit(own / "own_nets.py", "def block", "# of two inputs\ndef block")
    later = Study(study.spec, own / "store", before=KeptStudy.read(own / "store"))
    assert later.runs.keys() == old.runs.keys()
    later.save(own / "store")
    noted["trained"].clear()
    wider = Study.of({**OWN, "measuring": MORE["measuring"]}, own / "nowhere").spec
    more = Study(wider, own / "store", before=KeptStudy.read(own / "store"))
    assert [*why_changed(Study.open(own / "store"), more)] == ["measuring.splits.train.measures: gradient_norm added"]
    assert take_over(more, more.runs).trainings == 4
    do_here(more)
    assert noted["trained"] == []


def test_a_damaged_orphan_is_no_reason_to_fail(tmp_path: Path) -> None:
    before = do_here(Study.of(SPEC, tmp_path))
    for key, name in zip(before.runs, ("spec.json", "record.json", "spec.json", "record.json"), strict=True):
        (tmp_path / "runs" / key / name).write_text('{"a')
    study = Study.of(MORE, tmp_path)
    held = held_by_orphans(study, study.runs)
    assert [holding.estimates for holding in held.values()] == [0, 0]
    take_over(study, study.runs)
    assert do_here(study).progress().done == 4


def test_a_kept_study_that_is_damaged(tmp_path: Path) -> None:
    Study.of(SPEC, tmp_path).save(tmp_path)
    content = json.loads((tmp_path / "study.json").read_text())
    for damage in ({"former": 3}, {"former": [3]}, {"code": []}, {"code": {"a:b": 1}}, {"versions": []}):
        (tmp_path / "study.json").write_text(json.dumps(content | damage))
        with pytest.raises(LandscopeError, match=r"study\.json"):
            Study.open(tmp_path)


def checkpoints(tmp_path: Path, measures: list[str], width: int = 4) -> dict[str, Any]:
    save_file(build("mlp", in_features=2, widths=(width,), num_classes=2).state_dict(), tmp_path / "a.safetensors")
    source = {
        "files": [str(tmp_path / "a.safetensors")],
        "model": {"name": "mlp", "widths": [width]},
        "data": "circles",
    }
    return {"name": "taken", "checkpoints": source, "measuring": {"splits": {"train": measures}}}


def test_weights_that_were_written_again_are_measured_again(tmp_path: Path, noted: dict[str, list[str]]) -> None:
    spec = checkpoints(tmp_path, ["l2_norm"])
    study = do_here(Study.of(spec, tmp_path / "s"))
    study.save(tmp_path / "s")
    assert Study.of(checkpoints(tmp_path, ["l2_norm"]), tmp_path / "s").progress().done == 1  # the same bytes
    [before] = study.table()["train.l2_norm"]
    weights = {name: 2 * value for name, value in build("mlp", in_features=2, widths=(4,)).state_dict().items()}
    weights = {name: value[:2] if name.startswith("fc") else value for name, value in weights.items()}
    save_file(weights, tmp_path / "a.safetensors")
    kept = KeptStudy.read(tmp_path / "s")
    again = Study(Study.open(tmp_path / "s").spec, tmp_path / "s", before=kept)
    assert [*why_changed(Study.open(tmp_path / "s"), again)] == ["the file of weights has changed"]
    assert take_over(again, again.runs).runs == 0
    [after] = do_here(again).table()["train.l2_norm"]
    assert after > 1.5 * before
    again.save(tmp_path / "s")
    more = Study.of({**spec, "measuring": {"splits": {"train": ["l2_norm", "loss"]}}}, tmp_path / "s")
    assert take_over(more, more.runs).estimates == 1
    noted["measured"].clear()
    assert do_here(more).table()["train.l2_norm"].item() == after
    assert noted["measured"] == ["loss"]
    (tmp_path / "a.safetensors").unlink()
    gone = Study(again.spec, tmp_path / "s", before=KeptStudy.read(tmp_path / "s"))
    assert gone.progress().done == 1


def test_checkpoints_of_an_older_version_are_done_unless_their_weights_are_newer(tmp_path: Path) -> None:
    spec = checkpoints(tmp_path, ["l2_norm"])
    new = Study.of(spec, tmp_path / "elsewhere")
    old = do_here(Study(new.spec, tmp_path / "s", versions={"data": "computed"}))
    assert Study.of(spec, tmp_path / "s").runs.keys() == old.runs.keys() != new.runs.keys()
    os.utime(tmp_path / "a.safetensors", (2e9, 2e9))
    assert Study.of(spec, tmp_path / "s").runs.keys() == new.runs.keys()

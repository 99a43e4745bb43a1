"""A run keeps its key over versions, new fields and moved code; what version 0.1.0 left in a store is found and resumed."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from study_runs import do_here

import landscope
from landscope.models.mlp import MLP
from landscope.specs import names as importing
from landscope.specs.names import import_function
from landscope.studies import grid
from landscope.studies.executors.base import Job, Resources, Summary, ignore, to_do
from landscope.studies.store import RunState, Store, identity
from landscope.studies.store.identity import canonical, legacy_keys, run_key
from landscope.studies.study import Study
from landscope.training.loop.train import train
from landscope.training.spec import TrainingSpec

OLD_NAME = "landscope.models.tabular:MLP"
SPEC: dict[str, Any] = {
    "name": "tiny",
    "training": {"data": "circles", "model": {"name": OLD_NAME, "widths": [4]}, "epochs": 2, "batch_size": 20},
    "axes": {"rate": {"optimizer.lr": [0.1, 0.2]}},
    "seeds": 2,
    "measuring": {"splits": {"train": ["loss"], "test": ["error"]}},
}
OLD_STUDY = Path(__file__).parent.parent / "golden" / "old_study.json"


def as_written(plain: Any, name: str = OLD_NAME, version: str = "0.1.0") -> Any:
    """The spec of a run as version 0.1.0 wrote it."""
    old = json.loads(json.dumps(plain).replace('"landscope:MLP"', json.dumps(name)))
    for field in ("evaluate_every", "compile", "snapshots_below"):  # those that are later
        del (old.get("pool") or old)["training"][field]
    old.get("measuring", {}).pop("statistics", None)
    for split in old.get("measuring", {}).get("splits", {}).values():
        split |= {"as_published": None, "only": []}  # fields that there were then
    return {**old, "versions": {"landscope": version, **old["versions"]}} if "versions" in old else old


def old_key(old: Any) -> str:
    text = json.dumps(old, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def put(root: Path, old: Any) -> Path:
    """The folder of a run as version 0.1.0 made it."""
    folder = root / "runs" / old_key(old)
    folder.mkdir(parents=True)
    (root / "store.json").write_text('{"format": 1}')
    (folder / "spec.json").write_text(json.dumps(old, indent=1) + "\n")
    return folder


def old_store(root: Path, **how: str) -> list[str]:
    """A store with the four runs of `SPEC`; their keys."""
    runs = Study.of(SPEC, root / "elsewhere").runs.values()
    return [put(root, as_written(run.plain, **how)).name for run in runs]


def keys_of(spec: dict[str, Any]) -> list[str]:
    return list(Study.of(spec, "no/such/folder").runs)


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> str:
    """The class lies in another module, and what was its module is gone; the new place."""
    module = ModuleType("landscope.nets")
    module.MLP = MLP  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "landscope.nets", module)
    for gone in ("landscope.models", "landscope.models.mlp"):
        monkeypatch.setitem(sys.modules, gone, None)
    monkeypatch.setitem(importing.HOMES, "MLP", "landscope.nets:MLP")
    monkeypatch.setitem(importing.ALIASES, "landscope.nets:MLP", "landscope:MLP")
    return "landscope.nets:MLP"


@dataclass(frozen=True, kw_only=True)
class Longer(TrainingSpec):
    new: tuple[float, ...] = (0.5,)


Longer.__name__ = "TrainingSpec"


@pytest.fixture
def longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """`TrainingSpec` has one more field."""
    monkeypatch.setattr(grid, "TrainingSpec", Longer)
    monkeypatch.setitem(identity.PARTS, "training", Longer)


def test_another_version_has_the_same_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = keys_of(SPEC)
    monkeypatch.setattr(landscope, "__version__", "7.0.0")
    assert keys_of(SPEC) == before
    versions: Any = next(iter(Study.of(SPEC, tmp_path).runs.values())).plain["versions"]
    assert versions.keys() == {"data", "networks"}


def test_a_new_field_changes_no_key(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    before, old = keys_of(SPEC), old_store(tmp_path)
    request.getfixturevalue("longer")
    runs = Study.of(SPEC, tmp_path).runs
    assert "new" in next(iter(runs.values())).plain["training"]  # type: ignore[operator]
    assert keys_of(SPEC) == before
    assert list(runs) == old


def test_a_new_field_with_another_value_is_another_run(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    before, old = keys_of(SPEC), old_store(tmp_path)
    request.getfixturevalue("longer")
    other = {**SPEC, "training": {**SPEC["training"], "new": [0.25]}}
    assert not {*keys_of(other)} & {*before}
    assert not {*Study.of(other, tmp_path).runs} & {*old}


def test_moved_code_changes_no_key(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    before, old = keys_of(SPEC), old_store(tmp_path)
    new = request.getfixturevalue("moved")
    for name in (OLD_NAME, "landscope.models.tabular.mlp:MLP", "landscope:MLP", new):
        assert import_function(name) is MLP
        spec = {**SPEC, "training": {**SPEC["training"], "model": {"name": name, "widths": [4]}}}
        assert keys_of(spec) == before
        study = Study.of(spec, tmp_path)
        assert list(study.runs) == old
    assert do_here(study).progress().done == 4


@pytest.mark.parametrize("name", [OLD_NAME, "landscope.models.tabular.mlp:MLP"])
@pytest.mark.parametrize("version", ["0.1.0", "0+source"])
def test_every_form_of_an_old_key_is_found(name: str, version: str, tmp_path: Path) -> None:
    old = old_store(tmp_path, name=name, version=version)
    assert list(Study.of(SPEC, tmp_path).runs) == old


def test_several_networks_are_found_in_whatever_order_their_names_stood(tmp_path: Path) -> None:
    old_names = ["landscope.models.tabular.linear:SoftmaxRegression", OLD_NAME]  # as they were sorted
    training = {**SPEC["training"], "model": old_names[1]}
    spec = {**SPEC, "training": training, "axes": {"net": {"model.name": old_names}}}
    runs = Study.of(spec, tmp_path).runs
    plain: Any = next(iter(runs.values())).plain
    assert plain["versions"]["networks"] == ["landscope:MLP", "landscope:SoftmaxRegression"]
    old = as_written(plain)
    old["training"]["model"]["name"] = old_names[0]
    old["versions"]["networks"] = old_names
    assert run_key(old) == run_key(plain)
    assert old_key(old) in legacy_keys(plain)


def test_runs_of_an_old_store_are_resumed_in_their_folders(tmp_path: Path) -> None:
    fresh = do_here(Study.of(SPEC, tmp_path / "fresh"))
    root = tmp_path / "old"
    old = old_store(root)
    written = json.loads((root / "runs" / old[0] / "spec.json").read_text())["training"]
    half = root / "runs" / old[0] / "training"
    assert not train(written, folder=half, should_stop=lambda: True, progress=False).finished
    (half / "spec.json").write_text(json.dumps(written))
    study = do_here(Study.of(SPEC, root))
    assert study.progress().done == 4
    assert sorted(os.listdir(root / "runs")) == sorted(old)
    columns = ["condition", "seed", "train.loss", "test.error", "consistency.disagreement"]
    assert study.table()[columns].equals(fresh.table()[columns])
    assert [record.run for record in study.records()] == old


def test_a_study_of_the_old_version_is_done_and_goes_on(tmp_path: Path) -> None:
    for name, text in json.loads(OLD_STUDY.read_text(encoding="utf-8")).items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    opened = Study.open(tmp_path)
    assert opened.progress().done == len(opened.runs) == 4
    wider = {**json.loads((tmp_path / "study.json").read_text())["spec"], "seeds": 3}
    more = do_here(Study.of(wider, tmp_path))
    assert more.progress().done == len(more.runs) == 6
    more.save(tmp_path)
    assert Study.open(tmp_path).runs.keys() == more.runs.keys() > opened.runs.keys()


def test_a_version_that_only_the_study_knows_is_looked_for(tmp_path: Path) -> None:
    old = old_store(tmp_path, version="0.0.3")
    study = Study.of(SPEC, tmp_path)
    assert not {*study.runs} & {*old}
    study.save(tmp_path)
    kept = json.loads((tmp_path / "study.json").read_text())
    kept["versions"] = {"landscope": "0.0.3", **kept["versions"]}
    (tmp_path / "study.json").write_text(json.dumps(kept))
    assert list(Study.open(tmp_path).runs) == old


def test_a_run_that_is_done_goes_before_one_that_is_not(tmp_path: Path) -> None:
    waiting, done = old_store(tmp_path), old_store(tmp_path, version="0+source")
    for key in done:
        run = Store(tmp_path).run(key)
        with run.claim():
            run.finish({})
    assert list(Study.of(SPEC, tmp_path).runs) == done != waiting


def test_a_new_folder_goes_before_an_old_one(tmp_path: Path) -> None:
    plain = next(iter(Study.of(SPEC, tmp_path).runs.values())).plain
    store = Store(tmp_path)
    assert store.add(plain).key == run_key(plain)
    old = put(tmp_path, as_written(plain)).name
    assert Store(tmp_path).key(plain) == store.key(plain) == run_key(plain) != old


def test_executors_work_in_the_old_folders(tmp_path: Path) -> None:
    plain = next(iter(Study.of(SPEC, tmp_path).runs.values())).plain
    old = put(tmp_path, as_written(plain)).name
    left = to_do(Store(tmp_path), [Job.of(plain)], Summary(), ignore, retry_failed=False)  # type: ignore[arg-type]
    assert [(key, job.key) for key, job in left.items()] == [(old, old)]


def test_a_pool_of_an_old_store_is_found(tmp_path: Path) -> None:
    spec = {**SPEC, "training": {**SPEC["training"], "model": {"name": "mlp", "widths": [4]}}}
    for run in Study.of(spec, tmp_path / "elsewhere").runs.values():
        put(tmp_path, as_written(run.plain))
    [pool] = Study.of(spec, tmp_path).pools(Resources())
    assert set(pool.spec["pool"]["members"]) == {*Study.of(spec, tmp_path).runs}  # type: ignore[index, call-overload]
    old = put(tmp_path, as_written(pool.spec)).name
    assert [job.key for job in Study.of(spec, tmp_path).pools(Resources())] == [old]


def test_a_damaged_spec_in_an_old_folder_is_written_again(tmp_path: Path) -> None:
    plain = next(iter(Study.of(SPEC, tmp_path).runs.values())).plain
    folder = put(tmp_path, as_written(plain))
    (folder / "spec.json").write_text('{"train')
    run = Store(tmp_path).add(plain)
    assert (run.key, run.spec()) == (folder.name, plain)


def test_a_store_of_other_specs_is_found_by_its_old_keys(tmp_path: Path) -> None:
    old = put(tmp_path, {"seed": 1}).name
    store = Store(tmp_path)
    assert store.add({"seed": 1}).key == old
    assert store.status(old).state is RunState.WAITING
    assert store.add({"seed": 2}).key == run_key({"seed": 2})


def test_what_decides_numbers_decides_the_key() -> None:
    plain: Any = next(iter(Study.of(SPEC, "no/such/folder").runs.values())).plain
    others = [
        {**plain, "figures": not plain["figures"]},
        {**plain, "versions": {**plain["versions"], "data": "another"}},
        {**plain, "training": {**plain["training"], "epochs": 3}},
        {**plain, "training": {**plain["training"], "sam": {"rho": 0.05, "adaptive": False}}},
        {**plain, "training": {**plain["training"], "optimizer": {**plain["training"]["optimizer"], "lr": 1}}},
        {**plain, "measuring": {**plain["measuring"], "splits": {"train": {"measures": ["loss"]}}}},
        {**plain, "measuring": {**plain["measuring"], "seconds": 1.0}},
        {**plain, "another": None},
    ]
    assert len({run_key(spec) for spec in (plain, *others)}) == 1 + len(others)


def test_the_spec_of_something_else_stays_as_it_is() -> None:
    for spec in ({"training": {"epochs": 10}}, {"measuring": {"seed": 0}}, {"versions": {"landscope": "1"}}):
        assert canonical(spec) == spec
        assert legacy_keys(spec) == [old_key(spec)]

"""Looking at a study imports nothing that its folder names, and a report that is current is kept."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from study_runs import do_here

from landscope.core.errors import SpecError
from landscope.papers.framework.records import Bundle, load_bundle, save_bundle
from landscope.report.of_study import write_study_report
from landscope.report.write import ReportOptions
from landscope.specs.schema import parse
from landscope.studies.grid import runs_of
from landscope.studies.record import long_table, wide_table
from landscope.studies.spec import StudySpec
from landscope.studies.store import RunState, RunStatus
from landscope.studies.study import Study, has_mark, report_mark

Call = Callable[..., tuple[int, str, str]]

MODULE = """\
import torch, landscope
from landscope.measures.base import Measure
from landscope.core.estimate import Estimate
from landscope.data import load

def net(in_features=2, num_classes=2):
    return torch.nn.Linear(in_features, num_classes)

def rows():
    return load("circles")

class Mine(Measure):
    def _measure(self, probe):
        return Estimate(1.0)

    def passes(self, probe):
        return 1.0
"""
BASE: dict[str, object] = {
    "name": "own",
    "training": {"data": "circles", "model": {"name": "mlp", "widths": [4]}, "epochs": 1, "batch_size": 20},
    "seeds": 2,
    "measuring": {"splits": {"train": ["loss", "l2_norm"], "test": ["loss", "error"]}, "consistency": False},
    "analysis": {"outcomes": ["test.loss"]},
}
OWN: dict[str, dict[str, object]] = {
    "network": {"training": {"model": "trap:net"}},
    "network with options": {"training": {"model": {"name": "trap:net", "in_features": 2}}},
    "network on an axis": {"axes": {"net": {"model": ["mlp", "trap:net"]}}},
    "network of a condition": {"axes": {"net": {"mine": {"model.name": "trap:net", "model.widths": None}}}},
    "data": {"training": {"data": "trap:rows"}},
    "data on an axis": {"axes": {"rows": {"data": ["circles", "trap:rows"]}}},
    "measure": {"measuring": {"splits": {"train": ["loss", "trap:Mine"], "test": ["loss"]}}},
    "measure by name": {
        "measuring": {"splits": {"train": {"measures": {"mine": {"measure": "trap:Mine"}}}, "test": ["loss"]}}
    },
    "measure as a key": {"measuring": {"splits": {"train": {"measures": {"trap:Mine": None}}, "test": ["loss"]}}},
    "measure that the analysis names": {
        "measuring": {"splits": {"train": ["loss", "trap:Mine"], "test": ["loss"]}},
        "analysis": {"measures": ["train.Mine"]},
    },
}


def merged(base: object, changes: object) -> object:
    if not isinstance(base, dict) or not isinstance(changes, dict) or "name" in changes:
        return copy.deepcopy(changes)
    keep = copy.deepcopy(base)
    for key, value in changes.items():
        keep[key] = value if key == "splits" else merged(keep[key], value) if key in keep else value
    return keep


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A module that a spec may name; called, it becomes one that must not be imported."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    (folder / "trap.py").write_text(MODULE)

    def spring() -> None:
        sys.modules.pop("trap", None)
        (folder / "trap.py").write_text(f"open({str(tmp_path / 'sprung')!r}, 'w').close()\n{MODULE}")

    yield spring  # type: ignore[misc]
    sys.modules.pop("trap", None)
    assert not (tmp_path / "sprung").exists(), "the module was imported"


def looked_at(call: Call, folder: Path, done: bool) -> None:
    for words in (("study", "status", folder), ("study", "status", folder, "--json")):
        code, out, err = call(*words)
        assert code == 0, err
    assert {run["state"] for run in json.loads(out)} == {"done" if done else "waiting"}
    study = Study.open(folder)
    assert len(study.table()) == (len(study.runs) if done else 0)
    if done:
        records = study.records()
        assert len(wide_table(records)) == len(records)
        assert len(long_table(records)) > len(records)
        code, out, err = call("report", folder, "--light", "--json")
        assert code == 0, err
        assert "</html>" in Path(json.loads(out)["report"]).read_text()


@pytest.mark.parametrize("kind", OWN)
def test_looking_at_a_study_imports_nothing(kind: str, call: Call, trap: Callable[[], None], tmp_path: Path) -> None:
    spec = tmp_path / "study.json"
    spec.write_text(json.dumps(merged(BASE, OWN[kind])))
    Study.of(spec, tmp_path / "s").save(tmp_path / "s")
    assert "trap" in sys.modules  # whoever would run it has it imported
    trap()
    looked_at(call, tmp_path / "s", done=False)
    assert "trap" not in sys.modules


def test_the_report_of_a_finished_study_imports_nothing(call: Call, trap: Callable[[], None], tmp_path: Path) -> None:
    written = merged(merged(BASE, OWN["measure"]), OWN["network"])
    do_here(Study.of(written, tmp_path / "s")).save(tmp_path / "s")  # type: ignore[arg-type]
    trap()
    looked_at(call, tmp_path / "s", done=True)
    Path("trap.py").unlink()
    code, out, err = call("study", "status", tmp_path / "s", "--json")
    assert code == 0, err
    assert [run["state"] for run in json.loads(out)] == ["done"] * 2


def test_a_study_of_checkpoints_imports_nothing(call: Call, trap: Callable[[], None], tmp_path: Path) -> None:
    taken = {"files": [str(tmp_path / "a.pt")], "model": "trap:net", "data": "trap:rows"}
    Study.of({"name": "taken", "checkpoints": taken}, tmp_path / "s").save(tmp_path / "s")
    trap()
    looked_at(call, tmp_path / "s", done=False)


def test_a_folder_without_versions_imports_nothing(call: Call, trap: Callable[[], None], tmp_path: Path) -> None:
    written = merged(BASE, OWN["data"])
    place = Study.of(written, tmp_path / "s").save(tmp_path / "s")  # type: ignore[arg-type]
    place.write_text(json.dumps({**json.loads(place.read_text()), "versions": {}}))
    trap()
    Path("trap.py").unlink()
    looked_at(call, tmp_path / "s", done=False)


def test_a_bundle_of_records_imports_nothing(trap: Callable[[], None], tmp_path: Path) -> None:
    written = merged(merged(BASE, OWN["measure"]), OWN["network"])
    kept = Bundle("fam", "part", "tiny", parse(StudySpec, written), ())
    trap()
    again = load_bundle(save_bundle(kept, tmp_path / "part.json.gz"))
    assert len(runs_of(again.spec)) == 2
    assert "trap" not in sys.modules


def test_a_report_is_written_again_where_it_would_be_another(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("landscope.cli.study.reports_without_script", lambda: True)
    spec, folder = tmp_path / "study.json", tmp_path / "s"
    words = ("study", "run", spec, "--into", folder, "--json")
    spec.write_text(json.dumps(BASE))
    do_here(Study.of(spec, folder))
    made: list[Path] = []

    def write_report(records: object, path: Path, options: ReportOptions) -> Path:
        path.write_text(f'<meta name="landscope-study" content="{options.mark}">')
        made.append(path)
        return path

    monkeypatch.setattr("landscope.report.of_study.write_report", write_report)

    def is_written() -> bool:
        made.clear()
        code, out, err = call(*words)
        assert code == 0, err
        assert json.loads(out)["report"] == str(folder / "report.html")
        return bool(made)

    assert is_written()
    assert not is_written()
    assert not is_written()
    for change in (lambda: (folder / "report.html").unlink(), lambda: (folder / "report.html").write_text("mine")):
        change()
        assert is_written()
        assert not is_written()
    spec.write_text(json.dumps({**BASE, "question": "Another one?"}))
    assert is_written()
    monkeypatch.setattr("landscope.cli.study.reports_without_script", lambda: False)
    assert is_written()
    assert not is_written()
    run = next(iter(Study.of(spec, folder).store.keys()))
    record = Study.of(spec, folder).store.run(run)
    with record.claim():
        record.finish({**record.record(), "seconds": 7.0})
    assert is_written()
    assert not is_written()
    made.clear()
    assert call("report", folder)[0] == 0
    assert made, "who asks for a report gets it written"


def test_a_page_carries_its_mark_in_its_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = do_here(Study.of({**BASE, "seeds": 1}, tmp_path / "s"))
    statuses = study.statuses()
    page = write_study_report(study, tmp_path / "page.html", study.records(), statuses, static=True)
    assert has_mark(page, report_mark(study, statuses, light=True))
    assert not has_mark(page, report_mark(study, statuses))
    (key,) = study.runs
    failed = {key: RunStatus(key, RunState.FAILED, error="it was too large")}
    assert not has_mark(page, report_mark(study, failed, light=True))
    assert not has_mark(tmp_path / "none.html", report_mark(study, statuses, light=True))
    monkeypatch.setattr("landscope.__version__", "another")
    assert not has_mark(page, report_mark(study, statuses, light=True))


@pytest.mark.parametrize("kind", OWN)
def test_a_study_that_is_to_be_run_is_checked(
    kind: str, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    spec = tmp_path / "study.json"
    spec.write_text(json.dumps(merged(BASE, OWN[kind])).replace("trap:", "gone:"))
    code, _, err = call("study", "run", spec, "--into", tmp_path / "s")
    assert code == 2
    assert "No module named 'gone'" in err
    with pytest.raises(SpecError, match="No module named 'gone'"):
        Study.of(spec, tmp_path / "s")
    assert not (tmp_path / "s").exists()

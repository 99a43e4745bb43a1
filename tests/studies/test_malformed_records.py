"""Records, reports and what a study keeps, written by something else: one clear error that names the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from malformed import PLACES, REPORT, SPEC, TEXTS, WRONG, record, with_other

from landscope.core.errors import DamagedFileError, LandscopeError, SpecError, StoreError
from landscope.core.estimate import Estimate
from landscope.measures import Report
from landscope.planes import Landscape
from landscope.studies.record import MeasuredModel, Record
from landscope.studies.store import Store, run_folder
from landscope.studies.store.run_folder import RunFolder
from landscope.studies.study import Study
from landscope.studies.work.run import _kept_subject, _seconds_before


def put(run: RunFolder, text: bytes) -> None:
    """A record that fits its checksum, whatever it is."""
    body = b'"record": ' + text + b"\n}\n"
    run.folder.mkdir(parents=True, exist_ok=True)
    run.path("record.json").write_bytes(run_folder._header(run.key, body) + body)


def is_like(place: tuple[str | int, ...], value: object) -> bool:
    """Whether the value is of the kind that belongs there."""
    there: object = record().to_dict()
    for key in place:
        there = there[key]  # type: ignore[index]
    return type(value) is type(there) and place[-1:] not in (("format",), ("status",)) and value not in ([5], 10**400)


@pytest.mark.parametrize("value", WRONG, ids=["list", "text", "true", "huge"])
@pytest.mark.parametrize("place", PLACES, ids=lambda place: ".".join(map(str, place)) or "all")
def test_a_record_with_something_else_in_it(place: tuple[str | int, ...], value: object) -> None:
    plain = with_other(json.loads(json.dumps(record().to_dict())), place, value)
    if is_like(place, value):
        Record.from_dict(plain)  # type: ignore[arg-type]
        return
    with pytest.raises(SpecError, match="expected|not an estimate"):
        Record.from_dict(plain)  # type: ignore[arg-type]


def test_a_whole_record_is_read() -> None:
    assert Record.from_dict(json.loads(json.dumps(record().to_dict()))) == record()
    assert Record.from_dict(record().to_dict()) == record()
    with pytest.raises(SpecError, match="got colour as well"):
        Record.from_dict({**record().to_dict(), "colour": "red"})
    with pytest.raises(SpecError, match="not an estimate"):
        Estimate.from_dict({"value": 1.0, "colour": "red"})


@pytest.mark.parametrize("name", TEXTS)
def test_a_record_that_is_none(name: str, tmp_path: Path) -> None:
    run = Store(tmp_path).add({"seed": 1})
    put(run, TEXTS[name])
    with pytest.raises(DamagedFileError, match=r"record\.json is not the record of a run: .* run the study again"):
        run.record()
    with pytest.raises(DamagedFileError, match=r"record\.json"):
        list(Store(tmp_path).records())


def test_a_study_names_the_record(tmp_path: Path) -> None:
    study = Study.of(SPEC, tmp_path)
    key = next(iter(study.runs))
    run = study.store.add(study.runs[key].plain)
    put(run, b'{"format": 1, "seconds": "long"}')
    with pytest.raises(DamagedFileError, match=rf"{key}.record\.json: the key 'run' of a record is missing"):
        study.records()
    assert study.progress().total == len(study.runs)
    put(run, json.dumps(record(key).to_dict()).encode())
    assert [found.run for found in study.records()] == [key]


@pytest.mark.parametrize("name", TEXTS)
def test_what_a_study_keeps(name: str, tmp_path: Path) -> None:
    Study.of(SPEC, tmp_path / "store").save(tmp_path)
    (tmp_path / "study.json").write_bytes(TEXTS[name])
    with pytest.raises(SpecError, match=r"study\.json cannot be read"):
        Study.open(tmp_path)
    run = Store(tmp_path / "store").add({"seed": 1})
    run.path("spec.json").write_bytes(TEXTS[name])
    with pytest.raises(StoreError, match=r"spec\.json cannot be read"):
        run.spec()
    assert Store(tmp_path / "store").add({"seed": 1}).spec() == {"seed": 1}  # it is written again
    (tmp_path / "store" / "store.json").write_bytes(TEXTS[name])
    with pytest.raises(StoreError, match=r"store\.json says format a damaged one"):
        Store(tmp_path / "store")


@pytest.mark.parametrize("name", TEXTS)
def test_what_a_run_keeps_while_it_measures(name: str, tmp_path: Path) -> None:
    run = Store(tmp_path).add({"seed": 1})
    run.path("state").mkdir()
    path = run.path("state/seconds.json")
    path.write_bytes(TEXTS[name])
    assert _seconds_before(run) == (3.0 if name == "a number" else 0.0)
    with pytest.raises(StoreError, match=r"seconds\.json is damaged"):
        _kept_subject(path)
    path.write_text(json.dumps(record().subjects[0].to_dict()))
    assert _kept_subject(path) == record().subjects[0]


@pytest.mark.parametrize("name", TEXTS)
def test_an_attempt_that_nobody_can_read_is_one_that_began(name: str, tmp_path: Path) -> None:
    run = Store(tmp_path).add({"seed": 1})
    run.path("attempts").mkdir()
    run.path("attempts/0001.json").write_bytes(TEXTS[name])
    assert run.attempts == 1
    run.path("attempts/0001.json").write_text('{"owner": {"host": 1, "machine": "", "pid": 1e999, "born": ""}}')
    assert run.attempts == 1


@pytest.mark.parametrize("name", TEXTS)
def test_a_report(name: str, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(TEXTS[name])
    with pytest.raises(DamagedFileError, match=r"report\.json: is not a report"):
        Report.load(path)
    assert Report.load(REPORT.save(path)) == REPORT
    if name != "not UTF-8":
        for kind in (Report, Estimate, Landscape):
            with pytest.raises((LandscopeError, ValueError)) as raised:
                kind.from_json(TEXTS[name].decode())  # type: ignore[attr-defined]
            assert str(raised.value)


def test_a_subject_needs_its_reports() -> None:
    with pytest.raises(SpecError, match="the key 'reports' of a measured model is missing"):
        MeasuredModel.from_dict({"checkpoint": "final", "temperature": 1.0, "extras": {}})

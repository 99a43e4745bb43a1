"""Bundles that are something else: one error that names the file, and no more memory than a bundle may take."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path

import pytest
from malformed import PLACES, SPEC, TEXTS, record, with_other

from landscope.core.errors import DamagedFileError
from landscope.papers.framework.records import Bundle, load_bundle, save_bundle
from landscope.specs.schema import parse
from landscope.studies.record import Failure
from landscope.studies.spec import StudySpec


@pytest.fixture
def path(tmp_path: Path) -> Path:
    failed = (Failure("none", 1, "the file '\udcff' is gone"),)
    return save_bundle(
        Bundle("fam", "skulls", "tiny", parse(StudySpec, SPEC), (record(),), failed), tmp_path / "a.json.gz"
    )


def test_a_message_that_is_not_text_is_kept(path: Path) -> None:
    assert load_bundle(path).records == (record(),)
    assert load_bundle(path).failed == (Failure("none", 1, "the file '?' is gone"),)


@pytest.mark.parametrize("name", TEXTS)
def test_bundles_that_are_none(name: str, path: Path) -> None:
    path.write_bytes(gzip.compress(TEXTS[name]))
    with pytest.raises(DamagedFileError, match=r"a\.json\.gz"):
        load_bundle(path)
    path.write_bytes(TEXTS[name])
    with pytest.raises(DamagedFileError, match=r"a\.json\.gz"):
        load_bundle(path)


@pytest.mark.parametrize("value", [5, "x", [5], {"a": 1}], ids=repr)
@pytest.mark.parametrize(
    "place",
    [(), ("recipe",), ("spec",), ("records",), ("failed",), ("failed", 0), ("failed", 0, "seed"), ("records", 0)]
    + [("records", 0, *place) for place in PLACES if place and isinstance(record().to_dict()[str(place[0])], list)],
    ids=lambda place: ".".join(map(str, place)) or "all",
)
def test_bundles_with_something_else_in_them(place: tuple[str | int, ...], value: object, path: Path) -> None:
    plain = json.loads(gzip.decompress(path.read_bytes()))
    path.write_bytes(gzip.compress(json.dumps(with_other(plain, place, value)).encode()))
    try:
        load_bundle(path)
    except DamagedFileError as error:
        assert str(path) in str(error)  # noqa: PT017 (some values are right in some places)


@pytest.mark.parametrize("cut", [0, 1, 2, 5, 10, 20, 100, -1, -4, -8])
def test_truncated_bundles(cut: int, path: Path) -> None:
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DamagedFileError, match=r"a\.json\.gz"):
        load_bundle(path)


def test_a_bundle_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DamagedFileError, match=r"gone\.json\.gz"):
        load_bundle(tmp_path / "gone.json.gz")


def test_a_bomb_takes_no_memory(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("landscope.papers.framework.records.LARGEST", 2**22)
    path.write_bytes(gzip.compress(b" " * 2**26))
    tracemalloc.start()
    with pytest.raises(DamagedFileError, match=r"a\.json\.gz: unzips to more than 4 MiB"):
        load_bundle(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**23
    path.write_bytes(b" " * (2**22 + 1))
    with pytest.raises(DamagedFileError, match=r"a\.json\.gz: has 4,194,305 bytes"):
        load_bundle(path)

"""Figures for papers: of every format, without surprises from names, the same twice."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from report_records import HOSTILE, make_records

from landscope.core.errors import UnknownNameError
from landscope.report import figures

COLUMNS = {"measures": ["train.hessian_trace", "train.l2_norm"], "outcomes": ["test.error", "test.ece"]}
ALL = ["forest", "correlations", "scatter", "reliability", "spectra", "landscape"]
BEGINNINGS = {".png": b"\x89PNG\r\n", ".svg": b"<?xml", ".pdf": b"%PDF-"}


def test_every_figure_in_every_format(tmp_path: Path) -> None:
    written = figures(make_records(["a", "b"], seeds=3), tmp_path / "deep" / "folder", **COLUMNS)  # type: ignore[arg-type]
    assert [path.name for path in written] == [f"{name}.{suffix}" for name in ALL for suffix in ("png", "svg", "pdf")]
    for path in written:
        assert path.read_bytes().startswith(BEGINNINGS[path.suffix])


def test_text_stays_text_and_dollars_dollars(tmp_path: Path) -> None:
    names = [*HOSTILE[:3], "costs 5 $ or $\\frac"]
    figures(make_records(names, seeds=3), tmp_path, ["svg"], **COLUMNS)  # type: ignore[arg-type]
    root = ElementTree.parse(tmp_path / "reliability.svg").getroot()
    texts = "".join(root.itertext())
    for name in names:
        assert name in texts
    assert not [element for element in root.iter() if element.tag.endswith("script")]


def test_what_has_no_data_is_not_drawn(tmp_path: Path) -> None:
    plain = make_records(["a", "b"], seeds=3, extras=False)
    assert [path.stem for path in figures(plain, tmp_path, ["png"], **COLUMNS)] == ALL[:3]  # type: ignore[arg-type]
    alone = make_records(["a"], seeds=1)
    assert [path.stem for path in figures(alone, tmp_path, ["png"])] == ALL[3:]


def test_the_same_study_gives_the_same_file(tmp_path: Path) -> None:
    once, again = (
        figures(make_records(["a"], seeds=3, extras=False), tmp_path / name, ["svg"], **COLUMNS) for name in "ab"
    )  # type: ignore[arg-type]
    for first, second in zip(once, again, strict=True):
        assert first.read_bytes() == second.read_bytes()


def test_an_unknown_format_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'svg'"):
        figures(make_records(seeds=1), tmp_path, ["svgg"])

"""Several studies on one page."""

from __future__ import annotations

import re

import pytest
from report_records import CONDITIONS, make_records

from landscope.report import ReportOptions
from landscope.report.of_study import options_of, write_landing_page
from landscope.report.write import StudyReport
from landscope.studies.spec import AnalysisSpec, StudySpec


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    records = make_records()
    few = [record for record in records if record.condition in CONDITIONS[:2]]
    studies = {
        "digits/report.html": StudyReport.of(records, ReportOptions(title="digits", question="Is it flatter?")),
        "cifar/report.html": StudyReport.of(few, ReportOptions(title="cifar")),
    }
    return write_landing_page(studies, tmp_path_factory.mktemp("page") / "studies.html").read_text(encoding="utf-8")


def test_each_study_has_its_question_its_answer_and_a_way_to_its_report(page: str) -> None:
    assert re.findall(r'<a href="(\w+/report.html)"', page) == ["digits/report.html", "cifar/report.html"]
    assert "Is it flatter?" in page
    assert page.count("Measures and outcomes") == 0
    assert page.count("<picture>") >= 2
    assert "<script" not in page


def test_conditions_stand_against_the_baseline_of_their_own_study(page: str) -> None:
    table = page[page.index('id="studies-table"') :].split("</table>")[0]
    rows = re.findall(r"<tr>(.*?)</tr>", table.split("<tbody>")[1], re.DOTALL)
    assert len(rows) == (len(CONDITIONS) - 1) + 1
    assert sum(">digits</span>" in row for row in rows) == sum(">cifar</span>" in row for row in rows) == 1
    assert all(f"against {CONDITIONS[0]}" in row for row in rows)


def test_conditions_that_studies_share_are_counted(page: str) -> None:
    words = re.sub(r"</?abbr[^>]*>", "", page)
    assert re.search(rf"{CONDITIONS[1]} is flatter in \d and sharper in \d of 2 studies", words)
    assert f"{CONDITIONS[2]} is flatter" not in words


def test_the_report_of_a_study_under_way_does_without_its_baseline() -> None:
    """A study whose baseline comes last, stopped before."""
    records = make_records()
    spec = StudySpec(name="s", training={}, analysis=AnalysisSpec(outcomes=("test.error",), baseline=CONDITIONS[0]))
    assert options_of(spec, records).baseline == CONDITIONS[0]
    later = [record for record in records if record.condition != CONDITIONS[0]]
    found = options_of(spec, later)
    assert found.baseline is None
    assert f"The baseline, {CONDITIONS[0]}, has no runs yet" in found.notes[-1]

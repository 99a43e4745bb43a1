"""The HTML report, read as a machine reads it: structure, escaping, numbers, what is said when there is little to say."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html.parser
import io
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from report_records import CONDITIONS, HOSTILE, make_records
from scipy import stats

from landscope.core.errors import MissingExtraError, OperandError, UnknownNameError
from landscope.core.estimate import Estimate
from landscope.measures import MEASURES, Report
from landscope.report import Claim, ReportOptions, write_report
from landscope.report.data.cohorts import Cohorts
from landscope.report.data.contrasts import contrasts
from landscope.report.page.figure import Figure
from landscope.report.page.html import embedded_json, plotly_script
from landscope.report.page.matplotlib import on_paper
from landscope.report.sections.calibration import calibration_section, calibrations
from landscope.report.sections.conditions import ComparedNumber
from landscope.studies.record import MeasuredModel, Record, long_table, wide_table

ORDER = [
    "answer", "claims", "conditions", "correlations", "scatter", "simpson", "calibration", "corruptions", "spectra",
    "landscapes", "training", "layers", "igs", "invariances", "published", "every-model", "terms", "provenance",
]  # fmt: skip


class Reader(html.parser.HTMLParser):
    """Elements, their attributes, the text of scripts and the text that people see."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.words: list[str] = []
        self._inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    @property
    def data(self) -> dict[str, Any]:
        def refuse(name: str) -> float:
            raise AssertionError(f"{name} is not JSON")

        found: dict[str, Any] = json.loads(self.scripts[0], parse_constant=refuse)
        return found

    @property
    def sections(self) -> list[str]:
        return [str(attrs["id"]) for tag, attrs in self.tags if tag == "section"]

    def file(self, name: str) -> pd.DataFrame:
        return pd.read_csv(io.BytesIO(gzip.decompress(base64.b64decode(self.data["files"][name]))))


COMPARED = ComparedNumber("1", "SAM", "test_error_pct", "14.0 ± 0.5", "13.9 ± 0.4", "-1.5", 3)


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return make_records()


@pytest.fixture(scope="module")
def page(records: list[Record], tmp_path_factory: pytest.TempPathFactory) -> str:
    path = write_report(
        records,
        tmp_path_factory.mktemp("report") / "report.html",
        ReportOptions(
            title="Do flatter minima generalise better?",
            question="On digits?",
            spec={"name": "regularisers", "seeds": 5},
            compared=[COMPARED],
            baseline="baseline",
            claims=[
                Claim("Flat is good", "supported", "because", [records[0].run]),
                Claim("Flat is bad", "refuted", "see above"),
            ],
        ),
    )
    return path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def read(page: str) -> Reader:
    return Reader(page)


def quick(records: list[Record], folder: Path, **options: Any) -> Reader:
    """A report of a few columns only, which takes a fraction of a second."""
    columns: dict[str, Any] = {"measures": ["train.hessian_trace", "train.l2_norm"], "outcomes": ["test.error"]}
    path = write_report(records, folder / "report.html", ReportOptions(**{**columns, **options}))
    return Reader(path.read_text(encoding="utf-8"))


def test_the_answer_comes_first_and_the_rest_in_order(read: Reader) -> None:
    assert read.sections == ORDER
    assert read.text.index("On digits?") < read.text.index("95% interval")


def test_a_measure_times_a_constant_is_not_asked_again(records: list[Record], tmp_path: Path) -> None:
    def doubled(record: Record) -> Record:
        (subject, *_) = record.subjects
        trace = subject.reports["train"]["hessian_trace"]
        report = Report({**subject.reports["train"].estimates, "my_trace": replace(trace, value=2 * trace.value)})
        return replace(record, subjects=(replace(subject, reports={**subject.reports, "train": report}),))

    twice = [doubled(record) for record in records]
    message = "The same up to a constant factor, and tested once: Hessian trace and my trace."
    plain, page = (Reader(write_report(some, tmp_path / "r.html").read_text()) for some in (records, twice))
    assert message not in plain.text
    assert message in page.text
    asked_of = [re.findall(r"(\d+) measures against", read.text) for read in (plain, page)]
    assert asked_of[0] == asked_of[1] != []
    assert "my trace" in page.text.partition("Condition by condition")[2]  # the tables have it all the same
    asked = quick(twice, tmp_path, measures=["train.hessian_trace", "train.my_trace"])
    assert message not in asked.text  # who names both wants both


@pytest.mark.slow
def test_a_static_report_has_a_picture_of_every_figure_and_no_script(records: list[Record], tmp_path: Path) -> None:
    options = ReportOptions(compared=[COMPARED], static=True)
    first = write_report(records, tmp_path / "a", options).read_text(encoding="utf-8")
    few = (write_report(records[:2], tmp_path / name, options).read_text(encoding="utf-8") for name in "bc")
    assert next(few) == next(few)
    assert len(first) < 1_500_000
    assert "<script" not in first
    assert "A click" not in first
    pictures = re.findall(r"data:image/png;base64,([^\"]+)", first)
    assert len(pictures) == 2 * 14  # light and dark
    assert first.count('<source media="screen and (prefers-color-scheme: dark)"') == 14
    assert all(base64.b64decode(picture)[25] == 3 for picture in pictures)  # the kind of PNG that has a palette
    static = Reader(first)
    assert [key for key in ORDER if key in static.sections] == static.sections
    assert "every-model" not in static.sections
    assert "training" in static.sections
    assert all(text in static.text for text in ("13.9", "−1.5", "as published"))


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.usefixtures("undrawn")
def test_files_are_promised_only_by_pages_that_have_them(tmp_path: Path, static: bool) -> None:
    records = [
        replace(r, subjects=tuple(replace(r.subjects[0], checkpoint=f"step {step}") for step in range(5)))
        for r in make_records(["a"], seeds=3, extras=False)
    ]
    text = quick(records, tmp_path, static=static).text
    assert "Not shown here: step 4." in text
    assert ("CSV" in text) == (not static)


@pytest.mark.usefixtures("undrawn")
def test_swatches_of_one_colour_are_filled_otherwise(tmp_path: Path) -> None:
    records = make_records([f"c{i}" for i in range(17)], seeds=1, extras=False, temperature=False)
    tags = [attrs for tag, attrs in quick(records, tmp_path, static=True).tags if tag == "i"]
    looks = {attrs["data-condition"]: (attrs["class"], attrs["style"]) for attrs in tags}
    assert len(looks) == len(set(looks.values())) == 17


def test_claims_name_a_few_runs_or_all_of_them(tmp_path: Path) -> None:
    some = make_records(["a", "b"], seeds=3, extras=False)
    runs = [record.run for record in some]
    claims = [Claim(text, "holds", "", runs[:n]) for text, n in (("one", 1), ("four", 4), ("six", 6))]
    text = quick(some, tmp_path, claims=claims).text
    assert text.count("and 1 more") == 1
    assert text.count("all 6 runs") == 1


def test_sections_without_data_are_left_out(tmp_path: Path) -> None:
    bare = [replace(r, history=()) for r in make_records(extras=False, temperature=False)]
    found = quick(bare, tmp_path)
    missing = {
        "claims",
        "calibration",
        "corruptions",
        "spectra",
        "landscapes",
        "training",
        "layers",
        "invariances",
        "published",
    }
    assert found.sections == [name for name in ORDER if name not in missing]


def test_every_plot_of_the_page_has_data_and_every_data_a_plot(read: Reader) -> None:
    shown = [attrs["data-plot"] for tag, attrs in read.tags if tag == "figure" and "data-plot" in attrs]
    assert sorted(map(str, shown)) == sorted(read.data["plots"])
    assert len(set(shown)) == len(shown)
    identities = [attrs["id"] for _, attrs in read.tags if "id" in attrs]
    assert len(set(identities)) == len(identities)


def test_nothing_is_loaded_and_no_other_script_may_run(page: str, read: Reader) -> None:
    for tag, attrs in read.tags:
        assert tag not in ("img", "iframe", "object", "embed", "base")
        assert not any(name.startswith("on") for name in attrs)
        for name in ("src", "href", "action", "data"):
            assert (attrs.get(name) or "#").startswith(("#", "data:,")), (tag, attrs)
    policy = next(attrs["content"] for tag, attrs in read.tags if attrs.get("http-equiv") == "Content-Security-Policy")
    hashes = [f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in read.scripts[1:]]
    assert f"script-src {hashes[1]} {hashes[0]};" in str(policy)
    assert str(policy).startswith("default-src 'none';")
    assert "connect-src" not in str(policy)
    assert "unsafe-eval" not in str(policy)
    assert "url(" not in page.split("<style>")[1].split("</style>")[0]


def test_what_users_write_stays_text(tmp_path: Path) -> None:
    hostile = make_records(HOSTILE, seeds=2)
    poison = "</script><script>alert(3)</script>"
    hostile = [replace(r, environment={poison: poison}, spec={poison: poison}, axes={poison: poison}) for r in hostile]
    found = quick(
        hostile,
        tmp_path,
        title=poison,
        question=poison,
        spec={poison: [poison, "{{ 7*7 }}"]},
        claims=[Claim(poison, poison, poison, [poison])],
    )
    assert [tag for tag, _ in found.tags].count("script") == 3
    assert not any(tag in ("img", "a") and attrs.get("class") != "brand" for tag, attrs in found.tags if tag == "img")
    assert not any(name.startswith("on") for _, attrs in found.tags for name in attrs)
    assert found.data["conditions"] == list(HOSTILE)
    for name in (*HOSTILE, poison):
        assert name in " ".join(found.words), name
    assert "{{ 7*7 }}" in found.text


def test_plot_texts_are_escaped_for_plotly(tmp_path: Path) -> None:
    link = '<a href="https://example.org">condition</a>'
    plots = quick(make_records([link, "b"], seeds=3), tmp_path).data["plots"]
    specs = json.dumps({key: plot["spec"] for key, plot in plots.items()})
    assert "<a href" not in specs
    assert "&lt;a href" in specs


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_lacks_become_null(value: float) -> None:
    assert json.loads(embedded_json({"x": [value, np.float64(value), 1.5]})) == {"x": [None, None, 1.5]}


def test_the_data_are_those_of_the_records(records: list[Record], read: Reader) -> None:
    cohort = read.data["cohorts"][0]
    assert cohort["runs"] == list(range(20))
    for place, record in enumerate(records):
        e = record.subjects[0].reports["train"]["hessian_trace"]
        assert cohort["values"]["train.hessian_trace"][place] == pytest.approx(e.value, rel=1e-4)
        assert cohort["errors"]["train.hessian_trace"][place] == pytest.approx(e.data_stderr, rel=1e-2)
    failed = [record.seed == 1 for record in records]
    assert [v is None for v in cohort["values"]["train.adaptive_sharpness"]] == failed


def test_scaled_models_are_not_counted_as_further_models(read: Reader) -> None:
    names = [cohort["name"] for cohort in read.data["cohorts"]]
    assert names == ["final", "final, temperature-scaled"]
    assert "n = 40" not in read.text


def test_correlations_are_those_of_scipy(records: list[Record], read: Reader) -> None:
    table = read.file("correlations.csv")
    assert set(table["models"]) == {"final", "final, temperature-scaled"}
    row = table[(table.measure == "Hessian trace") & (table.outcome == "test error") & (table.models == "final")].iloc[
        0
    ]
    x, y = (
        [r.subjects[0].reports[split][name].value for r in records]
        for split, name in (("train", "hessian_trace"), ("test", "error"))
    )
    means = np.reshape([x, y], (2, len(CONDITIONS), -1)).mean(axis=2)  # the conditions are the units
    truth = stats.kendalltau(*means)
    assert row["value"] == pytest.approx(truth.statistic, abs=1e-12)
    assert row["p_value"] == pytest.approx(truth.pvalue, rel=1e-6)
    assert (row["n"], row["unit"], row["runs"]) == (4, "condition", 20)
    inside = np.reshape([x, y], (2, len(CONDITIONS), -1))
    concordant = sum(
        np.sign(np.subtract.outer(a, a) * np.subtract.outer(b, b)).sum() for a, b in zip(*inside, strict=True)
    )
    assert row["within"] == pytest.approx(concordant / (4 * 5 * 4), abs=1e-12)
    forest = read.data["plots"]["forest"]["spec"]["outcomes"][0]
    drawn = next(r for r in forest["rows"] if r["measure"] == "Hessian trace")
    assert drawn["value"] == pytest.approx(truth.statistic, abs=1e-5)
    assert drawn["low"] < drawn["value"] < drawn["high"]


def test_the_files_hold_everything(records: list[Record], read: Reader) -> None:
    truth = long_table(records)
    found = read.file("estimates.csv")
    assert len(found) == len(truth)
    np.testing.assert_array_equal(found["value"], truth["value"])
    np.testing.assert_array_equal(found["stderr"], truth["stderr"])
    assert list(read.file("models.csv").columns) == list(wide_table(records).columns)
    assert len(read.file("histories.csv")) == 20 * 30


def test_best_and_worst_conditions_are_marked(records: list[Record], page: str) -> None:
    errors = (
        wide_table([replace(r, subjects=r.subjects[:1]) for r in records]).groupby("condition")["test.error"].mean()
    )
    table = page[page.index('<section id="conditions">') :]
    row = table[table.index(">test error ↓</span>") :].split("</tr>")[0]
    marks = dict(zip(CONDITIONS, re.findall(r'<td class="(\w*)[^"]*"', row)[1:], strict=True))
    assert marks[errors.idxmin()] == "best"
    assert marks[errors.idxmax()] == "worst"


def test_words_are_explained_under_the_pointer_and_at_the_end(read: Reader, page: str) -> None:
    """The measure's own first sentence, as the title of an element without script and in the table of terms."""
    message = " ".join((MEASURES["hessian_trace"].__doc__ or "").split("\n\n")[0].split())
    assert message in {attrs["title"] for tag, attrs in read.tags if tag == "abbr"}
    assert page.index('<section id="terms">') > page.index('<section id="answer">')
    assert "Adjusts for many tests" in read.text


def test_sections_end_with_what_to_take_from_them(read: Reader) -> None:
    assert read.text.count("So what?") >= 6


def test_conditions_are_tested_against_the_baseline(records: list[Record], read: Reader) -> None:
    """Against SciPy: Welch's test of logarithms, with the levels that Holm's procedure leaves."""
    frame = wide_table([replace(r, subjects=r.subjects[:1]) for r in records])
    values = {name: np.log(frame.loc[frame["condition"] == name, "test.error"].to_numpy(float)) for name in CONDITIONS}
    found = contrasts(Cohorts.of(records, outcomes=["test.error"]), "baseline")
    assert found is not None
    assert [each.condition for each in found.outcomes] == list(CONDITIONS[1:])
    truths = [stats.ttest_ind(values[name], values["baseline"], equal_var=False) for name in CONDITIONS[1:]]
    order = np.argsort([t.pvalue for t in truths])
    rejected = True
    for place, index in enumerate(order):
        each, truth = found.outcomes[index], truths[index]
        assert each.effect is not None
        assert each.effect.p_value() == pytest.approx(truth.pvalue)
        low, high = truth.confidence_interval(0.95)
        assert each.ends[1:] == pytest.approx((np.exp(low), np.exp(high)))
        rejected = rejected and truth.pvalue <= 0.05 / (len(truths) - place)
        assert each.sure == rejected
    assert "Change against baseline" in read.text


def test_an_unknown_baseline_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'baseline'"):
        quick(make_records(seeds=1), tmp_path, baseline="base line")


@pytest.mark.parametrize("role", ["measures", "outcomes"])
def test_a_mistyped_column_is_named_and_not_left_out(tmp_path: Path, role: str) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'train.hessian_trace'"):
        quick(make_records(seeds=1), tmp_path, **{role: ["train.hesian_trace"]})


def test_temperatures_are_no_measures_and_corrupted_images_an_outcome(records: list[Record]) -> None:
    assert "corrupted.accuracy" in Cohorts.of(records).outcomes
    scaled = Cohorts.of([replace(r, subjects=r.subjects[1:]) for r in records])
    assert "calibration.temperature" in scaled.main.frame
    assert "calibration.temperature" not in (*scaled.measures, *scaled.outcomes)


def test_what_could_not_be_measured_is_said(read: Reader) -> None:
    assert "the ascent did not end" in read.text
    assert "a batch-normalised network" in read.text
    assert "8 of 40" in read.text


@pytest.mark.parametrize("seeds", [1, 2])
def test_few_models_tell_no_correlation(tmp_path: Path, seeds: int) -> None:
    found = quick(make_records(["only"], seeds=seeds, temperature=False), tmp_path, measures=None, outcomes=None)
    assert "cannot show whether a measure goes with an outcome" in found.text
    assert "forest" not in found.data["plots"]
    assert "correlations" not in found.sections
    assert "estimates" in found.sections
    assert "Hessian trace" in found.text


def test_a_model_with_nothing_but_a_norm(tmp_path: Path) -> None:
    subject = MeasuredModel(checkpoint="final", reports={"train": Report({"l2_norm": Estimate(2.0)})})
    alone = Record(run="a", condition="c", axes={}, seed=0, spec={}, subjects=(subject,))
    found = Reader(write_report([alone], tmp_path / "r.html").read_text(encoding="utf-8"))
    assert "no outcome was measured" in found.text


@pytest.mark.parametrize("records", [[], [Record(run="a", condition="c", axes={}, seed=0, spec={}, subjects=())]])
def test_nothing_to_report_is_an_error(tmp_path: Path, records: list[Record]) -> None:
    with pytest.raises(OperandError, match=r"at least one record|measured model"):
        write_report(records, tmp_path / "r.html")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_plotly_names_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'landscope\[report\]'"):
        write_report(make_records(seeds=1), tmp_path / "r.html")


def test_extras_that_cannot_be_read_are_named_and_the_others_shown(tmp_path: Path) -> None:
    several = make_records(["a", "b"], seeds=2)
    broken = replace(
        several[0].subjects[0], extras={"reliability": {"before": {"lower": [0]}}, "landscape": 7, "layers": []}
    )
    several[0] = replace(several[0], subjects=(broken,))
    found = quick(several, tmp_path)
    assert {"calibration", "landscapes", "layers"} <= set(found.sections)
    assert found.text.count("1 model could not be shown here: a · seed 0") == 3


def test_reliability_before_and_after_come_from_both_models(records: list[Record]) -> None:
    found, faults = calibrations(Cohorts.of(records))
    assert not faults
    assert all(set(tables) == {"before", "after"} for tables in found.values())
    assert all(tables["before"].ece > tables["after"].ece for tables in found.values())


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.usefixtures("undrawn")
def test_before_and_after_are_named_where_there_are_both(tmp_path: Path, static: bool) -> None:
    for temperature in (True, False):
        found = quick(make_records(["a"], seeds=3, temperature=temperature), tmp_path, static=static)
        assert ("Calibration before and after temperature scaling" in found.text) == temperature
        assert ("before" in found.text) == temperature
    study = Cohorts.of(make_records(["a"], seeds=3, temperature=False))
    [diagram] = [block for block in calibration_section(study).blocks if isinstance(block, Figure)]
    axes = on_paper(diagram, study.conditions).axes[0]
    assert re.fullmatch(r"a, n = 3\nECE 0\.\d{3}", axes.get_title("left"))
    assert axes.get_legend() is None


def test_published_numbers_stand_beside_ours_in_their_units(read: Reader) -> None:
    assert all(text in read.text for text in ("test error (%)", "14.0", "13.9", "−1.5", "as published"))


def test_a_file_of_that_name_is_replaced_whole(tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("old")
    assert "Hessian trace" in quick(make_records(["a"], seeds=3, extras=False), tmp_path).text
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_histories_with_holes(tmp_path: Path) -> None:
    odd = make_records(["a"], seeds=3, extras=False)
    odd[0] = replace(
        odd[0], history=({"epoch": 0, "loss": math.nan}, {"epoch": 1, "loss": math.inf}, {"epoch": 2, "note": "x"})
    )
    odd[1] = replace(odd[1], history=({"epoch": 0, "loss": 1.0}, {"epoch": 1, "loss": None}, {"epoch": 2, "loss": 0.5}))
    curves = quick(odd, tmp_path).data["plots"]["history-loss"]["spec"]["data"]
    assert [curve["meta"]["run"] for curve in curves] == [1]
    assert curves[0]["y"] == [1.0, 0.5]


@pytest.mark.slow
def test_a_thousand_runs(tmp_path: Path) -> None:
    many = make_records([f"condition {i}" for i in range(50)], seeds=20, temperature=False)
    path = write_report(many, tmp_path / "report.html")
    assert path.stat().st_size < 12e6
    found = Reader(path.read_text(encoding="utf-8"))
    assert len(found.data["runs"]) == 1000
    lines = [trace for plot in found.data["plots"].values() for trace in plot["spec"].get("data", [])]
    assert len(lines) < 2000
    assert len(found.file("estimates.csv")) == len(long_table(many))


def test_plotly_cannot_end_its_own_element() -> None:
    assert "</script" not in plotly_script()
    assert "<!--" not in plotly_script()


def test_models_that_do_not_differ_are_reported(tmp_path: Path) -> None:
    """Where nothing varies, no pair has a coefficient and there is nothing to draw."""
    first = make_records(extras=False)[0]
    records = [
        replace(first, run=f"{n:016x}", condition=f"{n % 4}", axes={"regulariser": n % 4}, seed=n) for n in range(20)
    ]
    page = write_report(records, tmp_path / "report.html").read_text()
    assert "Model by model" in page

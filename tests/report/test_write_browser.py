"""The report in a real browser: every figure drawn, models linked, nothing complained about, nothing requested."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chromium
import pandas as pd
import pytest
from chromium import Page
from report_records import HOSTILE, make_records

from landscope.report import Claim, ReportOptions, write_report
from landscope.report.sections.conditions import ComparedNumber

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(chromium.PROGRAM is None, reason="Chromium is not installed (Debian: apt-get install chromium)"),
]

FIGURES = "[...document.querySelectorAll('figure.plot')].map((figure) => figure.dataset.plot)"
PARTS = """(() => {
  const figure = document.querySelector(`figure.plot[data-plot="NAME"]`);
  const parts = [...figure.querySelectorAll('.canvas.js-plotly-plot, .canvas .js-plotly-plot')];
  const inked = '.plot path, .plot image, canvas, .hm image';
  const drawn = parts.filter((part) => part.querySelector('.main-svg') && part.querySelectorAll(inked).length > 0);
  const expected = figure.dataset.plot === 'landscapes' ? 4 : 1; // contours and surfaces of train and test
  return drawn.length === expected && parts.length === expected;
})()"""
"""Whether a figure holds all its plots and each of them shows something."""

LIT = """(() => [...document.querySelectorAll('.js-plotly-plot')].flatMap((plot) => {
  const name = plot.closest('figure').dataset.plot;
  const points = [...plot.querySelectorAll('.scatterlayer .points path')];
  const bright = points.filter((p) => Number(p.style.opacity || 1) === 1).length;
  const runs = plot.data.some((t) => t.meta && t.meta.runs);
  const lines = plot.data.filter((t) => t.meta && t.meta.run !== undefined);
  const thick = lines.filter((t) => t.line.width === 3).map((t) => t.meta.run);
  const held = (meta) => meta.runs || (meta.run === undefined ? [] : [meta.run]);
  const shown = [...new Set(plot.data.flatMap((t) => (t.meta ? held(t.meta) : [])))];
  return runs || lines.length ? [{ name, bright: runs ? bright : null, thick, shown }] : [];
}))()"""
"""For every plot with models in it: points of full opacity, runs of thick lines, all runs that it shows."""

POINT = """(() => {
  const plot = [...document.querySelectorAll('.js-plotly-plot')].find((p) => p.data.some((t) => t.meta && t.meta.runs));
  plot.scrollIntoView({ block: 'center' });
  const path = plot.querySelector('.scatterlayer .points path');
  const box = path.getBoundingClientRect();
  return { x: box.x + box.width / 2, y: box.y + box.height / 2, run: plot.data.find((t) => t.meta && t.meta.runs).meta.runs[0] };
})()"""
LIT_ROWS = "[...document.querySelectorAll('tr[data-run].lit')].map((row) => Number(row.dataset.run))"
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="session")
def artefacts() -> Path:
    """A folder that git ignores, for pictures to look at."""
    folder = Path(__file__).parents[2] / "test-artefacts"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(
        make_records(),
        tmp_path_factory.mktemp("browser") / "report.html",
        ReportOptions(
            title="Do flatter minima generalise better?",
            question="Four regularisers, five seeds each: does any measure of sharpness go with the test error?",
            spec={"name": "regularisers"},
            compared=[ComparedNumber("1", "baseline", "test_error_pct", "14.0 ± 0.5", "14.1 ± 0.4", "–", 5)],
            claims=[Claim("Flatter minima generalise better", "undecided", "Too few models.")],
        ),
    )


@pytest.fixture
def page(report: Path, tmp_path: Path) -> Iterator[Page]:
    with Page(tmp_path / "profile") as opened:
        opened.open(report)
        yield opened


def draw_all(page: Page) -> list[str]:
    """Scroll to every figure as a reader does, and wait until it is drawn."""
    names: list[str] = page.evaluate(FIGURES)
    assert names
    for name in names:
        page.evaluate(
            f"document.querySelector('figure.plot[data-plot=\"{name}\"]').scrollIntoView({{ block: 'center' }})"
        )
        page.wait(PARTS.replace("NAME", name))
    return names


def click_a_model(page: Page) -> int:
    """With the mouse, on the first point of the first scatter plot; the number of its run."""
    point = page.evaluate(POINT)
    page.click(point["x"], point["y"], ready="document.querySelector('.hoverlayer .hovertext') !== null")
    page.wait("location.hash.startsWith('#runs=')")
    return int(point["run"])


def test_only_what_is_near_is_drawn_at_first(page: Page) -> None:
    drawn = page.wait("document.querySelectorAll('.js-plotly-plot .main-svg').length")
    assert 0 < drawn / 3 < page.evaluate("document.querySelectorAll('figure.plot').length") / 2


def test_every_figure_is_drawn_without_complaint_or_request(page: Page, artefacts: Path) -> None:
    assert len(draw_all(page)) > 30
    assert page.complaints == []
    assert page.requests == []
    assert page.evaluate(OVERFLOW) == 0
    page.evaluate("scrollTo(0, 0)")
    assert len(page.screenshots(artefacts, "report-light")) > 3


def test_a_click_on_a_model_lights_it_up_everywhere(page: Page, artefacts: Path) -> None:
    draw_all(page)
    run = click_a_model(page)
    plots = page.evaluate(LIT)
    assert len(plots) > 20
    for plot in plots:
        if plot["bright"] is not None:
            assert plot["bright"] == (1 if run in plot["shown"] else 0), plot["name"]
        else:
            assert set(plot["thick"]) == ({run} if run in plot["shown"] else set()), plot["name"]
    assert page.evaluate(LIT_ROWS) == [run]
    assert page.complaints == []
    page.screenshot(artefacts / "report-lit.png")
    page.call("Input.dispatchKeyEvent", type="keyDown", key="Escape", code="Escape", windowsVirtualKeyCode=27)
    assert page.evaluate(LIT_ROWS) == []
    assert all(not plot["thick"] for plot in page.evaluate(LIT))
    assert page.evaluate("location.hash") == ""


def test_a_row_and_the_legend_light_models_up_too(page: Page) -> None:
    draw_all(page)
    page.evaluate("document.querySelector('tr[data-run=\"7\"]').click()")
    assert all(plot["bright"] in (None, int(7 in plot["shown"])) for plot in page.evaluate(LIT))
    page.evaluate("document.querySelectorAll('#legend button')[1].click()")
    assert page.evaluate(LIT_ROWS) == [5, 6, 7, 8, 9]
    assert page.evaluate("document.querySelectorAll('#conditions th.lit').length") == 3  # one in each of three tables


def test_an_address_with_a_model_opens_with_it_lit(report: Path, tmp_path: Path) -> None:
    with Page(tmp_path / "profile") as page:
        page.open(report, "#runs=0103c0ffee")
        assert page.evaluate(LIT_ROWS) == [8]
        draw_all(page)
        assert all(plot["bright"] in (None, int(8 in plot["shown"])) for plot in page.evaluate(LIT))


def test_the_landscape_follows_the_chosen_model(page: Page) -> None:
    draw_all(page)
    heights = "JSON.stringify(document.querySelector('[data-plot=landscapes] .js-plotly-plot').data[0].z)"
    before = page.evaluate(heights)
    page.evaluate("document.querySelector('tr[data-run=\"5\"]').click()")
    page.wait(f"{heights} !== {json.dumps(before)}")
    assert (
        page.evaluate("document.querySelector('[data-plot=landscapes] select').selectedOptions[0].textContent")
        == "weight decay · seed 0"
    )


def test_columns_can_be_chosen_and_the_table_sorted(page: Page) -> None:
    draw_all(page)
    page.evaluate("""(() => { const select = document.querySelector('[data-plot=explorer] select');
        select.value = 'train.igs'; select.dispatchEvent(new Event('change')); })()""")
    title = "document.querySelector('[data-plot=explorer] .js-plotly-plot').layout.xaxis.title.text"
    assert page.evaluate(title) == "IGS"
    page.evaluate("document.querySelector('#model-table th button').click()")
    cells = "[...document.querySelectorAll('#model-table tbody tr')].map((row) => Number(row.cells[1].textContent))"
    values = page.evaluate(cells)
    assert values == sorted(values)
    page.evaluate(
        "(() => { const find = document.querySelector('#model-table input'); find.value = 'sam'; find.oninput(); })()"
    )
    assert len(page.evaluate(cells)) == 5


def test_files_are_handed_out(page: Page, tmp_path: Path) -> None:
    page.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    for name in ("estimates.csv", "correlations.csv"):
        page.evaluate(f"document.querySelector('[data-file=\"{name}\"]').click()")
        while not any(
            e.get("method") == "Page.downloadProgress" and e["params"]["state"] == "completed" for e in page.events
        ):
            page.wait("true")
        page.events.clear()
        assert len(pd.read_csv(tmp_path / name)) > 50
    assert page.requests == []


@pytest.mark.parametrize(
    ("name", "options"), [("dark", {"dark": True}), ("phone", {"width": 390, "height": 844, "touch": True})]
)
def test_other_screens(report: Path, tmp_path: Path, artefacts: Path, name: str, options: dict[str, Any]) -> None:
    with Page(tmp_path / "profile", **options) as page:
        page.open(report)
        draw_all(page)
        assert page.evaluate(OVERFLOW) == 0
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (max(map(int, paper.strip("rgb()").split(","))) < 60) == (name == "dark")
        page.evaluate("document.querySelector('#theme').click()")
        turned = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (max(map(int, turned.strip("rgb()").split(","))) < 60) == (name != "dark")
        page.evaluate("document.querySelector('#theme').click()")
        page.evaluate("scrollTo(0, 0)")
        page.screenshots(artefacts, f"report-{name}")
        assert page.complaints == []


def test_tables_that_end_in_what_matters_fit_the_window(tmp_path: Path) -> None:
    beside = ComparedNumber(
        "1 early stopping",
        "baseline+temp",
        "kendall tau test loss~adaptive sharpness gat",
        *["−0.577 [−0.70, −0.41]"] * 3,
        50,
    )
    options = ReportOptions(compared=[beside], static=True)
    written = write_report(make_records(seeds=3), tmp_path / "report.html", options)
    with Page(tmp_path / "profile", 1200, 900) as page:
        page.open(written)
        for table in ("correlation-table", "published-table"):
            box = f"document.querySelector('#{table} .scroll')"
            assert page.evaluate(f"{box}.scrollWidth - {box}.clientWidth") == 0, table


def test_it_prints(page: Page, artefacts: Path) -> None:
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    for name in page.evaluate(FIGURES):
        page.wait(PARTS.replace("NAME", name))
    heads = "[...document.querySelectorAll('.on-paper th')]"  # a button would be missing where the head is repeated
    assert page.evaluate(f"{heads}.length > 9 && {heads}.every((head) => head.textContent && !head.children.length)")
    assert page.pdf(artefacts / "report.pdf").read_bytes().startswith(b"%PDF-")
    assert page.complaints == []


def test_hostile_names_do_nothing_and_read_as_written(tmp_path: Path, artefacts: Path) -> None:
    path = write_report(
        make_records(HOSTILE, seeds=3),
        tmp_path / "report.html",
        ReportOptions(title=HOSTILE[0], question=HOSTILE[1], measures=["train.hessian_trace"], outcomes=["test.error"]),
    )
    with Page(tmp_path / "profile") as page:
        page.open(path)
        draw_all(page)
        chips = page.evaluate("[...document.querySelectorAll('#legend .name')].map((chip) => chip.textContent)")
        assert chips == list(HOSTILE)
        assert page.evaluate("document.title") == HOSTILE[0]
        assert page.evaluate("document.querySelectorAll('img').length") == 0
        assert not [event for event in page.events if event.get("method") == "Page.javascriptDialogOpening"]
        assert page.complaints == []
        assert page.requests == []
        page.screenshots(artefacts, "report-hostile")


def test_an_injected_script_would_not_run(report: Path, tmp_path: Path) -> None:
    """The policy is a second wall: even markup that got in would be dead."""
    forged = tmp_path / "forged.html"
    text = report.read_text(encoding="utf-8")
    wound = "<script>window.hurt = 1</script><img src='https://example.org/x.png' onerror='window.hurt = 2'>"
    forged.write_text(text.replace("<main", wound + "<main", 1), encoding="utf-8")
    with Page(tmp_path / "profile") as page:
        page.open(forged)
        assert page.evaluate("window.hurt === undefined")
        refused = [text for text in page.complaints if "Content Security Policy" in text]
        assert len(refused) >= 2


def test_one_run_reads_well(tmp_path: Path, artefacts: Path) -> None:
    path = write_report(make_records(["only one"], seeds=1), tmp_path / "report.html", ReportOptions(title="One model"))
    with Page(tmp_path / "profile") as page:
        page.open(path)
        draw_all(page)
        assert page.complaints == []
        page.screenshots(artefacts, "report-one")


def test_a_thousand_runs_open(tmp_path: Path, artefacts: Path) -> None:
    many = make_records([f"condition {i}" for i in range(50)], seeds=20, extras=False, temperature=False)
    options = ReportOptions(title="A thousand", outcomes=["test.error", "test.ece"])
    path = write_report(many, tmp_path / "report.html", options)
    with Page(tmp_path / "profile") as page:
        page.open(path)
        draw_all(page)
        click_a_model(page)
        assert page.complaints == []
        page.evaluate("scrollTo(0, 0)")
        page.screenshots(artefacts, "report-thousand")

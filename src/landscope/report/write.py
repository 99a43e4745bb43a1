"""A study as one HTML file: question and answer first, then everything they rest on.

The file needs nothing and asks for nothing. A content security policy lets only the two scripts run that it was written with (by
their hashes) and no request leave; the data lies in it as JSON that cannot be taken for markup.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd

from landscope.analysis.coefficients import Method
from landscope.core.errors import UnknownNameError
from landscope.core.files import write_whole
from landscope.core.json import Plain
from landscope.core.text import counted
from landscope.report.data.associations import Associations, associate
from landscope.report.data.cohorts import Cohorts
from landscope.report.data.contrasts import contrasts
from landscope.report.page.blocks import Block, Claim, Downloads, Panels, Plot, Prose, Section, Table
from landscope.report.page.figure import Figure
from landscope.report.page.html import Masthead, packed_csv, plotly_script, rendered
from landscope.report.page.matplotlib import FORMATS, as_picture, save
from landscope.report.page.plotly import in_browser
from landscope.report.sections.answer import answer_section, claim_section
from landscope.report.sections.axes import axis_section
from landscope.report.sections.calibration import calibration_section
from landscope.report.sections.conditions import ComparedNumber, compared_section, condition_section
from landscope.report.sections.correlations import correlation_section, scatter_section
from landscope.report.sections.histories import history_section
from landscope.report.sections.landscapes import landscape_section
from landscope.report.sections.layers import corruption_section, invariance_section, layer_section
from landscope.report.sections.models import (
    data_section,
    estimate_section,
    files,
    plain_study,
    provenance_section,
    term_section,
    terms_of,
)
from landscope.report.sections.spectra import igs_section, spectrum_section
from landscope.report.sections.through_training import through_section
from landscope.report.sections.within_between import within_between_section
from landscope.studies.record import Failure, Record

COHORTS = 4
"""Kinds of models (checkpoints, temperatures) whose correlations are computed."""


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """What a report is about, and how it is written."""

    title: str = "A study of sharpness"
    question: str | None = None
    """What the study asks."""
    spec: Mapping[str, Plain] | None = None
    """The study's spec, shown under its provenance."""
    measures: Sequence[str] | None = None
    """Columns, such as "train.hessian_trace"; by default everything measured on the training rows."""
    outcomes: Sequence[str] | None = None
    """Columns, such as "test.error"; by default all held-out errors."""
    method: Method = "kendall"
    """"kendall", "spearman" or "pearson"."""
    given: str | None = "train.loss"
    """A column to account for in partial correlations, left out where it was not measured; `None` for none."""
    baseline: str | None = None
    """A condition that the others are tested against."""
    checkpoint: str | None = None
    """Of which models the question is asked: "final", "best", …; by default of those that most runs have."""
    claims: Sequence[Claim] = ()
    """What is claimed, what was found, and which runs show it."""
    compared: Sequence[ComparedNumber] = ()
    """A paper's numbers beside ours."""
    failed: Sequence[Failure] = ()
    """Runs that left no record, listed with their reasons."""
    notes: Sequence[str] = ()
    """Sentences that stand below the answer."""
    static: bool = False
    """Whether it is without script, undated and small: figures as pictures, no files to download."""
    mark: str = ""
    """A word in the head of the page, by which it is recognised."""


DEFAULTS = ReportOptions()


@dataclass(frozen=True, eq=False)
class StudyReport:
    """All that a page shows: its sections, with figures that both renderers can draw."""

    study: Cohorts
    associations: Sequence[Associations]
    sections: Sequence[Section]
    files: Mapping[str, pd.DataFrame]
    """What can be downloaded."""
    options: ReportOptions

    @classmethod
    def of(cls, records: Sequence[Record], options: ReportOptions = DEFAULTS) -> StudyReport:
        """Analyse the records and describe every section for which there is data."""
        study = Cohorts.of(records, options.measures, options.outcomes, options.checkpoint)
        asked = (associate(study, cohort, options.method, options.given) for cohort in study.cohorts[:COHORTS])
        every = [found for found in asked if found is not None]
        main = _main(study, every)
        tables = files(study, every)
        against = contrasts(study, options.baseline)
        sections = [
            answer_section(study, main, against, options.claims, options.notes, options.baseline),
            claim_section(study, options.claims),
            estimate_section(study),
            condition_section(study, against),
            axis_section(study),
            through_section(study),
            correlation_section(study, every),
            scatter_section(study, main),
            within_between_section(study, main),
            calibration_section(study),
            corruption_section(study),
            spectrum_section(study),
            landscape_section(study),
            history_section(study),
            layer_section(study),
            igs_section(study),
            invariance_section(study),
            compared_section(study, options.compared),
            data_section(tables),
            term_section(terms_of(study)),
            provenance_section(study, options.spec, options.failed),
        ]
        return cls(study, every, [section for section in sections if section.blocks], tables, options)

    @property
    def figures(self) -> list[Figure]:
        """Those that can be drawn on paper, in the order of the page."""
        blocks = [block for section in self.sections for block in section.blocks]
        return [block for block in blocks if isinstance(block, Figure) and block.paper_panels]

    @property
    def answer(self) -> str:
        """What the page says first, in a sentence or two."""
        blocks = [block for section in self.sections if section.key == "answer" for block in section.blocks]
        return next((block.text for block in blocks if isinstance(block, Prose) and block.tone == "lead"), "")

    def html(self, plotly: str = "") -> str:
        """The page; `plotly` is the script of that name, without which it is static."""
        if not plotly:
            return self._page(without_script(self.sections, self.study.conditions), self._kicker())
        shown = [replace(section, blocks=_plotted(section)) for section in self.sections]
        packed: dict[str, Plain] = {name: packed_csv(table) for name, table in self.files.items()}
        data: dict[str, Plain] = {**plain_study(self.study), "plots": _plots(shown), "files": packed}
        return self._page(shown, f"{self._kicker()} · {_today()}", data, plotly)

    def _kicker(self) -> str:
        """How much the study is made of, in a line."""
        study, main = self.study, _main(self.study, self.associations)
        parts = [counted(len(study.records), "run")]
        if self.options.failed:
            parts.append(f"{len(self.options.failed):,} failed")
        parts.append(counted(len(study.conditions), "condition"))
        parts.append(counted(len({record.seed for record in study.records}), "seed"))
        if main is not None:
            parts.append(f"{len(main.measures)} measures against {len(main.outcomes)} outcomes")
        return " · ".join(parts)

    def _page(
        self, sections: Sequence[Section], kicker: str, data: dict[str, Plain] | None = None, plotly: str = ""
    ) -> str:
        head = Masthead(self.options.title, self.options.question, kicker, self.answer, self.options.mark)
        return rendered(head, sections, terms_of(self.study), data, plotly)


def write_report(records: Sequence[Record], path: str | os.PathLike[str], options: ReportOptions = DEFAULTS) -> Path:
    """Write the report of a study, whole or not at all, and return where it is.

    Args:
        records: the runs. One is enough; a correlation needs three.
        path: the HTML file.
        options: what is asked, what is known besides, and whether the page has a script.

    Cost: a few seconds for tens of models, about ten for a thousand. Size: 5 MB, of which Plotly is 4.8; 9 MB for a thousand.
    """
    plotly = "" if options.static else plotly_script()
    page = StudyReport.of(records, options).html(plotly)
    target = Path(path)
    write_whole(target, page.encode(errors="replace"), flush=False)
    return target


def figures(
    records: Sequence[Record],
    folder: str | os.PathLike[str],
    formats: Sequence[str] = FORMATS,
    options: ReportOptions = DEFAULTS,
) -> list[Path]:
    """Draw every figure of the report for which there is data, as PNG, SVG and PDF, and return the files.

        baseline         every condition over the baseline, with intervals
        forest           every measure against every outcome, with intervals
        correlations     the same numbers as a heat map; redundancy: everything with everything
        scatter          the strongest measures (columns) against the outcomes (rows), conditions by colour
        within-between   the strongest pairs inside conditions and between them; within: the same, model by model
        axes             outcomes along an axis of numbers
        checkpoints      measures and outcomes over the steps at which they were measured
        over-loss        measures over the training loss at those steps
        reliability      confidence against accuracy, before and after temperature scaling where both were measured
        corruptions      accuracy on corrupted images
        spectra          densities of eigenvalues
        landscape        lines of equal loss, train beside test
        training         the histories, along epochs or steps
        layers           measures by layer
        igs              information-geometric sharpness over its rank

    Args:
        records: the runs of a study.
        folder: where to; made where it does not exist.
        formats: of "png", "svg", "pdf".
        options: which measures and outcomes, as for a page.
    """
    for name in formats:
        if name not in FORMATS:
            raise UnknownNameError.among("format", name, FORMATS)
    target = Path(folder)
    report = StudyReport.of(records, options)
    target.mkdir(parents=True, exist_ok=True)
    return [path for each in report.figures for path in save(each, report.study.conditions, target, formats)]


def without_script(sections: Sequence[Section], conditions: Sequence[str]) -> list[Section]:
    """The sections with pictures for figures, without what only a script can do; those that are empty then are left out."""
    found = []
    for section in sections:
        blocks: list[Block] = [
            as_picture(block, conditions) if isinstance(block, Figure) else block
            for block in section.blocks
            if not _needs_script(block)
        ]
        if blocks:
            found.append(replace(section, blocks=blocks))
    return found


def _needs_script(block: Block) -> bool:
    if isinstance(block, Figure):
        return not block.paper_panels
    filled_by_script = isinstance(block, Table) and not block.rows
    return filled_by_script or isinstance(block, Downloads) or (isinstance(block, Prose) and block.scripted)


def _plotted(section: Section) -> list[Block]:
    return [
        drawn for block in section.blocks for drawn in (in_browser(block) if isinstance(block, Figure) else [block])
    ]


def _plots(sections: Sequence[Section]) -> dict[str, Plain]:
    blocks = [block for section in sections for block in section.blocks]
    plots = [block for block in blocks if isinstance(block, Plot)]
    plots += [plot for block in blocks if isinstance(block, Panels) for plot in block.plots]
    return {plot.key: {"kind": plot.kind, "spec": dict(plot.spec), "height": plot.height} for plot in plots}


def _main(study: Cohorts, every: Sequence[Associations]) -> Associations | None:
    return next((found for found in every if found.cohort is study.main), None)


def _today() -> str:
    return f"{datetime.now(UTC):%d %B %Y}".lstrip("0")

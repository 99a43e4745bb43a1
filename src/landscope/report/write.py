"""A study as one HTML file: question and answer first, then everything they rest on.

The file needs nothing and asks for nothing. A content security policy lets only the two scripts run that it was written with (by
their hashes) and no request leave; the data lies in it as JSON that cannot be taken for markup.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import TypedDict, cast

import pandas as pd
from jinja2 import Environment
from markupsafe import Markup

from landscope.analysis.coefficients import Method
from landscope.core.errors import SpecError, UnknownNameError
from landscope.core.files import write_whole
from landscope.core.json import Plain
from landscope.core.text import counted
from landscope.report.data.associations import Associations, associate
from landscope.report.data.cohorts import Cohorts
from landscope.report.page.blocks import Block, Claim, Panels, Picture, Plot, Prose, Section
from landscope.report.page.embedding import content_hash, embedded_json, plotly_script
from landscope.report.page.matplotlib import figures, pictures
from landscope.report.page.style import colour
from landscope.report.sections.answer import answer_section, claim_section
from landscope.report.sections.axes import axis_section
from landscope.report.sections.calibration import calibration_section
from landscope.report.sections.conditions import condition_section
from landscope.report.sections.correlations import correlation_section, scatter_section
from landscope.report.sections.histories import history_section
from landscope.report.sections.landscapes import landscape_section
from landscope.report.sections.layers import corruption_section, invariance_section, layer_section
from landscope.report.sections.models import data_section, estimate_section, files, plain_study, provenance_section
from landscope.report.sections.reference import ComparedNumber, compared_section, published_section
from landscope.report.sections.spectra import igs_section, spectrum_section
from landscope.report.sections.through_training import through_section
from landscope.report.sections.within_between import within_between_section
from landscope.specs.schema import to_plain
from landscope.studies.record import Failure, Record, wide_table
from landscope.studies.spec import AnalysisSpec, StudySpec
from landscope.studies.store import RunStatus
from landscope.studies.study import Study, report_mark

__all__ = ["lightened", "write_records_report", "write_report", "write_study_figures", "write_study_report"]


# The report without script: text, tables and figures as they stand; a tenth of a megabyte or two instead of five.
#
# For places that keep many reports, such as a repository. Figures that only the script draws are left out.


FIGURES: Mapping[str, Mapping[str, str]] = {
    "axes": {"axes": "Outcomes along an axis: mean and standard deviation over models."},
    "through-training": {
        "checkpoints": "Over the steps at which models were measured: median of each condition, and from its smallest to its "
        "largest model where conditions are few.",
        "over-loss": "Measures over the training loss at those steps: medians of each condition, a point for each step, the "
        "last one larger.",
    },
    "correlations": {
        "forest": "Every measure against every outcome, with 95 % intervals.",
        "correlations": "The same correlations at a glance.",
    },
    "scatter": {"scatter": "The strongest measures against the outcomes, a point for each model."},
    "calibration": {"reliability": "Confidence against accuracy: all models of a condition together."},
    "spectra": {"spectra": "Densities of the eigenvalues of the Hessian."},
    "landscapes": {
        "landscape": "Lines of equal loss in a filter-normalised plane through the weights, all on one scale."
    },
    "training": {
        "training": "Training curves: a line for every model; with many, mean and standard deviation of each condition."
    },
}
"""Which of the drawn figures belong to a section, with their captions."""
SCRIPTED = "every-model"
"""The section that nothing is in without the script."""


def lightened(sections: Sequence[Section], pictures: Mapping[str, bytes]) -> list[Section]:
    """The sections with pictures for plots; those that are empty then are left out.

    >>> [section] = lightened([Section("scatter", "Model by model", [Plot("a", {}, "")])], {"scatter": b"PNG"})
    >>> section.blocks[0].source
    'data:image/png;base64,UE5H'
    """
    found = []
    for section in sections:
        drawn = [
            Picture(f"data:image/png;base64,{base64.b64encode(pictures[name]).decode()}", caption)
            for name, caption in FIGURES.get(section.key, {}).items()
            if name in pictures
        ]
        rest = [block for block in section.blocks if not _scripted(block)]
        if section.key != SCRIPTED and (drawn or rest):
            found.append(replace(section, blocks=[*drawn, *rest]))
    return found


def _scripted(block: Block) -> bool:
    return isinstance(block, Plot | Panels) or (isinstance(block, Prose) and block.scripted)


COHORTS = 4
"""Kinds of models (checkpoints, temperatures) whose correlations are computed."""
SCRIPTS = (
    *("data", "theme", "look", "scatter", "forest", "landscape"),
    *("drawing", "linking", "legend", "models", "files", "begin"),
)
"""Parts of the page's script, in this order."""


def write_report(
    records: Sequence[Record],
    path: str | os.PathLike[str],
    *,
    title: str = "A study of sharpness",
    question: str | None = None,
    spec: Mapping[str, Plain] | None = None,
    published: pd.DataFrame | None = None,
    metrics: Mapping[str, str] | None = None,
    compared: Sequence[ComparedNumber] = (),
    claims: Sequence[Claim | tuple[str, str, str, Sequence[str]]] | None = None,
    measures: Sequence[str] | None = None,
    outcomes: Sequence[str] | None = None,
    method: Method = "kendall",
    given: str | None = "train.loss",
    baseline: str | None = None,
    checkpoint: str | None = None,
    failed: Sequence[Failure] = (),
    notes: Sequence[str] = (),
    light: bool = False,
    mark: str = "",
) -> Path:
    """Write the report of a study, whole or not at all, and return where it is.

    Args:
        records: the runs. One is enough; a correlation needs three.
        path: the HTML file.
        title: of the page.
        question: what the study asks.
        spec: of the study, shown under its provenance.
        published: a paper's numbers with the columns paper, table, data, model, condition, metric, value, spread.
        metrics: {metric of `published`: column of ours} where names do not tell (see `landscope.report.sections.reference`).
        compared: a paper's numbers that stand beside ours already, instead of `published`.
        claims: (claim, verdict, why, keys of the runs that show it).
        measures: columns, such as "train.hessian_trace"; by default everything measured on the training rows.
        outcomes: columns, such as "test.error"; by default all held-out errors.
        method: "kendall", "spearman" or "pearson".
        given: a column to account for in partial correlations, left out where it was not measured; `None` for none.
        baseline: a condition that the others are tested against.
        checkpoint: of which models the question is asked: "final", "best", …; by default of those that most runs have.
        failed: runs that left no record, listed with their reasons.
        notes: sentences that stand below the answer.
        light: without script, undated and small: figures as they stand (see `landscope.report.write`).
        mark: a word that stands in the head of the page, by which it is known again.

    Cost: a few seconds for tens of models, about ten for a thousand. Size: 5 MB, of which Plotly is 4.8; 9 MB for a thousand.
    """
    plotly = None if light else plotly_script()
    study = Cohorts.of(records, measures, outcomes, checkpoint)
    every = [
        found for cohort in study.cohorts[:COHORTS] if (found := associate(study, cohort, method, given)) is not None
    ]
    main = next((found for found in every if found.cohort is study.main), None)
    packed = files(study, every)
    stated = [claim if isinstance(claim, Claim) else Claim(*claim) for claim in claims or ()]
    sections = [
        answer_section(study, main, stated, notes),
        claim_section(study, stated),
        estimate_section(study),
        condition_section(study, baseline),
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
        compared_section(study, compared) if compared else published_section(study, published, metrics),
        data_section(list(packed)),
        provenance_section(study, spec, failed),
    ]
    shown = [section for section in sections if section.blocks]
    kicker = _kicker(study, main, len(failed))
    if plotly is None:
        page = _page(title, question, kicker, lightened(shown, pictures(study, main)), mark=mark)
    else:
        data: dict[str, Plain] = {**plain_study(study), "plots": _plots(shown), "files": {**packed}}
        page = _page(title, question, f"{kicker} · {_today()}", shown, data, plotly, mark)
    target = Path(path)
    write_whole(target, page.encode(errors="replace"), flush=False)
    return target


def _plots(sections: Sequence[Section]) -> dict[str, Plain]:
    blocks = [block for section in sections for block in section.blocks]
    plots = [block for block in blocks if isinstance(block, Plot)]
    plots += [plot for block in blocks if isinstance(block, Panels) for plot in block.plots]
    return {plot.key: {"kind": plot.kind, "spec": dict(plot.spec), "height": plot.height} for plot in plots}


def _kicker(study: Cohorts, main: Associations | None, failed: int) -> str:
    seeds = len({record.seed for record in study.records})
    parts = [counted(len(study.records), "run")]
    if failed:
        parts.append(f"{failed:,} failed")
    parts.append(counted(len(study.conditions), "condition"))
    parts.append(counted(seeds, "seed"))
    if main is not None:
        parts.append(f"{len(main.measures)} measures against {len(main.outcomes)} outcomes")
    return " · ".join(parts)


def _today() -> str:
    return f"{datetime.now(UTC):%d %B %Y}".lstrip("0")


def _page(
    title: str,
    question: str | None,
    kicker: str,
    sections: Sequence[Section],
    data: dict[str, Plain] | None = None,
    plotly: str = "",
    mark: str = "",
) -> str:
    from landscope import __version__

    parts = resources.files("landscope.report") / "assets"

    def read(name: str) -> str:
        return (parts / name).read_text(encoding="utf-8")

    script, scripts = "", ""
    if data is not None:
        script = '"use strict";\n(() => {\n' + "\n".join(read(f"{name}.js") for name in SCRIPTS) + "})();\n"
        scripts = f"script-src {content_hash(script)} {content_hash(plotly)}; "
    policy = f"default-src 'none'; {scripts}style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
    template = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(read("page.html"))
    return template.render(
        title=title,
        question=question,
        kicker=kicker,
        sections=sections,
        policy=policy,
        colour=colour,
        version=__version__,
        mark=mark,
        style=Markup(read("page.css")),
        data=None if data is None else Markup(embedded_json(data)),
        plotly=Markup(plotly),
        script=Markup(script),
    )


# The report of a study in a store, and its figures.


def write_study_report(
    study: Study,
    path: str | os.PathLike[str],
    records: Sequence[Record],
    statuses: Mapping[str, RunStatus],
    *,
    light: bool = False,
) -> Path:
    """The report of what is done so far: of the study's records and of the statuses of its runs."""
    failed = study.failures(statuses)
    mark = report_mark(study, statuses, light=light)
    return write_records_report(study.spec, records, path, failed=failed, light=light, mark=mark)


def write_records_report(
    spec: StudySpec,
    records: Sequence[Record],
    path: str | os.PathLike[str],
    *,
    compared: Sequence[ComparedNumber] = (),
    claims: Sequence[Claim] | None = None,
    failed: Sequence[Failure] = (),
    light: bool = False,
    mark: str = "",
) -> Path:
    """The report of a study's records: its question and the columns that its analysis names.

    Those that no record has are left out with a sentence that says so; where that leaves no outcome or measure, it is an error.
    """
    known = set(wide_table(records).columns)
    return write_report(
        records,
        path,
        title=spec.name,
        question=spec.question or None,
        spec=cast(Mapping[str, Plain], to_plain(spec)),
        compared=compared,
        claims=claims,
        **_asked(spec, known),
        given=spec.analysis.given if spec.analysis.given in known else None,
        baseline=spec.analysis.baseline,
        failed=failed,
        notes=_left_out(spec.analysis, known),
        light=light,
        mark=mark,
    )


def write_study_figures(
    study: Study, folder: str | os.PathLike[str], formats: Sequence[str], records: Sequence[Record]
) -> list[Path]:
    """Static figures for papers, of what the report is of."""
    for word in formats:
        if word not in ("png", "svg", "pdf"):
            raise SpecError(f"figures are png, svg or pdf; {word!r} came")
    asked = _asked(study.spec, set(wide_table(records).columns))
    return list(figures(records, folder, formats=tuple(formats), **asked))


class _Asked(TypedDict):
    measures: list[str] | None
    outcomes: list[str] | None
    method: Method
    checkpoint: str | None


def _asked(spec: StudySpec, known: Collection[str]) -> _Asked:
    """What an analysis names, as far as it was measured. Outcomes of classifiers that a study did not ask for and has not got
    (its network gives numbers, or shapes) make room for those that it has.
    """
    analysis = spec.analysis
    others = not _outcomes_are_named(analysis) and analysis.outcomes[0] not in known
    return {
        "measures": None if analysis.measures is None else _measured("measure", analysis.measures, known),
        "outcomes": None if others else _measured("outcome", analysis.outcomes, known) or None,
        "method": analysis.method,
        "checkpoint": analysis.checkpoint,
    }


def _outcomes_are_named(analysis: AnalysisSpec) -> bool:
    return analysis.outcomes != AnalysisSpec().outcomes


def _measured(kind: str, names: Sequence[str], known: Collection[str]) -> list[str]:
    """Those that some record has. Where none is, nothing that was asked can be told."""
    found = [name for name in names if name in known]
    if names and not found:
        raise UnknownNameError.among(f"{kind} of the analysis", names[0], known)
    return found


def _left_out(analysis: AnalysisSpec, known: Collection[str]) -> list[str]:
    """A sentence for every name of the analysis that no record has."""
    named = [("measure", name) for name in analysis.measures or ()]
    named += [("outcome", name) for name in analysis.outcomes if _outcomes_are_named(analysis)]
    if analysis.given not in (None, AnalysisSpec().given):
        named.append(("column to account for", str(analysis.given)))
    errors = [UnknownNameError.among(kind, name, known) for kind, name in named if name not in known]
    return [f"Left out, because no record has it: {str(error).partition(' Choices: ')[0]}" for error in errors]

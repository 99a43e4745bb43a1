"""A study as one HTML file: question and answer first, then everything they rest on.

The file needs nothing and asks for nothing. A content security policy lets only the two scripts run that it was written with (by
their hashes) and no request leave; the data lies in it as JSON that cannot be taken for markup.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path

import pandas as pd
from jinja2 import Environment
from markupsafe import Markup

from landscope.analysis.coefficients import Method
from landscope.core.files import write_whole
from landscope.core.schema import Plain
from landscope.core.words import counted
from landscope.report.along_axes import axis_section
from landscope.report.answer import answer_section, claim_section
from landscope.report.associations import Associations, associate
from landscope.report.calibrations import calibration_section
from landscope.report.cohorts import Study
from landscope.report.conditions import condition_section
from landscope.report.correlations import correlation_section
from landscope.report.corruptions import corruption_section
from landscope.report.embedding import content_hash, embedded_json, plotly_script
from landscope.report.histories import history_section
from landscope.report.invariances import invariance_section
from landscope.report.landscapes import landscape_section
from landscope.report.layers import layer_section
from landscope.report.light import lightened
from landscope.report.models import data_section, estimate_section, files, plain_study
from landscope.report.provenance import provenance_section
from landscope.report.published import ComparedNumber, compared_section, published_section
from landscope.report.scatters import scatter_section
from landscope.report.section import Claim, Panels, Plot, Section
from landscope.report.spectral import igs_section, spectrum_section
from landscope.report.static import pictures
from landscope.report.static_style import colour
from landscope.report.through_training import through_section
from landscope.report.within_between import within_between_section
from landscope.studies.record import Failure, Record

__all__ = ["write_report"]

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
        metrics: {metric of `published`: column of ours} where names do not tell (see `landscope.report.published`).
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
        light: without script, undated and small: figures as they stand (see `landscope.report.light`).
        mark: a word that stands in the head of the page, by which it is known again.

    Cost: a few seconds for tens of models, about ten for a thousand. Size: 5 MB, of which Plotly is 4.8; 9 MB for a thousand.
    """
    plotly = None if light else plotly_script()
    study = Study.of(records, measures, outcomes, checkpoint)
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


def _kicker(study: Study, main: Associations | None, failed: int) -> str:
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

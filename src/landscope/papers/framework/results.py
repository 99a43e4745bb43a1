"""What kept records say: claims judged, the page of results with its figures and appendices, the reports of parts."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

import pandas as pd

from landscope.papers.framework.appendix import appendix_text, is_whole, part_of
from landscope.papers.framework.claims import Told, at_holms_levels, not_run, tell
from landscope.papers.framework.compare import compare
from landscope.papers.framework.paper import HUNDRED_CLASSES, PAPERS, Paper, Size, stands_in
from landscope.papers.framework.records import Bundle, Kept, kept_parts, save_bundle
from landscope.papers.framework.results_page import figures, page_text
from landscope.papers.framework.values import FAILED, FEW, GUESSING, INSTEAD, LOSS_ERROR, OWN_LOSS, REDUCED
from landscope.report.data.cohorts import error_bar, estimate_of
from landscope.report.of_study import options_of
from landscope.report.page.blocks import Claim as ShownClaim
from landscope.report.write import write_report
from landscope.studies.grid import runs_of
from landscope.studies.record import wide_table
from landscope.studies.study import Study

__all__ = ["Findings", "findings", "finish_part", "write_results"]

ENOUGH = 0.75
"""The share of the conditions of a design from which on claims over them are judged."""

Reports: TypeAlias = Literal["none", "light", "full"]


@dataclass(frozen=True)
class Findings:
    """Everything that is kept, and what it says."""

    kept: Mapping[str, Mapping[str, Kept]]
    """Paper → name of a part → its records."""
    tables: Mapping[str, Mapping[str, pd.DataFrame]]
    """Paper → name of a part → its models."""
    told: Mapping[str, Sequence[Told]]
    """Paper → its claims."""
    headlines: Sequence[Told]
    """The twenty, in their order, at the levels that Holm's procedure leaves them."""


def findings(folder: Path) -> Findings:
    """What the records in a folder say."""
    found = kept_parts(folder)
    kept = {paper: found[paper] for paper in PAPERS if paper in found}
    tables = {paper: {name: _table(one.bundle) for name, one in parts.items()} for paper, parts in kept.items()}
    told = {paper: _told(PAPERS[paper], parts, tables[paper]) for paper, parts in kept.items()}
    best = {claim.headline: not_run(claim) for paper in kept for claim in PAPERS[paper].claims if claim.headline}
    for one in (one for claims in told.values() for one in claims if one.claim.headline):
        if best[one.claim.headline].judgement.verdict == "not tested":
            best[one.claim.headline] = one
    explaining = {one.claim.text: one.judgement for claims in told.values() for one in claims}
    headlines = at_holms_levels([best[number] for number in sorted(best)], explaining)
    adjusted = {one.claim.headline: one for one in headlines}
    return Findings(
        kept,
        tables,
        {
            paper: [adjusted[one.claim.headline] if one is best.get(one.claim.headline) else one for one in claims]
            for paper, claims in told.items()
        },
        headlines,
    )


def _table(bundle: Bundle) -> pd.DataFrame:
    """The models of a part, with what guards look at."""
    table = wide_table(bundle.records)
    models = [subject for record in bundle.records for subject in record.subjects]
    losses = [estimate_of(model, "train.loss") for model in models]
    table[LOSS_ERROR] = [math.nan if loss is None else error_bar(loss) for loss in losses]
    if "train.loss" in table:
        table[OWN_LOSS] = table.groupby(["run", "checkpoint"])["train.loss"].transform("first")
    table.attrs[FAILED] = dict(Counter(failure.condition for failure in bundle.failed))
    part = part_of(bundle)
    short = [] if is_whole(bundle) else [f"run at size {bundle.size} only"]
    short += [f"run on {HUNDRED_CLASSES} in place of CIFAR-100"] if stands_in(bundle.spec) else []
    table.attrs[REDUCED] = "; ".join([*short, *([part.reduced] if part.reduced else [])])
    table.attrs[INSTEAD] = part.instead
    planned = {run.condition for run in runs_of(bundle.spec)}
    done = {record.condition for record in bundle.records}
    few = len(done) < ENOUGH * len(planned)
    table.attrs[FEW] = f"{len(done)} of {len(planned)} conditions were run" if few else ""
    table.attrs[GUESSING] = math.log(part.classes) if part.classes else None
    return table


def _told(paper: Paper, parts: Mapping[str, Kept], tables: Mapping[str, pd.DataFrame]) -> list[Told]:
    """Claims of the parts at the paper's size, and of those at each smaller one: these are never set against each other."""
    sizes: dict[str, dict[str, str]] = defaultdict(dict)
    for name, kept in parts.items():
        sizes[tables[name].attrs[REDUCED]][kept.bundle.part] = name
    found: list[Told] = []
    for names in sizes.values():
        own = tell(paper.claims, {part: tables[name] for part, name in names.items()})
        found += [replace(one, claim=replace(one.claim, part=names[one.claim.part])) for one in own]
    return found


def finish_part(paper: Paper, part: str, size: Size, study: Study, folder: Path, *, light: bool = False) -> list[Path]:
    """After the runs of a part, or those that were done before it was stopped: its records in one file, and its report."""
    bundle = Bundle(paper.name, part, size, study.spec, tuple(study.records()), tuple(study.failures()))
    kept = save_bundle(bundle, folder / f"{part}.json.gz")
    claims = tell(paper.claims, {part: _table(bundle)})
    return [kept, _report(bundle, claims, folder / f"{part}.html", light=light)]


def write_results(folder: Path, page: Path, *, reports: Reports = "none") -> list[Path]:
    """The page of results; its figures, an appendix for each paper and, if wanted, reports of all parts beside the records."""
    found = findings(folder)
    made = [page]
    page.write_text(page_text(found, folder, page.parent), encoding="utf-8")
    texts = figures(found) | {f"{paper}.md": appendix_text(found, paper, folder, page) for paper in found.kept}
    for name, text in texts.items():
        path = folder / name
        path.write_text(text, encoding="utf-8")
        made.append(path)
    if reports != "none":
        for paper, parts in found.kept.items():
            for name, kept in parts.items():
                own = [one for one in found.told[paper] if one.claim.part == name]
                made.append(_report(kept.bundle, own, kept.report, light=reports == "light"))
    return made


def _report(bundle: Bundle, claims: Sequence[Told], path: Path, *, light: bool = False) -> Path:
    """The report of a part, with its claims."""
    options = replace(
        options_of(bundle.spec, bundle.records),
        compared=compare(PAPERS[bundle.recipe], part_of(bundle), bundle.records),
        claims=[ShownClaim(one.claim.text, one.judgement.verdict, one.why, one.runs) for one in claims],
        failed=bundle.failed,
        static=light,
    )
    return write_report(bundle.records, path, options)

"""The appendix of a paper: what was run on what, all its claims, and every published number beside ours."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from textwrap import shorten
from typing import TYPE_CHECKING

from landscope.core.estimate import Status
from landscope.core.text import counted
from landscope.papers.framework.claims import Told
from landscope.papers.framework.compare import compare
from landscope.papers.framework.paper import PAPERS, Paper, Part, is_on_cifar100, on_cifar100
from landscope.papers.framework.records import Bundle, Kept
from landscope.report.sections.conditions import ComparedNumber
from landscope.studies.grid import runs_of
from landscope.studies.record import Record
from landscope.studies.spec import StudySpec
from landscope.studies.store.identity import run_key

if TYPE_CHECKING:
    from landscope.papers.framework.results import Findings

__all__ = ["appendix_text", "is_whole", "part_of"]

REASON = 160
"""Characters of the reason why a run failed."""


def appendix_text(found: Findings, paper: str, folder: Path, page: Path) -> str:
    """Everything about one paper: every claim, and every published number beside ours; it lies in the folder of records."""
    one = PAPERS[paper]
    lines = [
        f"# {one.title}",
        "",
        f"Made by `landscope paper results`, as [the page of results]({_from(page, folder)}) is, "
        "which says what a verdict means. A number is mean ± standard deviation over n models. *As published* is what the "
        "formulas of the paper's code give for these models, slips included; *corrected* what it should have measured.",
        "",
        *_paper_lines(one, found.told[paper], found.kept[paper], folder, _from(folder, page.parent)),
    ]
    return "\n".join(lines) + "\n"


def _from(path: Path, home: Path) -> PurePosixPath:
    return PurePosixPath(Path(os.path.relpath(path, home)).as_posix())


def _paper_lines(
    paper: Paper, told: Sequence[Told], parts: Mapping[str, Kept], home: Path, where: PurePosixPath
) -> list[str]:
    lines = [f"`{paper.name}` · {paper.paper}", ""]
    for heading, texts in (
        (
            "What the paper's code did otherwise than its text or than it should, and what is done here:",
            paper.differences,
        ),
        ("To keep in mind:", paper.remarks),
    ):
        if texts:
            lines += [heading, "", *(f"- {text}" for text in texts), ""]
    if paper.measures:
        lines += ["What its code computed, and what it should have:", ""]
        lines += [f"- {name}: {one.difference}" for name, one in paper.measures.items()]
        lines += ["", f"To meet its tables: {paper.setup}", ""]
    if paper.extra:
        lines += [*paper.extra, ""]
    if told:
        lines += ["## Claims", "", "| claim | paper | verdict | found | records |", "|---|---|---|---|---|"]
        files = {name: _from(kept.path, home) for name, kept in parts.items()}
        lines += [_claim_line(one, files) for one in told]
    if shown := paper.shown(parts):
        lines += ["", "## Shown", "", *shown]
    for name, kept in parts.items():
        lines += ["", *_part_lines(paper, name, kept, home, where)]
    absent = [part for part in paper.parts("paper") if part not in parts]
    if absent:
        lines += [
            "",
            f"Parts not run yet: {', '.join(absent)}. `landscope paper run {paper.name} --size paper` runs them.",
        ]
    return lines


def _claim_line(told: Told, files: Mapping[str, PurePosixPath]) -> str:
    claim = told.claim
    number = f"**{claim.headline}** · " if claim.headline else ""
    ours = " (ours)" if claim.ours else ""
    records = f"[{claim.part}]({files[claim.part]}), {counted(len(told.runs), 'run')}"
    cells = [
        f"{number}{_cell(claim.text)}{ours}",
        _cell(claim.paper) or "–",
        told.verdict,
        _cell(told.why),
    ]
    return f"| {' | '.join(cells)} | {records} |"


def _part_lines(paper: Paper, name: str, kept: Kept, home: Path, where: PurePosixPath) -> list[str]:
    bundle, file = kept.bundle, _from(kept.path, home)
    entry, records = part_of(bundle), bundle.records
    machines = sorted({_machine(record.environment) for record in records})
    seconds = sum(record.seconds for record in records)
    lines = [
        f"## {name}",
        "",
        f"Size {_size(bundle)}, {_runs(bundle)}, {_seeds(records)}, {seconds / 60:.1f} minutes of work on "
        f"{'; '.join(machines)}, "
        f"torch {', '.join(sorted({str(r.environment.get('torch')) for r in records}))}. Records: "
        f"[{file.name}]({file}). {entry.note}".rstrip(),
    ]
    if without := _without_value(records):
        lines += ["", without]
    if bundle.failed:
        lines += ["", "Failed:", ""]
        reasons = [shorten(failure.reason, REASON, placeholder=" …") for failure in bundle.failed]
        lines += [f"- {f.condition}, seed {f.seed}: {why}" for f, why in zip(bundle.failed, reasons, strict=True)]
    if len(records) + len(bundle.failed) < len(runs_of(bundle.spec)):
        command = f"landscope paper run {paper.name} --size {bundle.size} --part {bundle.part} --from {where}"
        lines += ["", f"`{command}` makes the others."]
    numbers = compare(paper, entry, records)
    if numbers:
        lines += ["", *_comparison_lines(numbers)]
    return lines


def _machine(environment: Mapping[str, object]) -> str:
    """A device, and the processor beside it where that is known."""
    processor = environment.get("processor")
    return f"{environment.get('device')} ({processor})" if processor else str(environment.get("device"))


def _without_value(records: Sequence[Record]) -> str:
    """Which measures failed, of how many models, and why in short; what does not apply to a model has not failed."""
    models = [subject for record in records for subject in record.subjects]
    failed: dict[str, Counter[str]] = defaultdict(Counter)
    for subject in models:
        for split, report in subject.reports.items():
            for name, estimate in report.estimates.items():
                if estimate.status is Status.FAILED:
                    failed[_in_short(estimate.reason)][f"{split} {name}"] += 1
    if not failed:
        return ""
    listed = (
        f"{', '.join(f'{name} ({count})' for name, count in some.items())}: {why}" for why, some in failed.items()
    )
    return f"Measures that failed in some of the {len(models)} models (the records say more): {'; '.join(listed)}."


def _in_short(reason: str) -> str:
    """What a reason begins with, the name of an error left out.

    >>> _in_short("the budget is spent: 12 passes are left; it takes about 20")
    'the budget is spent'
    >>> _in_short("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling …")
    'CUDA error'
    """
    return re.split(r"[:;]", re.sub(r"^\w+Error: ", "", reason))[0]


def part_of(bundle: Bundle, size: str = "") -> Part:
    """The part of a recipe that records are of, on the same data; at their size, if no other is named."""
    part = PAPERS[bundle.recipe].parts(size or bundle.size)[bundle.part]
    return (on_cifar100(part) or part) if is_on_cifar100(bundle.spec) else part


def _size(bundle: Bundle) -> str:
    """The size of a part, and whether a smaller one is all that the paper asks: some parts need no GPU."""
    same = bundle.size != "paper" and is_whole(bundle)
    return f"`{bundle.size}` (for this part the same as `paper`)" if same else f"`{bundle.size}`"


def is_whole(bundle: Bundle) -> bool:
    """Whether its networks, data and runs are those of size `paper`, all of them made or not."""
    if bundle.size == "paper":
        return True
    paper = bundle.part in PAPERS[bundle.recipe].parts("paper")
    return paper and _keys(bundle.spec) == _keys(part_of(bundle, "paper").study)


def _keys(spec: StudySpec) -> set[str]:
    return {run_key(run.plain) for run in runs_of(spec)}


def _runs(bundle: Bundle) -> str:
    """How many runs are there, and of how many where some are missing."""
    planned, done = len(runs_of(bundle.spec)), len(bundle.records)
    failed = f" ({len(bundle.failed)} failed)" if bundle.failed else ""
    return f"{done} runs" if done == planned else f"{done} of {planned} runs{failed}"


def _seeds(records: Sequence[Record]) -> str:
    seeds = sorted({record.seed for record in records})
    if len(seeds) > 5 and seeds == list(range(seeds[0], seeds[-1] + 1)):
        return f"seeds {seeds[0]} to {seeds[-1]}"
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def _comparison_lines(numbers: Sequence[ComparedNumber]) -> list[str]:
    lines = [
        "| table | condition | metric | paper | as published | corrected | n |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {n.table} | {_cell(n.condition)} | {_cell(n.metric)} | {n.paper} | {n.published} | {n.corrected} | {n.n} |"
        for n in numbers
    ]
    return lines


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")

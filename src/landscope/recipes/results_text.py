"""The text of RESULTS.md: what was run on what, which claims hold, and every published number beside ours."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from textwrap import shorten
from typing import get_args

from landscope.core.estimate import Status
from landscope.core.text import counted
from landscope.recipes.bundle import Bundle
from landscope.recipes.comparing import compare
from landscope.recipes.hundred_classes import is_on_cifar100, on_cifar100
from landscope.recipes.kept import Kept
from landscope.recipes.recipe import RECIPES, Claim, Part, Recipe, Verdict
from landscope.report.sections.reference import ComparedNumber
from landscope.studies.grid import runs_of
from landscope.studies.record import Record
from landscope.studies.spec import StudySpec

__all__ = ["is_whole", "part_of", "results_text"]

REASON = 160
"""Characters of the reason why a run failed."""

Found = Mapping[str, Mapping[str, Kept]]
Judged = Mapping[str, Sequence[Claim]]


def results_text(found: Found, claims: Judged, folder: Path, home: Path) -> str:
    """The page of the records in a folder, by recipe and part, and of the claims of each recipe, with links from `home`."""
    lines = [
        "# Results",
        "",
        f"Made by `landscope recipe results {_from(folder, home)} --page RESULTS.md` from the records under "
        f"`{_from(folder, home)}/`;",
        "with `--reports light` it also writes an HTML report of each part beside its records. Here",
        "no number is written by hand. A number is mean ± standard deviation over n models. *As published* is what the",
        "formulas of the paper's code give for these models, slips included; *corrected* what it should have measured.",
        "",
        "A claim of a paper counts at p ≤ 0.05, or q ≤ 0.05 where it is of several measures, and a correlation's interval must",
        "not contain 0. Two conditions are compared both ways, at 0.05 each: of such claims one in ten gets a verdict where",
        "there is no difference, and three seeds against three get one only where they do not overlap. Nothing is adjusted for",
        "the number of claims. (Our own study, and the reports, adjust for every pair of measures and outcomes that they look",
        "at.) A correlation over models that come in conditions takes them for independent, which seeds of one condition are",
        "not: it tells about these conditions, not about others.",
        "",
        "A verdict is of the models that were run: a claim that ends in a size is of smaller networks, or of fewer images, than",
        "the paper's. What stands for data or networks that could not be had is said at each part.",
        "",
        *_overview(found, claims),
    ]
    for name in RECIPES:
        if name in found:
            lines += ["", *_recipe_lines(RECIPES[name], claims[name], found[name], home)]
    missing = [name for name in RECIPES if name not in found]
    if missing:
        lines += [
            "",
            "## Not run yet",
            "",
            *(f"- {name}: `landscope recipe run {name} --size paper`" for name in missing),
        ]
    return "\n".join(lines) + "\n"


def _overview(found: Found, claims: Judged) -> list[str]:
    """A row for every recipe: how much of it was run, and what became of its claims."""
    verdicts = get_args(Verdict)
    lines = [
        f"| recipe | runs | parts at size `paper` | at a smaller one | {' | '.join(verdicts)} |",
        f"|---|---|---|---{'|---' * len(verdicts)}|",
    ]
    for name in (name for name in RECIPES if name in found):
        bundles = [kept.bundle for kept in found[name].values()]
        told = Counter(claim.verdict for claim in claims[name])
        cells = [
            f"[{name}](#{_anchor(RECIPES[name].title)})",
            str(sum(len(bundle.records) for bundle in bundles)),
            _parts([bundle for bundle in bundles if is_whole(bundle)]),
            _parts([bundle for bundle in bundles if not is_whole(bundle)]),
            *(str(told[verdict]) for verdict in verdicts),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _parts(bundles: Sequence[Bundle]) -> str:
    """Their names, and what is there of those that have not all of their runs."""
    whole = [len(bundle.records) == len(runs_of(bundle.spec)) for bundle in bundles]
    named = (b.part if all_there else f"{b.part}: {_runs(b)}" for b, all_there in zip(bundles, whole, strict=True))
    return ", ".join(named) or "–"


def _anchor(title: str) -> str:
    """Where a heading is linked to.

    >>> _anchor("FAM: relative flatness, again")
    'fam-relative-flatness-again'
    """
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def _from(path: Path, home: Path) -> PurePosixPath:
    return PurePosixPath(Path(os.path.relpath(path, home)).as_posix())


def _recipe_lines(recipe: Recipe, claims: Sequence[Claim], parts: Mapping[str, Kept], home: Path) -> list[str]:
    lines = [f"## {recipe.title}", "", f"`{recipe.name}` · {recipe.paper}", ""]
    for heading, texts in (
        (
            "What the paper's code did otherwise than its text or than it should, and what is done here:",
            recipe.differences,
        ),
        ("To keep in mind:", recipe.remarks),
    ):
        if texts:
            lines += [heading, "", *(f"- {text}" for text in texts), ""]
    if claims:
        lines += ["### Claims", "", "| claim | verdict | why | records |", "|---|---|---|---|"]
        files = {name: _from(kept.path, home) for name, kept in parts.items()}
        lines += [f"| {_cell(c.text)} | **{c.verdict}** | {_cell(c.why)} | {_records_of(c, files)} |" for c in claims]
    for name, kept in parts.items():
        lines += ["", *_part_lines(recipe, name, kept, home)]
    absent = [part for part in recipe.parts("paper") if part not in parts]
    if absent:
        lines += [
            "",
            f"Parts not run yet: {', '.join(absent)}. `landscope recipe run {recipe.name} --size paper` goes on with them.",
        ]
    return lines


def _records_of(claim: Claim, files: Mapping[str, PurePosixPath]) -> str:
    return f"[{claim.part}]({files[claim.part]}), {counted(len(claim.records), 'run')}" if claim.part in files else ""


def _part_lines(recipe: Recipe, name: str, kept: Kept, home: Path) -> list[str]:
    bundle, file = kept.bundle, _from(kept.path, home)
    entry, records = part_of(bundle), bundle.records
    where = sorted({f"{r.environment.get('device')} ({r.environment.get('processor')})" for r in records})
    seconds = sum(record.seconds for record in records)
    lines = [
        f"### {name}",
        "",
        f"Size {_size(bundle)}, {_runs(bundle)}, {_seeds(records)}, {seconds / 60:.1f} minutes of work on "
        f"{'; '.join(where)}, "
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
        command = (
            f"landscope recipe run {recipe.name} --size {bundle.size} --part {bundle.part} --from {file.parent.parent}"
        )
        lines += ["", f"`{command}` makes the others."]
    numbers = compare(recipe, entry, records)
    if numbers:
        lines += ["", *_comparison_lines(numbers)]
    return lines


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
    part = RECIPES[bundle.recipe].parts(size or bundle.size)[bundle.part]  # type: ignore[arg-type]
    return (on_cifar100(part) or part) if is_on_cifar100(bundle.spec) else part


def _size(bundle: Bundle) -> str:
    """The size of a part, and whether a smaller one is all that the paper asks: some parts need no GPU."""
    same = bundle.size != "paper" and is_whole(bundle)
    return f"`{bundle.size}` (for this part the same as `paper`)" if same else f"`{bundle.size}`"


def is_whole(bundle: Bundle) -> bool:
    """Whether its networks, data and runs are those of size `paper`, all of them made or not."""
    if bundle.size == "paper":
        return True
    paper = bundle.part in RECIPES[bundle.recipe].parts("paper")
    return paper and _plain_runs(bundle.spec) == _plain_runs(part_of(bundle, "paper").study)


def _plain_runs(spec: StudySpec) -> list[Mapping[str, object]]:
    return [run.plain for run in runs_of(spec)]


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

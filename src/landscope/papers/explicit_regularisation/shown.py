"""What paper 1 shows and no claim is made of: temperatures by condition, reliability of the median model, landscapes; and what
its SAM-sharpness may be.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from landscope.core.estimate import Estimate
from landscope.papers.framework.compare import printed
from landscope.papers.framework.records import Kept
from landscope.papers.framework.values import PLACES
from landscope.studies.record import MeasuredModel, Record

__all__ = ["lines"]

RECIPE = "explicit-regularisation"
THEIR_TABLES = ("1 early stopping", "3 final")
THEIR_CONDITIONS = {
    "baseline": ("baseline",),
    "augmentation": ("augmentation", "augmentation crop 4"),
    "dropout": ("dropout", "dropout 0.5"),
    "weight decay": ("weight decay", "weight decay 5e-4"),
}
"""The paper's, and their names in our parts."""

ROOM = 0.5
"""The loss above that at the centre up to which a point of a landscape lies in the basin."""
THEIRS = (
    "Of the five surfaces that the paper's authors left in a notebook (100 classes, 31 × 31 points) it is 2.7 % and 1.0 % on "
    "training rows (baseline and augmentation), 2.1 %, 1.6 % and 2.8 % on test rows (baseline, augmentation, dropout)."
)


def lines(parts: Mapping[str, Kept]) -> Iterator[str]:
    """The tables of the parts on CIFAR-10, and of a hundred classes, at the paper's size."""
    for name, kept in parts.items():
        if kept.bundle.size != "paper":
            continue
        by_condition: dict[str, list[Record]] = defaultdict(list)
        for record in kept.bundle.records:
            by_condition[record.condition].append(record)
        yield from _temperatures(name, by_condition)
        yield from _reliability(name, by_condition)
        yield from _redrawn(name, by_condition)
        yield from _landscapes(name, by_condition)


def _at(record: Record, checkpoint: str = "final") -> Sequence[MeasuredModel]:
    return [subject for subject in record.subjects if subject.checkpoint == checkpoint]


def _temperature(record: Record, fit: str) -> float | None:
    models = _at(record)
    place = PLACES[fit]
    found = models[place].reports.get("calibration") if place < len(models) else None
    return (
        found.estimates["temperature"].value
        if found is not None and found.estimates["temperature"].status.has_value
        else None
    )


def _temperatures(name: str, conditions: Mapping[str, Sequence[Record]]) -> Iterator[str]:
    rows = {
        condition: [
            [T for record in records if (T := _temperature(record, fit)) is not None] for fit in ("fitted", "coded")
        ]
        for condition, records in conditions.items()
    }
    if not any(converged for converged, _ in rows.values()):
        return
    yield f"### {name}: the temperature of each condition, final weights (the paper: about 1.6 for all)"
    yield from ("", "| condition | fitted to convergence | as its code fits it | n |", "|---|--:|--:|--:|")
    for condition, (converged, coded) in rows.items():
        yield f"| {condition} | {_spread(converged)} | {_spread(coded)} | {len(converged)} |"
    yield ""


def _spread(values: Sequence[float]) -> str:
    """Mean ± standard deviation.

    >>> _spread([1.0, 2.0, 3.0]), _spread([1.5]), _spread([])
    ('2.00 ± 1.00', '1.50', '–')
    """
    if not values:
        return "–"
    return f"{statistics.mean(values):.2f}" + (f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else "")


def _reliability(name: str, conditions: Mapping[str, Sequence[Record]]) -> Iterator[str]:
    """Figures 5 and 9: the model of median test accuracy in each condition, before a temperature and after a converged one."""
    rows: list[str] = []
    for condition, records in conditions.items():
        known = [
            (one.reports["test"].estimates["error"].value, record) for record in records for one in _at(record)[:1]
        ]
        if len(known) < 3:
            continue
        error, record = sorted(known, key=lambda pair: pair[0])[(len(known) - 1) // 2]
        extras: list[Mapping[str, Any]] = [one.extras for one in _at(record)[1:]]
        tables: Mapping[str, Any] = next((held["reliability"] for held in extras if "reliability" in held), {})
        for when, table in tables.items():
            bins = zip(table["lower"], table["count"], table["confidence"], table["accuracy"], strict=True)
            shown = [f"{100 * a:.0f} ({100 * c:.0f})" if n else "–" for low, n, c, a in bins if low >= 0.3]
            rows.append(f"| {condition} | {record.seed} | {1 - error:.1%} | {when} | {' | '.join(shown)} |")
    if not rows:
        return
    yield f"### {name}: reliability of the model of median accuracy"
    width = rows[0].count("|") - 5
    yield from (
        "",
        "Accuracy in each bin of confidence from a third up, in per cent, and in brackets the mean confidence there.",
        "",
    )
    yield f"| condition | seed | accuracy | temperature |{' |' * width}"
    yield f"|---|--:|--:|---|{'--:|' * width}"
    yield from (*rows, "")


def _redrawn(name: str, conditions: Mapping[str, Sequence[Record]]) -> Iterator[str]:
    """The paper's SAM-sharpness beside that of its public formula, and beside losses on redrawn rows without any perturbation."""
    rows: list[str] = []
    for theirs, names in THEIR_CONDITIONS.items():
        records = next((conditions[own] for own in names if own in conditions), ())
        found = {
            measure: [100 * one.value for record in records if (one := _estimate(record, measure)) is not None]
            for measure in ("published.sam_sharpness", "redrawn.sam_sharpness")
        }
        if found["redrawn.sam_sharpness"]:
            table = [printed(RECIPE, each, theirs, "sam_sharpness_x100", data="cifar10", n=3) for each in THEIR_TABLES]
            cells = " | ".join(f"{one.mean:g} ± {one.spread:g}" for one in table)
            ours = " | ".join(_spread(values) for values in found.values())
            rows.append(f"| {theirs} | {cells} | {ours} | {len(records)} |")
    if not rows:
        return
    yield f"### {name}: SAM-sharpness × 100, final weights"
    yield from (
        "",
        "Redrawn rows: the largest of 20 differences of losses, each on a random half of the training rows, over ρ.",
        "",
    )
    yield "| condition | paper, table 1 | paper, table 3 | formula of its code | redrawn rows, nothing moved | n |"
    yield "|---|--:|--:|--:|--:|--:|"
    yield from (*rows, "")


def _estimate(record: Record, measure: str) -> Estimate | None:
    report = next((one.reports["train"] for one in _at(record)[:1] if "train" in one.reports), None)
    found = report.estimates.get(measure) if report is not None else None
    return found if found is not None and found.status.has_value else None


def _landscapes(name: str, conditions: Mapping[str, Sequence[Record]]) -> Iterator[str]:
    """Figures 3, 4, 7 and 8 in numbers."""
    rows: list[str] = []
    for condition, records in conditions.items():
        for record, subject in [(one, model) for one in records for model in one.subjects]:
            if "landscape" not in subject.extras:
                continue
            surface: Mapping[str, Any] = subject.extras["landscape"]  # type: ignore[assignment]
            for split, values in (("train", surface["values"]), *surface["others"].items()):
                losses = [value for row in _grid(values) for value in row]
                centre = losses[len(losses) // 2]
                inside = sum(value <= centre + ROOM for value in losses if value is not None) / len(losses)
                share = f"{inside:.0%}"
                rows.append(
                    f"| {condition} | {record.seed} | {subject.checkpoint} | {split} | {len(losses)} | {centre:.3g} | {share} |"
                )
    if not rows:
        return
    yield f"### {name}: filter-normalised landscapes on [−1, 1]²"
    about = (
        f"The share of points whose loss lies less than {ROOM:g} above that of the centre; one model each, so no test."
    )
    yield from ("", f"{about} {THEIRS}", "")
    yield "| condition | seed | weights | rows | points | loss at the centre | share |"
    yield "|---|--:|---|---|--:|--:|--:|"
    yield from (*rows, "")


def _grid(values: Any) -> Sequence[Sequence[float]]:
    return values["loss"] if isinstance(values, Mapping) else values

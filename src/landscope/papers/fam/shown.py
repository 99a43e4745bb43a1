"""What paper 4 shows and no claim is made of: development losses by epoch, scores of single skulls."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from landscope.papers.framework.records import Kept

__all__ = ["lines"]

EPOCHS = (1, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20)
SCORES = ("dsc", "hd", "hd95")


def lines(parts: Mapping[str, Kept]) -> Iterator[str]:
    """Figure 3 of the parts on RTE, figure 2 of those on skulls, as tables."""
    for name, kept in parts.items():
        yield from _development(name, kept)
        yield from _boxes(name, kept)


def _development(name: str, kept: Kept) -> Iterator[str]:
    curves: dict[str, list[dict[int, float]]] = defaultdict(list)
    for record in kept.bundle.records:
        found: Any = record.subjects[-1].extras.get("development")
        if found is not None:
            curves[record.condition].append(dict(zip(found["epoch"], found["test_loss"], strict=True)))
    if not curves:
        return
    yield f"### {name}: development loss by epoch (figure 3), mean over seeds"
    yield from (
        "",
        f"| condition | n |{''.join(f' {epoch} |' for epoch in EPOCHS)}",
        f"|---|--:|{'--:|' * len(EPOCHS)}",
    )
    for condition, own in curves.items():
        means = [statistics.mean(curve[epoch] for curve in own) for epoch in EPOCHS]
        yield f"| {condition} | {len(own)} | {' | '.join(f'{value:.2f}' for value in means)} |"
    yield ""


def _boxes(name: str, kept: Kept) -> Iterator[str]:
    rows: list[str] = []
    for record in kept.bundle.records:
        for subject in record.subjects:
            for split in ("shapes", "shapes_shifted"):
                report = subject.reports.get(split)
                for score in SCORES if report is not None else ():
                    each = report.estimates[score].details.get("each") if report is not None else None
                    if isinstance(each, Sequence) and len(each) > 1:
                        low, *middle, high = _five([float(value) for value in each])  # type: ignore[arg-type]
                        shown = " | ".join(f"{value:.3g}" for value in (low, *middle, high))
                        rows.append(f"| {record.condition} | {subject.checkpoint} | {split} | {score} | {shown} |")
    if not rows:
        return
    yield f"### {name}: scores of single skulls (figure 2), the model of the first seed"
    yield from (
        "",
        "| condition | weights | defects | score | smallest | quarter | median | three quarters | largest |",
    )
    yield "|---|---|---|---|--:|--:|--:|--:|--:|"
    yield from (*rows, "")


def _five(values: Sequence[float]) -> tuple[float, ...]:
    """What a box plot shows.

    >>> _five([1.0, 2.0, 3.0, 4.0, 5.0])
    (1.0, 2.0, 3.0, 4.0, 5.0)
    """
    return (min(values), *statistics.quantiles(values, n=4, method="inclusive"), max(values))

"""What `landscope.compare` returns: one table, one figure, and what can be said."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from landscope.comparison.agreement import Agreement
from landscope.comparison.differences import LEVEL, Difference, Verdict
from landscope.core import display
from landscope.core.estimate import Estimate, format_with_error
from landscope.core.files import write_whole
from landscope.core.json import Plain
from landscope.core.text import counted, significant
from landscope.measures.reading.rows import OTHERS, Rows, error_text, value_text
from landscope.measures.reading.words import Remark
from landscope.measures.results import Report

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure
    from rich.console import RenderableType
    from rich.table import Table

__all__ = ["Comparison"]

WIDTH = 124
LOSSES_APART = 3.0
"""Factor between training losses beyond which a difference in curvature may be one in loss."""
STYLES = {Verdict.REAL: "bold", Verdict.OPEN: "dim", Verdict.APART: "dim"}


@dataclass(frozen=True, eq=False)
class Comparison:
    """Reports of each model, the differences from the first, and how alike the models are.

    `reports`, `agreements` and `differences` are data; printed, it is a table with a reading.
    """

    reports: Mapping[str, Report]
    differences: Sequence[Difference]
    agreements: Mapping[str, Agreement]
    """Of each other model with the first."""

    @property
    def first(self) -> str:
        """The model that the others are compared with."""
        return next(iter(self.reports))

    def __getitem__(self, measure: str) -> list[Difference]:
        return [difference for difference in self.differences if difference.measure == measure]

    def __iter__(self) -> Iterator[Difference]:
        return iter(self.differences)

    @property
    def title(self) -> str:
        """Which models, of how many parameters, on what."""
        about = self.reports[self.first].about
        sizes = {name: str(report.about.get("parameters", "")) for name, report in self.reports.items()}
        if len(set(sizes.values())) == 1:
            return f"{', '.join(sizes)} · {self.reports[self.first].title}"
        named = ", ".join(f"{name} ({size})" for name, size in sizes.items())
        shared = {key: value for key, value in about.items() if key not in ("model", "parameters")}
        return f"{named} · {Report({}, shared).title}"

    @property
    def shown(self) -> dict[str, list[Difference]]:
        """The differences by family, what says the same once."""
        of = {row.name: family for family, rows in Rows.of(self.reports[self.first]).families.items() for row in rows}
        found: dict[str, list[Difference]] = {family: [] for family in dict.fromkeys([*of.values(), OTHERS])}
        for name, family in of.items():
            found[family] += self[name]
        return {family: held for family, held in found.items() if held}

    # In words

    @property
    def reading(self) -> tuple[Remark, ...]:
        """Which differences are real, what may explain them, and how alike the models are."""
        found: list[Remark] = []
        several = len(self.agreements) > 1
        for model, alike in self.agreements.items():
            own = [difference for held in self.shown.values() for difference in held if difference.model == model]
            found.append(Remark(f"{model} − {self.first}" if several else "What differs", _differing(own)))
            found.append(Remark("How alike" + (f": {model}" if several else ""), _alike(alike)))
            if caution := self._caution(model):
                found.append(Remark("Caution" + (f": {model}" if several else ""), caution))
        return tuple(found)

    def _caution(self, model: str) -> str:
        said = []
        apart = [d.measure for held in self.shown.values() for d in held if d.model == model and not d.comparable]
        if apart:
            said.append(
                f"The models differ in architecture: what depends on the scale of weights must not be compared "
                f"({', '.join(apart)})."
            )
        losses = [self.reports[name].estimates.get("loss") for name in (self.first, model)]
        values = [e.value for e in losses if e is not None and e.status.has_value and e.value > 0]
        if len(values) == 2 and max(values) > LOSSES_APART * min(values):
            said.append(
                f"The losses are {significant(values[0], 2)} and {significant(values[1], 2)}: curvature shrinks with the loss, "
                f"so that a difference in sharpness may be one in loss."
            )
        return " ".join(said)

    # As a table

    def table(self) -> Table:
        """Value at each model, difference with its error, and whether it is real."""
        from rich import box
        from rich.table import Table

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
        for place, column in enumerate(self._head()):
            table.add_column(column, justify="left" if place in self._left() else "right", no_wrap=True)
        for family, held in self.shown.items():
            for place, difference in enumerate(held):
                cells = [family if place == 0 else "", *self._cells(difference)]
                style = STYLES.get(difference.verdict, "")
                table.add_row(*cells, style=style, end_section=place == len(held) - 1)
        return table

    def _head(self) -> list[str]:
        several = ["model"] if len(self.agreements) > 1 else []
        other = "value" if several else next(iter(self.agreements))
        return ["", "measure", *several, self.first, other, "difference", "± error", "", "verdict"]

    def _left(self) -> set[int]:
        """The columns of words."""
        last = len(self._head()) - 1
        return {0, 1, last} | ({2} if len(self.agreements) > 1 else set())

    def _cells(self, difference: Difference) -> list[str]:
        several = [difference.model] if len(self.agreements) > 1 else []
        return [
            difference.measure,
            *several,
            _short(difference.first),
            _short(difference.other),
            _shown(difference),
            error_text(difference.error),
            _relative(difference),
            str(difference.verdict),
        ]

    @property
    def notes(self) -> list[str]:
        """How the errors are meant."""
        paired = dict.fromkeys(d.measure for d in self.differences if d.paired)
        some = f"paired row by row for {', '.join(paired)}; " if paired else ""
        tests = counted(self.differences[0].tests if self.differences else 0, "difference")
        return [
            *(f"{note}." for note in Rows.of(self.reports[self.first]).notes),
            f"± error: of the estimators and over the data together ({some}otherwise as of independent samples). Real: beyond it "
            f"at {LEVEL:.0%}, adjusted for {tests}; on this data: beyond the estimators' errors alone.",
        ]

    def __rich__(self) -> RenderableType:
        from rich.console import Group
        from rich.padding import Padding
        from rich.table import Table
        from rich.text import Text

        words = Table.grid(padding=(0, 2))
        words.add_column(no_wrap=True, style="bold")
        words.add_column()
        for remark in self.reading:
            words.add_row(remark.topic, Text(remark.text))
        notes = [Text(note, style="dim") for note in self.notes]
        return Group(Text(self.title, style="bold"), self.table(), *notes, Padding(words, (1, 0, 0, 0)))

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(width=WIDTH, color_system=None, force_terminal=False, highlight=False, markup=False)
        with console.capture() as capture:
            console.print(self)
        return "\n".join(line.rstrip() for line in capture.get().splitlines()).strip("\n")

    def _repr_html_(self) -> str:
        rows = [
            [family if place == 0 else "", *self._cells(difference)]
            for family, held in self.shown.items()
            for place, difference in enumerate(held)
        ]
        words = display.definitions({remark.topic: remark.text for remark in self.reading})
        return (
            display.table(self._head(), rows, left=self._left()) + "".join(map(display.paragraph, self.notes)) + words
        )

    # As data

    def to_frame(self) -> pd.DataFrame:
        """One row per difference."""
        import pandas as pd

        return pd.DataFrame([_plain(difference) for difference in self.differences])

    def to_dict(self) -> dict[str, Plain]:
        """Plain values only."""
        return {
            "reports": {name: report.to_dict() for name, report in self.reports.items()},
            "differences": [_plain(difference) for difference in self.differences],
            "agreements": {model: _plain_agreement(alike) for model, alike in self.agreements.items()},
            "reading": [str(remark) for remark in self.reading],
        }

    def save(self, path: str | Path) -> Path:
        """Write JSON, whole or not at all."""
        target = Path(path)
        write_whole(target, json.dumps(self.to_dict(), allow_nan=False).encode(), flush=False)
        return target

    # As a figure

    def plot(self) -> Figure:
        """How far each measure has changed, with its interval, and the loss on the line between the models."""
        from landscope.comparison.drawing import plot_comparison

        return plot_comparison(self.shown, self.agreements, self.first)


def _plain(difference: Difference) -> dict[str, Plain]:
    low, high = difference.interval
    return {
        "measure": difference.measure,
        "model": difference.model,
        "first": difference.first.value,
        "other": difference.other.value,
        "difference": difference.value,
        "own_error": difference.own,
        "data_error": difference.data,
        "paired": difference.paired,
        "low": low,
        "high": high,
        "verdict": difference.verdict.value,
    }


def _plain_agreement(alike: Agreement) -> dict[str, Plain]:
    found: dict[str, Plain] = {name: estimate.to_dict() for name, estimate in alike.items().items()}
    if alike.line is not None:
        found["line"] = {"t": alike.line.t.tolist(), "loss": alike.line.loss.tolist()}
    return found


def _short(estimate: Estimate) -> str:
    return value_text(estimate).replace("at least", "≥").replace("at most", "≤")


def _shown(difference: Difference) -> str:
    if difference.first.status.is_bound or difference.other.status.is_bound:
        return "–"
    value = f"{difference.value:.4g}"
    if difference.error > 0:
        value = format_with_error(difference.value, difference.error).partition(" ± ")[0]
    sign = "" if float(value) == 0 else "+" if difference.value > 0 else "−"
    return sign + value.removeprefix("-").replace("e-", "e−")


def _relative(difference: Difference) -> str:
    if difference.relative is None or difference.verdict in (Verdict.OPEN, Verdict.SAME, Verdict.APART):
        return ""
    if abs(difference.relative) < 1:
        return f"{100 * difference.relative:+.2g} %".replace("-", "−")
    return f"× {significant(difference.other.value / difference.first.value, 2)}"


def _differing(own: Sequence[Difference]) -> str:
    """Real differences with their sizes, then those of this data alone, then how many are open."""
    parts = []
    for verdict, told in ((Verdict.REAL, "Real"), (Verdict.HERE, "On this data only")):
        held = [f"{d.measure} ({_change(d)})" for d in own if d.verdict is verdict]
        if held:
            parts.append(f"{told}: {', '.join(held)}.")
    for verdict, told in ((Verdict.OPEN, "Cannot tell"), (Verdict.SAME, "The same")):
        held = [d.measure for d in own if d.verdict is verdict]
        if held:
            parts.append(f"{told}: {', '.join(held)}.")
    return " ".join(parts) or "Nothing was measured at both."


def _change(difference: Difference) -> str:
    return _relative(difference) or _shown(difference)


def _alike(alike: Agreement) -> str:
    parts = []
    if alike.disagreement.status.has_value:
        apart = f", Jensen–Shannon divergence {value_text(alike.divergence)} of at most 0.69"
        parts.append(f"They disagree on {_share(alike.disagreement.value)} of the predictions{apart}.")
    if alike.cka.status.has_value:
        parts.append(f"The features before the last layer have a linear CKA of {value_text(alike.cka)}.")
    if alike.line is None:
        why = alike.barrier.reason.rstrip(".").removeprefix("there is no straight line between ")
        parts.append(f"There is no line between them ({why}).")
    elif alike.line.height <= 2 * (alike.barrier.data_stderr or 0.0):
        parts.append("On the straight line between them the loss rises nowhere above its ends by more than its error.")
    else:
        parts.append(
            f"On the straight line between them the loss rises {value_text(alike.barrier).replace('at least', 'by at least')} "
            f"above its ends, most at {alike.line.at:.2f} of the way: a barrier lies between the two on that line."
        )
    return " ".join(parts)


def _share(share: float) -> str:
    return f"{significant(100 * share, 2)} %"

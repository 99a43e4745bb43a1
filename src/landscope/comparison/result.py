"""What `landscope.compare` returns: one table, one figure, and what can be said."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from landscope.comparison.agreement import Agreement
from landscope.comparison.differences import LEVEL, Difference, Verdict
from landscope.core import display
from landscope.core.display import COLOURS, GRID, INK, MUTED
from landscope.core.estimate import Estimate, format_with_error
from landscope.core.files import write_whole
from landscope.core.json import Plain
from landscope.core.text import counted, significant
from landscope.measures.base import MEASURES
from landscope.measures.reading.rows import OTHERS, Rows, error_text, value_text
from landscope.measures.reading.words import Remark
from landscope.measures.results import Report

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.console import RenderableType

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
    """How each other model agrees with the first."""

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
        """The differences by family of measures, each shown once."""
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

    def table(self) -> RenderableType:
        """Value at each model, difference with its error, and whether it is real."""
        rows = {
            family: [(self._cells(difference), STYLES.get(difference.verdict, "")) for difference in held]
            for family, held in self.shown.items()
        }
        return display.Grouped(self._head(), rows, words=self._left())

    def _head(self) -> list[str]:
        several = ["model"] if len(self.agreements) > 1 else []
        other = "value" if several else next(iter(self.agreements))
        return ["measure", *several, self.first, other, "difference", "± error", "", "verdict"]

    def _left(self) -> set[int]:
        """The columns of words."""
        last = len(self._head()) - 1
        return {0, last} | ({1} if len(self.agreements) > 1 else set())

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
        """How the errors were taken and the tests adjusted."""
        paired = dict.fromkeys(d.measure for d in self.differences if d.paired)
        some = f"paired row by row for {', '.join(paired)}; " if paired else ""
        tests = counted(self.differences[0].tests if self.differences else 0, "difference")
        return [
            *(f"{note}." for note in Rows.of(self.reports[self.first]).notes),
            *self._not_compared(),
            f"± error: of the estimators and over the data together ({some}otherwise as of independent samples). Real: beyond it "
            f"at {100 * LEVEL:g} %, adjusted for {tests}; on this data: beyond the estimators' errors alone.",
        ]

    def _not_compared(self) -> Iterator[str]:
        """Which measures have no value at some model, and why."""
        untold: dict[str, list[str]] = {}
        for report in self.reports.values():
            for name, estimate in report.items():
                if not estimate.status.has_value:
                    untold.setdefault(estimate.reason.rstrip("."), []).append(name)
        yield from (f"Not compared: {', '.join(dict.fromkeys(names))} ({reason})." for reason, names in untold.items())

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
        return display.as_text(self, WIDTH)

    def _repr_html_(self) -> str:
        rows = [
            [family if place == 0 else "", *self._cells(difference)]
            for family, held in self.shown.items()
            for place, difference in enumerate(held)
        ]
        words = display.definitions({remark.topic: remark.text for remark in self.reading})
        shown = display.table(["", *self._head()], rows, left={0, *(1 + place for place in self._left())})
        return shown + "".join(map(display.paragraph, self.notes)) + words

    # As data

    def to_frame(self) -> pd.DataFrame:
        """One row per difference."""
        import pandas as pd

        return pd.DataFrame([_plain(difference) for difference in self.differences])

    def to_dict(self) -> dict[str, Plain]:
        """Reports, differences, agreements and the reading, as plain values."""
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
    for verdict, words in ((Verdict.REAL, "Real"), (Verdict.HERE, "On this data only")):
        held = [f"{d.measure} ({_change(d)})" for d in own if d.verdict is verdict]
        if held:
            parts.append(f"{words}: {', '.join(held)}.")
    for verdict, words in ((Verdict.OPEN, "Cannot tell"), (Verdict.SAME, "The same")):
        held = [d.measure for d in own if d.verdict is verdict]
        if held:
            parts.append(f"{words}: {', '.join(held)}.")
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
        parts.append(
            "On the straight line between them the loss is nowhere above a straight rise from end to end by more than its error."
        )
    else:
        parts.append(
            f"On the straight line between them the loss rises {value_text(alike.barrier).replace('at least', 'by at least')} "
            f"above a straight rise from end to end, most at {alike.line.at:.2f} of the way: there is a barrier on that line."
        )
    return " ".join(parts)


def _share(share: float) -> str:
    return f"{significant(100 * share, 2)} %"


# The figure of a comparison: relative changes with their intervals, and the loss on the lines from the first model.


ROW = 0.24
FAR = 400
"""Changes in per cent beyond which the axis is logarithmic, so that small ones are seen beside them."""
LEAST, ROOM = 1.0, 1.25
"""The axis reaches at least this far in relative changes, and this many times the largest; longer intervals are cut there."""


def plot_comparison(
    shown: Mapping[str, Sequence[Difference]], agreements: Mapping[str, Agreement], first: str
) -> Figure:
    """Changes on the left, the line on the right where there is one."""
    from matplotlib.figure import Figure

    drawn = [
        d
        for held in shown.values()
        for d in held
        if d.comparable and d.relative is not None and not d.first.status.is_bound
    ]
    lines = {model: alike.line for model, alike in agreements.items() if alike.line is not None}
    models = list(agreements)
    names = list(dict.fromkeys(d.measure for d in drawn))
    height = max(2.6, 0.9 + ROW * max(len(names), 1) * max(1.0, 0.6 * len(models)))
    figure = Figure(figsize=(9.6 if lines else 6.2, height), layout="constrained")
    axes = figure.subplots(1, 1 + bool(lines), squeeze=False, width_ratios=(1.3, 1)[: 1 + bool(lines)])[0]
    _changes(axes[0], drawn, names, models, first)
    if lines:
        for number, (model, line) in enumerate(lines.items()):
            assert line is not None
            colour = COLOURS[models.index(model) % len(COLOURS)]
            axes[1].plot(line.t, line.loss, color=colour, lw=1.6, label=model)
            ends = line.loss[0] + line.t * (line.loss[-1] - line.loss[0])
            axes[1].plot(line.t, ends, color=colour, lw=0.8, ls=":", label="between the ends" if number == 0 else None)
        axes[1].set_xlabel(f"from {first} (0) to the other (1)", fontsize=8, color=MUTED)
        axes[1].set_ylabel("loss", fontsize=8, color=MUTED)
        axes[1].set_title("on the straight line between the weights", loc="left", fontsize=9, color=INK)
        axes[1].legend(frameon=False, fontsize=7)
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(colors=INK, labelsize=8)
        ax.grid(True, axis="x", color=GRID, lw=0.7)
        ax.set_axisbelow(True)
    return figure


def _changes(axes: Axes, drawn: Sequence[Difference], names: Sequence[str], models: Sequence[str], first: str) -> None:
    """A point with its interval for every measure whose sign is the same at both models; filled where the change is real."""
    step = 0.7 / len(models)
    reach = 100 * max(LEAST, ROOM * max((abs(d.relative or 0.0) for d in drawn), default=0.0))
    for d in drawn:
        number = models.index(d.model)
        colour = COLOURS[number % len(COLOURS)]
        row = names.index(d.measure) + step * (number - (len(models) - 1) / 2)
        ends = np.clip(100 * np.array(d.interval) / abs(d.first.value), -reach, reach)
        axes.plot(ends, [row, row], color=colour, lw=1.4, solid_capstyle="butt")
        filled = colour if d.verdict is Verdict.REAL else "white"
        axes.plot(100 * (d.relative or 0.0), row, "o", ms=4.5, color=colour, mfc=filled)
    axes.axvline(0, color=MUTED, lw=0.8)
    titles = [MEASURES[name].title if name in MEASURES else name for name in names]
    axes.set_yticks(range(len(names)), titles)
    axes.set_ylim(len(names) - 0.4, -0.6)
    if reach > FAR:
        axes.set_xscale("symlog", linthresh=100, linscale=1.5)
        axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlim(-reach, reach)
    for number, model in enumerate(models if len(models) > 1 else ()):
        axes.plot([], [], "o", ms=4.5, color=COLOURS[number % len(COLOURS)], label=model)
    if len(models) > 1:
        axes.legend(frameon=False, fontsize=7)
    other = models[0] if len(models) == 1 else "the others"
    axes.set_xlabel(
        f"change from {first} to {other} in %, with its adjusted 95 % interval; filled: real", fontsize=8, color=MUTED
    )
    axes.set_title("relative change", loc="left", fontsize=9, color=INK)

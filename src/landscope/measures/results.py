"""What `landscope.measure` returns: every estimate, as a table, a frame, a file or a figure."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

from landscope.core import display
from landscope.core.display import ACCENT, GRID, INK, MUTED, NEGATIVE
from landscope.core.errors import DamagedFileError, UnknownNameError
from landscope.core.estimate import Cost, Estimate, Status
from landscope.core.files import LARGEST_RECORD, read_regular, write_whole
from landscope.core.json import OBJECT, Plain, checked, parse_json
from landscope.measures.base import MEASURES
from landscope.measures.reading.rows import Row, Rows
from landscope.measures.reading.words import Remark, reading
from landscope.spectra import Spectrum

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.console import RenderableType

WIDTH = 110
"""Letters in a line of a printed report."""
SHORT = 0.1
"""Seconds below which nobody needs to know how many."""
DIM = {Status.FAILED: "red", Status.SKIPPED: "dim", Status.BUDGET_SPENT: "yellow", Status.INTERRUPTED: "yellow"}
ERRORS = "± data: what another sample of the data would change; ± own: the estimator's own error, none where the value is exact"


@dataclass(frozen=True)
class Report(Mapping[str, Estimate]):
    """Estimates by name, and what they were measured on.

    >>> report = Report({"l2_norm": Estimate(2.0), "igs": Estimate.not_applicable("a regression loss")}, {"model": "MLP"})
    >>> report["l2_norm"].value, list(report)
    (2.0, ['l2_norm', 'igs'])
    >>> report["l2norm"]
    Traceback (most recent call last):
    landscope.core.errors.UnknownNameError: unknown measure in this report 'l2norm'; did you mean 'l2_norm'? Choices: igs, l2_norm
    >>> Report.from_json(report.to_json()) == report
    True
    """

    estimates: Mapping[str, Estimate]
    about: Mapping[str, Plain] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Estimate:
        if name not in self.estimates:
            raise UnknownNameError.among("measure in this report", name, self.estimates)
        return self.estimates[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.estimates)

    def __len__(self) -> int:
        return len(self.estimates)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Report) and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]

    @property
    def cost(self) -> Cost:
        """What all of it took."""
        total = Cost()
        for estimate in self.estimates.values():
            total = total + estimate.cost
        return total

    # As a table, with a reading

    @property
    def rows(self) -> Rows:
        """What is shown, family by family."""
        return Rows.of(self.estimates)

    @property
    def reading(self) -> tuple[Remark, ...]:
        """What the numbers say in words, and what they do not: a minimum? learning rates, scale, cautions, other networks."""
        return reading(self.estimates, self.about)

    @property
    def title(self) -> str:
        """What was measured, in a line."""
        known = [
            str(self.about[key])
            for key in ("model", "parameters", "samples", "loss", "mode", "left")
            if key in self.about
        ]
        return " · ".join(known)

    def table(self) -> RenderableType:
        """A table for `rich`: by family, value and both errors to the digits that they leave meaningful."""
        return display.Grouped(
            ("measure", "value", "± data", "± own", ""),
            {
                family: [
                    (
                        (row.name, row.value, row.data_error, row.own_error, row.remark),
                        DIM.get(row.estimate.status, ""),
                    )
                    for row in rows
                ]
                for family, rows in self.rows.families.items()
            },
            words=(0, 4),
        )

    def notes(self) -> list[str]:
        """What is to be known of the rows: what is shown once, what does not apply or failed and why, what it cost."""
        rows, cost = self.rows, self.cost
        notices = self.about.get("notices") or ()
        assert isinstance(notices, (list, tuple))
        untold: dict[tuple[str, str], list[str]] = {}
        for row in rows:
            if row.untold:
                untold.setdefault(row.untold, []).append(row.name)
        said = [
            *rows.notes,
            *(f"{heading}: {', '.join(names)} ({reason})" for (heading, reason), names in untold.items()),
            *(f"Not applicable: {', '.join(names)} ({reason})" for reason, names in rows.inapplicable.items()),
            *(f"Note: {notice}" for notice in notices),
            f"{ERRORS}. {_cost(cost)}",
        ]
        return [f"{note.rstrip('.')}." for note in said]

    def __rich__(self) -> RenderableType:
        from rich.console import Group
        from rich.padding import Padding
        from rich.table import Table
        from rich.text import Text

        notes = [Text(note, style="dim") for note in self.notes()]
        words = Table.grid(padding=(0, 2))
        words.add_column(no_wrap=True, style="bold")
        words.add_column()
        for remark in self.reading:
            words.add_row(remark.topic, Text(remark.text))
        said = [Padding(words, (1, 0, 0, 0))] if self.reading else []
        return Group(Text(self.title, style="bold"), self.table(), *notes, *said)

    def __str__(self) -> str:
        return display.as_text(self, WIDTH)

    def _repr_html_(self) -> str:
        rows = [
            (family if place == 0 else "", row.name, row.value, row.data_error, row.own_error, row.remark)
            for family, held in self.rows.families.items()
            for place, row in enumerate(held)
        ]
        shown = display.table(["", "measure", "value", "± data", "± own", ""], rows, self.title, left=(0, 1, 5))
        notes = "".join(map(display.paragraph, self.notes()))
        return shown + notes + display.definitions({remark.topic: remark.text for remark in self.reading})

    # As data

    def to_frame(self) -> pd.DataFrame:
        """One row per measure."""
        import pandas as pd

        rows = [{"measure": name, **estimate.as_row()} for name, estimate in self.estimates.items()]
        return pd.DataFrame(rows).set_index("measure")

    def to_dict(self) -> dict[str, Plain]:
        """Plain values only."""
        return {"about": dict(self.about), "estimates": {name: e.to_dict() for name, e in self.estimates.items()}}

    def to_json(self) -> str:
        """One JSON object."""
        return json.dumps(self.to_dict(), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Report:
        """The inverse of `to_json`."""
        return cls.from_dict(cast("Mapping[str, Plain]", parse_json(text)))

    @classmethod
    def from_dict(cls, plain: Mapping[str, Plain]) -> Report:
        """The inverse of `to_dict`."""
        found = checked(plain, "a report", {"estimates": OBJECT, "about": OBJECT})
        return cls({name: Estimate.from_dict(e) for name, e in found["estimates"].items()}, found["about"])

    def save(self, path: str | Path) -> Path:
        """Write JSON, whole or not at all."""
        target = Path(path)
        write_whole(target, self.to_json().encode(), flush=False)
        return target

    @classmethod
    def load(cls, path: str | Path) -> Report:
        """Read what `save` wrote."""
        try:
            return cls.from_json(read_regular(Path(path), LARGEST_RECORD).decode())
        except ValueError as error:
            raise DamagedFileError(f"{path}: is not a report that landscope saved ({error})") from error

    # As a figure

    def plot(self) -> Figure:
        """A panel for every family of measures, and the spectrum where one was measured."""
        return plot_report(self.estimates, self.about)


def _cost(cost: Cost) -> str:
    """How much work it was.

    >>> _cost(Cost(0.3, 0.01)), _cost(Cost(231.4, 0.62))
    ('Less than one pass over the data, under 0.1 s', '231 passes over the data, 0.6 s')
    """
    passes = round(cost.passes)
    work = "Less than one pass" if passes < 1 else "One pass" if passes == 1 else f"{passes:,} passes"
    return f"{work} over the data, {f'{cost.seconds:.1f}' if cost.seconds >= SHORT else f'under {SHORT}'} s"


# The figure: panels by family, each on a scale of its own, and the spectrum where it was measured.


PANEL, ROW = 3.4, 0.26
"""Inches: the width of a panel's axes, and the height of a row."""
DECADES = 30.0
"""Values further apart than this factor are drawn by their size on a logarithmic axis."""
WIDE = 100.0
"""Factor over which a logarithmic axis is named at powers of ten only."""
NOWHERE = 1e-12


def plot_report(estimates: Mapping[str, Estimate], about: Mapping[str, Plain]) -> Figure:
    """Every value with two standard errors either way: wide those over the data, thin the estimator's own."""
    from matplotlib.figure import Figure

    families = dict(_panels(Rows.of(estimates).families))
    spectra = {name: e for name, e in estimates.items() if "offdiagonal" in e.details}
    spectrum = "hessian_spectrum" if "hessian_spectrum" in spectra else next(iter(spectra), "")
    panels: list[tuple[str, list[Row]]] = [*families.items(), *([(spectrum, [])] if spectrum else [])]
    columns = min(2, max(len(panels), 1))
    lines = [panels[start : start + columns] for start in range(0, len(panels), columns)]
    heights = [max([0.35 + ROW * len(rows) if rows else 2.0 for _, rows in line]) for line in lines] or [1.0]
    size = (columns * (PANEL + 2.3), sum(heights) + 0.55 * len(heights) + 0.5)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(len(heights), columns, squeeze=False, height_ratios=heights)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for axes, (title, rows) in zip(grid.flat, panels, strict=False):
        if rows:
            _family(axes, rows)
        else:
            Spectrum.from_dict(spectra[spectrum].details).plot(ax=axes)
            axes.set_xlabel("eigenvalue", fontsize=8)
            axes.set_ylabel("density", fontsize=8)
            title = MEASURES[spectrum].title if spectrum in MEASURES else spectrum
        axes.set_title(title, loc="left", fontsize=9, fontweight="bold", color=INK)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(colors=INK, labelsize=8)
    told = [str(about[key]) for key in ("model", "parameters", "samples", "loss") if key in about]
    figure.suptitle(" · ".join(told), x=0.01, ha="left", fontsize=10, color=INK)
    figure.supxlabel(
        "two standard errors either way: wide over the data, thin of the estimator; arrows: at least, at most",
        fontsize=7,
        color=MUTED,
    )
    return figure


def _panels(families: Mapping[str, Sequence[Row]]) -> Iterator[tuple[str, list[Row]]]:
    """What has a value, family by family; of sharpness, a number without a unit (a log volume) has an axis of its own."""
    for family, rows in families.items():
        drawn = [row for row in rows if row.estimate.status.has_value]
        known = [(row, MEASURES[row.name]) for row in drawn if row.name in MEASURES]
        bare = [row for row, facts in known if facts.family.is_of_sharpness and not facts.unit]
        measured = [row for row in drawn if row not in bare]
        if measured:
            yield family, measured
        if bare:
            yield f"{family}, without a unit" if measured else family, bare


def _family(axes: Axes, rows: Sequence[Row]) -> None:
    """A row for each measure; by size on a logarithmic axis where the values are far apart."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    values = [row.estimate.value for row in rows]
    sizes = [abs(value) for value in values if value]
    log = bool(sizes) and max(sizes) > DECADES * min(sizes)
    for place, row in enumerate(rows):
        _value(axes, place, row.estimate, log=log)
        axes.text(1.02, place, row.value, transform=axes.get_yaxis_transform(), va="center", fontsize=7, color=MUTED)
    axes.set_yticks(range(len(rows)), [MEASURES[row.name].title if row.name in MEASURES else row.name for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(axis="x", color=GRID, lw=0.7)
    axes.set_axisbelow(True)
    if log:
        axes.set_xscale("log")
        low, high = axes.get_xlim()
        within_one = high < WIDE * low  # a decade has at most one label of its own: name some in between
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if within_one else (1.0,), numticks=6))
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.axvline(0, color=MUTED, lw=0.6)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        low, high = axes.get_xlim()
        axes.set_xlim(min(low, 0.0), max(high, 0.0) if high > NOWHERE else 1.0)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value + 0.0:g}"))
    units = list(dict.fromkeys(MEASURES[row.name].unit for row in rows if row.name in MEASURES))
    sign = "size, orange where negative" if log and min(values) < 0 else ""
    axes.set_xlabel(", ".join(filter(None, [units[0] if len(units) == 1 else "", sign])), fontsize=7, color=MUTED)


def _value(axes: Axes, place: int, estimate: Estimate, *, log: bool) -> None:
    colour = NEGATIVE if estimate.value < 0 else ACCENT
    at = abs(estimate.value) if log else estimate.value
    if log and at == 0:
        return
    for error, width, shade in ((estimate.data_stderr, 6.0, 0.25), (estimate.stderr, 1.6, 1.0)):
        if error:
            low = max(at - 2 * error, at / 10) if log else at - 2 * error
            axes.plot([low, at + 2 * error], [place, place], lw=width, color=colour, alpha=shade, solid_capstyle="butt")
    marker = {Status.LOWER_BOUND: ">", Status.UPPER_BOUND: "<"}.get(estimate.status, "o")
    if math.isfinite(at):
        axes.plot(at, place, marker, ms=4.5, color=colour)

"""What `landscope.measure` returns: every estimate, as a table, a frame, a file or a figure."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

from landscope.core.errors import DamagedFileError, UnknownNameError
from landscope.core.estimate import Cost, Estimate, Status
from landscope.core.files import LARGEST_RECORD, read_regular, write_whole
from landscope.core.json import OBJECT, Plain, checked, parse_json
from landscope.spectra import Spectrum

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure
    from rich.table import Table

__all__ = ["Report", "plot_report"]


# The figure of a report: a table of estimates in, a figure out.


INK, ACCENT, NEGATIVE = "#222222", "#1f5fa8", "#b5442e"


def plot_report(estimates: Mapping[str, Estimate], about: Mapping[str, Plain]) -> Figure:
    """|value| with both error bars for each measure, most sharply different scales side by side on a log axis."""
    from matplotlib.figure import Figure

    shown = {name: e for name, e in estimates.items() if e.status.has_value and e.value != 0}
    spectra = {name: e for name, e in estimates.items() if "offdiagonal" in e.details}
    drawn = "hessian_spectrum" if "hessian_spectrum" in spectra else next(iter(spectra), "")
    spectral = spectra.get(drawn)
    height = max(3.0, 0.27 * len(shown) + 1.4)
    figure = Figure(figsize=(7.5 if spectral is None else 13.0, height), layout="constrained")
    axes = figure.subplots(1, 1 if spectral is None else 2, squeeze=False)[0]
    left = axes[0]
    for row, estimate in enumerate(shown.values()):
        size, colour = abs(estimate.value), ACCENT if estimate.value > 0 else NEGATIVE
        for error, width, shade in ((estimate.data_stderr, 6.0, 0.25), (estimate.stderr, 1.6, 1.0)):
            if error:
                low, high = max(size - 2 * error, size * 1e-2), size + 2 * error
                left.plot([low, high], [row, row], lw=width, color=colour, alpha=shade, solid_capstyle="butt")
        left.plot(size, row, "o", ms=4, color=colour)
    left.set_xscale("log")
    left.set_yticks(range(len(shown)), list(shown))
    left.invert_yaxis()
    left.grid(axis="x", color="#dddddd", lw=0.6)
    left.set_axisbelow(True)
    left.set_xlabel("|value|, with two standard errors: thin the estimator's, wide the data's; red: negative")
    left.set_title(
        f"{about.get('model', '')}: {about.get('parameters', '')}, {about.get('samples', '')}", loc="left", fontsize=10
    )
    if spectral is not None:
        Spectrum.from_dict(spectral.details).plot(ax=axes[1])
        axes[1].set_title(drawn, loc="left", fontsize=10)
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(colors=INK, labelsize=8)
    return figure


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

    # As a table

    def table(self) -> Table:
        """A `rich` table: value ± error, error over the data, status, cost."""
        from rich.table import Table

        title = f"{self.about.get('model', 'model')} · " + " · ".join(
            str(self.about[key]) for key in ("parameters", "samples", "loss", "mode") if key in self.about
        )
        table = Table(title=title, title_justify="left", caption=self._caption(), caption_justify="left")
        table.add_column("measure", no_wrap=True)
        table.add_column("value ± error", justify="right")
        table.add_column("± data", justify="right")
        table.add_column("status")
        table.add_column("passes", justify="right")
        table.add_column("seconds", justify="right")
        for name, e in self.estimates.items():
            shown = str(e) if e.status.has_value else "–"
            data = "" if e.data_stderr is None else f"{e.data_stderr:.2g}"
            style = {Status.FAILED: "red", Status.NOT_APPLICABLE: "dim", Status.BUDGET_SPENT: "yellow"}.get(
                e.status, ""
            )
            status = str(e.status) + (f": {e.reason}" if e.reason else "")
            table.add_row(name, shown, data, status, f"{e.cost.passes:.1f}", f"{e.cost.seconds:.1f}", style=style)
        return table

    def _caption(self) -> str:
        cost, notices = self.cost, self.about.get("notices") or ()
        assert isinstance(notices, (list, tuple))
        remarks = "".join(f"\nNote: {notice}." for notice in notices)
        return (
            f"{cost.passes:.0f} passes over the data, {cost.seconds:.1f} s. The first error is the estimator's, "
            f"the second what another sample of the data would change.{remarks}"
        )

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(width=130, color_system=None, force_terminal=False)
        with console.capture() as capture:
            console.print(self.table())
        return capture.get().rstrip()

    def __rich__(self) -> Table:
        return self.table()

    # As data

    def to_frame(self) -> pd.DataFrame:
        """One row per measure."""
        import pandas as pd

        rows = [
            {
                "measure": name,
                "value": e.value,
                "stderr": math.nan if e.stderr is None or not e.status.has_value else e.stderr,
                "data_stderr": math.nan if e.data_stderr is None else e.data_stderr,
                "status": e.status.value,
                "reason": e.reason,
                "passes": e.cost.passes,
                "seconds": e.cost.seconds,
            }
            for name, e in self.estimates.items()
        ]
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
        """Every value with its error bars on a logarithmic axis, and the Hessian's spectrum where it was measured."""
        return plot_report(self.estimates, self.about)

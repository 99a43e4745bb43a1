"""The rows of a report: estimates by family, the same thing once, digits by the error that counts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from landscope.core.estimate import Estimate, Status, format_between, format_to_place, last_place
from landscope.measures.base import MEASURES
from landscope.measures.facts import Family
from landscope.measures.resolve import CORE

FAMILIES = (
    *(Family.FIT, Family.CURVATURE, Family.PERTURBATION, Family.SCALE_INVARIANT),
    *(Family.GRADIENT, Family.WEIGHTS, Family.CALIBRATION),
)
"""In the order in which they are shown."""
OTHERS = "others"
"""The heading of what is not a registered measure, or has another name."""
FISHER_AS_GGN = {
    "fisher_top_eigenvalue": "ggn_top_eigenvalue",
    "fisher_bottom_eigenvalue": "ggn_bottom_eigenvalue",
    "fisher_trace": "ggn_trace",
    "fisher_frobenius": "ggn_frobenius",
    "fisher_spectrum": "ggn_spectrum",
}
"""What is shown once where the Fisher matrix is the Gauss–Newton matrix."""
SAME = 1e-4
"""Relative difference of two values that are the same up to rounding."""
ROUNDING = 1e-7
"""Relative error of single precision."""
LEAST = 2
"""Significant digits of a value, however large its error is."""


@dataclass(frozen=True)
class Row:
    """One estimate as it is shown."""

    name: str
    estimate: Estimate

    @property
    def tells(self) -> bool:
        """Whether there is a value, or a bound that says something: that a rise or a width is at least 0 does not."""
        estimate, signed = self.estimate, self.name in MEASURES and MEASURES[self.name].family is Family.CURVATURE
        empty = estimate.status is Status.LOWER_BOUND and estimate.value <= 0 and not signed
        return estimate.status.has_value and not empty

    @property
    def value(self) -> str:
        """The value, with "at least" or "at most" where it is a bound; a dash where there is none."""
        return value_text(self.estimate) if self.tells else "–"

    @property
    def data_error(self) -> str:
        """What another sample of the data would change."""
        return error_text(self.estimate.data_stderr) if self.tells else ""

    @property
    def own_error(self) -> str:
        """The estimator's own error; empty where the value is exact, or its error not known."""
        return error_text(self.estimate.stderr) if self.tells else ""

    @property
    def untold(self) -> tuple[str, str] | None:
        """A heading and the reason, where there is no value or none that says anything."""
        if self.tells and self.estimate.status is not Status.SATURATED:
            return None
        ended = self.estimate.status in (Status.SATURATED, Status.FAILED)
        return str(self.estimate.status).capitalize() if ended else "No value", self.estimate.reason.rstrip(".")

    @property
    def remark(self) -> str:
        """The status, where it is not the usual one."""
        status = self.estimate.status
        return "" if status in (Status.EXACT, Status.CONVERGED) or status.is_bound else str(status)


@dataclass(frozen=True)
class Rows:
    """The rows of a report by family, what does not apply by its reason, and notes on what is not shown.

    >>> found = Rows.of({"loss": Estimate(0.5), "l2_norm": Estimate(2.0), "nll": Estimate(0.50001), "mine": Estimate(1.0)})
    >>> [(family, [row.name for row in rows]) for family, rows in found.families.items()], found.notes
    ([('fit', ['loss']), ('weights', ['l2_norm']), ('others', ['mine'])], ['nll is the loss'])
    """

    families: Mapping[str, list[Row]]
    inapplicable: Mapping[str, list[str]] = field(default_factory=dict)
    """Reason → measures that are not defined here."""
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, estimates: Mapping[str, Estimate]) -> Rows:
        """Sort estimates into families: the core measures first, then the others as they were measured."""
        hidden = dict(_repeats(estimates))
        families: dict[str, list[Row]] = {name: [] for name in (*(family.value for family in FAMILIES), OTHERS)}
        inapplicable: dict[str, list[str]] = {}
        for name in [name for name in CORE if name in estimates] + [name for name in estimates if name not in CORE]:
            estimate = estimates[name]
            if estimate.status is Status.NOT_APPLICABLE:
                inapplicable.setdefault(estimate.reason, []).append(name)
            elif name not in hidden:
                families[MEASURES[name].family.value if name in MEASURES else OTHERS].append(Row(name, estimate))
        kept = {family: rows for family, rows in families.items() if rows}
        return cls(kept, inapplicable, list(dict.fromkeys(hidden.values())))

    def __iter__(self) -> Iterator[Row]:
        return (row for rows in self.families.values() for row in rows)


def _repeats(estimates: Mapping[str, Estimate]) -> Iterator[tuple[str, str]]:
    """Names whose value stands in another row, and the note that replaces them."""
    known = {name: e for name, e in estimates.items() if e.status.has_value and name in MEASURES}
    both = [(fisher, ggn) for fisher, ggn in FISHER_AS_GGN.items() if fisher in known and ggn in known]
    if any(known[ggn].value for _, ggn in both) and all(_same(known[fisher], known[ggn]) for fisher, ggn in both):
        yield from ((fisher, "The Fisher matrix is the GGN for this loss: shown once, as GGN") for fisher, _ in both)
    spectra = [name for name in known if MEASURES[name].same_value_as in known]
    yield from ((name, f"{', '.join(spectra)}: drawn by report.plot(); the value is λ₁") for name in spectra)
    if "nll" in known and "loss" in known and _same(known["nll"], known["loss"]):
        yield "nll", "nll is the loss"
    if "accuracy" in known and "error" in known and abs(known["accuracy"].value + known["error"].value - 1) < SAME:
        yield "accuracy", "accuracy is 1 − error"


def _same(one: Estimate, other: Estimate) -> bool:
    slack = 2 * math.hypot(one.stderr or 0.0, other.stderr or 0.0)
    return abs(one.value - other.value) <= max(slack, SAME * abs(other.value))


def value_text(estimate: Estimate) -> str:
    """The value to the digits that the larger of its two errors leaves meaningful.

    >>> value_text(Estimate(0.0603751, 4e-7, 0.027)), value_text(Estimate(0.0603751, 4e-7)), value_text(Estimate(8.012571))
    ('0.060', '0.0603751', '8.013')
    >>> value_text(Estimate(0.21241, data_stderr=0.012, status=Status.LOWER_BOUND)), value_text(Estimate.failed("why"))
    ('at least 0.212', '–')
    """
    if not estimate.status.has_value:
        return "–"
    error = max(estimate.stderr or 0.0, estimate.data_stderr or 0.0)
    width = 0.0 if estimate.bracket is None else estimate.bracket[1] - estimate.bracket[0]
    wide = width > max(estimate.data_stderr or 0.0, SAME * abs(estimate.value))
    if estimate.bracket is not None and wide and not estimate.status.is_bound and not error > abs(estimate.value):
        return format_between(estimate.value, *estimate.bracket).replace("-", "−")
    side = {Status.LOWER_BOUND: "at least ", Status.UPPER_BOUND: "at most "}.get(estimate.status, "")
    if not error > 0:
        return side + f"{estimate.value:.4g}".replace("-", "−")
    return side + _to_digits(estimate.value, error).replace("-", "−")


def _to_digits(value: float, error: float) -> str:
    """The digits that an error leaves meaningful, at least `LEAST` of them."""
    if error < ROUNDING * abs(value):
        return f"{value:.7g}"
    size = math.floor(math.log10(abs(value) or error))
    place = min(last_place(error), size - LEAST + 1)
    if -4 <= size < 6:
        return format_to_place(value, place)
    return f"{value:.{size - place}e}" if value else "0"


def error_text(error: float | None) -> str:
    """An error to one digit, to two where the first is a 1; empty where there is none.

    >>> error_text(0.0274), error_text(0.00123), error_text(0.0), error_text(None), error_text(21.7), error_text(2.6e-6)
    ('0.03', '0.0012', '', '', '20', '3e−06')
    """
    if not error:
        return ""
    digits = 2 if f"{error:.1e}".startswith("1") else 1
    rounded = float(f"{error:.{digits - 1}e}")
    return f"{rounded:.{digits}g}".replace("-", "−") if rounded < 1e-4 or rounded >= 1e5 else f"{rounded:.6g}"

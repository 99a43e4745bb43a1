"""What every measure returns: a number that knows how sure it is, how it ended and what it cost."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import cache
from statistics import NormalDist
from typing import Any, cast

from landscope.core import display
from landscope.core.errors import SpecError
from landscope.core.json import NUMBER, OBJECT, TEXT, WHOLE, Kind, Plain, checked, parse_json
from landscope.core.text import significant


class Status(StrEnum):
    """How a computation ended."""

    EXACT = "exact"
    """The value is the definition's, up to rounding."""
    CONVERGED = "converged"
    """An iterative or random method reached the accuracy that was asked for."""
    LOWER_BOUND = "lower bound"
    """The largest value that a search found; the true maximum is at least this, by an unknown margin."""
    UPPER_BOUND = "upper bound"
    """The smallest value that a search found; the true minimum is at most this, by an unknown margin."""
    RUNNING = "running"
    """Still getting better; the value and its error bar are valid as they are."""
    BUDGET_SPENT = "budget spent"
    """The budget ended first: the value and its error bar are valid, the accuracy asked for was not reached."""
    INTERRUPTED = "interrupted"
    """Stopped from outside: the value and its error bar are valid, the accuracy asked for was not reached."""
    SATURATED = "saturated"
    """Computed, but uninformative with these settings."""
    NOT_APPLICABLE = "not applicable"
    """The quantity is not defined here; `reason` says why."""
    SKIPPED = "skipped"
    """No value, because the budget ended before there was one."""
    FAILED = "failed"
    """No value; `reason` says why."""

    @property
    def has_value(self) -> bool:
        """Whether an estimate of this status carries a finite value."""
        return self not in (Status.NOT_APPLICABLE, Status.SKIPPED, Status.FAILED)

    @property
    def is_bound(self) -> bool:
        """Whether the truth lies on one side of the value, at an unknown distance."""
        return self in (Status.LOWER_BOUND, Status.UPPER_BOUND)

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Cost:
    """What a computation took: passes over the data (one forward and one backward count as one), seconds, bytes."""

    passes: float = 0.0
    seconds: float = 0.0
    bytes: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.passes + other.passes, self.seconds + other.seconds, max(self.bytes, other.bytes))


@dataclass(frozen=True)
class Estimate:
    """A value with its uncertainty, outcome, cost and the settings that define it.

    `stderr` is the estimator's own standard error (0 for exact values, `None` where it is not known, and always for a bound);
    `data_stderr` is what another sample of the data of this size would change, where that is known. A `bracket` holds the
    truth with 95 % probability where two standard errors either way do not say it as well. A value is finite, or the status
    says that there is none.

    >>> Estimate(12.2614, stderr=0.031, status=Status.CONVERGED)
    Estimate(12.26 ± 0.03, converged)
    >>> print(Estimate(0.5))
    0.5
    >>> print(Estimate(0.2124, status=Status.LOWER_BOUND))
    at least 0.2124
    >>> print(Estimate(31.58, 0.9, status=Status.RUNNING, bracket=(29.81, 34.27)))
    31.6 (29.8 to 34.3)
    >>> print(Estimate.failed("the loss is not finite"))
    – (failed: the loss is not finite)
    >>> Estimate(float("nan"))
    Traceback (most recent call last):
    ValueError: an estimate with status 'exact' needs a finite value, got nan
    """

    value: float
    stderr: float | None = 0.0
    data_stderr: float | None = None
    status: Status = Status.EXACT
    reason: str = ""
    cost: Cost = field(default_factory=Cost)
    settings: Mapping[str, Plain] = field(default_factory=dict)
    details: Mapping[str, Plain] = field(default_factory=dict)
    bracket: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "status", Status(self.status))
        object.__setattr__(self, "value", float(self.value))
        object.__setattr__(self, "stderr", None if self.stderr is None or self.status.is_bound else float(self.stderr))
        if self.status.has_value and not math.isfinite(self.value):
            raise ValueError(f"an estimate with status {self.status.value!r} needs a finite value, got {self.value}")
        if self.bracket is not None:
            low, high = self.bracket
            object.__setattr__(self, "bracket", (float(low), float(high)))
            if not (low <= self.value <= high and math.isfinite(high - low)):
                raise ValueError(f"a bracket must hold the value {self.value}, got {self.bracket}")
        if not self.status.has_value and not self.reason:
            raise ValueError(f"an estimate with status {self.status.value!r} needs a reason")
        for name in ("stderr", "data_stderr"):
            error = getattr(self, name)
            if self.status.has_value and error is not None and not (math.isfinite(error) and error >= 0):
                raise ValueError(f"{name} must be finite and not negative, got {error}")

    @classmethod
    def failed(cls, reason: str, **fields: object) -> Estimate:
        """No value, because of `reason`."""
        return cls(math.nan, status=Status.FAILED, reason=reason, **fields)  # type: ignore[arg-type]

    @classmethod
    def not_applicable(cls, reason: str, **fields: object) -> Estimate:
        """Not defined here, because of `reason`."""
        return cls(math.nan, status=Status.NOT_APPLICABLE, reason=reason, **fields)  # type: ignore[arg-type]

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        if not self.status.has_value:
            return f"– ({self.status}: {self.reason})"
        if self.bracket is not None and not self.status.is_bound:
            return format_between(self.value, *self.bracket)
        side = {Status.LOWER_BOUND: "at least ", Status.UPPER_BOUND: "at most "}.get(self.status, "")
        return side + format_with_error(self.value, self.stderr or 0.0)

    def __repr__(self) -> str:
        return f"Estimate({self}, {self.status})" if self.status.has_value else f"Estimate({self})"

    def _repr_html_(self) -> str:
        data = "" if self.data_stderr is None else significant(self.data_stderr, 2)
        cells = [(str(self), data, self.status.value, self.reason)]
        return display.table(["value", "± data", "status", ""], cells, left=(0, 2, 3))

    def as_row(self) -> dict[str, Any]:
        """Value, errors, status and cost by the names of a table's columns; NaN where there is no number."""
        known = self.status.has_value
        return {
            "value": self.value if known else math.nan,
            "stderr": self.stderr if known and self.stderr is not None else math.nan,
            "data_stderr": math.nan if self.data_stderr is None else self.data_stderr,
            "status": self.status.value,
            "reason": self.reason,
            "passes": self.cost.passes,
            "seconds": self.cost.seconds,
        }

    def to_dict(self) -> dict[str, Plain]:
        """Plain values only; a missing value becomes `None`."""
        plain = asdict(self)
        plain["status"] = self.status.value
        if not self.status.has_value:
            plain["value"] = None
        if self.bracket is None:
            del plain["bracket"]
        else:
            plain["bracket"] = list(self.bracket)
        return plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Plain]) -> Estimate:
        """The estimate that `to_dict` wrote; raises `SpecError` for anything else."""
        fields: dict[str, Any] = dict(checked(plain, "an estimate", _ESTIMATE, _ESTIMATE))
        fields["value"] = math.nan if plain.get("value") is None else plain["value"]
        if fields.get("bracket") is not None:
            fields["bracket"] = tuple(fields["bracket"])
        try:
            fields["cost"] = Cost(**checked(plain.get("cost") or {}, "a cost", _COST, _COST))
            return cls(**fields)
        except (TypeError, ValueError) as error:  # a key too many, or numbers that do not fit the status
            raise SpecError(f"not an estimate: {error}") from error

    def to_json(self) -> str:
        """One JSON object.

        >>> e = Estimate(0.1 + 0.2, stderr=1e-3, details={"layer": "fc"})
        >>> Estimate.from_json(e.to_json()) == e
        True
        """
        return json.dumps(self.to_dict(), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Estimate:
        """The estimate that `to_json` wrote."""
        return cls.from_dict(cast("Mapping[str, Plain]", parse_json(text)))


_NUMBER_OR_NONE: Kind = (*NUMBER, type(None))
_ESTIMATE: dict[str, Kind] = {
    "value": _NUMBER_OR_NONE, "stderr": _NUMBER_OR_NONE, "data_stderr": _NUMBER_OR_NONE, "status": TEXT, "reason": TEXT,
    "settings": OBJECT, "details": OBJECT, "bracket": (list, tuple, type(None)),
}  # fmt: skip
_COST: dict[str, Kind] = {"passes": NUMBER, "seconds": NUMBER, "bytes": WHOLE}


def format_between(value: float, low: float, high: float) -> str:
    """The value and the ends of its bracket, to the digits that the bracket leaves meaningful.

    >>> format_between(31.58, 29.81, 34.27), format_between(0.0123, 0.0121, 0.0129), format_between(1.0, 1.0, 1.0)
    ('31.6 (29.8 to 34.3)', '0.0123 (0.0121 to 0.0129)', '1 (1 to 1)')
    """
    width = high - low
    size = max(abs(value), abs(low), abs(high))
    digits = 6 if not width > 0 else min(6, max(2, math.ceil(math.log10(size / width)) + 2))
    return "{:.{d}g} ({:.{d}g} to {:.{d}g})".format(value, low, high, d=digits)


def format_with_error(value: float, error: float) -> str:
    """The value to the digits that its error leaves meaningful.

    >>> format_with_error(12.2614, 0.031), format_with_error(12.2614, 0.0), format_with_error(1234567.0, 2100.0)
    ('12.26 ± 0.03', '12.2614', '1.235e+06 ± 2e+03')
    >>> format_with_error(3.2e-7, 1.4e-8), format_with_error(0.60584075, 4e-15), format_with_error(1093.0, 21.0)
    ('3.20e-07 ± 1.4e-08', '0.6058408 ± 4e-15', '1090 ± 20')
    """
    if not error > 0:
        return f"{value:.6g}"
    if error < 1e-7 * abs(value):
        return f"{value:.7g} ± {error:.0e}"
    last = last_place(error)
    size = math.floor(math.log10(max(abs(value), error)))
    if -4 <= size < 6:
        return f"{format_to_place(value, last)} ± {format_to_place(error, last)}"
    return f"{value:.{max(size - last, 0)}e} ± {error:.{math.floor(math.log10(error)) - last}e}"


def last_place(error: float) -> int:
    """The power of ten of the last digit that an error leaves meaningful: its first, or its second where the first is a 1.

    >>> last_place(0.031), last_place(0.014), last_place(21.0)
    (-2, -3, 1)
    """
    digits = 2 if f"{error:.1e}".startswith("1") else 1
    return math.floor(math.log10(error)) - digits + 1


def format_to_place(value: float, place: int) -> str:
    """The value rounded to a power of ten, without an exponent.

    >>> format_to_place(12.2614, -2), format_to_place(1093.0, 1)
    ('12.26', '1090')
    """
    return f"{value:.{-place}f}" if place <= 0 else f"{round(value, -place):.0f}"


# Quantiles of Student's t distribution, for error bars from few numbers. `scipy.special` has them, too, but takes half a second
# of processor time to import: too long for a first look within one second.


TWO_SIGMA = NormalDist().cdf(2)
"""How often a normal number lies below two standard deviations."""
MANY = 1e4
"""Degrees of freedom above which the expansion in their inverse is right to twelve digits."""
TERMS = 10_000
SMALLEST = 1e-300


@cache
def student_quantile(freedom: float, probability: float) -> float:
    """The t below which Student's T with these degrees of freedom lies with this probability (at least ½).

    Newton's method on P(T ≤ t) = 1 − ½ I_{ν/(ν + t²)}(ν/2, ½): the distribution function is concave for t > 0, so that the steps
    from below never pass the root. With many degrees of freedom, the normal quantile and its first corrections (Abramowitz &
    Stegun 26.7.5).

    >>> [round(student_quantile(freedom, 0.975), 9) for freedom in (1.0, 4.5, 30.0, 1e6)]
    [12.706204736, 2.658912347, 2.042272456, 1.959966357]
    >>> student_quantile(3.0, 0.5)
    0.0
    """
    z = NormalDist().inv_cdf(probability)
    if freedom > MANY or z == 0.0:
        return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    half = freedom / 2
    scale = math.lgamma(half + 0.5) - math.lgamma(half) - math.log(freedom * math.pi) / 2
    t = z
    while True:
        missing = probability - 1 + _incomplete_beta(freedom / (freedom + t * t), half, 0.5) / 2
        step = missing / math.exp(scale - (half + 0.5) * math.log1p(t * t / freedom))
        t += step
        if step <= 1e-12 * t:
            return t


def student_factor(freedom: float) -> float:
    """How much wider two error bars must be when the variance is known from `freedom` squares only.

    >>> [round(student_factor(n), 2) for n in (1, 4, 20, 1e6)]
    [6.98, 1.43, 1.07, 1.0]
    """
    return student_quantile(freedom, TWO_SIGMA) / 2


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """I_x(a, b), regularised, by its continued fraction (Lentz's method; DLMF 8.17.22)."""
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(1 - x, b, a)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1) or SMALLEST)
    value = d
    for m in range(1, TERMS):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / (1 + term * d or SMALLEST)
            c = 1 + term / c or SMALLEST
            value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return front * value / a

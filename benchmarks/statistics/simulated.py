"""What simulations have in common: rates with their standard errors, tables of them, and made-up columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

__all__ = ["COPULAS", "Floats", "Rate", "Table", "bca", "kendall", "loops"]

Floats = np.ndarray


@dataclass
class Rate:
    """How often something happened."""

    hits: int = 0
    n: int = 0

    def add(self, hit: bool | None) -> None:
        """One more study; None where there was no answer, which does not count."""
        if hit is not None:
            self.hits, self.n = self.hits + bool(hit), self.n + 1

    @property
    def value(self) -> float:
        """The share."""
        return self.hits / self.n if self.n else math.nan

    def __str__(self) -> str:
        if not self.n:
            return "–"
        error = math.sqrt(max(self.value * (1 - self.value), 1 / self.n) / self.n)
        return f"{self.value:.3f} ± {error:.3f}"


@dataclass
class Table:
    """One question, what was simulated, and a row for each setting."""

    title: str
    text: str
    head: Sequence[str]
    rows: list[Sequence[object]] = field(default_factory=list)

    def markdown(self) -> str:
        """As the page has it."""
        lines = [f"### {self.title}", "", self.text, "", _line(self.head), _line(["---"] * len(self.head))]
        return "\n".join([*lines, *(_line(row) for row in self.rows)])


def _line(cells: Sequence[object]) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def loops(repeat: int, seed: int = 1) -> list[np.random.Generator]:
    """A generator for every study."""
    return [np.random.default_rng(sequence) for sequence in np.random.SeedSequence(seed).spawn(repeat)]


def normal(rng: np.random.Generator, n: int, tau: float) -> tuple[Floats, Floats]:
    """Normal columns with that τ."""
    r = math.sin(math.pi * tau / 2)
    x, noise = rng.normal(size=(2, n))
    return x, r * x + math.sqrt(1 - r * r) * noise


def student(rng: np.random.Generator, n: int, tau: float) -> tuple[Floats, Floats]:
    """Student's t with two degrees of freedom: far-off units are far off in both columns."""
    x, y = normal(rng, n, tau)
    scale = np.sqrt(rng.chisquare(2, size=n) / 2)
    return x / scale, y / scale


def clayton(rng: np.random.Generator, n: int, tau: float) -> tuple[Floats, Floats]:
    """Clayton's copula: small values go together more than large ones."""
    u, v = rng.random((2, n))
    if tau == 0:
        return u, v
    theta = 2 * tau / (1 - tau)
    return u, ((v ** (-theta / (1 + theta)) - 1) * u**-theta + 1) ** (-1 / theta)


COPULAS: dict[str, Callable[[np.random.Generator, int, float], tuple[Floats, Floats]]] = {
    "normal": normal,
    "Clayton": clayton,
    "t, 2 degrees": student,
}


def kendall(x: Floats, y: Floats, counts: Floats | None = None) -> Floats:
    """τ-b of the sample, or of every resample (rows of counts), by the definition."""
    counts = np.ones((1, len(x))) if counts is None else counts
    a, b = (np.sign(np.subtract.outer(column, column)) for column in (x, y))
    cross, left, right = (np.einsum("bi,ij,bj->b", counts, m, counts, optimize=True) for m in (a * b, a * a, b * b))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(cross / np.sqrt(left * right))


def bca(
    rng: np.random.Generator,
    n: int,
    statistic: Callable[[Floats], Floats],
    resamples: int = 400,
    level: float = 0.05,
) -> tuple[float, float] | None:
    """The bias-corrected and accelerated bootstrap interval of a statistic of counts: what inversion replaced."""
    from scipy.special import ndtr, ndtri

    counts = rng.multinomial(n, np.full(n, 1 / n), size=resamples).astype(float)
    values, at = statistic(counts), float(statistic(np.ones((1, n)))[0])
    values = values[~np.isnan(values)]
    if len(values) < resamples / 2 or np.ptp(values) < 1e-12:
        return None
    below = float(np.mean(values < at - 1e-12) + np.mean(np.abs(values - at) <= 1e-12) / 2)
    left_out = statistic(1 - np.eye(n))
    levels = np.array([level / 2, 1 - level / 2])
    if 0 < below < 1 and not np.isnan(left_out).any() and np.ptp(left_out) > 0:
        pull = left_out.mean() - left_out
        acceleration = float((pull**3).sum() / (6 * (pull**2).sum() ** 1.5))
        shifted = ndtri(below) + ndtri(levels)
        if (1 - acceleration * shifted > 0).all():
            levels = ndtr(ndtri(below) + shifted / (1 - acceleration * shifted))
    low, high = np.quantile(values, levels)
    return float(low), float(high)

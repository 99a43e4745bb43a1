"""What is left given a covariate: without a link, with one, with relations that bend, and with a covariate that has errors."""

from __future__ import annotations

import math

import numpy as np
from simulated import Floats, Rate, Table, bca, kendall, loops

from landscope.analysis import partial_correlation

__all__ = ["SIMULATIONS"]


def columns(rng: np.random.Generator, n: int, kind: str, r: float, link: float) -> tuple[Floats, Floats, Floats]:
    """X and y that both follow z; what is left of them correlates with `link`."""
    z, a, b = rng.normal(size=(3, n))
    b = link * a + math.sqrt(1 - link**2) * b
    rest = math.sqrt(1 - r * r)
    if kind == "bent":
        bend = (z**2 - 1) / math.sqrt(2)
        return r * bend + rest * a, r * bend + rest * b, z
    if kind == "uneven spread":
        return r * z + rest * a * np.exp(z / 2), r * z + rest * b * np.exp(z / 2), z
    x, y = r * z + rest * a, r * z + rest * b
    return (np.exp(2 * x), y**3, np.exp(z)) if kind == "monotone" else (x, y, z)


def _kendalls(x: Floats, y: Floats, z: Floats, counts: Floats) -> Floats:
    """Kendall's partial τ of 1942."""
    xy, xz, yz = (kendall(a, b, counts) for a, b in ((x, y), (x, z), (y, z)))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((xy - xz * yz) / np.sqrt((1 - xz**2) * (1 - yz**2)))


def partial(repeat: int) -> Table:
    """Type I, coverage and power given a covariate that is known."""
    table = Table(
        "Given a covariate",
        "x and y follow z with correlation r each. How often an interval leaves out 0 without a link (nominal 0.05): "
        "Kendall's partial τ with its BCa interval (before), the τ of residuals (now; its p and its interval are one "
        "test). Then how often the interval holds the true τ of what is left for a link of r = 0.5, and how often it "
        "leaves out 0 (power).",
        ["relation to z", "n", "r", "before", "now", "coverage, link 0.5", "power, link 0.5"],
    )
    truth = 2 / math.pi * math.asin(0.5)
    settings = [("straight", n, r) for n in (12, 20, 50, 200) for r in (0.8, 0.95)]
    settings += [(kind, n, 0.8) for kind in ("monotone", "bent", "uneven spread") for n in (20, 50, 200)]
    for kind, n, r in settings:
        rates = [Rate() for _ in range(4)]
        studies = repeat if n < 200 else repeat // 2
        for place, rng in enumerate(loops(studies)):
            x, y, z = columns(rng, n, kind, r, 0.0)
            if place < (repeat // 4 if n < 200 else 0):
                ends = bca(rng, n, lambda counts, x=x, y=y, z=z: _kendalls(x, y, z, counts), 200)
                rates[0].add(None if ends is None else not ends[0] <= 0 <= ends[1])
            found = partial_correlation(x, y, z)
            rates[1].add(None if found.low is None else not found.low <= 0 <= found.high)
            x, y, z = columns(rng, n, kind, r, 0.5)
            found = partial_correlation(x, y, z)
            rates[2].add(None if found.low is None else found.low <= truth <= found.high)
            rates[3].add(found.low is not None and not found.low <= 0 <= found.high)
        table.rows.append([kind, n, r, *rates])
    return table


def errors(repeat: int) -> Table:
    """Type I and power given a covariate with errors."""
    table = Table(
        "Given a covariate with errors",
        "The same where z is known with an error of that standard deviation (z itself has 1), and x and y follow it "
        "with r. How often a link is shown where there is none (nominal 0.05): the errors unused, and used. Then "
        "with errors recorded twice as large as they are; how often no answer is given; power for a link of 0.5.",
        ["n", "r", "error", "unused", "used", "recorded too large", "no answer", "power, link 0.5"],
    )
    for n, r, size in [(n, r, size) for n in (20, 50, 200) for r in (0.8, 0.9) for size in (0.1, 0.3, 0.5)]:
        rates = [Rate() for _ in range(5)]
        for rng in loops(repeat if n < 200 else repeat // 2):
            x, y, z = columns(rng, n, "straight", r, 0.0)
            error = np.full(n, size)
            seen = z + size * rng.normal(size=n)
            unused = partial_correlation(x, y, seen).p_value
            rates[0].add(None if unused is None else unused <= 0.05)
            used = partial_correlation(x, y, seen, errors=error)
            rates[1].add(None if used.p_value is None else used.p_value <= 0.05)
            large = partial_correlation(x, y, seen, errors=2 * error)
            rates[2].add(None if large.p_value is None else large.p_value <= 0.05)
            rates[3].add(used.value is None)
            x, y, z = columns(rng, n, "straight", r, 0.5)
            power = partial_correlation(x, y, z + size * rng.normal(size=n), errors=error)
            rates[4].add(power.p_value is not None and power.p_value <= 0.05)
        table.rows.append([n, r, size, *rates])
    return table


SIMULATIONS = {"partial": partial, "errors": errors}

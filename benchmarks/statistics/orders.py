"""Correlations of independent units: how often intervals hold the truth, and what one test instead of two gains."""

from __future__ import annotations

import math

import numpy as np
from simulated import COPULAS, Rate, Table, bca, kendall, loops, normal

from landscope.analysis import correlation

__all__ = ["SIMULATIONS"]


def intervals(repeat: int) -> Table:
    """Coverage and width of inversion beside the bootstrap."""
    table = Table(
        "Intervals of τ",
        "The share of 95 % intervals that hold the true τ, and in brackets their mean width. Inversion tests a true "
        "τ by the spread that normal columns have; the bootstrap (BCa, resampling units) is what it replaced. "
        "Columns: normal, Clayton's copula, and a t law with two degrees of freedom, which is the worst case.",
        ["columns", "n", "τ", "inversion", "BCa bootstrap"],
    )
    for name, draw in COPULAS.items():
        for n in (6, 12, 24, 60):
            for tau in (0.0, 0.5):
                now, before, widths = Rate(), Rate(), ([], [])
                for place, rng in enumerate(loops(repeat)):
                    x, y = draw(rng, n, tau)
                    found = correlation(x, y)
                    now.add(found.low <= tau <= found.high)
                    widths[0].append(found.high - found.low)
                    if place < repeat // 2:
                        ends = bca(rng, n, lambda counts, x=x, y=y: kendall(x, y, counts))
                        before.add(None if ends is None else ends[0] <= tau <= ends[1])
                        widths[1].append(math.nan if ends is None else ends[1] - ends[0])
                table.rows.append(
                    [name, n, tau, f"{now} ({np.mean(widths[0]):.2f})", f"{before} ({np.nanmean(widths[1]):.2f})"]
                )
    return table


def other_coefficients(repeat: int) -> Table:
    """Coverage of ρ and r."""
    table = Table(
        "Intervals of ρ and r",
        "The same for Spearman's ρ and Pearson's r of normal columns.",
        ["coefficient", "n", "true r", "inversion"],
    )
    for method in ("spearman", "pearson"):
        for n in (8, 24, 120):
            for r in (0.0, 0.7):
                truth = 6 / math.pi * math.asin(r / 2) if method == "spearman" else r
                rate = Rate()
                for rng in loops(repeat):
                    x, noise = rng.normal(size=(2, n))
                    found = correlation(x, r * x + math.sqrt(1 - r * r) * noise, method, permutations=999)
                    rate.add(found.low <= truth <= found.high)
                table.rows.append(["ρ" if method == "spearman" else "r", n, r, rate])
    return table


def one_test(repeat: int) -> Table:
    """Type I and power of one test, and of a test and a bootstrap interval together."""
    table = Table(
        "One test, not two",
        "How often a τ is shown: where there is none (nominal 0.05), and where there is one. Before, p ≤ 0.05 *and* "
        "a BCa interval without 0 were asked for.",
        ["n", "true r", "p ≤ 0.05", "p ≤ 0.05 and BCa"],
    )
    for n, r in ((10, 0.0), (20, 0.0), (50, 0.0), (10, 0.9), (20, 0.5), (50, 0.4)):
        one, two = Rate(), Rate()
        for rng in loops(repeat):
            x, y = normal(rng, n, 2 / math.pi * math.asin(r))
            found = correlation(x, y)
            shown = found.p_value <= 0.05
            one.add(shown)
            ends = bca(rng, n, lambda counts, x=x, y=y: kendall(x, y, counts)) if shown else None
            two.add(shown and ends is not None and not ends[0] <= 0 <= ends[1])
        table.rows.append([n, r, one, two])
    return table


SIMULATIONS = {"intervals": intervals, "other-coefficients": other_coefficients, "one-test": one_test}

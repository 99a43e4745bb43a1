"""Runs that share conditions: naive p-values, condition means, slopes within and between, Simpson's paradox, Ψ over axes."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd
from simulated import Floats, Rate, Table, loops

from landscope.analysis import between, correlation, granulated_kendall, simpson, slopes

__all__ = ["SIMULATIONS"]


def study(
    rng: np.random.Generator, k: int, m: int, *, share: float, across: float = 0.0, inside: float = 0.0
) -> tuple[Floats, Floats, Floats]:
    """K conditions × m runs of two columns whose variance lies between conditions to that share; correlations across, inside."""
    group = np.repeat(np.arange(k), m)
    (u, v), (a, b) = rng.normal(size=(2, k)), rng.normal(size=(2, k * m))
    v = across * u + math.sqrt(1 - across**2) * v
    b = inside * a + math.sqrt(1 - inside**2) * b
    one, two = math.sqrt(share), math.sqrt(1 - share)
    return one * u[group] + two * a, one * v[group] + two * b, group


def units(repeat: int) -> Table:
    """Type I error and power of τ over runs and over conditions."""
    table = Table(
        "The condition is the unit",
        "How often p ≤ 0.05 without any link (nominal 0.05), and with one (between conditions r = 0.8, inside them "
        "0). `share` is the part of both columns' variance that lies between conditions (in a pool of digits "
        "networks 0.76 of the error's and 0.85 to 0.96 of the measures'). Before, every run counted as independent.",
        [
            "conditions × runs",
            "share",
            "no link: runs",
            "no link: conditions",
            "inside conditions",
            "r = 0.8: conditions",
        ],
    )
    for k, m in ((4, 3), (4, 10), (12, 3), (24, 1), (36, 3)):
        for share in (0.5, 0.9) if m > 1 else (0.9,):
            naive, means, within, power = Rate(), Rate(), Rate(), Rate()
            for rng in loops(repeat):
                x, y, group = study(rng, k, m, share=share)
                naive.add(correlation(x, y).p_value <= 0.05)
                means.add(between(x, y, group).p_value <= 0.05)
                if m > 1:
                    within.add(correlation(x, y, within=group, permutations=499).p_value <= 0.05)
                x, y, group = study(rng, k, m, share=share, across=0.8)
                power.add(between(x, y, group).p_value <= 0.05)
            table.rows.append([f"{k} × {m}", share, naive, means, within, power])
    return table


def inside(repeat: int) -> Table:
    """Coverage of τ inside conditions."""
    table = Table(
        "Inside conditions",
        "The share of 95 % intervals that hold the true τ of runs of the same condition, whose means have nothing to do with "
        "each other; and how often that τ is shown.",
        ["conditions × runs", "τ inside", "coverage", "shown"],
    )
    for (k, m), tau in itertools.product(((4, 5), (12, 3), (12, 10)), (0.0, 0.3, 0.6)):
        held, shown = Rate(), Rate()
        for rng in loops(repeat):
            x, y, group = study(rng, k, m, share=0.8, inside=math.sin(math.pi * tau / 2))
            found = correlation(x, y, within=group, permutations=499)
            held.add(found.low <= tau <= found.high)
            shown.add(found.p_value <= 0.05)
        table.rows.append([f"{k} × {m}", tau, held, shown])
    return table


def mixed(repeat: int) -> Table:
    """Coverage of slopes within and between, also where slopes differ by condition."""
    table = Table(
        "Slopes within and between conditions",
        "The share of 95 % intervals that hold the true slope: +1 between conditions, −0.5 inside them on average. "
        "Slopes inside differ by condition with the standard deviation given. `pooled` is the same regression inside "
        "conditions with the error that takes all runs for independent. Runs per condition are equal, or 2 to 9.",
        ["conditions × runs", "sd of slopes", "between", "within", "within, pooled error"],
    )
    for k, m, vary in itertools.product((4, 8, 24), (3, 0), (0.0, 0.5)):
        rates = Rate(), Rate(), Rate()
        for rng in loops(repeat):
            sizes = np.full(k, m) if m else rng.integers(2, 10, k)
            group = np.repeat(np.arange(k), sizes)
            level, own = rng.normal(size=k), rng.normal(size=len(group))
            inside = (-0.5 + vary * rng.normal(size=k))[group]
            centred = own - (np.bincount(group, own) / sizes)[group]
            x = level[group] + centred
            y = level[group] + inside * centred + 0.5 * rng.normal(size=k)[group] + 0.5 * rng.normal(size=len(group))
            found = slopes(x, y, group)
            for rate, effect, truth in ((rates[0], found.between, 1.0), (rates[1], found.within, -0.5)):
                low, high = effect.interval()
                rate.add(low <= truth <= high)
            rates[2].add(_pooled(centred, y - (np.bincount(group, y) / sizes)[group], k, -0.5))
        table.rows.append([f"{k} × {m or '2 to 9'}", vary, *rates])
    return table


def _pooled(x: Floats, y: Floats, k: int, truth: float) -> bool:
    from scipy.stats import t

    slope, freedom = x @ y / (x @ x), len(x) - k - 1
    error = math.sqrt(np.square(y - slope * x).sum() / freedom / (x @ x))
    return bool(abs(slope - truth) <= t.ppf(0.975, freedom) * error)


def paradox(repeat: int) -> Table:
    """How often Simpson's paradox is called."""
    table = Table(
        "Simpson's paradox",
        "How often it is called. Before: the sign inside conditions is not that of all models. Now: both shown, with "
        "opposite signs.",
        ["conditions × runs", "between", "inside", "before", "now"],
    )
    for k, m, across, inside in ((12, 5, 0.9, 0.0), (12, 5, 0.9, 0.5), (12, 5, 0.9, -0.7), (24, 5, 0.9, -0.7)):
        before, now = Rate(), Rate()
        for rng in loops(repeat):
            x, y, group = study(rng, k, m, share=0.8, across=across, inside=inside)
            found = simpson(pd.DataFrame({"x": x, "y": y, "g": group}), "x", "y", "g", permutations=499)
            before.add((found.overall or 0.0) * (found.within.value or 0.0) < 0)
            now.add(found.paradox)
        table.rows.append([f"{k} × {m}", across, inside, before, now])
    return table


def granulated(repeat: int) -> Table:
    """Coverage of Ψ for other axes."""
    table = Table(
        "Ψ over axes",
        "The share of 95 % intervals that hold the Ψ of axes like these (drawn again for each study): each axis has "
        "its own strength of link. Before: groups of models resampled inside axes; now: axes as units, by Student's "
        "t.",
        ["axes (3 levels, 2 seeds)", "spread of links", "before", "now", "half-width before", "half-width now"],
    )
    for axes, vary in itertools.product((3, 4), (0.0, 0.25, 0.5)):
        truth = _truth(vary)
        before, now, wide = Rate(), Rate(), ([], [])
        for rng in loops(repeat):
            frame = _grid(rng, axes, vary)
            names = [c for c in frame if c not in ("x", "y")]
            found = granulated_kendall(frame, "x", "y", names)
            if found.low is not None:
                now.add(found.low <= truth <= found.high)
                wide[1].append((found.high - found.low) / 2)
            low, high = _groups_resampled(rng, frame, names)
            before.add(low <= truth <= high)
            wide[0].append((high - low) / 2)
        table.rows.append([axes, vary, before, now, *(f"{np.mean(each):.2f}" for each in wide)])
    return table


def _grid(rng: np.random.Generator, axes: int, vary: float, seeds: int = 2) -> pd.DataFrame:
    """A grid in which changing an axis moves both columns, with a correlation of its own."""
    settings = list(itertools.product(range(3), repeat=axes))
    rows = [(*setting, seed) for setting in settings for seed in range(seeds)]
    frame = pd.DataFrame(rows, columns=[*(f"a{i}" for i in range(axes)), "seed"]).drop(columns="seed")
    x, y = 0.3 * rng.normal(size=(2, len(frame)))
    for i in range(axes):
        r = math.tanh(0.5 + vary * rng.normal())
        one, other = rng.normal(size=(2, 3))
        level = frame[f"a{i}"].to_numpy()
        x, y = x + one[level], y + (r * one + math.sqrt(1 - r * r) * other)[level]
    return frame.assign(x=x, y=y)


def _truth(vary: float, studies: int = 1500) -> float:
    """The mean Ψ of many studies."""
    values = [
        granulated_kendall(_grid(rng, 2, vary), "x", "y", ["a0", "a1"]).value or 0.0 for rng in loops(studies, seed=99)
    ]
    return float(np.mean(values))


def _groups_resampled(rng: np.random.Generator, frame: pd.DataFrame, names: list[str]) -> tuple[float, float]:
    """The percentile interval of Ψ with the groups of each axis drawn again."""
    from landscope.analysis.granulated import _group_taus

    means = []
    for name in names:
        others = frame[[other for other in names if other != name]].to_numpy()
        group = np.unique(others, axis=0, return_inverse=True)[1].reshape(-1)
        taus, _ = _group_taus(frame["x"].to_numpy(), frame["y"].to_numpy(), group, "b")
        means.append(taus[rng.integers(0, len(taus), (500, len(taus)))].mean(axis=1))
    low, high = np.quantile(np.mean(means, axis=0), [0.025, 0.975])
    return float(low), float(high)


SIMULATIONS = {"units": units, "inside": inside, "slopes": mixed, "simpson": paradox, "granulated": granulated}

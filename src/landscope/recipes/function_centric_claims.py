"""What the second paper says, put to the test: one-sided Wilcoxon tests against a baseline, Benjamini–Yekutieli by family.

A condition is compared with its baseline run by run (same seed, batch size and learning rate), measure by measure, in both
directions. A claim holds where every measure of the family moves as the paper says; it does not hold where one moves the other
way; otherwise it cannot be told. Effects are rank-biserial: +1 where every pair is larger.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from landscope.analysis import Correlation, benjamini_yekutieli, correlation, partial_correlation, wilcoxon
from landscope.analysis.findings import harmonic
from landscope.analysis.significance import Alternative
from landscope.data import TEST_FUNCTIONS
from landscope.recipes.recipe import Claim, Verdict
from landscope.recipes.verdicts import ALPHA, RESAMPLES, direction, in_words

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["claims", "complexity"]

FITTED, AT_MOST = 0.95, 0.01
"""The share of models that must fit their training rows for a condition to stand for minima, and the error that still fits."""
SIDES: tuple[Alternative, Alternative] = ("greater", "less")

CORRECTED = {
    "Fisher–Rao norm": "train.corrected.fisher_rao",
    "relative flatness": "train.corrected.relative_flatness",
    "random sharpness": "train.random_sharpness",
}
"""The sharpness family, as it should be measured: a larger value is sharper. What the paper calls SAM-sharpness is random."""
PUBLISHED = {
    "Fisher–Rao norm": "train.published.fisher_rao",
    "relative flatness": "train.published.relative_flatness",
    "random sharpness": "train.published.sam_sharpness",
}
SHARPER = dict.fromkeys(CORRECTED, 1)
SAFETY = {
    "calibration error": ("test.ece", -1),
    "corruption accuracy": ("corrupted.accuracy", 1),
    "disagreement": ("consistency.disagreement", -1),
}
"""The safety family, and which direction is better."""
GENERALISATION = {"test error": ("test.error", -1), "generalisation gap": ("gap.error", -1)}
QUALITY = {**GENERALISATION, **SAFETY}
FAMILIES = {
    "generalise better than base": GENERALISATION,
    "are better calibrated, more robust and more consistent than base": SAFETY,
}


@dataclass(frozen=True)
class _Moved:
    """One measure of a family against the baseline: the direction in which it moved, if any, and the numbers."""

    name: str
    direction: int
    text: str
    n: int


def claims(tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """Every claim that the tables at hand can speak to."""
    found: list[Claim] = []
    if (table := _final(tables.get("functions"))) is not None:
        found += [_through_training(tables["functions"]), _complexity(table)]
    if (table := _final(tables.get("circles"))) is not None:
        found += _circles(table)
    for part in tables:
        if part.startswith("images") and (table := _final(tables[part])) is not None:
            found += _images(part, table)
    return found


def complexity(function: str) -> tuple[float, float]:
    """How rough a test function is, and how large: mean ‖∇f‖²/Var f and Var f on a grid over [−3.5, 3.5]².

    The first is the mean squared frequency of the function, whatever its units.

    >>> rough, large = complexity("sphere")
    >>> round(rough, 2), round(large, 1)
    (1.22, 26.7)
    """
    axis = 7 * (torch.arange(400, dtype=torch.float64) + 0.5) / 400 - 3.5  # midpoints of cells
    points = torch.cartesian_prod(axis, axis).requires_grad_()
    values = TEST_FUNCTIONS[function](points)
    (slope,) = torch.autograd.grad(values.sum(), points)
    variance = float(values.detach().var())
    return float(slope.square().sum(1).mean()) / variance, variance


def _final(table: pd.DataFrame | None) -> pd.DataFrame | None:
    """The models at the end of training; nothing where there are none."""
    if table is None or table.empty:
        return None
    kept = table[table["checkpoint"] == "final"]
    return None if kept.empty else kept


def _pairs(table: pd.DataFrame, column: str, values: Mapping[str, object]) -> pd.Series:
    """A column of the runs with some levels of the axes, indexed by the other axes and the seed."""
    rows = table
    for axis, level in values.items():
        rows = rows[rows[axis] == level]
    others = [name for name in table.columns if name.startswith("axis.") and name not in values]
    keys = [" ".join(map(str, row)) for row in rows[[*others, "seed"]].itertuples(index=False)]
    return rows[column].set_axis(keys).dropna()


def _moved(tests: Mapping[str, tuple[pd.Series, pd.Series]]) -> list[_Moved]:
    """One-sided tests of each measure of a family in both directions; p-values adjusted over the family."""
    rows = {name: pair for name, pair in tests.items() if len(pair[0].index.intersection(pair[1].index))}
    up, down = ([wilcoxon(a, b, side) for a, b in rows.values()] for side in SIDES)
    # An exact p-value is a sum of floats that can pass 1 by a rounding error.
    p_values = [[test.p_value for test in side] for side in (up, down)]
    larger, smaller = map(benjamini_yekutieli, p_values)
    found = []
    for name, test, q_larger, q_smaller in zip(rows, up, larger, smaller, strict=True):
        if test.effect is None or q_larger is None or q_smaller is None:
            found.append(_Moved(name, 0, f"{name}: {test.reason}", test.n))
            continue
        direction = 1 if q_larger <= ALPHA else -1 if q_smaller <= ALPHA else 0
        q = q_larger if test.effect > 0 else q_smaller
        found.append(_Moved(name, direction, f"{name} {test.effect:+.2f} (q = {q:.2g})", test.n))
    return found


def _verdict(moved: Sequence[_Moved], expected: Mapping[str, int]) -> Verdict:
    """A claim about several measures holds where it does for each of them, and not where one goes the other way."""
    signs = {one.direction * expected[one.name] for one in moved}
    if -1 in signs:
        return "does not hold"
    return "holds" if signs == {1} else "cannot be told"


def _judged(text: str, part: str, moved: Sequence[_Moved], expected: Mapping[str, int], runs: Sequence[str]) -> Claim:
    if not moved:
        why = "no runs of the two conditions could be paired"
        return Claim(text=text, verdict="cannot be told", why=why, part=part, records=tuple(runs))
    n = max(one.n for one in moved)
    why = f"effects over {n} pairs: " + ", ".join(one.text for one in moved)
    smallest = 0.5**n * harmonic(len(moved))
    if smallest > ALPHA:
        why += f"; {n} pairs cannot give a q below {smallest:.2g}"
    return Claim(text=text, verdict=_verdict(moved, expected), why=why, part=part, records=tuple(runs))


def _against(
    table: pd.DataFrame, axis: str, level: str, base: str, family: Mapping[str, str]
) -> tuple[list[_Moved], list[str]]:
    """A level of an axis against another, over the measures of a family that the table has."""
    tests = {
        name: (_pairs(table, column, {axis: level}), _pairs(table, column, {axis: base}))
        for name, column in family.items()
        if column in table
    }
    return _moved(tests), list(table[table[axis].isin([level, base])]["run"])


def _images(part: str, table: pd.DataFrame) -> list[Claim]:
    axis = "axis.condition"
    if axis not in table or "base" not in set(table[axis]):
        return []
    found = []
    for level in table[axis].unique():
        if level != "base":
            found.append(_sharper(part, table, axis, level))
            for words, family in FAMILIES.items():
                moved, runs = _against(
                    table, axis, level, "base", {name: column for name, (column, _) in family.items()}
                )
                better = {name: sign for name, (_, sign) in family.items()}
                found.append(_judged(f"{level}: models {words}", part, moved, better, runs))
    return [*found, _best(part, table, axis), _goes_with_error(part, table)]


def _sharper(part: str, table: pd.DataFrame, axis: str, level: str) -> Claim:
    """The verdict is that of the corrected measures; what the paper's formulas say of the same models stands beside it."""
    moved, runs = _against(table, axis, level, "base", CORRECTED)
    claim = _judged(f"{level}: minima are sharper than base", part, moved, SHARPER, runs)
    claim = _of_minima(claim, table, axis, (level, "base"))
    as_coded, _ = _against(table, axis, level, "base", PUBLISHED)
    if not as_coded:
        return claim
    texts = ", ".join(one.text for one in as_coded)
    if absent := [name for name in PUBLISHED if name not in {one.name for one in as_coded}]:
        texts += f"; its {' and '.join(absent)} was not measured"
    return replace(claim, why=f"{claim.why}; by the formulas of its code ({_verdict(as_coded, SHARPER)}): {texts}")


def _best(part: str, table: pd.DataFrame, axis: str) -> Claim:
    """Augmentation with SAM against the best of the other conditions, for each kind of quality."""
    level = "augmentation + SAM"
    tests, rivals = {}, []
    for name, (column, sign) in QUALITY.items():
        if column not in table:
            continue
        means = (sign * table.groupby(axis)[column].mean()).dropna()
        if level in means and len(means) > 1:
            rivals.append(str(means.drop(level).idxmax()))
            tests[name] = (_pairs(table, column, {axis: level}), _pairs(table, column, {axis: rivals[-1]}))
    moved, expected = _moved(tests), {name: sign for name, (_, sign) in QUALITY.items()}
    claim = _judged(f"{level} is best in every respect", part, moved, expected, list(table["run"]))
    ahead = [one for one in moved if one.direction == expected[one.name]]
    told = claim.verdict != "holds" or len(ahead) == len(QUALITY)
    against = f"; each against the best of the others ({', '.join(dict.fromkeys(rivals))})" if rivals else ""
    return replace(claim, verdict=claim.verdict if told else "cannot be told", why=claim.why + against)


def _goes_with_error(part: str, table: pd.DataFrame) -> Claim:
    """Kendall's τ of sharpness and test error over the models that fit, and what is left of it given the training loss.

    Models that do not fit their training rows are no minima; what τ is with them stands beside it.
    """
    columns = {name: column for name, column in CORRECTED.items() if column in table and "test.error" in table}
    fitted = table[table["train.error"] <= AT_MOST]
    moved = _correlated(list(columns), [_with_error(fitted, column) for column in columns.values()])
    texts = [
        f"{one.text}, given the training loss "
        f"{in_words(partial_correlation(fitted[column], fitted['test.error'], fitted['train.loss']))}"
        for one, column in zip(moved, columns.values(), strict=True)
    ]
    why = "; ".join(texts) or "no sharpness was measured"
    if len(fitted) < len(table) and columns:
        all_of_them = ", ".join(f"{name} {_with_error(table, column)}" for name, column in columns.items())
        why += f". With the {len(table) - len(fitted)} models that do not fit their training rows: {all_of_them}"
    return Claim(
        text="over all models that fit their training rows, sharper minima go with lower test error",
        verdict=_verdict(moved, {name: -sign for name, sign in SHARPER.items()}),
        why=why,
        part=part,
        records=tuple(table["run"]),
    )


def _with_error(table: pd.DataFrame, column: str) -> Correlation:
    return correlation(table[column], table["test.error"], "kendall", resamples=RESAMPLES)


def _correlated(names: Sequence[str], results: Sequence[Correlation]) -> list[_Moved]:
    """Correlations of one family: the sign of each that is left after the adjustment."""
    adjusted = benjamini_yekutieli([result.p_value for result in results])
    found = []
    for name, result, q in zip(names, results, adjusted, strict=True):
        adjusted_p = "" if q is None else f" (q = {q:.2g})"
        found.append(_Moved(name, direction(result, q), f"{name}: {result}{adjusted_p}", result.n))
    return found


def _circles(table: pd.DataFrame) -> list[Claim]:
    axis, base = "axis.task", "factor 0.5"
    levels = list(table[axis].unique()) if axis in table else []
    if base not in levels:
        return []
    found = []
    for level in levels:
        if level != base:
            moved, runs = _against(table, axis, level, base, CORRECTED)
            claim = _judged(f"circles, {level}: minima are sharper than of {base}", "circles", moved, SHARPER, runs)
            found.append(_of_minima(claim, table, axis, (level, base)))
    return found


def _losses(table: pd.DataFrame, axis: str, levels: Sequence[str]) -> str:
    """Sharpness of a cross-entropy falls with the loss, so the loss belongs beside it."""
    medians = table.groupby(axis)["train.loss"].median()
    return f"; median training loss {' against '.join(f'{medians[level]:.2g}' for level in levels)}"


def _of_minima(claim: Claim, table: pd.DataFrame, axis: str, levels: Sequence[str]) -> Claim:
    """Where a condition does not fit its training rows, its points are no minima, and nothing is said of minima."""
    rows = {level: table[table[axis] == level] for level in levels}
    why = claim.why + _losses(table, axis, levels)
    fitted = {level: float((own["train.error"] <= AT_MOST).mean()) for level, own in rows.items()}
    shares = ", ".join(f"{share:.0%} of {level}" for level, share in fitted.items() if share < FITTED)
    if not shares:
        return replace(claim, why=why)
    why += f"; no minima: only {shares} fit {1 - AT_MOST:.0%} of their training rows"
    return replace(claim, verdict="cannot be told", why=why)


def _at_radii(table: pd.DataFrame) -> dict[str, str]:
    columns = [name for name in table.columns if name.startswith("train.random_sharpness_")]
    return {f"ρ = {name.rpartition('_')[2]}": name for name in columns}


def _through_training(table: pd.DataFrame) -> Claim:
    """Median logarithms of each function: one's values are thousands of times another's, and networks of one are alike."""
    text = "functions: random sharpness grows through training, from the first weights to the last, at every radius"
    columns = _at_radii(table)
    logs = table.assign(**{column: np.log(table[column].where(table[column] > 0)) for column in columns.values()})
    ends = {when: logs[logs["checkpoint"] == when] for when in ("final", "step 0")}
    medians = {when: rows.groupby("axis.function")[list(columns.values())].median() for when, rows in ends.items()}
    moved = _moved({name: (medians["final"][c].dropna(), medians["step 0"][c].dropna()) for name, c in columns.items()})
    return _judged(text, "functions", moved, {one.name: 1 for one in moved}, list(ends["final"]["run"]))


def _complexity(table: pd.DataFrame) -> Claim:
    """Over functions: does sharpness follow how rough the function is, or only how large its values are?"""
    names = list(table["axis.function"].unique()) if "axis.function" in table else []
    rough, large = zip(*map(complexity, names), strict=True) if names else ((), ())
    radii = _at_radii(table)
    medians = {name: table.groupby("axis.function")[column].median()[names] for name, column in radii.items()}
    moved = _correlated(list(radii), [correlation(medians[name], rough, resamples=RESAMPLES) for name in radii])
    sizes = [correlation(medians[name], large, resamples=RESAMPLES) for name in radii]
    texts = [f"{one.text}; with the variance of its values {size}" for one, size in zip(moved, sizes, strict=True)]
    return Claim(
        text="functions: the rougher the function, the sharper the minimum of its fit",
        verdict=_verdict(moved, dict.fromkeys(radii, 1)),
        why="; ".join(texts) or "no sharpness was measured",
        part="functions",
        records=tuple(table["run"]),
    )

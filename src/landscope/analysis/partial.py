"""What is left of a correlation once other columns are accounted for, such as the training loss.

Both columns are regressed on the covariates, and what is correlated is what the regression leaves:

    ρ, τ   of normal scores Φ⁻¹((rank − ⅜)/(n + ¼)), on polynomials of the covariates' scores (degree 2 below 30 units, then 4):
           any monotone relation is straight on this scale, and one that bends is followed
    r      of the values, on the covariates themselves

Without a link the residuals are independent, so the coefficient is centred on 0 and is tested as any other, with a unit less for
each term of the regression; the interval is that of the same test. (Kendall's own partial τ of 1942 is not 0 without a link: for
normal columns with r_xz = r_yz = 0.8 it is 0.14, and intervals around it left out 0 in up to 88 % of simulated studies.)

**A covariate with errors** leaves a part of itself in both residuals and makes a link where there is none. From its standard
errors its reliability λ is estimated: noise of that size is added once more, and if the scores before and after correlate with c,
λ = 2 − 1/c². The corrected coefficient comes from covariances in which the covariate's variance counts λ-fold (errors in
variables; Fuller 1987), with a jackknife error. What is recorded bounds the error from above (all models are measured on the same
rows), so a link must be shown with all of it and with none: the larger p counts, and the interval holds both. Below λ = 0.5 there
is no answer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy.special import ndtri

from landscope.analysis.coefficients import COEFFICIENTS, Floats, Method, as_kendall, scaled
from landscope.analysis.correlation import Correlation
from landscope.analysis.effects import Concordance, Effect, Mean, Order
from landscope.analysis.inputs import Numbers, complete, generator, names_of, number_column, settled, why_undefined
from landscope.analysis.null_laws import Inversions, NullLaw, Student
from landscope.core.errors import OperandError

DETERMINED = 1e-9
"""A column counts as a function of the covariates where less than this share of it remains once they are accounted for."""
MANY = 30
"""The number of units from which regressions may bend more than once."""
LEAST_RELIABLE = 0.5
EXPLAINED = 0.02
"""Where less than this is left of a column after its covariate is corrected for errors, the correction has no hold."""
DRAWS = 64
EXACT = 0.999
"""A covariate as reliable as this counts as known."""


def partial_correlation(
    x: Numbers,
    y: Numbers,
    given: Numbers | Mapping[str, Numbers] | pd.DataFrame,
    method: Method = "kendall",
    *,
    errors: Numbers | Mapping[str, Numbers] | pd.DataFrame | None = None,
    confidence: float = 0.95,
    seed: int = 0,
) -> Correlation:
    """The correlation of x and y given one column, or several by name; `errors` are standard errors of those, by the same names.

    Cost: milliseconds.

    >>> loss = np.array([1.0, 2, 3, 4, 5, 6, 7, 8])
    >>> noise = np.array([1, -1, -1, 1, 1, -1, -1, 1])
    >>> partial_correlation(loss + noise, loss - noise, given=loss, method="pearson")  # opposite once loss is known
    Correlation(r = -1.000 ...)
    >>> partial_correlation(loss, loss - noise, given={"loss": loss})
    Correlation(τ undefined: x is determined by given loss)
    """
    names = names_of(x, y)
    covariates, wrong = _named(given), _errors(given, errors)
    arrays = {name: number_column(column, name) for name, column in zip(names, (x, y), strict=True)}
    arrays |= {f"given {name}": number_column(column, name) for name, column in covariates.items()}
    noise = [
        np.nan_to_num(number_column(wrong.get(name, np.zeros(len(arrays[names[0]]))), name)) for name in covariates
    ]
    columns, _, dropped = complete(arrays | {f"error {i}": each for i, each in enumerate(noise)})
    columns, _ = settled(columns, ())
    known = dict(zip(arrays, columns[: len(arrays)], strict=True))
    noises = dict(zip(list(arrays)[2:], columns[len(arrays) :], strict=True))
    constant = [name for name in noises if len(np.unique(known[name])) < 2]
    varying = {name: column for name, column in known.items() if name not in constant}
    n = len(columns[0])
    reason = why_undefined(varying, COEFFICIENTS[method], np.zeros(n, dtype=np.intp))
    if reason:
        return Correlation.undefined(reason, n=n, method=method, dropped=dropped)
    asked = list(varying)[2:]
    scores = {name: scaled(column)[0] if method == "pearson" else _scores(column) for name, column in varying.items()}
    found = _of_residuals(scores, method, n)
    trust = [reliability(varying[name], noises[name], method, seed) for name in asked]
    text = f"left out because constant: {', '.join(constant)}" if constant else ""
    p_method = "" if isinstance(found, str) else f"of residuals, {(found.law or Inversions(n)).name}"
    effect: Effect | str = found
    if isinstance(found, Order) and any(each < EXACT for each in trust):
        effect = _with_errors(found, list(scores.values()), trust, asked)
        worst = min(zip(trust, asked, strict=True))
        text = f"{worst[1].removeprefix('given ')} is known with a reliability of {worst[0]:.2f} only, which is allowed for"
        p_method += ", the larger p of it with and without errors of the covariate"
    if isinstance(effect, str):
        return Correlation.undefined(effect, n=n, method=method, dropped=dropped)
    result = Correlation.tested(effect, method, p_method, confidence, dropped)
    return replace(result, n=n, reason=text)


def reliability(values: Floats, errors: Floats, method: Method = "kendall", seed: int = 0) -> float:
    """The share of a column's variance that is not error; on the scale of normal scores, for r of the values.

    >>> z = np.random.default_rng(0).normal(size=400) * math.sqrt(1.25)  # a variance of 1, and of 0.25 of errors
    >>> round(reliability(z, np.full(400, 0.5)), 1), reliability(z, np.zeros(400))
    (0.8, 1.0)
    """
    if not errors.any():
        return 1.0
    if method == "pearson":
        return 1 - float(np.square(errors).mean()) / float(values.var(ddof=1))
    noise = generator(seed, "errors").normal(size=(DRAWS, len(values)))
    positive = float(values.min()) > 0  # a loss stays one
    again = _scores(values * np.exp(np.minimum(errors / values, 1) * noise) if positive else values + errors * noise)
    own, again = (each - each.mean(axis=-1, keepdims=True) for each in (_scores(values), again))
    squared = np.square(again @ own) / (np.square(again).sum(axis=1) * (own @ own))
    return 2 - 1 / max(float(squared.mean()), np.finfo(float).tiny)


def _named(given: Numbers | Mapping[str, Numbers] | pd.DataFrame) -> dict[str, Numbers]:
    if isinstance(given, Mapping | pd.DataFrame):
        return {str(name): column for name, column in given.items()}
    name = given.name if isinstance(given, pd.Series) and isinstance(given.name, str) else "given"
    return {name: given}


def _errors(
    given: Numbers | Mapping[str, Numbers] | pd.DataFrame, errors: Numbers | Mapping[str, Numbers] | pd.DataFrame | None
) -> dict[str, Numbers]:
    if errors is None:
        return {}
    if isinstance(errors, Mapping | pd.DataFrame):
        return {str(name): column for name, column in errors.items()}
    return {next(iter(_named(given))): errors}


def _scores(columns: Floats) -> Floats:
    """Normal scores (Blom 1958) along the last axis."""
    from scipy.stats import rankdata

    return np.asarray(ndtri((rankdata(columns, axis=-1) - 0.375) / (columns.shape[-1] + 0.25)))


def _of_residuals(scores: dict[str, Floats], method: Method, n: int) -> Order | str:
    """The coefficient of what the covariates leave, or why there is none."""
    (first, x), (second, y), *others = scores.items()
    degree = 1 if method == "pearson" else 2 if n < MANY else 4
    while degree > 1 and n - degree * len(others) < 6:
        degree -= 1
    terms = [np.ones(n), *(z**power for _, z in others for power in range(1, degree + 1))]
    vectors, sizes, _ = np.linalg.svd(np.column_stack([t / np.linalg.norm(t) for t in terms]), full_matrices=False)
    basis = vectors[:, sizes > DETERMINED * sizes[0]]  # covariates that repeat each other count once
    used = basis.shape[1] - 1
    if n - used < 4:
        return f"n = {n}: at least {used + 4} models are needed with {len(others)} covariates"
    left = {}
    for name, column in ((first, x), (second, y)):
        left[name] = column - basis @ (basis.T @ column)
        if np.square(left[name]).sum() <= DETERMINED * np.square(column - column.mean()).sum():
            return f"{name} is determined by {' and '.join(name for name, _ in others)}"
    if method == "kendall":  # ties stay ties
        left = {name: np.round(column / np.abs(column).max(), 9) for name, column in left.items()}
    value = COEFFICIENTS[method].of(left[first], left[second], np.zeros(n, dtype=np.intp))
    if math.isnan(value):
        return "nothing that varies is left"
    law: NullLaw = Inversions(n - used) if method == "kendall" else Student(n - used - 2)
    return Order(value, n - used, method, law)


# Covariates with errors.


@dataclass(frozen=True)
class _Between(Effect):
    """Somewhere between two effects, of which one takes the covariate as known and the other takes all its errors off."""

    plain: Order
    corrected: Mean
    """In units of r."""

    def _r(self, value: float) -> float:
        if self.plain.method == "kendall":
            return math.sin(math.pi * value / 2)
        return 2 * math.sin(math.pi * value / 6) if self.plain.method == "spearman" else value

    def _back(self, r: float) -> float:
        r = max(-1.0, min(1.0, r))
        if self.plain.method == "spearman":
            return 6 / math.pi * math.asin(r / 2)
        return r if self.plain.method == "pearson" else as_kendall(r, "pearson")

    def tails(self, truth: float) -> tuple[float, float]:
        sides = self.plain.tails(truth), self.corrected.tails(self._r(truth))
        return max(sides[0][0], sides[1][0]), max(sides[0][1], sides[1][1])

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        low, high = (self._back(end) for end in self.corrected.interval(confidence))
        plain = self.plain.interval(confidence)
        return min(plain[0], low), max(plain[1], high)

    def differs_from(self, other: Effect) -> float:
        raise OperandError("a correlation given a covariate with errors is known between bounds only")

    def concordance(self, confidence: float = 0.95) -> Concordance:
        return Concordance(*(as_kendall(each, self.plain.method) for each in (self.value, *self.interval(confidence))))

    def __neg__(self) -> _Between:
        return _Between(-self.value, self.n, -self.plain, -self.corrected)


def _with_errors(
    plain: Order, scores: Sequence[Floats], trust: Sequence[float], names: Sequence[str]
) -> _Between | str:
    worst, name = min(zip(trust, names, strict=True))
    known = f"{name} has a reliability of {max(worst, 0.0):.2f}"  # below 0 where errors are larger than the spread
    if worst < LEAST_RELIABLE:
        return f"{known}: too little is known of it to account for it"
    rows, n = np.stack(scores), len(scores[0])
    products, means = rows[:, None] * rows[None], rows.mean(axis=1)
    others = (n * means[:, None] - rows) / (n - 1)  # means without each unit
    without = (n * products.mean(axis=2)[..., None] - products) / (n - 1) - others[:, None] * others[None]
    whole = products.mean(axis=2) - np.outer(means, means)
    covariances = np.concatenate([whole[None], np.moveaxis(without, 2, 0)])
    inner = covariances[:, 2:, 2:] * (1 - np.diag(1 - np.asarray(trust)))
    cross = covariances[:, :2, 2:]
    left = covariances[:, :2, :2] - cross @ np.linalg.pinv(inner, rcond=DETERMINED, hermitian=True) @ cross.transpose(
        0, 2, 1
    )
    share = np.diag(left[0]) / np.diag(whole[:2, :2])
    if (share < EXPLAINED).any():
        return (
            f"{known}; with its errors taken off it may explain a column wholly, so that nothing is left to go together"
        )
    size = math.sqrt(left[0, 0, 0] * left[0, 1, 1])
    jackknife = left[1:, 0, 1]
    spread = math.sqrt((n - 1) / n * float(np.square(jackknife - jackknife.mean()).sum()))
    stderr = max(spread / size, DETERMINED)
    value = max(-1.0, min(1.0, float(left[0, 0, 1]) / size))
    corrected = Mean(value, n, stderr, n - 2 - len(names), stderr * math.sqrt(n))
    return _Between(plain.value, plain.n, plain, corrected)

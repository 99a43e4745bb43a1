"""What is left of a correlation once other columns are accounted for, such as the training loss.

From the coefficients of all pairs of x, y and the covariates Z (τ-b, ρ or r), with A = coefficients of (x, y) among
themselves, C of (x, y) with Z, and Σ of Z:

    P = A − C Σ⁻¹ Cᵀ,     partial = P_xy / √(P_xx P_yy)

For one covariate that is (τ_xy − τ_xz τ_yz)/√((1 − τ_xz²)(1 − τ_yz²)) (Kendall 1942); for ρ and r it is the correlation of the
residuals after regressing (ranks of) x and y on (ranks of) Z.

Kendall's partial τ is not 0 where x and y are independent given z: for normal columns with r_xz = r_yz = 0.8 it is 0.14. So the
p-value never compares with 0 but with data made without a link (Freedman and Lane 1983): the (ranks of) y fitted from Z,
plus permuted residuals. `null_mean` says where that null lies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd

from landscope.analysis.coefficients import (
    COEFFICIENTS,
    Codes,
    Coefficient,
    Counts,
    Floats,
    Method,
    kendall_between,
    scaled,
)
from landscope.analysis.correlation import Correlation, IntervalMethod, bootstrap_interval
from landscope.analysis.inputs import (
    Labels,
    Numbers,
    codes,
    complete,
    generator,
    names_of,
    number_column,
    random_permutations,
    settled,
    why_undefined,
)
from landscope.analysis.significance import FITTED, fitted_normal, null_draws, tail

__all__ = ["partial_correlation"]

DETERMINED = 1e-9
"""A column of which less than this is left, once the covariates are accounted for, is a function of them."""


def partial_correlation(
    x: Numbers,
    y: Numbers,
    given: Numbers | Mapping[str, Numbers] | pd.DataFrame,
    method: Method = "kendall",
    *,
    strata: Labels | None = None,
    interval: IntervalMethod = "bca",
    confidence: float = 0.95,
    resamples: int | None = None,
    permutations: int = 9999,
    seed: int = 0,
) -> Correlation:
    """The correlation of x and y given one column, or several by name; the p-value is two-sided.

    Cost: that of `correlation` times the number of pairs of columns, (k+1)(k+2)/2 for k covariates.

    >>> loss = np.array([1.0, 2, 3, 4, 5, 6, 7, 8])
    >>> noise = np.array([1, -1, -1, 1, 1, -1, -1, 1])
    >>> partial_correlation(loss + noise, loss - noise, given=loss, method="pearson")  # opposite once loss is known
    Correlation(r = -1.000, ...)
    >>> partial_correlation(loss, loss - noise, given={"loss": loss})
    Correlation(τ undefined: x is determined by given loss)
    """
    coefficient = COEFFICIENTS[method]
    own = names_of(x, y)
    single = given.name if isinstance(given, pd.Series) and isinstance(given.name, str) else "given"
    covariates = dict(given.items()) if isinstance(given, Mapping | pd.DataFrame) else {single: given}
    arrays = {name: number_column(column, name) for name, column in zip(own, (x, y), strict=True)}
    arrays |= {f"given {name}": number_column(column, str(name)) for name, column in covariates.items()}
    columns, (stratum,), dropped = complete(arrays, (codes(strata, len(arrays[own[0]]), "strata"),))
    columns, (stratum,) = settled(columns, (stratum,))
    block, k = np.zeros(len(stratum), dtype=np.intp), len(covariates)
    known = dict(zip(arrays, columns, strict=True))
    constant = [name for name in list(known)[2:] if len(np.unique(known[name])) < 2]
    varying = {name: column for name, column in known.items() if name not in constant}
    reason = why_undefined(varying, coefficient, block)
    if not reason and len(block) < k + 3:
        reason = f"n = {len(block)}: at least {k + 3} models are needed with {k} covariates"
    if not reason:
        reason = _determined(varying, coefficient, block)
    if reason:
        return Correlation.undefined(reason, n=len(block), method=method, dropped=dropped)
    columns = list(varying.values())
    bounds = bootstrap_interval(
        lambda counts: _partial(_matrix(counts, columns, coefficient, block)),
        stratum,
        method=interval,
        confidence=confidence,
        resamples=resamples,
        seed=seed,
    )
    value = float(_partial(_matrix(np.ones((1, len(block)), np.float32), columns, coefficient, block))[0])
    p_value, p_method, null_mean = _significance(value, columns, method, block, permutations, seed)
    return Correlation(
        value=value,
        p_value=p_value,
        low=bounds.low,
        high=bounds.high,
        n=len(block),
        method=method,
        p_method=p_method,
        interval=bounds.method,
        confidence=confidence,
        dropped=dropped,
        null_mean=null_mean,
        reason=f"left out because constant: {', '.join(constant)}" if constant else "",
    )


def _matrix(counts: Counts, columns: list[Floats], coefficient: Coefficient, block: Codes) -> Floats:
    """The coefficients of all pairs of columns, for every resample; a covariate that does not vary explains nothing."""
    size = len(columns)
    matrix = np.tile(np.eye(size), (len(counts), 1, 1))
    for i in range(size):
        for j in range(i):
            value = coefficient.weighted(counts, columns[i], columns[j], block)
            matrix[:, i, j] = matrix[:, j, i] = np.nan_to_num(value) if i > 1 and j > 1 else value
    return matrix


def _left_over(matrix: Floats) -> Floats:
    """P = A − C Σ⁺ Cᵀ of every matrix."""
    cross = np.nan_to_num(matrix[:, :2, 2:])
    explained = cross @ np.linalg.pinv(matrix[:, 2:, 2:], rcond=DETERMINED, hermitian=True) @ cross.transpose(0, 2, 1)
    return np.asarray(matrix[:, :2, :2] - explained)


def _partial(matrix: Floats) -> Floats:
    rest = _left_over(matrix)
    value = np.full(len(rest), np.nan)
    variances = np.where((rest[:, 0, 0] > DETERMINED) & (rest[:, 1, 1] > DETERMINED), rest[:, 0, 0] * rest[:, 1, 1], 0)
    np.divide(rest[:, 0, 1], np.sqrt(variances), out=value, where=variances > 0)
    return np.clip(value, -1.0, 1.0)


def _determined(columns: dict[str, Floats], coefficient: Coefficient, block: Codes) -> str:
    first, second, *covariates = columns
    once = np.ones((1, len(block)), np.float32)
    rest = _left_over(_matrix(once, list(columns.values()), coefficient, block))[0]
    for name, left in ((first, rest[0, 0]), (second, rest[1, 1])):
        if left <= DETERMINED:
            return f"{name} is determined by {' and '.join(covariates)}"
    return ""


def _significance(
    value: float, columns: list[Floats], method: Method, block: Codes, permutations: int, seed: int
) -> tuple[float, str, float | None]:
    """A two-sided p, how it was found, and the mean under the null where that is not 0."""
    from scipy import stats  # takes a second to import

    n, k = len(block), len(columns) - 2
    drawn = null_draws(block, method, permutations, seed)
    if drawn is None and method != "kendall":
        freedom = n - 2 - k
        t = value * math.sqrt(freedom / max(1 - value**2, np.finfo(float).tiny))
        return float(2 * stats.t.sf(abs(t), freedom)), "asymptotic", None
    chosen = drawn[0] if drawn else random_permutations(block, FITTED, generator(seed, "permutation"))
    null = _freedman_lane(columns, method, chosen)
    centre = float(np.nanmean(null)) if method == "kendall" else None
    if drawn is None:
        return fitted_normal(null, value, "two-sided"), f"normal fitted to {FITTED} permuted residuals", centre
    p_value = tail(null, value, "two-sided", every=drawn[1] == "enumeration")
    return p_value, f"{drawn[1]} of residuals", centre


def _freedman_lane(columns: list[Floats], method: Method, permutations: Codes) -> Floats:
    """The partial coefficient of x with y fitted from the covariates plus permuted residuals."""
    from scipy import stats  # takes a second to import

    scores = [scaled(column)[0] if method == "pearson" else stats.rankdata(column) for column in columns]
    design = np.column_stack([np.ones(len(scores[0])), *(z - z.mean() for z in scores[2:])])
    vectors, sizes, _ = np.linalg.svd(design / np.linalg.norm(design, axis=0), full_matrices=False)
    basis = vectors[:, sizes > DETERMINED * sizes[0]]  # covariates that repeat each other count once
    left, right = (s - basis @ (basis.T @ s) for s in scores[:2])
    if method != "kendall":
        shuffled = right[permutations]
        rest = np.linalg.norm(shuffled - (shuffled @ basis) @ basis.T, axis=1)
        scale = np.where(rest > DETERMINED * np.linalg.norm(right), rest, np.nan) * np.linalg.norm(left)
        return np.asarray(shuffled @ left / scale)
    made = np.round((scores[1] - right) + right[permutations], 9)  # ties of ranks stay ties
    block = np.zeros(len(left), dtype=np.intp)
    others = np.stack([columns[0], *columns[2:]])
    matrix = np.tile(np.eye(len(columns)), (len(made), 1, 1))
    among, with_made = kendall_between(others, others, block), kendall_between(others, made, block)
    places = [0, *range(2, len(columns))]
    matrix[:, np.ix_(places, places)[0], np.ix_(places, places)[1]] = among
    matrix[:, 1, places] = matrix[:, places, 1] = with_made.T
    return _partial(matrix)

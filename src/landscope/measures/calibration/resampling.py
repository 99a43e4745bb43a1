"""Error bars by bootstrap for whatever is a function of sums over samples.

A binned calibration error is a smooth enough function of a few sums (how many samples and how much gap in each bin). Its
bootstrap redraws the samples with replacement, which is to say: weights them by a multinomial draw and adds up again. The
standard deviation over the draws is the standard error (Efron 1979). Above a thousand samples, random groups of samples
are redrawn instead of single ones: sums over groups are as independent and as variable as sums over samples, and the
cost no longer grows with n. What that costs is 2 % of noise in the error bar, as much as a thousand draws leave anyway.

The mean of numbers per sample needs no draws: there the bootstrap's limit is the usual standard error of a mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from landscope.core.errors import NotApplicableError
from landscope.core.estimate import Estimate, Plain
from landscope.core.seeding import generator

__all__ = ["AddUp", "bootstrap", "mean_estimate", "refuse_infinite"]

AddUp = Callable[[Tensor, int], Tensor]
"""(group of each sample (n,), number of groups) → sums over each group (groups, …)."""

GROUPS = 1000
CHUNK = 1 << 24
"""Numbers that the sums of one round of draws may hold."""


def mean_estimate(values: Tensor, details: dict[str, Plain] | None = None) -> Estimate:
    """The mean of one number per sample, with its standard error over the data; a single sample has none.

    >>> mean_estimate(torch.tensor([1.0, 3.0]))
    Estimate(2.0 ± 1.0, exact)
    """
    n = len(values)
    error = float(values.double().std()) / math.sqrt(n) if n > 1 else None
    mean = float(values.double().mean())
    return Estimate(mean, stderr=error or 0.0, data_stderr=error, details={"samples": n, **(details or {})})


def refuse_infinite(losses: Tensor, what: str, whose: str) -> Tensor:
    """Losses per sample whose mean is finite; raise `NotApplicableError` where something that happened had probability 0."""
    lost = int((~torch.isfinite(losses)).sum())
    if lost:
        raise NotApplicableError(
            f"the {what} is infinite: {whose} of {lost} of {len(losses)} samples has probability 0 (a logit of −inf)"
        )
    return losses


def bootstrap(
    n: int, add_up: AddUp, statistic: Callable[[Tensor], Tensor], resamples: int = 1000, seed: int = 0
) -> Estimate:
    """The statistic of the sums over all n samples, with the standard deviation over `resamples` redrawn data sets.

    `statistic` maps sums (b, …) to values (b,). `details["bootstrap_bias"]` is how far the redrawn values lie above the
    value on average: a rough estimate of its own bias, which is positive for every binned error.

    >>> x = torch.arange(100.0)
    >>> mean = bootstrap(100, lambda group, g: torch.zeros(g).index_add(0, group, x), lambda sums: sums / 100)
    >>> mean.value, round(mean.stderr, 1), round(float(x.std() / 10), 1)
    (49.5, 2.9, 2.9)
    """
    if resamples < 0 or resamples == 1:
        raise ValueError(f"resamples must be 0 (no error bar) or at least 2, got {resamples}")
    value = float(statistic(add_up(torch.zeros(n, dtype=torch.long), 1))[0])
    details: dict[str, Plain] = {"samples": n, "resamples": resamples}
    if n < 2 or resamples == 0:
        return Estimate(value, details=details)
    rng = generator(seed, "bootstrap")
    groups = min(n, GROUPS)
    sums = add_up(torch.randperm(n, generator=rng) % groups, groups)
    flat = sums.reshape(groups, -1)
    step = max(1, CHUNK // max(flat.shape[1], groups))
    values = []
    for start in range(0, resamples, step):
        count = min(step, resamples - start)
        drawn = torch.randint(0, groups, (count, groups), generator=rng)
        weights = torch.zeros(count, groups, dtype=flat.dtype)
        weights.scatter_add_(1, drawn, torch.ones_like(weights))
        values.append(statistic((weights @ flat).reshape(count, *sums.shape[1:])))
    redrawn = torch.cat(values).double()
    error = float(redrawn.std())
    details["bootstrap_bias"] = float(redrawn.mean()) - value
    return Estimate(value, stderr=error, data_stderr=error, details=details)

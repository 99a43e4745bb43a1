"""Temperature scaling: dividing the logits by the one number that fits the labels best (Guo et al. 2017).

    T = argmin −mean_i log softmax(z_i / T)_{y_i}

Classes that are masked out (logits of −∞) have probability 0 at every T and do not count.

In β = 1/T the loss L is convex, with L′(β) = mean_i (E_p[z_i] − z_iy) and L″(β) = mean_i Var_p(z_i), so L′ grows from
L′(0) = mean_i (mean_c z_ic − z_iy) to L′(∞) = mean_i (max_c z_ic − z_iy) ≥ 0, and there is a finite, positive T exactly
if L′(0) < 0 < L′(∞). That is checked first. Otherwise
    all labels have the largest logit      the more confident the better: T → 0
    labels no better than chance           the less confident the better: T → ∞
    every sample has equal logits          T changes nothing: 1 is returned
Newton's method in log T from T = the spread of the logits, with a line search on |L′|, converges in a few steps however
the logits are scaled: T(cz) = c T(z). The error of log T is 1/√(n β² L″) by the Fisher information, if some tempered model
is true, and √(mean_i s_i²) / (√n β² L″), with s_i the slopes of single samples, in any case (the sandwich).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from landscope.core.errors import DataError, OperandError
from landscope.core.estimate import Estimate, Status
from landscope.core.registry import Registry
from landscope.measures.calibration.scores import Array, Logits, Scores, checked_logits, refuse_infinite

TEMPERATURE_FITS: Registry[Callable[[Tensor, Tensor], Estimate]] = Registry(
    "fit of a temperature", groups="landscope.papers.{}.as_published"
)
"""Ways to fit a temperature to logits and labels, by exact name; those of a paper's code as PAPER/NAME."""


@dataclass(frozen=True)
class TemperatureFit:
    """What a fit found: the temperature, how well it is known, and how the search ended.

    The status is `converged`; `budget spent` where iterations ended first; `saturated` where the temperature is irrelevant; or
    `failed` where the optimum lies at 0 or ∞, which is then the temperature. `log_stderr` is by the Fisher information.
    """

    temperature: float
    status: Status
    reason: str
    nll_before: float
    nll_after: float
    gradient: float
    """|dL / d log T| where the search ended."""
    iterations: int
    log_stderr: float
    """Standard error of log T, which is the relative one of T."""
    log_stderr_robust: float
    """The same without assuming that some tempered model is true."""
    samples: int

    @property
    def converged(self) -> bool:
        """Whether the temperature is the optimum."""
        return self.status is Status.CONVERGED

    @property
    def estimate(self) -> Estimate:
        """The temperature as an estimate, its error bar robust; a failed one where there is no finite optimum."""
        if not self.status.has_value:
            return Estimate.failed(self.reason)
        known = math.isfinite(self.log_stderr_robust)
        error = self.temperature * self.log_stderr_robust if known else None
        return Estimate(
            self.temperature, error or 0.0, error, self.status, self.reason, details={"samples": self.samples}
        )

    def scale(self, logits: Logits) -> Tensor:
        """The logits over T, in float64; refused where the optimum is not a finite, positive number."""
        if not self.status.has_value:
            raise DataError(f"no finite temperature to divide by: {self.reason}")
        return checked_logits(logits) / self.temperature


def fit_temperature(
    logits: Logits, labels: Array, *, tolerance: float = 1e-9, max_iterations: int = 100
) -> TemperatureFit:
    """Fit the temperature to validation samples, to convergence: the last Newton step in log T is below `tolerance`.

    Score it on other samples: see `calibrated`. O(n·C) for each of the few iterations.

    >>> import torch
    >>> z = torch.randn(2000, 5, generator=torch.Generator().manual_seed(0))
    >>> y = torch.multinomial(z.softmax(1), 1, generator=torch.Generator().manual_seed(1))[:, 0]
    >>> fit = fit_temperature(4 * z, y)
    >>> fit.converged, abs(math.log(fit.temperature / 4)) < 3 * fit.log_stderr
    (True, True)
    """
    scores = Scores.of(logits, labels)
    z = scores.log_p - _mean(scores.log_p)
    chosen = z.gather(1, scores.labels[:, None])
    refuse_infinite(chosen[:, 0], "negative log-likelihood at every temperature", "the label")
    before = float((z.logsumexp(1) - chosen[:, 0]).mean())
    limit = _limit(z, chosen, before)
    if limit is not None:
        return limit
    spread = float(z[torch.isfinite(z)].square().mean().sqrt())
    z, chosen = z / spread, chosen / spread
    u = 0.0  # log β, in units of the spread
    slope, curvature, slopes = _derivatives(z, chosen, u)
    status, reason, iterations = Status.BUDGET_SPENT, f"not converged in {max_iterations} iterations", 0
    while iterations < max_iterations:
        bent = slope + curvature if slope + curvature > 0 else curvature  # L need not be convex in log β
        step = max(-1.0, min(1.0, -slope / bent)) if bent > 0 else -math.copysign(1.0, slope)
        if abs(step) <= tolerance:
            status, reason = Status.CONVERGED, ""
            break
        iterations += 1
        trial = _derivatives(z, chosen, u + step)
        while abs(trial[0]) >= abs(slope) and trial[0] * slope <= 0 and abs(step) > tolerance:  # far beyond the optimum
            step /= 2
            trial = _derivatives(z, chosen, u + step)
        u, (slope, curvature, slopes) = u + step, trial
    n = len(z)
    return TemperatureFit(
        temperature=spread * math.exp(-u),
        status=status,
        reason=reason,
        nll_before=before,
        nll_after=float(((math.exp(u) * z).logsumexp(1) - math.exp(u) * chosen[:, 0]).mean()),
        gradient=abs(slope),
        iterations=iterations,
        log_stderr=1 / math.sqrt(n * curvature) if curvature > 0 else math.inf,
        log_stderr_robust=float(slopes.square().mean().sqrt()) / (math.sqrt(n) * curvature)
        if curvature > 0
        else math.inf,
        samples=n,
    )


@TEMPERATURE_FITS.register("fitted")
def converged_temperature(logits: Tensor, labels: Tensor) -> Estimate:
    """The temperature that `fit_temperature` finds."""
    return fit_temperature(logits, labels).estimate


def _derivatives(z: Tensor, chosen: Tensor, u: float) -> tuple[float, float, Tensor]:
    """β L′(β) = dL/du at β = eᵘ, β² L″(β), and the slopes of the single samples."""
    scaled = math.exp(u) * z
    p = scaled.softmax(1)
    scaled = scaled.masked_fill(z == -math.inf, 0.0)  # where p is 0
    mean = (p * scaled).sum(1, keepdim=True)
    slopes = (mean - math.exp(u) * chosen)[:, 0]
    return float(slopes.mean()), float((p * (scaled - mean).square()).sum(1).mean()), slopes


def _mean(z: Tensor) -> Tensor:
    """The mean over the classes of each sample that are not masked out (n, 1)."""
    possible = torch.isfinite(z)
    return torch.where(possible, z, 0.0).sum(1, keepdim=True) / possible.sum(1, keepdim=True)


def _limit(z: Tensor, chosen: Tensor, before: float) -> TemperatureFit | None:
    """The outcome where no finite, positive temperature is best; `None` where one is."""
    largest, possible = z.amax(1, keepdim=True), torch.isfinite(z)
    if bool((largest == torch.where(possible, z, largest).amin(1, keepdim=True)).all()):
        found = 1.0, Status.SATURATED, "all logits of a sample are equal: the temperature changes nothing", before
    elif bool((chosen == largest).all()):
        tied = (z == largest).sum(1).double().log().mean()
        reason = "every label has the largest logit: the loss keeps falling as T goes to 0. Use more validation samples"
        found = 0.0, Status.FAILED, reason, float(tied)
    elif float((_mean(z) - chosen).mean()) >= 0:
        reason = "the labels have no larger logits than other classes on average: the loss falls as T goes to infinity"
        found = math.inf, Status.FAILED, reason, float(possible.sum(1).double().log().mean())
    else:
        return None
    return TemperatureFit(*found[:3], before, found[3], 0.0, 0, math.inf, math.inf, len(z))


# Temperature scaling in use: fitted on validation samples, applied to others.


REPEATED = 0.05
"""Share of validation samples that may reappear among the test samples: data sets hold a few duplicates."""


@dataclass(frozen=True, eq=False)
class Calibrated:
    """Test logits divided by the temperature that was fitted on validation samples."""

    logits: Tensor
    fit: TemperatureFit


def calibrated(validation_logits: Logits, validation_labels: Array, test_logits: Logits) -> Calibrated:
    """Fit on the validation samples and scale the test logits; refused where samples are in both.

    A temperature that is scored on the samples it was fitted to looks better than it is. Samples are recognised by their
    logits, bit for bit: more than 5 % of the validation samples among the test samples count as a mistake.

    >>> import torch
    >>> z = torch.randn(400, 3, generator=torch.Generator().manual_seed(0))
    >>> y = torch.multinomial(z.softmax(1), 1, generator=torch.Generator().manual_seed(1))[:, 0]
    >>> calibrated(5 * z[:200], y[:200], 5 * z[200:]).logits.shape
    torch.Size([200, 3])
    >>> calibrated(5 * z[:200], y[:200], 5 * z)
    Traceback (most recent call last):
    landscope.core.errors.DataError: 200 of 200 validation samples are among the test samples ...
    """
    validation, test = checked_logits(validation_logits), checked_logits(test_logits)
    if validation.shape[1] != test.shape[1]:
        raise OperandError(f"validation logits have {validation.shape[1]} classes, test logits {test.shape[1]}")
    repeated = repeated_samples(validation, test)
    if repeated > REPEATED * len(validation):
        raise DataError(
            f"{repeated} of {len(validation)} validation samples are among the test samples (equal logits). A temperature is "
            f"never scored on samples that it was fitted to: split the data, and pass the test half only."
        )
    fit = fit_temperature(validation_logits, validation_labels)
    return Calibrated(fit.scale(test), fit)


def repeated_samples(first: Tensor, second: Tensor) -> int:
    """How many rows of the first matrix are rows of the second, bit for bit. O(n log n).

    >>> import torch
    >>> repeated_samples(torch.eye(3), torch.eye(3)[1:])
    2
    """
    row = np.dtype((np.void, first.shape[1] * first.element_size()))  # a whole row as one value
    mine, others = (np.ascontiguousarray(t.numpy()).view(row)[:, 0] for t in (first, second))
    return int(np.isin(mine, others).sum())

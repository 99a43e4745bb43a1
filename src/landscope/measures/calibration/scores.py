"""What every calibration measure starts from: checked logits and labels, in float64, in an order of their own.

Logits (n, C) and labels (n,) may be tensors or NumPy arrays of any real precision, on any device; computation is in float64
on the CPU. A logit of −∞ is a class that is masked out: its probability is 0. In place of logits, all functions
take `probabilities(p)`. Input that would make a number meaningless is refused: no samples, NaN or +∞, a sample without any
possible class, labels out of range. The samples are sorted by label, correctness and confidence, so that no result, a seeded
bootstrap included, depends on their order or on batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from landscope.core.errors import DataError, EmptyDataError, LabelRangeError, NotApplicableError, OperandError
from landscope.core.estimate import Estimate
from landscope.core.json import Plain
from landscope.core.seeding import generator
from landscope.measures.calibration.tokens import TokenScores

Array = Tensor | NDArray[np.generic]
"""A tensor or a NumPy array."""

SUM_TOLERANCE = 1e-3
"""By how much the sum of a sample's probabilities may differ from 1: those stored with a few decimals do."""


@dataclass(frozen=True, eq=False)
class Probabilities:
    """Checked probabilities (n, C) in float64, as `probabilities` makes them."""

    p: Tensor


Logits = Array | Probabilities | TokenScores
"""What calibration functions take: logits, probabilities that are marked as such, or what a probe kept of many tokens."""


def probabilities(p: Array) -> Probabilities:
    """Probabilities (n, C) in place of logits, for every function of calibration: rows that add up to 1, none negative.

    They are used as they are, so that a confidence on the edge of a bin stays there.

    >>> from landscope.measures.calibration import ece
    >>> ece(probabilities(torch.tensor([[0.75, 0.25], [0.75, 0.25]])), torch.tensor([0, 1])).value
    0.25
    >>> probabilities(torch.tensor([[2.0, 0.0]]))
    Traceback (most recent call last):
    landscope.core.errors.DataError: the probabilities of 1 of 1 samples do not add up to 1 (number 0: 2). ...
    """
    given = _table(p, "probabilities", "probability p", "1 - p, p")
    tolerance = max(SUM_TOLERANCE, 2 * torch.finfo(given.dtype).eps)
    exact = given.double()
    _refuse_rows(~torch.isfinite(exact).all(1), exact, "hold NaN or infinity")
    _refuse_rows((exact < 0).any(1), exact, "hold negative numbers")
    _refuse_rows((exact.sum(1) - 1).abs() > tolerance, exact, "do not add up to 1")
    return Probabilities(exact)


def _table(values: Array, what: str, single: str, both: str) -> Tensor:
    """One number for each sample and class (n, C), C ≥ 2."""
    given = as_tensor(values, what)
    if given.dim() != 2 or (given.shape[1] < 2 and len(given)):
        raise OperandError(
            f"expected {what} (n, C) of at least two classes, got shape {tuple(given.shape)}. One {single} per sample of a "
            f"yes/no model becomes two with torch.stack([{both}], 1)."
        )
    if not len(given):
        raise EmptyDataError(f"there are no samples: got {what} of shape (0, C), and a mean over nothing has no value")
    if not given.is_floating_point():
        raise OperandError(f"{what} must be real numbers, got {given.dtype}; class labels are the second argument")
    return given


def _refuse_rows(bad: Tensor, p: Tensor, what: str) -> None:
    if bool(bad.any()):
        first = int(bad.nonzero()[0])
        raise DataError(
            f"the probabilities of {int(bad.sum())} of {len(p)} samples {what} (number {first}: {float(p[first].sum()):.6g}). "
            f"Pass logits as they are, without probabilities(…); divide probabilities by their sum over classes."
        )


@dataclass(frozen=True)
class Scores:
    """Probabilities (n, C), their logarithms and labels (n,) of n samples, sorted.

    >>> scores = Scores.of(torch.tensor([[0.0, 0.0], [2.0, 0.0]]), torch.tensor([1, 0]))
    >>> scores.correct, scores.confidence
    (tensor([1., 0.], dtype=torch.float64), tensor([0.8808, 0.5000], dtype=torch.float64))
    """

    p: Tensor
    log_p: Tensor
    labels: Tensor
    sequence: ClassVar[None] = None
    weight: ClassVar[None] = None

    @classmethod
    def of(cls, logits: Logits, labels: Array) -> Scores:
        """Checked and sorted; ties between classes are predictions of the first of them."""
        p, log_p = predicted(logits)
        y = _checked_labels(labels, *log_p.shape)
        top, guess = log_p.max(1).values, log_p.argmax(1)
        order = torch.from_numpy(np.lexsort((top.numpy(), (guess == y).numpy(), y.numpy())))
        return cls(p[order], log_p[order], y[order])

    @property
    def confidence(self) -> Tensor:
        """The largest probability of each sample (n,)."""
        return self.p.max(1).values

    @property
    def correct(self) -> Tensor:
        """1 where the most probable class is the label, otherwise 0 (n,)."""
        return (self.log_p.argmax(1) == self.labels).double()

    @property
    def losses(self) -> Tensor:
        """−log p of the label (n,)."""
        return -self.log_p.gather(1, self.labels[:, None])[:, 0]

    @property
    def brier(self) -> Tensor:
        """Σ_c (p_c − [c = y])² (n,)."""
        return (self.p - self.one_hot).square().sum(1)

    def mean(self, values: Tensor, details: dict[str, Plain] | None = None) -> Estimate:
        """The mean of one number per sample, with its standard error."""
        return mean_estimate(values, details)

    @property
    def one_hot(self) -> Tensor:
        """The labels as rows of zeros and a one (n, C)."""
        return torch.nn.functional.one_hot(self.labels, self.log_p.shape[1]).double()


def scored(logits: Logits, labels: Array) -> Scores | TokenScores:
    """What all scores but those of single classes are made of."""
    return logits if isinstance(logits, TokenScores) else Scores.of(logits, labels)


def predicted(logits: Logits) -> tuple[Tensor, Tensor]:
    """Probabilities and their logarithms, both (n, C); −∞ where a probability is 0."""
    if isinstance(logits, Probabilities):
        return logits.p, logits.p.log()
    log_p = checked_logits(logits).log_softmax(1)
    return log_p.exp(), log_p


def checked_logits(logits: Logits) -> Tensor:
    """Logits (n, C), C ≥ 2, as float64 on the CPU: finite, or −∞ for classes that are masked out, but not for all of them.

    >>> checked_logits(torch.zeros(3, 1))
    Traceback (most recent call last):
    landscope.core.errors.OperandError: expected logits (n, C) of at least two classes, got shape (3, 1). ...
    """
    if isinstance(logits, Probabilities):
        return logits.p.log()
    if isinstance(logits, TokenScores):
        raise NotApplicableError(
            "the probability of every class is needed, and of tokens only the label's and the largest are kept"
        )
    z = _table(logits, "logits", "logit z", "torch.zeros_like(z), z").double()
    bad = ~torch.isfinite(z.amax(1))  # −∞ for all classes; +∞ or NaN for any
    if bool(bad.any()):
        raise DataError(
            f"{int(bad.sum())} of {len(z)} samples have NaN or infinite logits, or −inf for every class (the first is number "
            f"{int(bad.nonzero()[0])}). Their probabilities are not defined: look for a diverged model or overflow in half "
            f"precision."
        )
    return z


def _checked_labels(labels: Array, n: int, classes: int) -> Tensor:
    y = as_tensor(labels, "labels")
    if y.shape == (n, classes) and y.dim() == 2:
        raise OperandError(
            f"expected one class label per sample (n,), got shape {tuple(y.shape)}. For label distributions use the human_… "
            f"functions of landscope.measures.calibration."
        )
    if y.shape != (n,):
        raise OperandError(f"expected labels of shape ({n},), one per row of logits, got {tuple(y.shape)}")
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise LabelRangeError(f"class labels must be integers, got {y.dtype}; convert them with labels.long()")
    y = y.long()
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= classes:
        raise LabelRangeError(
            f"labels run from {low} to {high}, but there are {classes} logits per sample (classes 0 … {classes - 1})"
        )
    return y


def as_tensor(values: Array, what: str) -> Tensor:
    """A tensor on the CPU that shares nothing with autograd."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "fiub":
        return torch.from_numpy(values.astype(values.dtype.newbyteorder("="), order="C", copy=True))
    if isinstance(values, Tensor):
        return values.detach().cpu()
    kind = f"an array of {values.dtype}" if isinstance(values, np.ndarray) else f"a {type(values).__name__}"
    raise OperandError(f"{what} must be a tensor or a NumPy array of numbers, got {kind}")


# Error bars by bootstrap for whatever is a function of sums over samples.
#
# A binned calibration error is a smooth enough function of a few sums (the number of samples and the gap in each bin). Its
# bootstrap redraws the samples with replacement: it weights them by a multinomial draw and adds up again. The
# standard deviation over the draws is the standard error (Efron 1979). Above a thousand samples, random groups of samples
# are redrawn instead of single ones: sums over groups are as independent and as variable as sums over samples, and the
# cost no longer grows with n. The price is 2 % of noise in the error bar, as much as a thousand draws leave anyway.
#
# The mean of numbers per sample needs no draws: there the bootstrap's limit is the usual standard error of a mean.


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
    """Losses per sample whose mean is finite; raise `NotApplicableError` where a label has probability 0."""
    lost = int((~torch.isfinite(losses)).sum())
    if lost:
        raise NotApplicableError(
            f"the {what} is infinite: {whose} of {lost} of {len(losses)} samples has probability 0 (a logit of −inf)"
        )
    return losses


def bootstrap(
    n: int,
    add_up: AddUp,
    statistic: Callable[[Tensor], Tensor],
    resamples: int = 1000,
    seed: int = 0,
    sequence: Tensor | None = None,
) -> Estimate:
    """The statistic of the sums over all n samples, with the standard deviation over `resamples` redrawn data sets.

    Where the samples are tokens of a `sequence` (n,) each, sequences are redrawn with all of their tokens.

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
    whose = None if sequence is None else sequence.unique(return_inverse=True)[1]
    units = n if whose is None else int(whose.max()) + 1
    details: dict[str, Plain] = {"samples": units, **({} if whose is None else {"tokens": n}), "resamples": resamples}
    if units < 2 or resamples == 0:
        return Estimate(value, details=details)
    rng = generator(seed, "bootstrap")
    groups = min(units, GROUPS)
    drawn_group = torch.randperm(units, generator=rng) % groups
    sums = add_up(drawn_group if whose is None else drawn_group[whose], groups)
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


# Bins of confidence: equal widths (lo, hi], or equal numbers of samples.
#
# With n bins of equal width the edges are the fractions k/n, rounded once. A confidence on an edge belongs to the bin below
# it, so exactly 1.0 lies in the last bin; exactly 0 lies in the first. With bins of equal mass, samples of one confidence
# stay together, whatever their order: where many are tied (a saturated model), bins are fewer and uneven.


TIE = 1e-6
"""Confidences that differ by less are the same: equal samples differ by rounding in other batches or on other devices."""


def check_bins(n_bins: int) -> int:
    """A whole number of bins, at least one."""
    if isinstance(n_bins, bool) or not isinstance(n_bins, int) or n_bins < 1:
        raise ValueError(f"n_bins must be a whole number, at least 1, got {n_bins!r}")
    return n_bins


def equal_width_edges(n_bins: int) -> Tensor:
    """0, 1/n, …, 1: exactly the floating-point numbers nearest to the fractions.

    >>> float(equal_width_edges(15)[9]) == 0.6, float(torch.linspace(0, 1, 16, dtype=torch.float64)[3]) == 0.2
    (True, True)
    """
    return torch.arange(n_bins + 1, dtype=torch.float64) / check_bins(n_bins)


def equal_mass_edges(values: Tensor, n_bins: int) -> Tensor:
    """0, then the largest value of each of `n_bins` equal shares of the sorted values, the last being 1.

    >>> equal_mass_edges(torch.tensor([0.9, 0.5, 0.6, 0.8]), 2)
    tensor([0.0000, 0.6000, 1.0000])
    """
    n = len(values)
    last = (torch.arange(1, check_bins(n_bins)) * n + n_bins - 1) // n_bins - 1
    inner = (values.sort().values[last.clamp(min=0)] + TIE).clamp(max=1)
    return torch.cat([values.new_zeros(1), inner, values.new_ones(1)])


def find_bins(values: Tensor, edges: Tensor) -> Tensor:
    """The number k of the bin (edges[k], edges[k + 1]] that holds each value; the first bin includes its lower edge.

    >>> find_bins(torch.tensor([0.0, 0.5, 0.51, 1.0]), torch.tensor([0.0, 0.5, 1.0]))
    tensor([0, 0, 1, 1])
    """
    return (torch.searchsorted(edges, values.contiguous()) - 1).clamp(0, len(edges) - 2)


def binned_sums(bins: Tensor, gap: Tensor, n_bins: int, weight: Tensor | None = None) -> AddUp:
    """For resampling: the number of samples and the sum of their gaps in each bin, (groups, n_bins, 2).

    Bins and gaps (n, C) of several classes count as C · `n_bins` bins, the classes one after the other. A sample may count for
    its `weight` (n,).
    """
    per_sample = bins.reshape(len(bins), -1)
    classes = per_sample.shape[1]
    place = per_sample + n_bins * torch.arange(classes)
    rows = torch.stack([torch.ones_like(gap), gap], -1).reshape(-1, 2)
    rows = rows if weight is None else rows * weight.repeat_interleave(classes)[:, None]

    def add_up(group: Tensor, groups: int) -> Tensor:
        index = (group[:, None] * classes * n_bins + place).flatten()
        return rows.new_zeros(groups * classes * n_bins, 2).index_add_(0, index, rows).view(groups, -1, 2)

    return add_up


def mean_gap(sums: Tensor) -> Tensor:
    """Σ_b n_b/n |mean gap of bin b|, from the sums (…, bins, 2)."""
    return sums[..., 1].abs().sum(-1) / sums[..., 0].sum(-1)

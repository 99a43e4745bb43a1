"""Scores of tokens: samples with many labels each, of which only a few numbers are kept.

A language model has a probability for each of its 50,000 words at every token. What accuracy, log-loss, Brier score and the
binned errors need of them are four numbers: the largest, whether it is the label's, the label's, and Σ p². Tokens of one sequence
are not independent, so error bars are over sequences: with a_i = Σ_t w_t x_t and b_i = Σ_t w_t over the tokens t of sequence i,

    value  Σ_i a_i / Σ_i b_i,     error  √( n/(n − 1) Σ_i (a_i − value · b_i)² ) / Σ_i b_i        (a ratio of two means)

with w = 1 for a mean over tokens, and 1/(tokens of the sequence) for a mean over sequences of their means.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from landscope.core.estimate import Estimate
from landscope.core.json import Plain
from landscope.probe.loss.answers import LabelScores


@dataclass(frozen=True, eq=False)
class TokenScores:
    """One entry per token (k,), in float64 on the CPU, in an order that does not depend on that of the sequences.

    >>> values = torch.tensor([[0.5, 1.0, -0.7, 0.3], [0.6, 0.0, -1.2, 0.4], [0.9, 1.0, -0.1, 0.8]]).double()
    >>> tokens = TokenScores.of(LabelScores(torch.tensor([2, 1]), torch.tensor([1, 4, 2]), values))
    >>> round(tokens.mean(tokens.correct).value, 4), tokens.sequences
    (0.6667, 2)
    >>> by_sequence = TokenScores.of(LabelScores(torch.tensor([2, 1]), torch.tensor([1, 4, 2]), values), by_sequence=True)
    >>> by_sequence.mean(by_sequence.correct).value
    0.75
    """

    labels: Tensor
    confidence: Tensor
    """The largest probability."""
    correct: Tensor
    """1 where it is the label's, otherwise 0."""
    losses: Tensor
    """−log p of the label."""
    brier: Tensor
    """Σ_c (p_c − [c = y])²."""
    sequence: Tensor
    """Whose token it is: 0 … n − 1."""
    weight: Tensor | None
    """What each token counts for; `None`: all the same."""

    @classmethod
    def of(cls, scores: LabelScores, by_sequence: bool = False) -> TokenScores:
        """Sequences sorted by what is known of them; each counts the same `by_sequence`, otherwise each token does."""
        counts = scores.counts
        owner = torch.repeat_interleave(torch.arange(len(counts)), counts)
        sums = torch.zeros(len(counts), 4, dtype=torch.float64).index_add_(0, owner, scores.values.double())
        rank = torch.from_numpy(np.lexsort((*sums.T.numpy(), counts.numpy()))).argsort()
        order = rank[owner].argsort(stable=True)
        owner, values = rank[owner][order], scores.values[order].double()
        confidence, correct, chosen, squares = values.T
        brier = squares - 2 * chosen.exp() + 1
        lengths = counts[rank.argsort()].clamp(min=1).double()
        weight = 1 / lengths[owner] if by_sequence else None
        return cls(scores.labels[order], confidence, correct, -chosen, brier, owner, weight)

    @property
    def sequences(self) -> int:
        """How many sequences have tokens that count."""
        return len(self.sequence.unique())

    def mean(self, values: Tensor, details: dict[str, Plain] | None = None) -> Estimate:
        """The mean of one number per token, with its standard error over sequences."""
        w = torch.ones_like(values) if self.weight is None else self.weight
        owner = self.sequence.unique(return_inverse=True)[1]
        n = int(owner.max()) + 1
        a, b = (torch.zeros(n, dtype=torch.float64).index_add_(0, owner, each) for each in (w * values, w))
        value = float(a.sum() / b.sum())
        spread = float((a - value * b).square().sum())
        error = math.sqrt(n / (n - 1) * spread) / float(b.sum()) if n > 1 else None
        counted: dict[str, Plain] = {"samples": n, "tokens": len(values), **(details or {})}
        return Estimate(value, stderr=error or 0.0, data_stderr=error, details=counted)

"""The definitions once more, as loops over samples in plain Python: slow, and with nothing in common with the package."""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from torch import Tensor


def drawn(n: int, classes: int = 5, spread: float = 1.5, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Logits, and labels drawn from their softmax."""
    rng = torch.Generator().manual_seed(seed)
    z = spread * torch.randn(n, classes, generator=rng, dtype=torch.float64)
    return z, torch.multinomial(z.softmax(1), 1, generator=rng)[:, 0]


def probabilities(row: list[float]) -> list[float]:
    top = max(row)
    raised = [math.exp(v - top) for v in row]
    return [v / sum(raised) for v in raised]


def bin_of(p: float, n_bins: int) -> int:
    """The bin (k/n, (k + 1)/n] that holds p, by exact fractions; 0 lies in the first."""
    return max(0, math.ceil(Fraction(p) * n_bins) - 1)


def gaps(pairs: list[tuple[float, float]], n_bins: int) -> dict[int, tuple[int, float]]:
    """Bin → (samples, |mean of what happened − mean of what was stated|)."""
    held: dict[int, list[tuple[float, float]]] = {}
    for stated, happened in pairs:
        held.setdefault(bin_of(stated, n_bins), []).append((stated, happened))
    return {
        k: (len(some), abs(sum(h for _, h in some) / len(some) - sum(s for s, _ in some) / len(some)))
        for k, some in held.items()
    }


def top_pairs(z: Tensor, y: Tensor) -> list[tuple[float, float]]:
    out = []
    for row, label in zip(z.tolist(), y.tolist(), strict=True):
        p = probabilities(row)
        best = max(range(len(p)), key=lambda c: (row[c], -c))
        out.append((p[best], float(best == label)))
    return out


def class_pairs(z: Tensor, y: Tensor, c: int) -> list[tuple[float, float]]:
    return [(probabilities(row)[c], float(label == c)) for row, label in zip(z.tolist(), y.tolist(), strict=True)]


def ece(z: Tensor, y: Tensor, n_bins: int) -> float:
    return sum(count * gap for count, gap in gaps(top_pairs(z, y), n_bins).values()) / len(z)


def mce(z: Tensor, y: Tensor, n_bins: int) -> float:
    return max(gap for _, gap in gaps(top_pairs(z, y), n_bins).values())


def classwise_ece(z: Tensor, y: Tensor, n_bins: int) -> float:
    classes = z.shape[1]
    each = [sum(k * g for k, g in gaps(class_pairs(z, y, c), n_bins).values()) / len(z) for c in range(classes)]
    return sum(each) / classes


def ace(pairs: list[tuple[float, float]], n_bins: int) -> float:
    """For distinct confidences: the sorted samples dealt into shares, the first ones as large as the last or larger."""
    pairs, n = sorted(pairs), len(pairs)
    total, start = 0.0, 0
    for k in range(n_bins):
        stop = math.ceil(Fraction((k + 1) * n, n_bins))
        total += abs(sum(h - s for s, h in pairs[start:stop]))
        start = stop
    return total / n


def brier(z: Tensor, y: Tensor) -> float:
    return sum(
        sum((p - (c == label)) ** 2 for c, p in enumerate(probabilities(row)))
        for row, label in zip(z.tolist(), y.tolist(), strict=True)
    ) / len(z)


def nll(z: Tensor, y: Tensor) -> float:
    return -sum(math.log(probabilities(row)[label]) for row, label in zip(z.tolist(), y.tolist(), strict=True)) / len(z)

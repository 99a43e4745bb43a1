"""Paper 3's analytical example and its theorem, executed.

Section 2: L = exp(w₁w₂w₃X). With a = w₁w₂w₃X and v = (w₂w₃, w₁w₃, w₁w₂) the Hessian is

    H = eᵃ (X² v vᵀ + X M),   M = [[0, w₃, w₂], [w₃, 0, w₁], [w₂, w₁, 0]]

Equation 3 prints its rank-one part alone, and equation 4 (Tr H = λ₁) is true of that part only: M has no trace, but it moves λ₁.

Theorem 1: where the loss of a network goes to 0, λ₁ does. It rests on a polynomial of the weights that is bounded against the
exponential, which fails where one weight grows while another vanishes: logistic loss, f = w₂w₁ with w₁ = eᵐ, w₂ = m e⁻ᵐ has
loss ln(1 + e⁻ᵐ) ≈ e⁻ᵐ and λ₁ ≥ σ(m)(1 − σ(m)) w₁² ≈ eᵐ.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from landscope.curvature import Hessian
from landscope.probe.probe import Probe

__all__ = ["counterexample", "deep_linear", "lines"]


class _Product(nn.Module):
    """x times the product of scalar weights."""

    def __init__(self, weights: Sequence[float]) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.tensor(float(w), dtype=torch.float64)) for w in weights)

    def forward(self, x: Tensor) -> Tensor:
        """One output for each input."""
        for weight in self.weights:
            x = x * weight
        return x


def _curvature(weights: Sequence[float], target: float, loss: str) -> tuple[float, float, float]:
    """Loss, trace and largest eigenvalue of the whole Hessian, at one datum X = 1."""
    data = (torch.ones(1, 1, dtype=torch.float64), torch.full((1, 1), target, dtype=torch.float64))
    probe = Probe(_Product(weights), data, loss)
    matrix = Hessian(probe).dense()
    return probe.value(), float(matrix.trace()), float(torch.linalg.eigvalsh(matrix)[-1])


def deep_linear(weights: tuple[float, float, float]) -> dict[str, float]:
    """The example at X = 1: loss, Tr H, λ₁, and what equation 4 says that both are.

    >>> found = deep_linear((-2.0, 2.0, 2.0))
    >>> abs(found["trace"] / found["equation 4"] - 1) < 1e-12, found["top"] / found["equation 4"] < 0.95
    (True, True)
    """
    a, b, c = weights
    loss, trace, top = _curvature(weights, -1.0, "exponential")  # exp(−yf) with y = −1
    printed = (b**2 * c**2 + a**2 * b**2 + a**2 * c**2) * math.exp(a * b * c)
    return {"loss": loss, "trace": trace, "top": top, "equation 4": printed}


def counterexample(m: float) -> dict[str, float]:
    """The logistic loss of f = w₂w₁ at w₁ = eᵐ, w₂ = m e⁻ᵐ.

    >>> found = counterexample(20.0)
    >>> found["loss"] < 3e-9, found["top"] > 4e8
    (True, True)
    """
    loss, trace, top = _curvature((math.exp(m), m * math.exp(-m)), 1.0, "binary_cross_entropy")
    return {"loss": loss, "trace": trace, "top": top}


def lines() -> Iterator[str]:
    """Both as tables, for the page of results."""
    yield "## The analytical example and the theorem, executed"
    yield ""
    yield (
        "Section 2 of the paper, L = exp(w₁w₂w₃) at X = 1: equation 3 lacks the off-diagonal terms of the Hessian, so that "
        "Tr H = λ₁ (equation 4) holds of its rank-one part only."
    )
    yield ""
    yield "| w₁, w₂, w₃ | loss | Tr H | λ₁ | equation 4 for both | λ₁ over it |"
    yield "|---|--:|--:|--:|--:|--:|"
    for weights in ((-0.5, 0.5, 0.5), (-1.0, 1.0, 1.0), (-1.0, 1.0, 2.0), (-2.0, 2.0, 2.0), (-3.0, 3.0, 3.0)):
        one = deep_linear(weights)
        shown = ", ".join(f"{w:g}" for w in weights)
        values = " | ".join(f"{one[key]:.4g}" for key in ("loss", "trace", "top", "equation 4"))
        yield f"| {shown} | {values} | {one['top'] / one['equation 4']:.3f} |"
    yield ""
    yield (
        "Theorem 1 (loss → 0 implies λ₁ → 0) rests on weights that stay away from 0. Logistic loss of f = w₂w₁ with w₁ = eᵐ, "
        "w₂ = m e⁻ᵐ: the loss vanishes and λ₁ grows without bound."
    )
    yield ""
    yield "| m | loss | λ₁ |"
    yield "|--:|--:|--:|"
    for m in (1.0, 5.0, 10.0, 20.0):
        one = counterexample(m)
        yield f"| {m:g} | {one['loss']:.2g} | {one['top']:.2g} |"

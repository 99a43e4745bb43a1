"""Second derivatives of every sample's loss along directions, and what they say about the data.

vᵀ H_i v = d²/dt² ℓ_i(θ + t v) by forward mode over forward mode: all samples at once, at about four forward passes per
direction. Their mean over samples is vᵀ H v; their spread is the sampling error of a top eigenvalue (v its vector) or,
over random directions, of a trace.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.func import jvp

from landscope.core.batches import Batch
from landscope.core.errors import DifferentiationError
from landscope.core.ledger import FORWARD
from landscope.core.probe import Probe

__all__ = ["eigenvalue_data_error", "second_derivative_moments", "trace_data_error"]

PASSES = 4 * FORWARD


def second_derivative_moments(probe: Probe, directions: Tensor) -> tuple[Tensor, Tensor] | None:
    """Mean (k,) and covariance (k, k) over samples of v_jᵀ H_i v_j for the rows v_j; `None` where it cannot be had.

    It needs a loss per sample and operations with forward derivatives.
    """
    if probe.loss.reduction != "per_sample" or probe.mode != "eval" or probe.n_samples < 2:
        return None
    theta = dict(probe.params)

    def piece(batch: Batch) -> tuple[Tensor, ...]:
        def along(row: Tensor) -> Tensor:
            v = probe.space.unflatten(row)

            def slope(at: dict[str, Tensor]) -> Tensor:
                return jvp(lambda p: probe.losses(p, batch), (at,), (v,))[1]

            return jvp(slope, (theta,), (v,))[1]

        q = torch.stack([along(row) for row in directions]).double()
        return q.sum(1), q @ q.T

    try:
        total, products = probe.total(piece, load=2.0, passes=PASSES * len(directions), grad=False)
    except (RuntimeError, NotImplementedError) as error:
        if isinstance(error, DifferentiationError):
            raise
        return None
    n = probe.n_samples
    mean = total / n
    return mean, (products / n - torch.outer(mean, mean)) * (n / (n - 1))


def eigenvalue_data_error(probe: Probe, vector: Tensor) -> float | None:
    """Standard error over the data of λ = vᵀ H v: to first order the eigenvalue moves as its Rayleigh quotient."""
    moments = second_derivative_moments(probe, vector[None])
    return None if moments is None else math.sqrt(max(float(moments[1][0, 0]), 0.0) / probe.n_samples)


def trace_data_error(probe: Probe, directions: Tensor) -> float | None:
    """Standard error over the data of the trace, from random ±1 directions.

    The covariance of two independent directions' numbers over samples is the variance of tr H_i without the directions' own
    noise; the mean over pairs is unbiased. Where it comes out negative, because the directions' noise drowns it, their noise
    is left in: an upper bound.
    """
    moments = second_derivative_moments(probe, directions)
    if moments is None or len(directions) < 2:
        return None
    covariance = moments[1]
    k = len(directions)
    between = float(covariance.sum() - covariance.diagonal().sum()) / (k * (k - 1))
    with_noise = float(covariance.sum()) / k**2
    return math.sqrt((between if between > 0 else with_noise) / probe.n_samples)

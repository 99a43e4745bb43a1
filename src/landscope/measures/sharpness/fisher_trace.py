"""The trace of the Fisher matrix, exactly: one squared gradient norm per class and sample.

    tr F = (1/n) Σ_i Σ_c ‖J_iᵀ s_ic‖²,   S_i S_iᵀ = the Fisher matrix at the outputs, s_ic its columns
    cross-entropy          s_ic = √p_ic (e_c − p_i): the gradient for label c, weighted by its probability
    binary cross-entropy   s_ic = √(p_ic (1 − p_ic) / C) e_c
    mean squared error     s_ic = √(2 / C) e_c

C times the cost of per-sample gradient norms (`per_sample_gradients`), nothing of size C × P held.
"""

from __future__ import annotations

import torch
from torch import Tensor

from landscope.core.batches import Batch
from landscope.core.losses import Loss
from landscope.core.probe import Probe
from landscope.measures.sharpness.per_sample import mean_and_error, sums
from landscope.measures.sharpness.per_sample_gradients import linear_layers, squared_gradient_norms

__all__ = ["fisher_trace"]

LINEAR_NORMS, OTHER_NORMS = 1.0, 3.0
"""Passes of the gradient norms of all samples, where all layers are linear and otherwise."""


def fisher_trace(probe: Probe, affordable: float = float("inf")) -> tuple[float, float | None] | None:
    """(tr F, its standard error over the data); `None` where it is not defined or takes more than `affordable` passes.

    >>> W = torch.nn.Linear(1, 2, bias=False)
    >>> torch.nn.init.zeros_(W.weight).shape
    torch.Size([2, 1])
    >>> round(fisher_trace(Probe(W, (torch.ones(3, 1), torch.tensor([0, 1, 1]))))[0], 6)
    0.5
    """
    first = next(probe.batches())
    if not first.divisible or probe.loss.likelihood is None:
        return None
    one = next(first.pieces(1))
    with probe.measuring(), torch.no_grad():
        z = probe.outputs(probe.params, Batch(probe.ready(one.raw), one.size, one.divisible))
    if not isinstance(z, Tensor) or z.dim() != 2:
        return None
    classes = int(z.shape[1])
    layers = {name.rpartition(".")[0] for name in probe.params}
    norms = LINEAR_NORMS if layers <= set(linear_layers(probe)) else OTHER_NORMS
    if classes * norms > affordable:
        return None

    def seeded(outputs: Tensor, targets: object, column: int) -> Tensor:
        along = (_column(outputs.detach(), column, probe.loss.likelihood) * outputs).sum(1)
        weights = probe.loss.sample_weights(outputs, targets)
        return along if weights is None else along * weights.to(along).sqrt()

    twins = [
        probe.with_loss(Loss(lambda z, y, c=c: seeded(z, y, c), "per_sample", name=f"column {c}"))
        for c in range(classes)
    ]

    def piece(batch: Batch) -> tuple[Tensor, ...]:
        return sums(torch.stack([squared_gradient_norms(twin, batch) for twin in twins]).sum(0))

    total, squares = probe.total(piece, load=4.0, passes=classes * norms)
    return mean_and_error(total, squares, probe.n_samples)


def _column(z: Tensor, c: int, likelihood: str | None) -> Tensor:
    """s_c at the outputs z (n, C)."""
    unit = torch.zeros_like(z)
    unit[:, c] = 1
    if likelihood == "categorical":
        p = z.softmax(1)
        return p[:, c : c + 1].sqrt() * (unit - p)
    if likelihood == "bernoulli":
        p = z.sigmoid()
        return unit * (p * (1 - p) / z.shape[1]).sqrt()
    return unit * (2 / z.shape[1]) ** 0.5

"""Relative flatness of a softmax cross-entropy head (Petzka et al. 2021), in closed form.

κ = Σ_{s,s'} ⟨w_s, w_s'⟩ tr H_{s,s'}  =  mean_i ‖φ_i‖² ( Σ_c p_ic ‖w_c‖² − ‖Σ_c p_ic w_c‖² )

The bracket is the variance of the class weights under the prediction: a head is flat where it is sure or where its
classes agree. It is computed as ½ Σ_cc' p_c p_c' ‖w_c − w_c'‖², all of whose terms are positive, so that nothing
cancels where the prediction is nearly certain. With logits over a temperature T, p is taken at T and κ carries 1/T².
The targets do not enter.

One forward pass, O(n·C²) time beside it, O(C²) memory.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from landscope.core.batches import Batch
from landscope.core.ledger import FORWARD
from landscope.core.probe import Probe
from landscope.measures.sharpness.layer_sites import Site, is_over, replaced_output, visits_all
from landscope.measures.sharpness.linear_layer import LinearGeometry
from landscope.measures.sharpness.per_sample import FORWARD_LOAD, sums
from landscope.measures.sharpness.soft_targets import targets_add_up_to_one

__all__ = ["head_curvature", "is_softmax_head", "softmax_head"]

MANY_CLASSES = 4096
"""Above, C² distances would take more room than they save rounding; the variance is then a difference, in float64."""


def class_distances(weight: Tensor) -> Tensor:
    """‖w_c − w_c'‖² for all pairs of rows, in float64 (C, C)."""
    w = weight.double() - weight.double().mean(0)
    norms = w.square().sum(1)
    return (norms[:, None] + norms - 2 * w @ w.T).clamp_(min=0).fill_diagonal_(0)


def head_curvature(features: Tensor, logits: Tensor, weight: Tensor, distances: Tensor | None = None) -> Tensor:
    """Per-sample κ_i; their mean is κ and their spread its sampling error.

    `distances` are `class_distances(weight)`, for callers with many pieces of data.

    >>> import torch
    >>> phi, W = torch.ones(1, 2), torch.eye(2)
    >>> head_curvature(phi, phi @ W.T, W)
    tensor([1.], dtype=torch.float64)
    """
    p = logits.double().softmax(-1)
    if len(weight) <= MANY_CLASSES:
        distances = class_distances(weight) if distances is None else distances
        spread = (p @ distances.to(p.dtype)).mul_(p).sum(1) / 2
    else:
        w = weight.double() - weight.double().mean(0)
        spread = (p @ w.square().sum(1) - (p @ w).square().sum(1)).clamp(min=0)
    return features.double().square().sum(1) * spread


def is_softmax_head(probe: Probe, site: Site) -> bool:
    """Whether the closed form may hold: the layer gives the logits of one softmax per sample, and targets add up to one."""
    if (
        not site.gives_logits
        or probe.loss.likelihood != "categorical"
        or probe.loss.weigh is not None
        or not isinstance(probe.module(site.name), nn.Linear)
    ):
        return False
    return len(site.shape) == 2 and site.shape[0] == site.samples and targets_add_up_to_one(probe)


def softmax_head(probe: Probe, geometry: LinearGeometry, factor: Tensor) -> tuple[Tensor, Tensor] | None:
    """Σ_i κ_i and Σ_i κ_i² over all samples, in one forward pass; `None` where the layer does not give all their logits.

    `factor` (C, r) stands for the class weights: κ needs F Fᵀ = W Wᵀ only, and F = ‖W‖ I gives the layerwise measure.
    """
    rows = factor / probe.temperature
    distances = class_distances(rows) if len(rows) <= MANY_CLASSES else None
    nothing = torch.zeros(1, dtype=torch.float64, device=probe.device)
    inputs: list[Tensor] = []
    outputs: list[Tensor] = []

    def keep(x: Tensor, out: Tensor) -> Tensor:
        inputs.append(x)
        outputs.append(out.clone())  # what follows may work in place
        return out

    def piece(batch: Batch) -> tuple[Tensor, ...]:
        inputs.clear()
        outputs.clear()
        logits = probe.outputs(probe.params, batch)
        assert isinstance(logits, Tensor), "checked by is_softmax_head"
        if not (visits_all(inputs, outputs, batch) and is_over(outputs[0], probe.temperature, logits)):
            return (*sums(nothing), nothing.new_ones(()))
        features = inputs[0] if geometry.scale is None else inputs[0] / geometry.scale
        return (*sums(head_curvature(features, logits, rows, distances)), nothing.sum())

    with replaced_output(geometry.layer, keep):
        total, squares, misfits = probe.total(piece, load=FORWARD_LOAD, passes=FORWARD, grad=False)
    return None if misfits > 0 else (total, squares)

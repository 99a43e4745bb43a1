"""Relative flatness of a softmax cross-entropy head (Petzka et al. 2021), in closed form.

κ = Σ_{s,s'} ⟨w_s, w_s'⟩ tr H_{s,s'}  =  mean_i ‖φ_i‖² ( Σ_c p_ic ‖w_c‖² − ‖Σ_c p_ic w_c‖² )

The bracket is the variance of the class weights under the prediction: a head is flat where it is sure or where its
classes agree. It is computed as ½ Σ_cc' p_c p_c' ‖w_c − w_c'‖², all of whose terms are positive, so that nothing
cancels where the prediction is nearly certain. With logits over a temperature T, p is taken at T and κ carries 1/T².
The targets do not enter. One forward pass, O(n·C²) time beside it, O(C²) memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from landscope.curvature.layer.forms import FormWork
from landscope.curvature.layer.geometry import LinearGeometry
from landscope.curvature.layer.sites import is_over, replaced_output, visits_all
from landscope.probe.batches import Batch
from landscope.probe.probe import Probe
from landscope.probe.shared import FORWARD_LOAD
from landscope.probe.totals import FORWARD

MANY_CLASSES = 4096
"""Above, C² distances would take more memory than their accuracy is worth; the variance is then a difference, in float64."""


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


def curvature_of_rows(geometry: LinearGeometry, weights: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """κ_i as a function of a layer's inputs and of the logits, for many pieces of data."""
    distances = class_distances(weights) if len(weights) <= MANY_CLASSES else None

    def of(inputs: Tensor, logits: Tensor) -> Tensor:
        features = inputs if geometry.scale is None else inputs / geometry.scale
        return head_curvature(features, logits, weights, distances)

    return of


def softmax_head(probe: Probe, geometry: LinearGeometry, factor: Tensor) -> FormWork:
    """κ_i of every sample of a piece (n,), by one forward pass; NaN where the layer does not give all their logits.

    `factor` (C, r) stands for the class weights: κ needs F Fᵀ = W Wᵀ only, and F = ‖W‖ I gives the layerwise measure.
    """
    curvature = curvature_of_rows(geometry, factor / probe.temperature)

    def rows(batch: Batch) -> Tensor:
        inputs: list[Tensor] = []
        outputs: list[Tensor] = []

        def keep(x: Tensor, out: Tensor) -> Tensor:
            inputs.append(x)
            outputs.append(out.clone())  # later layers may work in place
            return out

        with replaced_output(geometry.layer, keep), torch.no_grad():
            logits = probe.outputs(probe.params, batch)
        assert isinstance(logits, Tensor), "checked by is_softmax_head"
        if not (visits_all(inputs, outputs, batch) and is_over(outputs[0], probe.temperature, logits)):
            return torch.full((batch.size,), math.nan, dtype=torch.float64)
        return curvature(inputs[0], logits)

    return FormWork(rows, FORWARD_LOAD, FORWARD)

"""Relative flatness of a softmax cross-entropy head (Petzka et al. 2021), in closed form.

κ = Σ_{s,s'} ⟨w_s, w_s'⟩ tr H_{s,s'}  =  mean_i ‖φ_i‖² ( Σ_c p_ic ‖w_c‖² − ‖Σ_c p_ic w_c‖² )

The bracket is the variance of the class weights under the prediction: a head is flat where it is sure or where its
classes agree. It is computed as ½ Σ_cc' p_c p_c' ‖w_c − w_c'‖², all of whose terms are positive, so that nothing
cancels where the prediction is nearly certain. With logits over a temperature T, p is taken at T and κ carries 1/T².
The targets do not enter, but for positions that they ignore: those of a sequence add up as they do in the loss.

The layerwise measure has ‖W‖² Σ_c p_ic (1 − p_ic) in the place of the bracket. One forward pass, O(n·C²) time beside it and
O(C²) memory; over many classes O(n·C·d) time, a few positions at once, and the logits of no others are held.

This is the layer in its own use: that its weight may be an embedding as well changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from landscope.curvature.layer.forms import FormWork
from landscope.curvature.layer.geometry import LinearGeometry, as_matrix
from landscope.curvature.layer.sites import is_over, replaced_output, visits_all
from landscope.probe.batches import Batch
from landscope.probe.loss.head import masses, strips
from landscope.probe.loss.targets import class_dimension
from landscope.probe.probe import Probe
from landscope.probe.shared import FORWARD_LOAD
from landscope.probe.totals import FORWARD

MANY_CLASSES = 4096
"""Above, C² distances would take more memory than their accuracy is worth; the variance is then a difference, in float64."""

Spread = Callable[[Tensor], Tensor]
"""The bracket of the formula, from probabilities (s, C) in float64: (s,)."""


def class_distances(weight: Tensor) -> Tensor:
    """‖w_c − w_c'‖² for all pairs of rows, in float64 (C, C)."""
    w = weight.double() - weight.double().mean(0)
    norms = w.square().sum(1)
    return (norms[:, None] + norms - 2 * w @ w.T).clamp_(min=0).fill_diagonal_(0)


def class_spread(weight: Tensor, layerwise: bool = False) -> Spread:
    """The bracket for class weights (C, d), or for ‖W‖ I in their place.

    >>> import torch
    >>> p = torch.full((1, 2), 0.5, dtype=torch.float64)
    >>> class_spread(torch.eye(2))(p), class_spread(torch.eye(2), layerwise=True)(p)
    (tensor([0.5000], dtype=torch.float64), tensor([1.], dtype=torch.float64))
    """
    if layerwise:
        size = weight.double().square().sum()

        def apart(p: Tensor) -> Tensor:
            top, at = p.max(1, keepdim=True)
            rest = p.scatter(1, at, 0.0)  # 1 − top without cancelling
            return size * (top[:, 0] * rest.sum(1) + (rest * (1 - rest)).sum(1))

        return apart
    if len(weight) <= MANY_CLASSES:
        distances = class_distances(weight)
        return lambda p: (p @ distances).mul_(p).sum(1) / 2
    w = weight.double() - weight.double().mean(0)
    norms = w.square().sum(1)
    return lambda p: (p @ norms - (p @ w).square().sum(1)).clamp(min=0)


def head_curvature(features: Tensor, logits: Tensor, spread: Spread) -> Tensor:
    """κ_i of every row; their mean is κ and their spread its sampling error.

    >>> import torch
    >>> phi, W = torch.ones(1, 2), torch.eye(2)
    >>> head_curvature(phi, phi @ W.T, class_spread(W))
    tensor([1.], dtype=torch.float64)
    """
    return features.double().square().sum(1) * spread(logits.double().softmax(-1))


def softmax_head(probe: Probe, name: str, geometry: LinearGeometry, spread: Spread) -> FormWork:
    """κ_i of every sample of a piece (n,), by one forward pass; NaN where the layer does not give all their logits."""
    weight = as_matrix(geometry.layer, geometry.layer.weight.detach())

    def seen(batch: Batch) -> tuple[Tensor, Callable[[slice], Tensor]] | None:
        """What the layer is given, position by position, and the logits of some of them."""
        if probe.head is not None and probe.head.name == name and probe.head.is_bare(probe.module("")):
            features, own, bias = probe.head.inputs(probe, probe.params, batch)
            return features, lambda at: F.linear(features[at], own, bias)
        inputs: list[Tensor] = []
        outputs: list[Tensor] = []

        def keep(x: Tensor, out: Tensor) -> Tensor:
            inputs.append(x)
            outputs.append(out.clone())  # later layers may work in place
            return out

        with replaced_output(geometry.layer, keep):
            logits = probe.outputs(probe.params, batch)
        if not (isinstance(logits, Tensor) and visits_all(inputs, outputs, batch)):
            return None
        classes_last = class_dimension(logits, probe.targets(batch), probe.loss.classes_last) == logits.dim() - 1  # type: ignore[arg-type]
        if not (is_over(outputs[0], probe.temperature, logits) and classes_last):
            return None
        each = logits.flatten(0, -2)
        return inputs[0].flatten(0, -2), lambda at: each[at]

    def rows(batch: Batch) -> Tensor:
        with torch.no_grad():
            found = seen(batch)
            if found is None:
                return torch.full((batch.size,), math.nan, dtype=torch.float64)
            features, logits = found
            scaled = features if geometry.scale is None else features / geometry.scale
            kappa = torch.cat([head_curvature(scaled[at], logits(at), spread) for at in strips(features, weight)])
        return (kappa * masses(probe, batch).flatten()).view(batch.size, -1).sum(1)

    return FormWork(rows, FORWARD_LOAD, FORWARD)

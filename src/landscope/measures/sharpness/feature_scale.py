"""The standard deviation of a layer's input features over the data, for measures on normalised features.

σ_j² = mean φ_j² − (mean φ_j)² over all samples and positions, in one forward pass. Nothing is normalised in the model itself:
folding σ into neighbouring layers changes the function wherever a shortcut stands between them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from landscope.core.batches import Batch
from landscope.core.errors import NotApplicableError
from landscope.core.ledger import FORWARD
from landscope.core.probe import Probe
from landscope.measures.sharpness.conv_layer import ConvGeometry
from landscope.measures.sharpness.layer_sites import layer_sites, replaced_output
from landscope.measures.sharpness.linear_layer import LinearGeometry
from landscope.measures.sharpness.per_sample import FORWARD_LOAD

__all__ = ["feature_scale"]


def feature_scale(probe: Probe, name: str, geometry: LinearGeometry | ConvGeometry) -> tuple[Tensor, int]:
    """σ of every input feature (channel of a convolution) in float64, 1 where it is 0; and how many of them are.

    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 2))
    >>> probe = Probe(net, (torch.tensor([[1.0, 5.0], [3.0, 5.0]]), torch.tensor([0, 1])))
    >>> feature_scale(probe, "0", LinearGeometry(probe.module("0")))
    (tensor([1., 1.], dtype=torch.float64), 1)
    """
    if layer_sites(probe)[name].calls == 0:
        raise NotApplicableError(
            f"the weight of {name!r} is used without calling the layer: its features cannot be seen"
        )
    parts: list[Tensor] = []

    def note(x: Tensor, out: Tensor) -> Tensor:
        features = geometry.channels(x.detach()).double().flatten(0, -2)
        count = torch.full_like(features[:1], len(features))
        parts.append(torch.cat((features.sum(0, keepdim=True), features.square().sum(0, keepdim=True), count)))
        return out

    def piece(batch: Batch) -> tuple[Tensor, ...]:
        parts.clear()
        probe.outputs(probe.params, batch)
        return (torch.stack(parts).sum(0),)

    with replaced_output(geometry.layer, note):
        ((total, squares, count),) = probe.total(piece, load=FORWARD_LOAD, passes=FORWARD, grad=False)
    mean, second = total / count, squares / count
    variance = second - mean.square()
    varies = variance > 64 * torch.finfo(torch.float64).eps * second
    return torch.where(varies, variance, torch.ones_like(variance)).sqrt(), int((~varies).sum())

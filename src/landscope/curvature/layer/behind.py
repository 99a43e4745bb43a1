"""Second derivatives of the network behind one layer, with respect to that layer's output.

The layer's output a is cut from what made it: the front of the network runs once, without a graph, and only what follows is
differentiated. Where samples do not mix, ∂²L/∂a² is block-diagonal over them, so one product serves all samples at once:
δ ↦ δ_iᵀ H_i δ_i for every sample i, H_i = ∂²ℓ_i/∂a_i².
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from landscope.core.errors import DifferentiationError
from landscope.core.memory import is_out_of_memory
from landscope.core.torch_fixes.convolutions import plain_derivatives
from landscope.curvature.layer.sites import Layer, replaced_output, some_samples, visits_all
from landscope.probe.batches import Batch
from landscope.probe.probe import Probe
from landscope.probe.shared import once_per_probe
from landscope.probe.totals import saved_bytes

__all__ = ["Behind", "behind_layer", "share_behind"]


@dataclass(frozen=True)
class Behind:
    """The input and output of a layer for one piece of data, and the slope of the loss at that output."""

    inputs: Tensor
    outputs: Tensor
    slope: Tensor
    """Σ_i ∂ℓ_i/∂a, with the graph that differentiates it once more."""

    def forms(self, tangents: Tensor) -> Tensor:
        """δ_iᵀ H_i δ_i for k tangents (k, *a.shape): (k, n), in float64."""
        if not self.slope.requires_grad:  # the loss is linear in a
            return torch.zeros(tangents.shape[:2], dtype=torch.float64, device=tangents.device)
        try:
            products = self._products(tangents, batched=len(tangents) > 1)
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            try:
                products = self._products(tangents, batched=False)
            except RuntimeError as second:
                if is_out_of_memory(second):
                    raise
                raise DifferentiationError(
                    f"what follows the layer cannot be differentiated twice: {str(second).splitlines()[0]}"
                ) from second
        return (tangents * products).flatten(2).sum(2, dtype=torch.float64)

    def _products(self, tangents: Tensor, batched: bool) -> Tensor:
        def pull(seed: Tensor, batched: bool) -> Tensor:
            (product,) = torch.autograd.grad(
                self.slope, self.outputs, seed, retain_graph=True, is_grads_batched=batched, materialize_grads=True
            )
            return product

        return pull(tangents, True) if batched else torch.stack([pull(seed, False) for seed in tangents])


def behind_layer(probe: Probe, layer: Layer, batch: Batch) -> Behind | None:
    """Run a piece of data, cut at the layer's output, and differentiate what follows once.

    `None` where the samples do not go through the layer together, one row for each: then there is no H_i to speak of.
    """
    seen: list[Tensor] = []
    leaves: list[Tensor] = []

    def cut(x: Tensor, out: Tensor) -> Tensor:
        seen.append(x.detach().clone())
        leaves.append(out.detach().requires_grad_())
        return leaves[-1].clone()  # what follows may work in place, which a leaf does not allow

    with replaced_output(layer, cut), plain_derivatives():
        loss = probe.loss_sum(probe.params, batch)
    if not visits_all(seen, leaves, batch):
        return None
    inputs, leaf = seen[0], leaves[0]
    if not loss.requires_grad:
        return Behind(inputs, leaf, torch.zeros_like(leaf))
    (slope,) = torch.autograd.grad(loss, leaf, create_graph=True, allow_unused=True, materialize_grads=True)
    return Behind(inputs, leaf, slope)


@once_per_probe
def share_behind(probe: Probe, layer: str) -> float:
    """Activations kept behind a layer over those of a whole gradient: about what a derivative there costs, in gradients."""
    module = probe.module(layer)
    two, four = some_samples(probe, 2), some_samples(probe, 4)  # a single one may lose its dimension (`squeeze`)
    if four.size == two.size:
        return 1.0

    def whole(batch: Batch) -> int:
        leaves = {name: p.clone().requires_grad_() for name, p in probe.params.items()}
        return saved_bytes(lambda: probe.loss_sum(leaves, batch))

    def behind(batch: Batch) -> int:
        def cut(_: Tensor, out: Tensor) -> Tensor:
            return out.detach().requires_grad_().clone()

        with replaced_output(module, cut):
            return saved_bytes(lambda: probe.loss_sum(probe.params, batch))

    with probe.measuring():
        return max(behind(four) - behind(two), 1) / max(whole(four) - whole(two), 1)

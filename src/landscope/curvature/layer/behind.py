"""One call of a layer, and second derivatives of what follows it, with respect to the layer's output a.

The slope ∂L/∂a is differentiated once more in given directions. Only the graph between a and the loss is walked: nothing in front
of the layer is differentiated twice. The graph is that of a forward pass that has run already (`behind`), or of a piece of a
probe's data, cut at the layer (`behind_layer`). Where `differentiable`, results carry a graph of their own and can be
differentiated a third time, with respect to everything.

Where samples do not act on each other behind the layer, ∂²L/∂a² is block-diagonal over them: one product δ ↦ H δ serves all
samples at once.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from landscope.core.distributed import sum_over_processes
from landscope.core.errors import DifferentiationError
from landscope.core.memory import is_out_of_memory
from landscope.core.seeding import generator, normal
from landscope.core.text import first_line
from landscope.core.torch_fixes.convolutions import plain_derivatives
from landscope.curvature.layer.geometry import Geometry, Layer, as_matrix, geometry_of
from landscope.curvature.layer.sites import replaced_output, visits_all
from landscope.probe.batches import Batch
from landscope.probe.probe import Probe
from landscope.probe.shared import once_per_probe

CHUNK = 16
"""Directions that are differentiated at once. Torch loops over operations without a rule for batches, and differentiating such a
loop takes time that grows with the square of its length."""
NOISE = 100
"""Rounding errors, in units of eps, that a product with exactly separate samples could leave outside its samples."""


@dataclass(frozen=True)
class Call:
    """One call of a layer."""

    layer: Layer
    inputs: Tensor
    outputs: Tensor
    weight: Tensor

    @property
    def geometry(self) -> Geometry:
        """How the weight is used."""
        return geometry_of(self.layer)

    @property
    def samples(self) -> int:
        """Rows of the output."""
        return self.outputs.shape[0]

    @property
    def positions(self) -> int:
        """How often one sample uses the weight: places of a convolution or a sequence."""
        return self.outputs.numel() // max(self.samples * len(self.matrix), 1)

    @property
    def matrix(self) -> Tensor:
        """The weight as a matrix (d, m)."""
        return as_matrix(self.layer, self.weight)


def pulled_back(of: Tensor, to: Tensor, seeds: Tensor, differentiable: bool) -> Tensor:
    """(∂of/∂to)ᵀ s for k seeds s (k, *of.shape): (k, *to.shape), with a graph where `differentiable`.

    Several seeds at once, or one by one where an operation has no rule for batches of them.

    >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> pulled_back(x**2, x, torch.eye(2), differentiable=False)
    tensor([[2., 0.],
            [0., 4.]])
    """

    def pull(seed: Tensor, batched: bool) -> Tensor:
        (found,) = torch.autograd.grad(
            of,
            to,
            seed,
            retain_graph=True,
            create_graph=differentiable,
            is_grads_batched=batched,
            materialize_grads=True,
        )
        return found

    if not of.requires_grad:
        return seeds.new_zeros(len(seeds), *to.shape)
    if len(seeds) > 1:
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", message=".*There is a performance drop because we have not yet implemented"
            )
            try:
                return torch.cat([pull(some, batched=True) for some in seeds.split(CHUNK)])
            except RuntimeError as error:
                if is_out_of_memory(error):
                    raise
    try:
        return torch.stack([pull(seed, batched=False) for seed in seeds])
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        raise DifferentiationError(
            f"what follows the layer cannot be differentiated twice: {first_line(error)}"
        ) from error


@dataclass(frozen=True)
class Behind:
    """∂L/∂a with its graph; products with ∂²L/∂a²."""

    outputs: Tensor
    slope: Tensor
    """Times `scale`."""
    scale: float
    differentiable: bool

    @property
    def dtype(self) -> torch.dtype:
        """What sums are taken in: float32 where the network runs in half precision."""
        return torch.promote_types(self.outputs.dtype, torch.float32)

    def products(self, tangents: Tensor) -> Tensor:
        """∂²L/∂a² δ for k directions δ (k, *a.shape)."""
        found = pulled_back(self.slope, self.outputs, tangents.to(self.outputs.dtype), self.differentiable)
        return found if self.scale == 1.0 else found.to(self.dtype) / self.scale

    def forms(self, tangents: Tensor) -> Tensor:
        """δ_iᵀ H_i δ_i for every sample i, of k directions (k, *a.shape): (k, n), in float64."""
        return (tangents * self.products(tangents)).flatten(2).sum(2, dtype=torch.float64)


def behind(loss: Tensor, outputs: Tensor, differentiable: bool = True) -> Behind:
    """Differentiate a loss once, down to a layer's output.

    In float16 the loss is scaled by about the number of samples: slopes of a mean would fall below the smallest numbers.

    >>> a = torch.tensor([[1.0, 2.0]], requires_grad=True)
    >>> behind(a.pow(3).sum(), a).products(torch.eye(2)[:, None]).detach()
    tensor([[[ 6.,  0.]],
            [[ 0., 12.]]])
    """
    scale = 2.0 ** math.ceil(math.log2(outputs.shape[0])) if outputs.dtype == torch.float16 else 1.0
    if not loss.requires_grad:
        return Behind(outputs, torch.zeros_like(outputs), scale, differentiable)
    scaled = loss if scale == 1.0 else loss * scale
    try:
        (slope,) = torch.autograd.grad(scaled, outputs, create_graph=True, allow_unused=True, materialize_grads=True)
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        raise DifferentiationError(f"the loss cannot be differentiated: {first_line(error)}") from error
    return Behind(outputs, slope, scale, differentiable)


def behind_layer(probe: Probe, layer: Layer, batch: Batch) -> tuple[Call, Behind] | None:
    """Run a piece of data, cut at the layer's output: the front without a graph, what follows differentiated once.

    `None` where the samples do not pass through the layer together, one row for each: then no H_i belongs to one sample.
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
    return Call(layer, seen[0], leaves[0], layer.weight), behind(loss, leaves[0], differentiable=False)


# Whether samples act on each other behind a layer: batch statistics, contrastive losses, graphs.


def samples_mix(at: Behind) -> bool | None:
    """Whether samples of a batch act on each other behind the layer, by second derivatives across them.

    Two samples differ in some binary digit of their numbers: directions in the samples with digit b set, for every b, must
    leave no product in the others. ⌈log₂ n⌉ products. `None` where there is no curvature to decide by, or one sample only.

    >>> a = torch.randn(5, 3, requires_grad=True)
    >>> apart, together = a.pow(4).sum(), a.sum(0).pow(4).sum()
    >>> samples_mix(behind(apart, a)), samples_mix(behind(together, a)), samples_mix(behind(a.sum(), a))
    (False, True, None)
    """
    a = at.outputs
    if a.shape[0] < 2:
        return None
    samples = torch.arange(a.shape[0], device=a.device).view(-1, *[1] * (a.dim() - 1))
    direction, still = normal(a.shape, generator(0, "rows"), at.dtype, a.device), replace(at, differentiable=False)
    leak = kept = 0.0
    for digit in range((a.shape[0] - 1).bit_length()):  # one by one: a batch may fill the memory by itself
        inside = samples >> digit & 1 == 1
        found = still.products((direction * inside)[None])[0].abs()
        leak, kept = max(leak, float((found * ~inside).max())), max(kept, float((found * inside).max()))
    return leak > NOISE * torch.finfo(a.dtype).eps * kept if max(leak, kept) > 0 else None


@once_per_probe
def samples_stay_apart(probe: Probe, layer: str) -> bool:
    """Whether second derivatives behind a layer are known to be those of single samples.

    In eval mode they are: a probe refuses models whose outputs depend on the rest of the batch. With batch statistics,
    normalisation couples the samples, be it a BatchNorm layer or written by hand; the first batch of several samples decides.

    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 2))
    >>> probe = Probe(net, (torch.randn(8, 2), torch.arange(8) % 2), mode="batch_statistics")
    >>> samples_stay_apart(probe, "0"), samples_stay_apart(probe, "2")
    (False, True)
    """
    if probe.mode == "eval":
        return True
    batch = next((batch for batch in probe.batches() if batch.size > 1), None)
    coupled = batch is not None and _couples(probe, layer, batch.prepared(probe.ready))
    return float(sum_over_processes(torch.tensor(float(coupled), device=probe.device))) == 0


def _couples(probe: Probe, layer: str, batch: Batch) -> bool:
    """Whether samples of a batch act on each other behind a layer, or cannot be shown not to."""
    with probe.measuring(), torch.enable_grad():
        try:
            found = behind_layer(probe, probe.module(layer), batch)  # type: ignore[arg-type]
            return found is None or samples_mix(found[1]) is not False
        except DifferentiationError:
            return True

"""Second derivatives of a loss behind one layer, from the graph of a forward pass that has already run.

The slope ∂L/∂a at the layer's output a is differentiated once more in given directions; where `differentiable`, the result
carries its own graph, so that it can be differentiated a third time, with respect to everything. Only the graph between a
and the loss is walked: nothing in front of the layer is differentiated twice.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from landscope.core.errors import DifferentiationError
from landscope.core.memory import is_out_of_memory
from landscope.core.seeding import generator, normal

__all__ = ["Behind", "behind", "pulled_back", "rows_mix"]

CHUNK = 16
"""Seeds at once. Operations without a rule for batches are looped over by torch, and differentiating such a loop takes time that
grows with the square of its length."""
NOISE = 100
"""Rounding errors, in units of eps, that a product with exactly separate rows could leave outside its rows."""


def pulled_back(of: Tensor, to: Tensor, seeds: Tensor, differentiable: bool) -> Tensor:
    """(∂of/∂to)ᵀ s for k seeds s (k, *of.shape): (k, *to.shape), with a graph where `differentiable`.

    Several seeds at once, or one by one where an operation knows no batches of them.

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
            f"what follows the layer cannot be differentiated twice: {str(error).splitlines()[0]}. Attention and recurrent "
            f"layers can if the forward pass runs inside `with fam.ready():`; a compiled model cannot: leave out "
            f"`torch.compile`."
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


def behind(loss: Tensor, outputs: Tensor, differentiable: bool = True) -> Behind:
    """Differentiate a loss once, down to a layer's output, on which it must depend.

    In float16 the loss is scaled by about the number of samples: slopes of a mean would fall below the smallest numbers.

    >>> a = torch.tensor([[1.0, 2.0]], requires_grad=True)
    >>> behind(a.pow(3).sum(), a).products(torch.eye(2)[:, None]).detach()
    tensor([[[ 6.,  0.]],
            [[ 0., 12.]]])
    """
    scale = 2.0 ** math.ceil(math.log2(outputs.shape[0])) if outputs.dtype == torch.float16 else 1.0
    scaled = loss if scale == 1.0 else loss * scale
    try:
        (slope,) = torch.autograd.grad(scaled, outputs, create_graph=True)
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        raise DifferentiationError(
            f"the loss cannot be differentiated: {str(error).splitlines()[0]}. FAM wants the loss before `backward()`, and a "
            f"model that is not compiled."
        ) from error
    return Behind(outputs, slope, scale, differentiable)


def rows_mix(at: Behind) -> bool | None:
    """Whether rows of a batch act on each other behind the layer (batch statistics, contrastive losses, graphs).

    Two rows differ in some binary digit of their numbers: directions in the rows with digit b set, for every b, must leave
    no product in the others. ⌈log₂ n⌉ products. `None` where there is no curvature to tell by, or one row only.

    >>> a = torch.randn(5, 3, requires_grad=True)
    >>> apart, together = a.pow(4).sum(), a.sum(0).pow(4).sum()
    >>> rows_mix(behind(apart, a)), rows_mix(behind(together, a)), rows_mix(behind(a.sum(), a))
    (False, True, None)
    """
    a = at.outputs
    if a.shape[0] < 2:
        return None
    rows = torch.arange(a.shape[0], device=a.device)
    digits = torch.stack([rows >> b & 1 == 1 for b in range((a.shape[0] - 1).bit_length())])
    inside = digits.view(*digits.shape, *[1] * (a.dim() - 1))
    direction = normal(a.shape, generator(0, "rows"), at.dtype, a.device)
    found = Behind(a, at.slope, at.scale, differentiable=False).products(direction * inside).abs()
    leak, kept = (float(part.max()) for part in (found * ~inside, found * inside))
    return leak > NOISE * torch.finfo(a.dtype).eps * kept if max(leak, kept) > 0 else None

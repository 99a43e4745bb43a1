"""The last layer of a language model together with its cross-entropy, a few positions at a time.

Logits z = W φ + b over a vocabulary are the largest tensors of such a model: 50,257 numbers for every token, of which a Hessian
product by automatic differentiation keeps about ten copies. Here they are computed again wherever they are needed, for some
positions at once, and the derivatives of L(φ, W, b) = Σ_s m_s ℓ_s are written out. With p = softmax(z), r = p − e_y and a step
(φ′, W′, b′), z′ = W φ′ + W′ φ + b′:

    ∂L/∂z = m r,    ∂L/∂φ = Wᵀ (m r),    ∂L/∂W = Σ_s m_s r_s φ_sᵀ
    the second derivative along the step:    y = m (p∘z′ − p ⟨p, z′⟩);    φ: Wᵀ y + W′ᵀ (m r),    W: Σ_s y_s φ_sᵀ + m_s r_s φ′_sᵀ

Without the terms in r this is the Gauss–Newton matrix in (φ, W, b). 11 products of the size of the layer in place of 9.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from landscope.core.errors import LandscopeError
from landscope.core.memory import is_out_of_memory
from landscope.probe.loss.targets import IGNORED, kept_labels

if TYPE_CHECKING:
    from landscope.probe.batches import Batch
    from landscope.probe.loss.function import LossFunction, Params
    from landscope.probe.probe import Probe

LARGE_VOCABULARY = 4096
"""Classes from which on logits are not held."""
AT_ONCE = 2**25
"""Logits that are held at once."""
AGREE = 1000
"""Relative difference of the loss either way, in units of the machine epsilon."""

Parts = tuple[Tensor, Tensor, Tensor | None]
"""Features (s, d), weight (V, d) and bias (V,), or a step of them."""


@dataclass(frozen=True)
class Head:
    """The linear layer whose outputs are the logits, by its name."""

    name: str

    def is_bare(self, model: nn.Module) -> bool:
        """Whether nothing looks at what the layer is given and returns, which are no logits here."""
        layer = model.get_submodule(self.name)
        return not (layer._forward_hooks or layer._forward_pre_hooks or "forward" in vars(layer))

    def inputs(self, function: LossFunction, params: Params, batch: Batch) -> Parts:
        """What the layer is given, one row for every position, with its weight and bias; the logits are not computed."""
        with _giving_features(function.module(self.name), last=function.layout.fed is not None) as seen:
            function.call(params, batch)
        (features, weight, bias), *others = seen
        assert not others, "called once, as it was when it was found"
        return features.reshape(-1, features.shape[-1]), weight, bias

    def loss_sum(self, function: LossFunction, params: Params, batch: Batch) -> Tensor:
        """The sum of the loss over the samples of a batch."""
        features, weight, bias = self.inputs(function, params, batch)
        labels, mass = self.labels(function, batch)
        total: Tensor = _Loss.apply(features, weight, bias, labels, mass.to(features))
        return total

    def labels(self, function: LossFunction, batch: Batch) -> tuple[Tensor, Tensor]:
        """The label of every position, and what it counts for in the sum of the loss."""
        targets = function.targets(batch)
        assert isinstance(targets, Tensor), "labels of classes"
        return targets.long().clamp(min=0).flatten(), masses(function, batch).flatten()

    def curved(self, at: Parts, along: Parts, mass: Tensor) -> Parts:
        """The Gauss–Newton matrix of the sum of the loss in features, weight and bias, times a step of them."""
        found, _ = _second_derivative(at, along, mass, None)
        return found


def masses(function: LossFunction, batch: Batch) -> Tensor:
    """What every position counts for in the sum of a cross-entropy over a batch (n, positions), in float64."""
    targets = function.targets(batch)
    assert isinstance(targets, Tensor), "labels or probabilities of classes"
    kept = torch.ones(batch.size, 1, dtype=torch.float64, device=targets.device)
    if not targets.is_floating_point():
        kept = (targets.long() != IGNORED).double().reshape(batch.size, -1)
    mass = kept / kept.sum(1, keepdim=True).clamp(min=1) * function.shares(batch)[:, None]
    return mass if batch.weights is None else mass * batch.weights.double()[:, None]


class _EnoughError(Exception):
    """The rest of a forward pass is not needed."""


@contextmanager
def _giving_features(layer: nn.Module, last: bool) -> Iterator[list[tuple[Tensor, Tensor, Tensor | None]]]:
    """Inside, the layer returns what it is given; every call is noted, with its weight and bias at the time.

    Where it is the `last` layer that is needed, the forward pass ends there: a model that is given labels would go on to compute
    a loss of its own, from logits that are none.
    """
    seen: list[tuple[Tensor, Tensor, Tensor | None]] = []

    def forward(x: Tensor) -> Tensor:
        seen.append((x, layer.weight, layer.bias))  # type: ignore[arg-type]
        if last:
            raise _EnoughError
        return x

    layer.forward = forward
    try:
        yield seen
    except _EnoughError:
        pass
    finally:
        del layer.forward


def find_head(probe: Probe) -> Head | None:
    """The layer, where the loss is a cross-entropy of its outputs as they are, over many classes; `None` elsewhere.

    The loss of a few rows is computed both ways.
    """
    loss = probe.loss
    plain = loss.likelihood == "categorical" and loss.reduction == "per_sample" and loss.mass is kept_labels
    if not (plain and loss.known) or (loss.weigh is not None and loss.share is None):
        return None
    layers = {
        name: module
        for name, module in probe.modules.items()
        if type(module) is nn.Linear
        and module.out_features >= LARGE_VOCABULARY
        and Head(name).is_bare(probe.module(""))
    }
    if not layers or probe.temperature != 1.0:
        return None
    seen: dict[str, Tensor] = {}
    handles = [
        module.register_forward_hook(lambda _, __, out, name=name: seen.__setitem__(name, out))
        for name, module in layers.items()
    ]
    try:
        with probe.measuring(), torch.no_grad():
            outputs = probe.outputs(probe.params, probe.few)
            for handle in handles:
                handle.remove()
            whole = probe.loss_of(outputs, probe.few)
            for name in [name for name, out in seen.items() if isinstance(outputs, Tensor) and _is(out, outputs)]:
                apart = (Head(name).loss_sum(probe, probe.params, probe.few) - whole).abs()
                if bool(apart <= AGREE * torch.finfo(probe.dtype).eps * whole.abs()):
                    return Head(name)
    except (RuntimeError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, LandscopeError) or is_out_of_memory(error):
            raise
    finally:
        for handle in handles:
            handle.remove()
    return None


def _is(out: Tensor, outputs: Tensor) -> bool:
    return out.shape == outputs.shape and out.data_ptr() == outputs.data_ptr() and out.dtype == outputs.dtype


# The loss and its derivatives, some positions at a time.


def strips(features: Tensor, weight: Tensor) -> Iterator[slice]:
    """Positions whose logits are held at once."""
    width = max(1, AT_ONCE // len(weight))
    for start in range(0, len(features), width):
        yield slice(start, start + width)


def _logits(features: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.nn.functional.linear(features, weight, bias)


def _wide(like: Tensor, *tensors: Tensor | None) -> list[Any]:
    """Tensors as wide as another: weights may be held in half precision."""
    return [None if tensor is None else tensor.to(like.dtype) for tensor in tensors]


class _Loss(torch.autograd.Function):
    """Σ_s m_s ℓ_s."""

    @staticmethod
    def forward(
        ctx: Any, features: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, mass: Tensor
    ) -> Tensor:
        ctx.save_for_backward(features, weight, bias, labels, mass)
        total = mass.new_zeros(())
        weight, bias = _wide(features, weight, bias)
        for at in strips(features, weight):
            log_p = _logits(features[at], weight, bias).log_softmax(1)
            total -= mass[at] @ log_p.gather(1, labels[at, None])[:, 0]
        return total

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        features, weight, bias, labels, mass = ctx.saved_tensors
        return (*_Slopes.apply(features, weight, bias, labels, mass * slopes[0]), None, None)


class _Slopes(torch.autograd.Function):
    """The gradient of the sum by features, weight and bias."""

    @staticmethod
    def forward(
        ctx: Any, features: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, mass: Tensor
    ) -> tuple[Tensor | None, ...]:
        ctx.save_for_backward(features, weight, bias, labels, mass)
        held = weight.dtype
        weight, bias = _wide(features, weight, bias)
        by_features, by_weight = torch.empty_like(features), torch.zeros_like(weight)
        by_bias = None if bias is None else torch.zeros_like(bias)
        for at in strips(features, weight):
            slope = _residuals(_logits(features[at], weight, bias).softmax(1), labels[at]).mul_(mass[at, None])
            by_features[at] = slope @ weight
            by_weight.addmm_(slope.T, features[at])
            if by_bias is not None:
                by_bias += slope.sum(0)
        return by_features, by_weight.to(held), None if by_bias is None else by_bias.to(held)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *along: Tensor) -> tuple[Tensor | None, ...]:
        features, weight, bias, labels, mass = ctx.saved_tensors
        step = along[0], along[1], None if bias is None else along[2]
        found, by_mass = _second_derivative((features, weight, bias), step, mass, labels)
        return (*found, None, by_mass)


def _residuals(p: Tensor, labels: Tensor) -> Tensor:
    """P − e_y, in the memory of p."""
    return p.scatter_add_(1, labels[:, None], p.new_full((len(labels), 1), -1.0))


def _second_derivative(at: Parts, along: Parts, mass: Tensor, labels: Tensor | None) -> tuple[Parts, Tensor]:
    """The Hessian of the sum times a step, and ⟨r, z′⟩; with no labels the Gauss–Newton matrix."""
    (features, weight, bias), (to_features, to_weight, to_bias) = at, along
    held = weight.dtype
    weight, bias, to_weight, to_bias = _wide(features, weight, bias, to_weight, to_bias)
    by_features, by_weight, by_mass = [], torch.zeros_like(to_weight), []
    by_bias = None if to_bias is None else torch.zeros_like(to_bias)
    for part in strips(features, weight):
        p = _logits(features[part], weight, bias).softmax(1)
        tangent = _logits(to_features[part], weight, to_bias) + features[part] @ to_weight.T
        mean = (p * tangent).sum(1, keepdim=True)
        curved = p * (tangent - mean) * mass[part, None]
        found = curved @ weight
        by_weight = by_weight + curved.T @ features[part]
        by_bias = None if by_bias is None else by_bias + curved.sum(0)
        if labels is not None:
            del curved
            by_mass.append(mean[:, 0] - tangent.gather(1, labels[part, None])[:, 0])
            slope = _residuals(p, labels[part]).mul_(mass[part, None])
            found = found + slope @ to_weight
            by_weight = by_weight + slope.T @ to_features[part]
        by_features.append(found)
    narrow = by_weight.to(held), None if by_bias is None else by_bias.to(held)
    return (torch.cat(by_features), *narrow), torch.cat(by_mass) if by_mass else mass

"""Changes of the parameters that preserve the function, and how far a measure moves under them.

A sharpness that changes while the function stays the same cannot explain how well the function generalises (Dinh et al. 2017).
The transformations here are found by structure and confirmed numerically: one that changes the outputs is never used.

    layer_rescaling     a hidden layer times a, the next one over a (networks with ReLU-like activations)
    neuron_rescaling    the same with a factor of its own for every hidden neuron or channel
    batchnorm_scaling   the weights before a BatchNorm times a, and its running statistics with them
    permutation         hidden neurons or channels in another order
    logit_shift         one vector added to every row of the classifier, one number to its biases
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from landscope.core.errors import NotApplicableError
from landscope.core.estimate import Estimate, Status
from landscope.core.registry import Registry
from landscope.core.seeding import generator
from landscope.measures.base import Measure
from landscope.probe.batches import Batch, tensors_in
from landscope.probe.probe import Probe

Weighted = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
Edit = Callable[[nn.Module], None]
Candidates = Callable[[Probe, torch.Generator], Iterator[Edit]]

ROUNDING = 1e-4
"""Relative change of the outputs that still counts as rounding; a wrong transformation changes them far more."""

TRANSFORMATIONS: Registry[Candidates] = Registry("function-preserving transformation")


@dataclass(frozen=True)
class Movement:
    """A measure before and after a transformation."""

    before: Estimate
    after: Estimate

    @property
    def change(self) -> float:
        """|after − before| relative to |before|."""
        scale = abs(self.before.value) or 1.0
        return abs(self.after.value - self.before.value) / scale

    @property
    def error(self) -> float:
        """The two estimators' own errors together, on the same scale; not a number where that of a converged value is not known.

        A maximum over random draws is such a value: it differs from seed to seed, and by how much one seed does not tell.
        """
        if any(e.status is Status.CONVERGED and e.stderr is None for e in (self.before, self.after)):
            return math.nan
        scale = abs(self.before.value) or 1.0
        return math.hypot(self.before.stderr or 0.0, self.after.stderr or 0.0) / scale


def movements(measure: Measure, probe: Probe, seed: int = 0) -> dict[str, Movement | None]:
    """How far the measure moves under each transformation; `None` where it does not apply to the model.

    >>> from landscope.measures.sharpness.gradients import L2Norm
    >>> net = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> moved = movements(L2Norm(), Probe(net, (torch.randn(8, 2), torch.arange(8) % 2)))
    >>> moved["permutation"].change < 1e-6, moved["layer_rescaling"].change > 1e-3, moved["batchnorm_scaling"]
    (True, True, None)
    """
    before = measure(probe)
    found: dict[str, Movement | None] = {}
    for name in TRANSFORMATIONS:
        try:
            found[name] = Movement(before, measure(transformed(probe, name, seed)))
        except NotApplicableError:
            found[name] = None
    return found


def transformed(probe: Probe, name: str, seed: int = 0) -> Probe:
    """The same function and data at other parameters, transformed wherever the model allows it."""
    rng = generator(seed, "invariance", name)
    batch = next(next(probe.batches()).pieces(16))
    before, found = _outputs(probe, batch), probe
    with probe.measuring():  # factors are drawn in torch's own type, whatever the caller's
        for edit in TRANSFORMATIONS[name](probe, rng):
            candidate = found.with_model(edit)
            if _same_function(before, _outputs(candidate, batch), up_to_shift=name == "logit_shift"):
                found = candidate
    if found is probe:
        raise NotApplicableError(f"the transformation {name!r} does not apply to any layer of the model")
    return found


def _same_function(before: Tensor, after: Tensor, up_to_shift: bool) -> bool:
    if up_to_shift:
        before, after = (z - z.mean(1, keepdim=True) for z in (before, after))
    return float((after - before).abs().max()) <= ROUNDING * max(1e-12, float(before.abs().max()))


def _outputs(probe: Probe, batch: Batch) -> Tensor:
    with probe.measuring(), torch.no_grad():
        ready = batch.prepared(probe.ready)
        return tensors_in(probe.outputs(probe.params, ready))[0].double()


@dataclass(frozen=True)
class _Pair:
    """Two weight layers, one feeding the other, with the normalisation layers between them."""

    first: str
    between: tuple[str, ...]
    second: str


def _executed(probe: Probe) -> list[tuple[str, nn.Module]]:
    """The linear, convolutional and BatchNorm layers in the order in which they run."""
    order: list[tuple[str, nn.Module]] = []
    handles = []
    for name, module in probe.modules.items():
        if isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, _BatchNorm)):
            handles.append(module.register_forward_hook(lambda m, _a, _o, name=name: order.append((name, m))))
    try:
        _outputs(probe, next(next(probe.batches()).pieces(2)))
    finally:
        for handle in handles:
            handle.remove()
    return order


def _pairs(probe: Probe) -> Iterator[_Pair]:
    order = _executed(probe)
    weighted = [i for i, (_, m) in enumerate(order) if not isinstance(m, _BatchNorm)]
    for i, j in pairwise(weighted):
        second = order[j][1]
        if getattr(second, "groups", 1) == 1 and _inputs(second) % _neurons(order[i][1]) == 0:
            yield _Pair(order[i][0], tuple(name for name, _ in order[i + 1 : j]), order[j][0])


def _neurons(layer: nn.Module) -> int:
    assert isinstance(layer, Weighted)
    return layer.weight.shape[0]


def _inputs(layer: nn.Module) -> int:
    assert isinstance(layer, Weighted)
    return layer.weight.shape[1]


def _scale_rows(layer: nn.Module, factors: Tensor) -> None:
    assert isinstance(layer, Weighted)
    layer.weight.mul_(factors.view(-1, *[1] * (layer.weight.dim() - 1)))
    if layer.bias is not None:
        layer.bias.mul_(factors)


def _scale_columns(layer: nn.Module, factors: Tensor) -> None:
    """Each neuron's factor serves all the columns that it feeds: several after a flattening."""
    assert isinstance(layer, Weighted)
    columns = factors.repeat_interleave(layer.weight.shape[1] // len(factors))
    layer.weight.mul_(columns.view(1, -1, *[1] * (layer.weight.dim() - 2)))


def _rescaling(factors_for: Callable[[int, torch.Generator], Tensor]) -> Candidates:
    def candidates(probe: Probe, rng: torch.Generator) -> Iterator[Edit]:
        for pair in _pairs(probe):
            factors = factors_for(_neurons(probe.module(pair.first)), rng).to(probe.device, probe.dtype)

            def edit(model: nn.Module, pair: _Pair = pair, factors: Tensor = factors) -> None:
                _scale_rows(model.get_submodule(pair.between[-1] if pair.between else pair.first), factors)
                _scale_columns(model.get_submodule(pair.second), 1 / factors)

            if not pair.between:
                yield edit

    return candidates


TRANSFORMATIONS.register("layer_rescaling")(_rescaling(lambda n, _: torch.full((n,), 3.0)))
TRANSFORMATIONS.register("neuron_rescaling")(_rescaling(lambda n, rng: 0.3 + 3 * torch.rand(n, generator=rng)))


@TRANSFORMATIONS.register("batchnorm_scaling")
def _batchnorm_scaling(probe: Probe, _: torch.Generator, factor: float = 3.0) -> Iterator[Edit]:
    order = _executed(probe)
    for (first, layer), (second, norm) in pairwise(order):
        if isinstance(layer, _BatchNorm) or not isinstance(norm, _BatchNorm):
            continue

        def edit(model: nn.Module, first: str = first, second: str = second) -> None:
            layer, norm = model.get_submodule(first), model.get_submodule(second)
            _scale_rows(layer, torch.full((_neurons(layer),), factor).to(probe.device, probe.dtype))
            assert isinstance(norm, _BatchNorm)
            if norm.running_mean is not None and norm.running_var is not None:
                norm.running_mean.mul_(factor)
                norm.running_var.add_(norm.eps).mul_(factor**2).sub_(norm.eps)  # eps does not scale

        yield edit


@TRANSFORMATIONS.register("permutation")
def _permutation(probe: Probe, rng: torch.Generator) -> Iterator[Edit]:
    for pair in _pairs(probe):
        order = torch.randperm(_neurons(probe.module(pair.first)), generator=rng).to(probe.device)

        def edit(model: nn.Module, pair: _Pair = pair, order: Tensor = order) -> None:
            for name in (pair.first, *pair.between):
                for tensor in (*model.get_submodule(name).parameters(), *model.get_submodule(name).buffers()):
                    if tensor.dim() > 0:
                        tensor.copy_(tensor[order])
            weight = model.get_submodule(pair.second).weight
            assert isinstance(weight, Tensor)
            grouped = weight.unflatten(1, (len(order), -1))
            weight.copy_(grouped[:, order].flatten(1, 2))

        yield edit


@TRANSFORMATIONS.register("logit_shift")
def _logit_shift(probe: Probe, rng: torch.Generator) -> Iterator[Edit]:
    if probe.loss.likelihood != "categorical":
        return
    for name, layer in reversed(_executed(probe)):
        if isinstance(layer, nn.Linear):
            shift = torch.randn(layer.in_features, generator=rng).to(probe.device, probe.dtype)

            def edit(model: nn.Module, name: str = name, shift: Tensor = shift) -> None:
                layer = model.get_submodule(name)
                assert isinstance(layer, nn.Linear)
                layer.weight.add_(shift)
                if layer.bias is not None:
                    layer.bias.add_(0.7)

            yield edit
            return

"""The linear and convolutional layers of a model: in which order they run, how often, and on what.

Formulas in a layer's inputs and outputs hold only if the layer does what its type says, once per forward pass, for each sample
by itself, and if its weight is used nowhere else. Two samples rule out most exceptions; other samples may still take a
different path (routed experts, clipped outputs), so code that uses such a formula checks every batch (`visits_all`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import Tensor, nn

from landscope.core.distributed import processes, sum_over_processes
from landscope.core.errors import NotApplicableError
from landscope.curvature.layer.geometry import Geometry, Layer, Linear, is_faithful, nearly_equal
from landscope.probe.batches import Batch, tensors_in
from landscope.probe.probe import Probe
from landscope.probe.rows.outputs import outputs_of
from landscope.probe.shared import FORWARD_LOAD, once_per_probe
from landscope.probe.totals import FORWARD


@dataclass(frozen=True)
class Site:
    """One layer as two samples saw it."""

    name: str
    calls: int
    """How often a forward pass runs it; 0 where its weight is used without calling the layer, or not at all."""
    shape: tuple[int, ...]
    """Of its output."""
    samples: int
    """Of the batch that was run."""
    positions: int
    """How often one sample uses the weight: places of a convolution or a sequence."""
    faithful: bool
    """Its output is W φ + b, not changed by hooks or by a subclass."""
    by_sample: bool
    """Row i of its input and output belongs to sample i alone."""
    gives_logits: bool
    """Its output is the model's output, over the temperature."""


@contextmanager
def replaced_output(module: nn.Module, function: Callable[[Tensor, Tensor], Tensor]) -> Iterator[None]:
    """Inside, the layer's output is `function(input, output)`; the hook is gone afterwards, whatever happens.

    A layer that gives anything but a tensor is left alone, and counts as never called.
    """

    def hook(_: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor], output: object) -> Tensor | None:
        if not isinstance(output, Tensor):
            return None
        return function(args[0] if args else next(iter(kwargs.values())), output)

    handle = module.register_forward_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def visits_all(inputs: list[Tensor], outputs: list[Tensor], batch: Batch) -> bool:
    """Whether a batch went through a layer in one call, with one row of its input and output for each sample."""
    return len(inputs) == len(outputs) == 1 and inputs[0].shape[:1] == outputs[0].shape[:1] == (batch.size,)


def some_samples(probe: Probe, count: int) -> Batch:
    """The first `count` samples of this process, or the first batch where batches cannot be cut."""
    piece = next(next(probe.batches()).pieces(count))
    return piece.prepared(probe.ready)


class _Visits:
    """What a forward pass did at every layer: shapes of inputs and outputs, in the order of the last call."""

    def __init__(self, probe: Probe, batch: Batch) -> None:
        self.order: list[str] = []
        self.shapes: dict[str, list[tuple[torch.Size, torch.Size]]] = {}
        self.faithful: dict[str, bool] = {}
        self.last: dict[str, Tensor] = {}
        with probe.measuring(), torch.no_grad(), ExitStack() as stack:
            for name, module in probe.modules.items():
                if isinstance(module, Layer):
                    stack.enter_context(replaced_output(module, self._note(name, module)))
            outputs = probe.outputs(probe.params, batch)
        self.logits = {
            name
            for name, out in self.last.items()
            if isinstance(outputs, Tensor) and is_over(out, probe.temperature, outputs)
        }
        self.last.clear()

    def _note(self, name: str, module: Layer) -> Callable[[Tensor, Tensor], Tensor]:
        def note(x: Tensor, out: Tensor) -> Tensor:
            self.order.append(name)
            self.shapes.setdefault(name, []).append((x.shape, out.shape))
            self.last[name] = out.clone()
            self.faithful[name] = self.faithful.get(name, True) and is_faithful(module, x, out)
            return out

        return note


def is_over(out: Tensor, temperature: float, outputs: Tensor) -> bool:
    """Whether the model's outputs are a layer's output over the temperature, bit for bit."""
    return torch.equal(out if temperature == 1.0 else out / temperature, outputs)


@once_per_probe
def layer_sites(probe: Probe) -> dict[str, Site]:
    """Every linear and convolutional layer in the order in which they run (by their last call); unused ones come first.

    Two forward passes over two samples.
    """
    two, one = some_samples(probe, 2), some_samples(probe, 1)
    seen = _Visits(probe, two)
    alone = _Visits(probe, one) if two.divisible and two.size == 2 else seen
    last_run = {name: at for at, name in enumerate(seen.order)}
    names = [name for name, module in probe.modules.items() if isinstance(module, Layer)]

    def site(name: str) -> Site:
        visits = seen.shapes.get(name, [])
        if not visits:
            return Site(name, 0, (), two.size, 0, False, False, False)
        (x, out), (x1, out1) = visits[0], alone.shapes.get(name, visits)[0]
        rows = x[:1] == out[:1] == (two.size,) and x1[:1] == out1[:1] == (one.size,) and x[1:] == x1[1:]
        if not two.divisible:  # a graph has no rows to compare; for batch statistics, see `samples_stay_apart`
            rows = rows and probe.mode == "batch_statistics"
        channels = out[-1] if isinstance(probe.modules[name], Linear) else out[1] if len(out) > 1 else 1
        positions = out.numel() // max(out[0] * channels, 1) if len(out) > 1 else 1
        logits = name in seen.logits
        return Site(name, len(visits), tuple(out), two.size, positions, seen.faithful[name], rows, logits)

    return _agreed({name: site(name) for name in sorted(names, key=lambda name: last_run.get(name, -1))})


def _agreed(sites: dict[str, Site]) -> dict[str, Site]:
    """What holds for the samples of every process, in the order of the first, so that all go the same way."""
    if processes() == 1:
        return sites
    gathered: list[dict[str, Site]] = [{} for _ in range(processes())]
    dist.all_gather_object(gathered, sites)

    def together(first: Site) -> Site:
        seen = [each[first.name] for each in gathered]
        return replace(
            first,
            calls=max(site.calls for site in seen),
            positions=max(site.positions for site in seen),
            faithful=all(site.faithful for site in seen),
            by_sample=all(site.by_sample for site in seen),
            gives_logits=all(site.gives_logits for site in seen),
        )

    return {name: together(site) for name, site in gathered[0].items()}


def default_layer(probe: Probe) -> str:
    """The classifier: the linear layer that gives the outputs, else the last linear one that runs, else the last conv."""
    ran = [site for site in layer_sites(probe).values() if site.calls]
    linear = [site for site in ran if isinstance(probe.modules[site.name], Linear)]
    chosen = [site for site in linear if site.gives_logits] or linear or ran
    if not chosen:
        raise NotApplicableError(
            "relative flatness is defined for a linear or convolutional layer, and this model runs none (nn.Linear, nn.Conv1d, "
            "nn.Conv2d, nn.Conv3d)"
        )
    return chosen[-1].name


def weight_name(probe: Probe, layer: str) -> str | None:
    """The name under which the model holds the layer's weight; `None` where it is computed (weight norm, parametrisations)."""
    module = probe.module(layer)
    weight = module._parameters.get("weight")
    return next((name for name, p in probe.modules[""].named_parameters() if p is weight), None)


def used_once(probe: Probe, layer: str) -> bool:
    """Whether the weight acts through one call of the layer only."""
    return layer_sites(probe)[layer].calls == 1 and has_own_weight(probe, layer)


@once_per_probe
def has_own_weight(probe: Probe, layer: str) -> bool:
    """Whether the weight acts through calls of the layer only; a weight that is computed from others does.

    Its outputs are held fixed while the weight is doubled: neither the layer's inputs nor the model's outputs may notice. Finds
    tied weights and weights that are used without calling the layer, before it or after it.
    """
    calls = layer_sites(probe)[layer].calls
    name = weight_name(probe, layer)
    if name is None:
        return True
    module, batch = probe.module(layer), some_samples(probe, 2)
    weight = module.get_parameter("weight")
    held_by = [key for each in probe.modules.values() for key, p in each._parameters.items() if p is weight]
    if not calls or len(held_by) > 1:
        return False
    held: list[Tensor] = []
    inputs: list[Tensor] = []

    def keep(x: Tensor, out: Tensor) -> Tensor:
        inputs.append(x.clone())
        if len(inputs) <= calls:
            held.append(out.clone())
        return held[(len(inputs) - 1) % calls].clone()

    with probe.measuring(), torch.no_grad(), replaced_output(module, keep):
        doubled = {**probe.params, name: 2 * weight.detach()}
        before, after = (tensors_in(probe.outputs(params, batch)) for params in (probe.params, doubled))
    rounding = 100 * torch.finfo(probe.dtype).eps  # some GPU kernels add up in varying order
    pairs = [*zip(before, after, strict=True), *zip(inputs[:calls], inputs[calls:], strict=False)]
    moved = len(inputs) != 2 * calls or any(not nearly_equal(a, b, rounding) for a, b in pairs)
    return float(sum_over_processes(torch.tensor(float(moved), device=probe.device))) == 0


def feature_scale(probe: Probe, name: str, geometry: Geometry) -> tuple[Tensor, int]:
    """σ of every input feature (channel of a convolution) in float64, 1 where it is 0; and how many of them are.

    σ_j² = mean φ_j² − (mean φ_j)² over all samples and positions, in one forward pass, which is that of the outputs where the
    layer is the last one. Nothing is normalised in the model itself: folding σ into neighbouring layers would change the function
    wherever a shortcut passes between them.

    >>> from landscope.curvature.layer.geometry import geometry_of
    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 2))
    >>> probe = Probe(net, (torch.tensor([[1.0, 5.0], [3.0, 5.0]]), torch.tensor([0, 1])))
    >>> feature_scale(probe, "0", geometry_of(probe.module("0")))
    (tensor([1., 1.], dtype=torch.float64), 1)
    """
    if layer_sites(probe)[name].calls == 0:
        raise NotApplicableError(
            f"the model uses the weight of {name!r} without calling the layer: its features are not visible"
        )
    features = _features_of_last(probe, name)
    total, squares, count = _sums(features) if features is not None else _feature_sums(probe, geometry)
    mean, second = total / count, squares / count
    variance = second - mean.square()
    varies = variance > 64 * torch.finfo(torch.float64).eps * second
    return torch.where(varies, variance, torch.ones_like(variance)).sqrt(), int((~varies).sum())


def _sums(features: Tensor) -> Tensor:
    """Σ φ, Σ φ² and their number, of every feature (3, d) in float64."""
    rows = features.double().flatten(0, -2)
    return torch.stack((rows.sum(0), rows.square().sum(0), torch.full_like(rows[0], len(rows))))


def _features_of_last(probe: Probe, name: str) -> Tensor | None:
    """What the model's last layer is given, from the forward pass that everything shares; `None` for other layers."""
    if processes() > 1 or not layer_sites(probe)[name].gives_logits:
        return None
    outputs = outputs_of(probe)
    while outputs.advance():
        if outputs.head != name:
            return None
    features = outputs.features if outputs.head == name else None
    return None if features is None else features.to(probe.device)


def _feature_sums(probe: Probe, geometry: Geometry) -> Tensor:
    """The sums of what a layer is given."""
    parts: list[Tensor] = []

    def note(x: Tensor, out: Tensor) -> Tensor:
        parts.append(_sums(geometry.channels(x.detach())))
        return out

    def piece(batch: Batch) -> tuple[Tensor, ...]:
        parts.clear()
        probe.outputs(probe.params, batch)
        return (torch.stack(parts).sum(0),)

    with replaced_output(geometry.layer, note):
        (found,) = probe.total(piece, load=FORWARD_LOAD, passes=FORWARD, grad=False)
    return found

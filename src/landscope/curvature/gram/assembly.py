"""Θ = J Jᵀ of a batch, layer by layer: which layers follow a rule, and the backward passes that feed the rules.

A rule is used where it has proved itself on the batch at hand. One backward pass from random outputs of a random half of the
samples decides: the gradient that the rule makes of a layer's inputs and output gradients must be autograd's, and the output
gradients of the other half must be zero, or the first dimension is not the samples. Whatever a model does with its
weights elsewhere (tied or reparametrised weights, functional uses, samples sorted or laid along another dimension) shows there,
and such parameters go through rows of J.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from landscope.core.seeding import generator, rademacher
from landscope.curvature.gram.jacobian import add_jacobian, backward_rows
from landscope.curvature.gram.layers import LayerRule, rule_for
from landscope.probe.batches import Batch
from landscope.probe.probe import Probe
from landscope.probe.totals import saved_bytes

CANCELLATION = 64
"""Rounding of a sum over samples in units of the machine epsilon times the norms of its factors."""

OutputFunction = Callable[[Mapping[str, Tensor], Batch], Tensor]


@dataclass
class _Uses:
    """The uses of one layer in a forward pass: its inputs, and where its outputs enter the graph."""

    inputs: list[Tensor] = field(default_factory=list)
    edges: list[GradientEdge] = field(default_factory=list)
    shapes: list[torch.Size] = field(default_factory=list)


@dataclass(frozen=True)
class _Recorded:
    """Outputs (n, C) of a piece with their graph, and the uses of the layers that fit their rules in it."""

    z: Tensor
    leaves: Mapping[str, Tensor]
    uses: Mapping[str, _Uses]

    def pull_back(
        self, layers: Sequence[str], seeds: Tensor, names: Sequence[str] = ()
    ) -> tuple[dict[str, list[Tensor]], dict[str, Tensor]]:
        """∂⟨seed, z⟩ for k seeds (k, n, C): by every use's output, (k, n, …), and by the named parameters, (k, …)."""
        edges = [edge for layer in layers for edge in self.uses[layer].edges]
        shapes = [shape for layer in layers for shape in self.uses[layer].shapes]
        leaves = [self.leaves[name] for name in names]
        found = backward_rows(self.z, [*edges, *leaves], seeds)
        shapes += [leaf.shape for leaf in leaves]
        grads = iter([self.z.new_zeros(len(seeds), *s) if g is None else g for g, s in zip(found, shapes, strict=True)])
        by_use = {layer: [next(grads) for _ in self.uses[layer].edges] for layer in layers}
        return by_use, dict(zip(names, grads, strict=True))


def jacobian_gram(probe: Probe, batch: Batch, outputs: OutputFunction, size: int, room: int) -> Tensor:
    """Θ (nC, nC) in float64 for a batch of n samples with C = `size` outputs each, in about `room` bytes beside it.

    The samples of a divisible batch do not depend on each other. A quarter of the room each for activations, the output
    gradients of a chunk of classes, what is kept of them, and products.
    """
    room = max(1, room // 4)
    theta = torch.zeros(batch.size * size, batch.size * size, dtype=torch.float64, device=probe.device)
    per_sample = _activation_bytes(probe, batch, outputs)
    rules = rules_of(probe) if batch.divisible else {}
    done: set[str] = set()
    if rules:
        pieces = list(batch.pieces(max(1, int(room / per_sample))))
        first = record(probe, pieces[0], outputs, rules)
        layers = prove(probe, first, rules)
        rows = batch.size * size * torch.finfo(probe.dtype).bits // 8
        for group in _groups({layer: math.prod(tail) * rows for layer, tail in layers.items()}, room):
            kept = {layer: first.z.new_zeros(batch.size, size, *layers[layer]) for layer in group}
            chosen = {layer: rules[layer] for layer in group}
            inputs: dict[str, list[list[Tensor]]] = {layer: [] for layer in group}
            start = 0
            for piece in pieces:
                recorded, proven = first, layers
                if len(pieces) > 1:
                    recorded = record(probe, piece, outputs, chosen)
                    proven = prove(probe, recorded, chosen)
                chosen = {layer: rule for layer, rule in chosen.items() if proven.get(layer) == layers[layer]}
                at_once = max(1, int(room / (per_sample * piece.size)))
                _fill(recorded, chosen, kept, start, at_once)
                for layer in chosen:
                    inputs[layer].append(recorded.uses[layer].inputs)
                start += piece.size
            for layer, rule in chosen.items():
                rule.add(theta, [torch.cat(parts) for parts in zip(*inputs[layer], strict=True)], kept.pop(layer), room)
                done.update(rule.names)
        del first
    rest = [name for name in probe.params if name not in done]
    add_jacobian(theta, probe, batch, rest, per_sample=per_sample, room=room)
    return theta.triu_().add_(theta.triu(1).T)


def _activation_bytes(probe: Probe, batch: Batch, outputs: OutputFunction) -> float:
    """What one sample's forward pass keeps for the backward pass: what two samples keep more than one.

    An indivisible batch keeps parameters too, which counts them among its activations.
    """
    leaves = _leaves(probe)
    one, two = (next(batch.pieces(size)) for size in (1, 2))
    kept = saved_bytes(lambda: outputs(leaves, two))
    if two.size > one.size:
        return max(kept - saved_bytes(lambda: outputs(leaves, one)), 64)
    return max(kept, 64) / two.size


def _leaves(probe: Probe) -> dict[str, Tensor]:
    return {name: p.detach().requires_grad_() for name, p in probe.params.items()}


def rules_of(probe: Probe) -> dict[str, LayerRule]:
    """Rules by layer; layers that share a parameter have none."""
    first_name = {id(p): name for name, p in probe.module("").named_parameters()}
    rules: dict[str, LayerRule] = {}
    owners: dict[str, list[str]] = {}
    for layer, module in probe.modules.items():
        own = {key: first_name[id(p)] for key, p in module.named_parameters(recurse=False)}
        measured = {key: name for key, name in own.items() if name in probe.params}
        for name in measured.values():
            owners.setdefault(name, []).append(layer)
        rule = rule_for(module, measured)
        if rule is not None:
            rules[layer] = rule
    tied = {layer for layers in owners.values() if len(layers) > 1 for layer in layers}
    return {layer: rule for layer, rule in rules.items() if layer not in tied}


def record(probe: Probe, piece: Batch, outputs: OutputFunction, rules: Mapping[str, LayerRule]) -> _Recorded:
    """Run a piece forward and note what the layers are given and where their outputs go."""
    uses: dict[str, _Uses] = {}
    misfits: set[str] = set()
    leaves = _leaves(probe)
    with ExitStack() as stack:
        for layer, rule in rules.items():
            stack.enter_context(_hook(layer, rule, piece.size, uses, misfits))
        z = outputs(leaves, piece).reshape(piece.size, -1)
    return _Recorded(z, leaves, {layer: found for layer, found in uses.items() if layer not in misfits})


@contextmanager
def _hook(layer: str, rule: LayerRule, n: int, uses: dict[str, _Uses], misfits: set[str]) -> Iterator[None]:
    def note(_: nn.Module, args: tuple[object, ...], kwargs: dict[str, object], y: object) -> None:
        x = args[0] if args else next(iter(kwargs.values()), None)
        if not (isinstance(x, Tensor) and isinstance(y, Tensor) and y.requires_grad):
            misfits.add(layer)
            return
        if not (x.shape[:1] == y.shape[:1] == (n,) and rule.fits(x, y)):
            misfits.add(layer)
            return
        found = uses.setdefault(layer, _Uses())
        found.inputs.append(x.detach())
        found.edges.append(get_gradient_edge(y))  # stays what it is when y is later changed in place
        found.shapes.append(y.shape)

    handle = rule.module.register_forward_hook(note, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def prove(probe: Probe, recorded: _Recorded, rules: Mapping[str, LayerRule]) -> dict[str, tuple[int, ...]]:
    """The layers whose rule gives autograd's gradient here, with the shape of what they keep per row of Θ."""
    z, uses = recorded.z, recorded.uses
    rng = generator(probe.seed, "gram")
    half = (torch.randperm(len(z), generator=rng) < (len(z) + 1) // 2).to(z.device)
    seed = rademacher(z.shape, rng, z.dtype, z.device) * half[:, None]
    names = [name for layer in uses for name in rules[layer].names]
    if not names or not z.requires_grad:
        return {}
    grads, truth = recorded.pull_back(list(uses), seed[None], names)
    eps = torch.finfo(z.dtype).eps
    proven: dict[str, tuple[int, ...]] = {}
    for layer, use in uses.items():
        if any(bool(grad[0][~half].any()) for grad in grads[layer]):
            continue
        sums, bound = rules[layer].total(use.inputs, grads[layer])
        ruled = torch.cat([sums[name] for name in rules[layer].names])
        scale, error = ruled.norm(), (ruled - torch.cat([truth[name].flatten() for name in rules[layer].names])).norm()
        if bool(error <= eps**0.5 * scale + CANCELLATION * eps * bound):
            proven[layer] = rules[layer].kept_shape(grads[layer])
    return proven


def _groups(bytes_of: Mapping[str, int], room: int) -> list[list[str]]:
    """Consecutive layers that can be kept at once, at least one per group.

    >>> _groups({"a": 2, "b": 2, "c": 3, "d": 9}, 5)
    [['a', 'b'], ['c'], ['d']]
    """
    groups: list[list[str]] = []
    held = 0
    for layer, size in bytes_of.items():
        if groups and held + size <= room:
            groups[-1].append(layer)
            held += size
        else:
            groups.append([layer])
            held = size
    return groups


def _fill(
    recorded: _Recorded, rules: Mapping[str, LayerRule], kept: Mapping[str, Tensor], start: int, at_once: int
) -> None:
    """Fill in the rows of a piece, `at_once` outputs at a time."""
    n, size = recorded.z.shape
    classes = torch.eye(size, dtype=recorded.z.dtype, device=recorded.z.device)
    for low in range(0, size, at_once):
        seeds = classes[low : low + at_once, None].expand(-1, n, -1)
        grads, _ = recorded.pull_back(list(rules), seeds)
        for layer, rule in rules.items():
            part = rule.keep(recorded.uses[layer].inputs, grads.pop(layer))
            kept[layer][start : start + n, low : low + at_once] = part

"""Are the model's second derivatives true? Automatic differentiation is trusted, but checked once.

A custom backward pass that forgets part of its graph, or a wrong formula in a library (the fused weight norm of torch
2.13), gives a Hessian that looks fine and is not. Before the first product, the product with a random vector on a few
samples is compared with a difference quotient of the gradient, (∇L(θ + hv) − ∇L(θ)) / h, in float64: four gradients of
these samples. Where a copy in float64 would be large, the precision is the model's own, the step larger, and the parameters are
the first of each kind. Where the two disagree, further quotients tell a kink from an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from landscope.core.errors import DifferentiationError
from landscope.core.seeding import generator
from landscope.core.torch_fixes.padding import padding_rows
from landscope.curvature.differentiation import gradient_graph, leaves_of, pull_back
from landscope.curvature.multi_affine import is_multi_affine
from landscope.probe.first_derivatives import graph_behind
from landscope.probe.probe import Probe

SAMPLES = 4
"""A batch that cannot be cut to this many is not looked at."""
ATTEMPTS = 3
"""Directions that are tried; one that agrees is enough, since a wrong Hessian agrees in none."""
STEP = {torch.float64: 1e-7, torch.float32: 1e-3}
"""Relative size of the step: small enough that hardly any rectifier switches, large enough for float64; in float32 a quotient
along a random direction is then right to 3e-4 (GPT-2)."""
LARGE = 2**24
"""Parameters from which on the precision is the model's own."""
MANY = 2**20
"""Parameters from which on a smooth network is looked at in its own precision first: that takes half of the time."""
FINER = 4
"""A second step is this many times smaller: at a kink two quotients differ, and neither says anything."""
NEARBY = 1e-2
"""How far a second point lies, relative to the parameters: off the kinks."""
WARM = 16.0
"""A temperature at which rows are not sure that are sure to rounding: their logits are 30 to 45 apart."""
ALLOWED = 0.05
"""Relative difference that is not yet an error; a true Hessian gives about 1e-6, a wrong one is off by tenths."""


@dataclass(frozen=True)
class _Verdict:
    """What was found for some parameters and a loss: by how much second derivatives are wrong, 0 where they are right."""

    params: frozenset[str]
    loss: Callable[..., Tensor]
    wrong_by: float

    def holds_for(self, probe: Probe) -> bool:
        """What is right stays right for fewer parameters; what is wrong need not be wrong for them."""
        params = frozenset(probe.space.names)
        return self.loss is probe.loss.function and (params == self.params if self.wrong_by else params <= self.params)


_verdicts: WeakKeyDictionary[nn.Module, list[_Verdict]] = WeakKeyDictionary()


def check_second_derivatives(probe: Probe) -> None:
    """Raise `DifferentiationError` if automatic second derivatives disagree with difference quotients.

    They are compared once; what was found is remembered with the model, and raised again each time.
    """
    known = _verdicts.setdefault(probe.module(""), [])
    verdict = next((verdict for verdict in known if verdict.holds_for(probe)), None)
    if verdict is None:
        verdict = _Verdict(frozenset(probe.space.names), probe.loss.function, _wrong_by(probe))
        known.append(verdict)
    if verdict.wrong_by:
        raise DifferentiationError(
            f"automatic differentiation gives second derivatives that differ from difference quotients of the gradient by "
            f"{100 * verdict.wrong_by:.0f} %. An operation of the model or the loss has a backward pass whose own derivative "
            f"is wrong or cut off (a custom torch.autograd.Function, .detach(), .data or .item() on the way). GGN needs first "
            f"derivatives only."
        )


def _wrong_by(probe: Probe) -> float:
    """The smallest relative difference over a few directions; 0 where it is allowed or not available."""
    try:
        few = probe.few
        if few.size > SAMPLES:
            return 0.0
        if MANY <= probe.n_params < LARGE and probe.dtype != torch.float64 and not is_multi_affine(probe):
            found = _difference(probe.at_batch(few, probe.dtype), 0, 0.0)
            if found is not None and found <= ALLOWED:
                return 0.0
        twin = probe.at_batch(few, torch.float64 if probe.n_params < LARGE else probe.dtype)
        if probe.n_params >= LARGE:
            twin = twin.restrict(_of_each_kind(probe))
        wrong_by = _least_difference(twin)
        if wrong_by and twin.loss.known and twin.loss.likelihood in ("categorical", "bernoulli"):
            return _least_difference(twin.at_temperature(WARM))  # p − y of a sure row is rounded in steps
        return wrong_by
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        return 0.0  # the model insists on its own precision, or cannot be differentiated: the product will say so


def _least_difference(twin: Probe) -> float:
    for shift in (0.0, NEARBY):  # at a kink nothing can be compared: then nearby
        differences = []
        for attempt in range(ATTEMPTS):
            found = _difference(twin, attempt, shift)
            if found is not None and found <= ALLOWED:
                return 0.0
            if found is not None:
                differences.append(found)
        if differences:
            return min(differences) if min(differences) > ALLOWED else 0.0  # NaN says nothing
    return 0.0


def _of_each_kind(probe: Probe) -> list[str]:
    """The first parameter of each kind (of layer, name and dimension): what lies behind them is most of the model."""
    first: dict[object, str] = {}
    for name, p in probe.params.items():
        layer, _, key = name.rpartition(".")
        first.setdefault((type(probe.modules[layer]), key, p.dim()), name)
    return list(first.values())


def _difference(probe: Probe, attempt: int, shift: float) -> float | None:
    """Relative difference between the product and the difference quotient, in units of their size or of rounding.

    `None` where the quotient has no limit, or another one on each side, so that there is nothing to compare with.
    """
    space, batch = probe.space, next(probe.batches())
    at = {name: p.to(probe.dtype) for name, p in probe.params.items()}
    with probe.measuring():
        (v,) = probe.vectors.signs(1, generator(attempt, "second derivatives"), probe.dtype, probe.device)
        size, norm = _size(probe, at), probe.vectors.norms
        if attempt == ATTEMPTS - 1 and size:
            v *= probe.vector().abs()  # weights near 0 keep their signs, and rectifiers behind them their sides
        ways = space.unflatten(_without_padding(probe, v))
        if shift:
            (away,) = probe.vectors.signs(1, generator(attempt, "second derivatives nearby"), v.dtype, v.device)
            by = space.unflatten(_without_padding(probe, away))
            each = shift * (size / probe.n_params**0.5 or 1.0)
            at = {name: p.add(by[name], alpha=each) for name, p in at.items()}

        def gradient(step: float) -> Tensor:
            leaves = {name: p.add(ways[name], alpha=step).requires_grad_() for name, p in at.items()}
            loss = probe.loss_sum(leaves, batch)
            grads = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
            return space.flatten(dict(zip(leaves, grads, strict=True)))

        def quotient(step: float) -> Tensor:
            return gradient(step).sub_(gradient(-step)).div_(2 * step)

        leaves = leaves_of(at)
        loss = probe.loss_sum(leaves, batch)
        kind = v.dtype if v.dtype == torch.float32 else _computed_in(loss, v.dtype)
        h = STEP[kind] * (_size(probe, at) / float(norm(v)) or 1.0)
        ahead = gradient(h)
        here = gradient_graph(loss, leaves)
        for name, where in space.slices().items():
            ahead[where].sub_(here[name].detach().reshape(-1).to(v.device)).div_(h)
        noise = torch.finfo(kind).eps * _size(probe, here) * FINER / h
        (product,) = pull_back(here, leaves, space, v[None])
        scale = max(float(norm(product)), float(norm(ahead)), 100 * noise, 1e-300)
        if (difference := float(norm(product - ahead)) / scale) <= ALLOWED:
            return difference
        coarse, fine = quotient(h), quotient(h / FINER)
    scale = max(scale, float(norm(coarse)))
    unsettled = max(float(norm(coarse - fine)), float(norm(coarse - ahead)))
    if unsettled > ALLOWED * scale:  # a rectifier switches within the step, or at its middle
        return None
    return float(norm(product - coarse)) / scale


def _computed_in(loss: Tensor, dtype: torch.dtype) -> torch.dtype:
    """The precision behind a loss: norms of language models round to float32, whatever they are given."""
    return torch.float32 if any("ToCopy" in node.name() for node in graph_behind(loss)) else dtype


def _size(probe: Probe, parts: Mapping[str, Tensor]) -> float:
    squares = sum(float(part.detach().square().sum(dtype=torch.float64)) for part in parts.values())
    return float(probe.vectors.add_up(torch.tensor(squares, dtype=torch.float64, device=probe.device))) ** 0.5


def _without_padding(probe: Probe, v: Tensor) -> Tensor:
    """The direction, in place, with padding rows of embeddings at rest, which gradients count as constants."""
    held, slices = dict(probe.module("").named_parameters()), probe.space.slices()
    for weight, row in padding_rows(probe.module("")):
        for (name, place), shape in zip(slices.items(), probe.space.shapes, strict=True):
            if held[name] is weight:
                v[place].view(shape)[row if probe.sharding is None else probe.sharding.row(name, row)] = 0
    return v

"""Is the gradient that of the loss? Compared once, at construction, with difference quotients of the loss itself.

    (L(θ + hv) − L(θ − hv)) / 2h  =  ⟨∇L, v⟩

on a few rows, in float64 where the model allows it, along one random direction of all measured tensors. Whatever cuts or
bends the way from a parameter to the loss shows here: `.detach()`, `.data`, `no_grad`, rounding with a straight-through
gradient, a backward pass that is wrong. Where the loss has a kink, the comparison is made at a point nearby.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from landscope.core.errors import ModelError
from landscope.core.memory import available_bytes
from landscope.core.seeding import generator, normal
from landscope.core.text import some
from landscope.core.torch_fixes.padding import padding_rows
from landscope.probe.batches import Batch, map_tensors
from landscope.probe.checks import output_tensors, refuse_simulated_quantisation, relative_change
from landscope.probe.loss.widening import NARROW, ROUNDING

if TYPE_CHECKING:
    from landscope.probe.probe import Probe

Params = Mapping[str, Tensor]

ATTEMPTS = 3
"""Points that are compared at, the first one the parameters themselves."""
NEARBY = 1e-2
"""How far the further points lie, relative to each tensor: off the kinks, and off a minimum."""
AWAY = 0.1
"""How far other values lie that are put in for the parameters, to see whether the model uses them."""
SAME = 1e-3
"""Relative difference of outputs that rounding may cause."""
FINER = 4
"""A second step is this many times smaller: at a kink two quotients differ, as they do in noise."""
RIGHT = 1e-4
"""Relative difference up to which a gradient counts as right: a true one differs by 1e-6."""
ALLOWED = 1e-2
"""Relative difference that is not an error yet: gradients of iterative solvers differ by more than rounding."""
LONGEST = 0.3
"""The longest step, relative to each tensor, for losses that are rounded much: as of a model that computes in float32."""
CLEAR = 500
"""How many times its rounding error a difference quotient is to be, where the step may be long enough."""
ROUNDING_UNITS = 50
"""Rounding error of a loss in units of the machine epsilon."""
REPEATED = 2**16 + 1
"""Random numbers of a direction, before they repeat: no power of two, so that rows of a matrix differ."""
ROWS = 32
"""Samples at once where all of the data is searched for a way from the parameters to the loss."""
LARGE = 2**24
"""Parameters from which on the precision is the model's own: no copy in float64 is made."""
HALF = (torch.float16, torch.bfloat16)


def checked_gradient(probe: Probe, batch: Batch) -> tuple[str, ...]:
    """Refuse a gradient that is not that of the loss; notices about one that is exactly 0, which may be right."""
    try:
        point = _Point(_in_float64(probe, batch), 0)
    except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
        if isinstance(error, ModelError):
            raise
        try:  # the model insists on its own precision
            point = _Point(probe.at_batch(batch, probe.dtype), 0)
        except (RuntimeError, NotImplementedError, TypeError, ValueError) as again:
            if isinstance(again, ModelError):
                raise
            return ()  # it cannot be differentiated at all: what needs a gradient will say so
    _check_values_are_used(point)
    idle = tuple(name for name in probe.space.names if not point.size((name,)))
    points = [point]
    for group in (probe.space.names, idle):
        if group and not _may_be_right(points, group):
            at = next(at for at in reversed(points) if at.agrees(group) is False)
            _refuse(at, list(_disagreeing(at, group)) or list(group))
    if not idle:
        return ()
    return (f"the gradient of {some(idle)} is exactly 0 on the first {batch.size} samples",)


def _check_values_are_used(point: _Point) -> None:
    """Refuse a model that computes something else with values put in for its parameters than with those values as its own.

    It keeps what it computed from them before, and asks the tensors (`_version`, `id`) whether they have changed since.
    """
    probe, batch = point.probe, point.batch
    with probe.measuring(), torch.no_grad():
        moved = {name: value + AWAY * point.direction(name) for name, value in probe.params.items()}
        put_in = output_tensors(probe.call(moved, batch))
        del moved

        def move(copy: nn.Module) -> None:
            for name, value in copy.named_parameters():
                if name in probe.params:
                    value.add_(AWAY * point.direction(name))

        args, kwargs = probe.layout.arguments(batch.raw)
        args, kwargs = map_tensors(torch.clone, (args, kwargs))  # type: ignore[misc]
        other = probe.with_model(move)
        own = output_tensors(other.run({}, args, kwargs))
        del other
    differ = max((relative_change(a, b) for a, b in zip(put_in, own, strict=False)), default=0.0)
    if differ > SAME:
        raise ModelError(
            f"the model does not compute with the values that are put in for its parameters: with the same values set in place, "
            f"its outputs differ by {differ:.2g}. It keeps weights that it computed earlier and asks a tensor's _version or id "
            f"whether they are still right. Switch that cache off in the model that you measure."
        )


def reaches_the_loss(probe: Probe) -> bool:
    """Whether the graph of the loss leads to a measured parameter, for some of the data."""
    with probe.measuring():
        leaves = {name: value.detach().clone().requires_grad_() for name, value in probe.params.items()}
        ours = set(map(id, leaves.values()))
        for batch in probe.batches():
            for piece in batch.pieces(ROWS):
                loss = probe.loss_sum(leaves, piece.prepared(probe.ready))
                if any(id(getattr(node, "variable", None)) in ours for node in graph_behind(loss)):
                    return True
    return False


def _may_be_right(points: list[_Point], names: Sequence[str]) -> bool:
    """Whether gradient and quotient agree at one of a few points, or cannot be compared; `points` grows as they are needed.

    Something that is wrong is wrong everywhere; what is right may still disagree at a kink.
    """
    wrong = 0
    for attempt in range(ATTEMPTS):
        if attempt == len(points):
            points.append(_Point(points[0].probe, attempt, names))
        verdict = points[attempt].agrees(names)
        if verdict:
            return True
        wrong += verdict is False
    return wrong < 2


def _in_float64(probe: Probe, batch: Batch) -> Probe:
    room = probe.vectors.least(available_bytes(probe.device) - 64 * probe.space.size)
    if probe.n_params >= LARGE or room < 0:
        raise ValueError("too large for a second copy")
    return probe.at_batch(batch, torch.float64)


class _Point:
    """A point at or near the parameters: the gradient by some of them there, a direction, and how far to step along it."""

    def __init__(self, probe: Probe, attempt: int, names: Sequence[str] | None = None) -> None:
        self.probe = probe
        self._attempt = attempt
        sizes = {name: _size(value) for name, value in probe.params.items()}
        typical = max(sizes.values()) or 1.0
        self._sizes = {name: size or typical for name, size in sizes.items()}
        self._at_rest: list[tuple[str, int | slice]] = []
        with probe.measuring():
            self.batch = next(probe.batches())
            leaves = {name: value.detach().requires_grad_() for name, value in self._values().items()}
            loss = probe.loss_sum(leaves, self.batch)
            refuse_half_precision(loss, probe)
            if any(node.name().startswith("FakeQuantize") for node in graph_behind(loss)):
                refuse_simulated_quantisation()
            self._at_rest = list(_padding(probe, loss, leaves))  # constants to gradients, which a step would move
            names = probe.space.names if names is None else names
            by = [leaves[name] for name in names]
            grads: list[Tensor | None] = [None for _ in by]
            if loss.requires_grad:
                grads = list(torch.autograd.grad(loss, by, allow_unused=True))
        del leaves, by
        self.slopes = {name: self._slope(name, g) for name, g in zip(names, _given_up(grads), strict=True)}
        """Of each tensor: ⟨gradient, direction⟩, the sum of the squares of its terms, and the sum of the gradient's sizes."""
        kinds = {kind for kind in _precisions(loss) | {probe.dtype} if kind.is_floating_point and kind != NARROW}
        eps = max(torch.finfo(kind).eps for kind in kinds)
        self.loss = float(loss.detach())
        self.step = math.sqrt(eps)
        self._rounding = ROUNDING_UNITS * eps * max(1.0, abs(self.loss))
        self.known: dict[tuple[str, ...], bool | None] = {}

    def direction(self, name: str, stream: str = "") -> Tensor:
        """The step of one tensor: drawn whenever it is needed, so that none is held."""
        rng = generator(self._attempt, "first derivatives", stream, name)
        found = _dense(self.probe.params[name], rng) * self._sizes[name]
        for at, rows in () if stream else self._at_rest:
            if at == name:
                found[rows] = 0
        return found

    def _values(self) -> dict[str, Tensor]:
        """The parameters at this point."""
        if not self._attempt:
            return dict(self.probe.params)
        kind = self.probe.dtype
        return {
            name: p.to(kind).add(self.direction(name, "nearby"), alpha=NEARBY) for name, p in self.probe.params.items()
        }

    def agrees(self, names: Sequence[str]) -> bool | None:
        """Whether the quotient along some tensors is what the gradient says; `None` where that cannot be decided."""
        key = tuple(names)
        if key not in self.known:
            self.known[key] = self._agrees(key)
        return self.known[key]

    def _agrees(self, names: tuple[str, ...]) -> bool | None:
        slope, spread = self.slope(names)
        coarse = (self._loss(names, self.step) - self.loss) / self.step
        scale = max(abs(slope), abs(coarse), spread)
        shortest = max(self.step, 10 * FINER * self._rounding / scale if scale else math.inf)
        if not math.isfinite(scale) or shortest > LONGEST:
            return None
        if shortest == self.step and abs(coarse - slope) <= max(self._right(scale, spread), self._rounding / self.step):
            return True
        step = max(shortest, min(CLEAR * self._rounding / scale, LONGEST))
        while (verdict := self._verdict(names, slope, spread, step)) is None and step > shortest:
            step = max(shortest, step / FINER)  # too long for a derivative
        return verdict

    def _verdict(self, names: tuple[str, ...], slope: float, spread: float, step: float) -> bool | None:
        """Whether the slope is the limit of central quotients, of which two are made."""
        coarse = self._quotient(names, step)
        scale, difference = max(abs(slope), abs(coarse), spread), abs(coarse - slope)
        if difference <= max(self._right(scale, spread), self._rounding / step):
            return True
        unclear = abs(coarse - self._quotient(names, step / FINER))
        if not math.isfinite(unclear) or unclear > 5 * ALLOWED * scale:
            return None
        if difference <= 10 * unclear:
            return True
        return None if difference <= ALLOWED * scale else False

    def _right(self, scale: float, spread: float) -> float:
        return RIGHT * scale + (2 * ROUNDING * spread if self.probe.narrow else 0.0)

    def add_up(self, partial: float) -> float:
        """The whole of a sum along the parameters, of which this process may hold a part."""
        return float(self.probe.vectors.add_up(torch.tensor(partial, dtype=torch.float64, device=self.probe.device)))

    def _slope(self, name: str, gradient: Tensor | None) -> tuple[float, float, float]:
        if gradient is None:
            return 0.0, 0.0, 0.0
        gradient = (gradient.to_dense() if gradient.is_sparse else gradient).to(self.probe.dtype)
        product = gradient * self.direction(name)
        return float(product.sum()), float(product.square().sum()), float(gradient.abs().sum())

    def slope(self, names: Sequence[str]) -> tuple[float, float]:
        """⟨gradient, direction⟩ over some tensors, and the root of the sum of the squares of its terms."""
        total, squares, _ = (sum(found) for found in zip(*(self.slopes[name] for name in names), strict=True))
        return self.add_up(total), math.sqrt(self.add_up(squares))

    def size(self, names: Sequence[str]) -> float:
        """The sum of the sizes of the entries of the gradient."""
        return self.add_up(sum(self.slopes[name][2] for name in names))

    def _quotient(self, names: tuple[str, ...], step: float) -> float:
        return (self._loss(names, step) - self._loss(names, -step)) / (2 * step)

    def _loss(self, names: tuple[str, ...], step: float) -> float:
        with self.probe.measuring(), torch.no_grad():
            at = self._values()
            kind = self.probe.dtype
            at.update({name: at[name].to(kind).add(self.direction(name), alpha=step) for name in names})
            return float(self.probe.loss_sum(at, self.batch))


def _dense(like: Tensor, rng: torch.Generator) -> Tensor:
    """Normal numbers in the shape of a tensor, repeated where it is large: drawing them takes longer than a pass."""
    some = normal((min(like.numel(), REPEATED),), rng, like.dtype, like.device)
    return some.repeat(-(-like.numel() // max(len(some), 1)))[: like.numel()].view(like.shape)


def _size(value: Tensor) -> float:
    """The root mean square of a tensor's entries."""
    return float(torch.linalg.vector_norm(value)) / math.sqrt(max(value.numel(), 1))


def graph_behind(loss: Tensor) -> Iterator[torch.autograd.graph.Node]:
    """The graph behind a loss."""
    queue = [loss.grad_fn]
    seen = set()
    while queue:
        node = queue.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            queue.extend(following for following, _ in node.next_functions)


def _padding(probe: Probe, loss: Tensor, leaves: Params) -> Iterator[tuple[str, int | slice]]:
    """The rows of each parameter that embeddings use as padding, or what of them lies here."""
    if (
        probe.sharding is not None or probe.narrow
    ):  # between an embedding and the leaves the weights are gathered, or widened
        held = {id(p): name for name, p in probe.module("").named_parameters()}
        for weight, padded in padding_rows(probe.module("")):
            if (name := held[id(weight)]) in leaves:
                yield name, padded if probe.sharding is None else probe.sharding.row(name, padded)
        return
    names = {id(leaf): name for name, leaf in leaves.items()}
    for node in graph_behind(loss):
        row = getattr(node, "_saved_padding_idx", None)
        leaf = getattr(node.next_functions[0][0], "variable", None) if node.next_functions else None
        if isinstance(row, int) and leaf is not None and id(leaf) in names and 0 <= row < len(leaf):
            yield names[id(leaf)], row


def _precisions(loss: Tensor) -> set[torch.dtype]:
    """The types of the tensors that a loss was computed from."""
    return {metadata.dtype for node in graph_behind(loss) for metadata in getattr(node, "_input_metadata", ())}


def _rounded_to(loss: Tensor) -> set[torch.dtype]:
    """The types that tensors on the way were cast to; weights in half precision themselves are not cast."""
    casts = (node for node in graph_behind(loss) if "ToCopy" in node.name())
    return {metadata.dtype for node in casts for metadata in getattr(node, "_input_metadata", ())}


def _given_up(tensors: list[Tensor | None]) -> Iterator[Tensor | None]:
    """One after the other, of which none is held any more."""
    tensors.reverse()
    while tensors:
        yield tensors.pop()


def refuse_half_precision(loss: Tensor, probe: Probe) -> None:
    """Raise `ModelError` where half precision stands between the parameters and the loss."""
    found = _precisions(loss) if not probe.narrow else _rounded_to(loss)
    if half := [str(kind).removeprefix("torch.") for kind in HALF if kind in found]:
        raise ModelError(
            f"the model or the loss computes in {' and '.join(half)} although its weights are measured in "
            f"{str(probe.dtype).removeprefix('torch.')}: derivatives of second order drown in that rounding. Remove the casts "
            f"(.half(), .bfloat16(), .to(dtype), set_autocast_enabled) from the forward pass that you measure."
        )


def _disagreeing(point: _Point, names: Sequence[str]) -> Iterator[str]:
    """Those of some tensors along which gradient and quotient differ, found by halving."""
    if point.agrees(names) is not False:
        return
    if len(names) == 1:
        yield names[0]
        return
    middle = len(names) // 2
    yield from _disagreeing(point, names[:middle])
    yield from _disagreeing(point, names[middle:])


def _refuse(point: _Point, names: list[str]) -> None:
    slope, _ = point.slope(names)
    quotient = point._quotient(tuple(names), point.step)
    if not point.size(names):
        cause = (
            "The way from there to the loss is cut: .detach(), .data, .item(), torch.no_grad(), or a NumPy detour in the "
            "forward pass or the loss. Let gradients through, or leave these parameters out: params=…, or "
            "requires_grad_(False) on them."
        )
    elif abs(quotient) < ALLOWED * abs(slope):
        cause = (
            "The loss does not move there: rounding with a straight-through gradient (quantisation-aware training, binary "
            "weights), which is wrong on purpose. Such a loss has no curvature to measure: measure the model without the "
            "rounding."
        )
    else:
        cause = (
            "Part of the way from there to the loss is cut (.detach(), .data, torch.no_grad()), or a custom backward pass or "
            "a straight-through gradient gives something else than the derivative. Remove it from the model that you measure."
        )
    raise ModelError(
        f"the gradient of {some(names)} is not that of the loss: along a random direction automatic differentiation gives "
        f"{slope:.4g}, the difference quotient of the loss {quotient:.4g}. {cause}"
    )

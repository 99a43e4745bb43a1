"""How alike two models are on the same rows: what they predict, what their last layer sees, and the line between them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from landscope.core.errors import DataError, LandscopeError, NotApplicableError, OperandError
from landscope.core.estimate import Estimate
from landscope.measures.consistency import Barrier, linear_cka, loss_barrier
from landscope.probe.batches import Batch, tensors_in
from landscope.probe.loss.targets import IGNORED, class_dimension
from landscope.probe.probe import Probe
from landscope.probe.shared import FORWARD_LOAD
from landscope.probe.totals import FORWARD

FEATURE_ROWS = 2_000
"""Rows on which features are compared: their products grow with the square of the number."""
WEIGHTED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True, eq=False)
class Agreement:
    """How alike two models are; what cannot be said has the status `not applicable` and a reason."""

    disagreement: Estimate
    """The share of predictions that differ."""
    divergence: Estimate
    """The mean Jensen–Shannon divergence of the predicted distributions, in nats, at most ln 2."""
    cka: Estimate
    """Linear CKA, without bias, of what goes into the last layer."""
    barrier: Estimate
    """How far the loss rises on the straight line between the weights above the line between the losses."""
    line: Barrier | None

    def items(self) -> dict[str, Estimate]:
        return {
            "disagreement": self.disagreement,
            "Jensen–Shannon divergence": self.divergence,
            "linear CKA": self.cka,
            "loss barrier": self.barrier,
        }


def agreement(first: Probe, other: Probe, points: int) -> Agreement:
    """Two forward passes of both models, and one for each point of the line."""
    differ, apart = _predictions(first, other)
    line, barrier = _line(first, other, points)
    return Agreement(differ, apart, _features(first, other), barrier, line)


def _line(first: Probe, other: Probe, points: int) -> tuple[Barrier | None, Estimate]:
    try:
        found = loss_barrier(first, other, points)
    except (OperandError, NotApplicableError) as error:
        return None, Estimate.not_applicable(str(error))
    except LandscopeError as error:
        return None, Estimate.failed(str(error))
    return found, found.estimate


def _predictions(first: Probe, other: Probe) -> tuple[Estimate, Estimate]:
    if first.loss.likelihood not in ("categorical", "bernoulli"):
        absent = Estimate.not_applicable(f"the loss {first.loss.name!r} is not one of classes")
        return absent, absent

    def piece(batch: Batch) -> tuple[Tensor, ...]:
        ours, theirs = (_log_probabilities(probe, batch) for probe in (first, other))
        if ours.shape != theirs.shape:
            raise NotApplicableError(f"the models predict {ours.shape[-1]:,} and {theirs.shape[-1]:,} classes")
        counted = _counted(first, batch, ours)
        differ = (ours.argmax(-1) != theirs.argmax(-1)).double()
        middle = torch.logaddexp(ours, theirs) - math.log(2)
        shares = [(p.exp() * (p - middle)).nan_to_num(0.0).sum(-1) for p in (ours, theirs)]
        return tuple(_per_sample(values, counted, batch.size) for values in (differ, (shares[0] + shares[1]) / 2))

    try:
        parts = [values for _, values in first.each(piece, load=3 * FORWARD_LOAD, passes=2 * FORWARD, grad=False)]
    except LandscopeError as error:
        absent = Estimate.not_applicable(str(error))
        return absent, absent
    return _mean([part[0] for part in parts]), _mean([part[1] for part in parts])


def _log_probabilities(probe: Probe, batch: Batch) -> Tensor:
    """The logarithms of the predicted probabilities, with the classes last, in float64; of a yes/no output, both classes."""
    z = tensors_in(probe.outputs(probe.params, batch))[0].double()
    if probe.loss.likelihood == "bernoulli":
        return torch.stack([nn.functional.logsigmoid(-z), nn.functional.logsigmoid(z)], -1)
    targets = probe.targets(batch)
    assert isinstance(targets, Tensor), "checked where the loss was settled"
    return z.movedim(class_dimension(z, targets, probe.loss.classes_last), -1).log_softmax(-1)


def _counted(probe: Probe, batch: Batch, log_p: Tensor) -> Tensor:
    """Which predictions count: those with a label."""
    targets = probe.targets(batch)
    if isinstance(targets, Tensor) and targets.shape == log_p.shape[:-1] and not targets.is_floating_point():
        return targets != IGNORED
    return torch.ones(log_p.shape[:-1], dtype=torch.bool, device=log_p.device)


def _per_sample(values: Tensor, counted: Tensor, size: int) -> Tensor:
    """The mean over the predictions of each sample that count (n,), in float64 on the CPU."""
    values, counted = values.reshape(size, -1), counted.reshape(size, -1)
    return ((values * counted).sum(1) / counted.sum(1).clamp(min=1)).double().cpu()


def _mean(parts: list[Tensor]) -> Estimate:
    values = torch.cat(parts)
    error = float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else None
    return Estimate(max(float(values.mean()), 0.0), data_stderr=error, details={"samples": len(values)})


def _features(first: Probe, other: Probe) -> Estimate:
    try:
        found = linear_cka([_before_the_last_layer(probe) for probe in (first, other)], debiased=True)
    except (DataError, OperandError, NotApplicableError) as error:
        return Estimate.not_applicable(str(error))
    return Estimate(found.mean, data_stderr=found.data_stderr, details={"samples": found.samples})


def _before_the_last_layer(probe: Probe) -> Tensor:
    """What goes into the weight layer that runs last, on the first rows (n, d)."""
    name = _last_layer(probe)
    rows: list[Tensor] = []
    held = 0
    with _watching(probe.module(name)) as seen:
        for batch in probe.batches():
            for part in batch.pieces(max(1, min(256, FEATURE_ROWS - held))):
                with probe.measuring(), torch.no_grad():
                    probe.outputs(probe.params, part.prepared(probe.ready))
                rows.append(seen[-1].flatten(1).double().cpu())
                held += part.size
                if held >= FEATURE_ROWS:
                    return torch.cat(rows)
    return torch.cat(rows)


def _last_layer(probe: Probe) -> str:
    order: list[str] = []
    layers = {name: module for name, module in probe.modules.items() if isinstance(module, WEIGHTED)}
    handles = [
        module.register_forward_hook(lambda *_, name=name: order.append(name)) for name, module in layers.items()
    ]
    try:
        with probe.measuring(), torch.no_grad():
            probe.outputs(probe.params, next(next(probe.batches()).pieces(2)).prepared(probe.ready))
    finally:
        for handle in handles:
            handle.remove()
    if not order:
        raise NotApplicableError("no linear or convolutional layer runs, so there are no features before the last one")
    return order[-1]


@contextmanager
def _watching(layer: nn.Module) -> Iterator[list[Tensor]]:
    """Its latest input, while inside."""
    seen: list[Tensor] = []

    def note(_: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        seen[:] = [arguments[0].detach()]

    handle = layer.register_forward_pre_hook(note)
    try:
        yield seen
    finally:
        handle.remove()

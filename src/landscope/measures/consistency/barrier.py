"""The loss along the straight line between two models, and the barrier on it.

    L(t) at (1 − t) θ_a + t θ_b,    barrier = max_t L(t) − [(1 − t) L(0) + t L(1)]

(Frankle et al. 2020; measured against the line between the ends as in Entezari et al. 2022, and never below zero, since the
ends lie on it). All parameters move, measured or not. Running statistics of BatchNorm move along with them in `eval` mode,
which is right at the ends and too hard a test in the middle: there the statistics fit neither model (Jordan et al. 2023). Build
both probes with `mode="batch_statistics"` to estimate them again at every point.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from landscope.core.errors import OperandError
from landscope.core.estimate import Estimate, Status
from landscope.probe.batches import Batch
from landscope.probe.checks import check_finite_loss
from landscope.probe.probe import Probe
from landscope.probe.shared import FORWARD_LOAD
from landscope.probe.totals import FORWARD

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Barrier:
    """The loss at points t of the line from one model (t = 0) to another (t = 1)."""

    t: Floats
    loss: Floats
    excess_stderr: Floats | None
    """Standard error over the data of the loss above the straight line between the ends, where losses are per sample."""
    samples: int

    @property
    def excess(self) -> Floats:
        """The loss above the straight line between the losses of the ends."""
        return self.loss - ((1 - self.t) * self.loss[0] + self.t * self.loss[-1])

    @property
    def height(self) -> float:
        """The barrier: the largest excess."""
        return max(float(self.excess.max()), 0.0)

    @property
    def at(self) -> float:
        """Where the barrier is highest; 0 where there is none."""
        return float(self.t[int(self.excess.argmax())]) if self.height > 0 else 0.0

    @property
    def estimate(self) -> Estimate:
        """The height, with the error that another sample of the data would give at its place.

        The largest of several points is a lower bound of the largest on the line.
        """
        top = int(self.excess.argmax())
        error = None if self.excess_stderr is None else float(self.excess_stderr[top])
        return Estimate(
            self.height,
            stderr=None,
            data_stderr=error,
            status=Status.LOWER_BOUND,
            reason=f"the largest of {len(self.t)} points; between them the loss may be higher",
            details={"at": self.at, "points": len(self.t), "samples": self.samples},
        )


def loss_barrier(first: Probe, second: Probe, points: int = 25) -> Barrier:
    """The loss at `points` equally spaced points between two probes of one architecture, on the data of the first.

    The probes must agree in architecture, loss, mode, temperature and data; the far end of the line is checked against the
    second probe's own loss. One forward pass per point, and one more.

    >>> x, y = torch.randn(20, 2), torch.arange(20) % 2
    >>> a, b = (Probe(torch.nn.Linear(2, 2), (x, y)) for _ in range(2))
    >>> loss_barrier(a, b).height                # cross-entropy is convex in a linear layer
    0.0
    """
    if points < 3:
        raise ValueError(f"points must be at least 3, the two ends and one between them, got {points}")
    start, stop = _matched_states(first, second)
    t = torch.linspace(0, 1, points, dtype=torch.float64)
    per_sample = first.loss.reduction == "per_sample"

    def piece(batch: Batch) -> tuple[Tensor, ...]:
        rows = []
        for share in t.tolist():
            state = {name: torch.lerp(start[name], stop[name], share) for name in start}
            values = first.losses(state, batch) if per_sample else first.loss_sum(state, batch)
            rows.append(values.detach().double().reshape(-1))
        losses = torch.stack(rows)
        weight = t.to(losses.device)[:, None]
        excess = losses - (1 - weight) * losses[0] - weight * losses[-1]
        return losses.sum(1), excess.sum(1), excess.square().sum(1)

    total, above, squares = (
        part.cpu() for part in first.total(piece, load=FORWARD_LOAD, passes=points * FORWARD, grad=False)
    )
    n = first.n_samples
    loss = total / n
    for share, value in zip(t.tolist(), loss.tolist(), strict=True):
        check_finite_loss(value, f"at t = {share:.3g} between the models")
    _check_far_end(second, float(loss[-1]))
    variance = (squares / n - (above / n).square()).clamp(min=0) / max(n - 1, 1)
    error = variance.sqrt().numpy() if per_sample and n > 1 else None
    return Barrier(t.numpy(), loss.numpy(), error, n)


def _matched_states(first: Probe, second: Probe) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Every parameter and real-valued buffer of both models, by name, on the device of the first."""
    for what in ("mode", "temperature", "n_samples"):
        a, b = getattr(first, what), getattr(second, what)
        if a != b:
            raise OperandError(f"the two probes may differ in their parameters only; their {what} is {a} and {b}")
    if first.loss.name != second.loss.name:
        raise OperandError(f"the two probes have different losses: {first.loss.name} and {second.loss.name}")
    states = []
    for probe in (first, second):
        model = probe.modules[""]
        held = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        moving = {name: tensor.detach() for name, tensor in held.items() if tensor.is_floating_point()}
        states.append({name: tensor.to(first.device, first.dtype) for name, tensor in moving.items()})
    shapes = [{name: tuple(tensor.shape) for name, tensor in state.items()} for state in states]
    if shapes[0] != shapes[1]:
        odd = sorted(set(shapes[0].items()) ^ set(shapes[1].items()))[0]
        raise OperandError(
            f"there is no straight line between different architectures: {odd[0]} with shape {odd[1]} is in one model only"
        )
    return states[0], states[1]


def _check_far_end(second: Probe, far_end: float) -> None:
    own = second.value()
    if not math.isclose(far_end, own, rel_tol=1e-3, abs_tol=1e-6):
        raise OperandError(
            f"with all parameters of the second model the first probe's loss is {far_end:.6g}, while the second probe's own is "
            f"{own:.6g}: the probes hold different data, or the models differ in more than their parameters"
        )

"""Many points in the space of parameters at once: one engine for perturbations, lines and planes.

Many points are evaluated as one program (`vmap` over parameters) where that is faster: where the activations of one of them
are small, so that a machine spends its time on launching operations. One rule decides, by bytes of activations, never by a
clock: the same call gives the same digits again. On an H200, 16 ascents at once took a fifth of the time one by one for a LeNet
on 16–512 images and a small transformer on 16–512 texts (16 losses: half of it), but 1.2 times as long for the transformer on
4096; on a CPU the limit lies a thousand times lower (benchmarks/perturbations.py). Models that `vmap` cannot follow, and points
that do not fit into memory together, are evaluated one by one.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.func import vmap

from landscope.core.distributed import processes, sum_over_processes
from landscope.core.errors import LandscopeError, NotApplicableError, OutOfMemoryError
from landscope.core.memory import available_bytes
from landscope.core.text import first_line
from landscope.probe.batches import Batch
from landscope.probe.probe import Probe
from landscope.probe.shared import FORWARD_LOAD, FORWARD_SHARE, once_per_probe
from landscope.probe.totals import FORWARD

SampleFunction = Callable[[Probe, Mapping[str, Tensor], Batch], Tensor]
"""(probe, parameters, batch) → one number per sample, or their sum as a tensor of one entry."""

WORK_AT_ONCE = {"cpu": 2**22, "cuda": 2**32}
"""Bytes of activations of all points that run as one program (measured: benchmarks/perturbations.py)."""
FEW, MANY, MOST = 4, 16, 64
"""Fewer than `FEW` points are as fast one by one, more than `MOST` gain nothing; perturbations go together where `MANY` fit."""
REFUSALS = (RuntimeError, NotImplementedError, TypeError, ValueError)
"""What `vmap` raises where it cannot follow a model."""

R = TypeVar("R")
log = logging.getLogger("landscope")


def at_each(function: Callable[[Tensor], Tensor], points: Tensor, at_once: int) -> Tensor:
    """The function at every point: `at_once` of them as one program, or one by one where that is 1."""
    if at_once < 2:
        return torch.stack([function(point) for point in points])
    return torch.cat([vmap(function)(some) for some in points.split(at_once)])


def evaluated_together(probe: Probe, at_once: bool, work: Callable[[bool], R]) -> R:
    """`work(True)`, many points as one program; `work(False)` where that is not wanted or was refused, now or before."""
    if at_once and not _refusals(probe):
        try:
            return work(True)
        except (*REFUSALS, OutOfMemoryError) as error:
            if isinstance(error, LandscopeError) and not isinstance(error, OutOfMemoryError):
                raise
            _refusals(probe).append(first_line(error))
            log.info("points are evaluated one by one, since they cannot run as one program: %s", first_line(error))
    return work(False)


@once_per_probe
def _refusals(_: Probe) -> list[str]:
    """Why points cannot run as one program at a probe; empty where nothing is known against it."""
    return []


def summed_at_points(
    probe: Probe,
    piece: Callable[[Batch, bool], tuple[Tensor, ...]],
    points: int,
    at_once: bool,
    slopes: bool,
    held: float = math.inf,
) -> tuple[Tensor, ...]:
    """Σ over all samples of `piece(batch, whether at once)`, which evaluates this many points, at most `held` of them at once."""
    passes = points * (1.0 if slopes else FORWARD)
    alone, each = (1.0, 1.0) if slopes else (FORWARD_LOAD, FORWARD_SHARE)

    def work(at_once: bool) -> tuple[Tensor, ...]:
        load = each * min(points, held) if at_once else alone
        return probe.total(lambda batch: piece(batch, at_once), load=load, passes=passes, grad=slopes)

    return evaluated_together(probe, at_once, work)


def at_points(
    probe: Probe,
    origin: Mapping[str, Tensor],
    directions: Sequence[Mapping[str, Tensor]],
    coordinates: Tensor,
    values: SampleFunction,
) -> Tensor:
    """Means over samples of `values` at origin + Σ_j c_j d_j, for n coordinates c (n, directions): (n, …), in float64 on the CPU.

    `origin` and `directions` name what moves, buffers included. n forward passes; the data is read once.

    >>> probe = Probe(torch.nn.Linear(1, 1, bias=False), (torch.ones(4, 1), torch.zeros(4, 1)), "mse")    # L = w²
    >>> zero, one = {"weight": torch.zeros(1, 1)}, {"weight": torch.ones(1, 1)}
    >>> at_points(probe, zero, [one], torch.tensor([[0.0], [2.0]]), lambda probe, params, batch: probe.loss_sum(params, batch))
    tensor([0., 4.], dtype=torch.float64)
    """
    if probe.sharding is not None:
        raise NotApplicableError(
            "lines and planes through the weights are not available where every process holds a part of them: gather the model "
            "(its full state dict, in one that is not sharded)"
        )
    rows = coordinates.to(probe.device, probe.dtype)
    ready = lambda tensors: {name: t.to(probe.device, probe.dtype) for name, t in tensors.items()}  # noqa: E731
    start, ways = ready(origin), [ready(direction) for direction in directions]
    samples = probe.n_samples / processes()
    held = min(points_at_once(probe, samples), width(probe, MOST, 1 + len(ways)))

    def piece(batch: Batch, at_once: bool) -> tuple[Tensor, ...]:
        def one(row: Tensor) -> Tensor:
            params = start
            for step, way in zip(row, ways, strict=True):
                params = {name: p + step * way[name] for name, p in params.items()}
            return values(probe, params, batch).double()

        return (at_each(one, rows, held if at_once else 1),)

    (total,) = summed_at_points(probe, piece, len(rows), len(rows) > 1 and held > 1, slopes=False, held=held)
    return total.cpu() / probe.n_samples


SMALL_WORK = 2**26
"""Bytes of activations of all samples up to which a pass takes no longer than launching its operations: there is nothing to
gain from fewer samples."""


def is_small(probe: Probe) -> bool:
    """Whether a pass over all samples is so cheap that it is no use to begin with some of them."""
    return probe.activation_bytes * probe.n_samples <= SMALL_WORK


def points_at_once(probe: Probe, samples: float) -> int:
    """How many points, on this many samples each, are fastest as one program; 1 where they are faster one by one."""
    work = WORK_AT_ONCE.get(probe.device.type, WORK_AT_ONCE["cuda"])
    fitting = int(work // (probe.activation_bytes * samples))
    return min(fitting, MOST) if fitting >= FEW else 1


def together(probe: Probe, samples: float) -> bool:
    """Whether many perturbations, on this many samples each, are faster as one program than one by one."""
    return points_at_once(probe, samples) >= MANY


def fitting_samples(probe: Probe) -> int:
    """How many samples' activations of one gradient a quarter of the free memory holds."""
    return max(1, int(available_bytes(probe.device) // (4 * probe.activation_bytes)))


def width(probe: Probe, count: int, vectors: int, samples: float = 0.0) -> int:
    """How many points a quarter of the free memory holds: `vectors` vectors (P,) and the activations of `samples` for each.

    All processes take the number of the first one, so that they add up sums of the same shape.
    """
    each = vectors * probe.n_params * torch.finfo(probe.dtype).bits // 8 + probe.activation_bytes * samples
    fitting = max(1, min(count, int(available_bytes(probe.device) // (4 * each))))
    if processes() == 1:
        return fitting
    first = torch.tensor(float(fitting if dist.get_rank() == 0 else 0), device=probe.device)
    return int(sum_over_processes(first).item())

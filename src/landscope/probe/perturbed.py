"""The loss at perturbed parameters: which parameters move, along which directions, and how many at once.

Only parameters move: buffers (BatchNorm statistics) and the temperature are part of the function. Random directions are made
from a seed and their number when they are needed, as float32 normals, so that they are the same on every device and in
every dtype.

Many perturbations are evaluated as one program (`vmap` over parameters) where that is faster: where the activations of one
of them are small, so that a machine spends its time on launching operations. On an H200, 16 ascents at once took a
fifth of the time one by one for a LeNet on 16–512 images and a small transformer on 16–512 texts (16 losses: half of it), but 1.2
times as long for the transformer on 4096; on a CPU the limit lies a thousand times lower (benchmarks/perturbations.py).
Models that `vmap` cannot follow, and perturbations that do not fit into memory together, are evaluated one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from scipy.special import ndtr, stdtrit
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn.modules.batchnorm import _NormBase
from torch.utils import _pytree as pytree

from landscope.core.distributed import processes, sum_over_processes
from landscope.core.errors import BudgetSpentError, NotApplicableError
from landscope.core.memory import available_bytes
from landscope.core.parameters import select_parameters
from landscope.core.seeding import generator, normal
from landscope.probe.batches import Batch, map_tensors
from landscope.probe.probe import Probe
from landscope.probe.shared import once_per_probe
from landscope.probe.totals import FORWARD, PieceSize, accumulate, saved_bytes

__all__ = [
    "REFUSALS",
    "Include",
    "RowLosses",
    "Shifts",
    "antithetic",
    "check_positive",
    "direction",
    "fitting_samples",
    "included",
    "losses_at",
    "losses_on_all_data",
    "losses_on_batches",
    "on_sphere",
    "sample_losses",
    "together",
    "width",
]


Include = str | tuple[str, ...]
"""Which parameters are perturbed: `"all"`, `"weights"`, or names, layers and patterns."""
SampleFunction = Callable[[Probe, Mapping[str, Tensor], Batch], Tensor]
"""(probe, parameters, batch) → one number per sample, or their sum as a tensor of one entry."""

NORM_LAYERS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
SMALL_WORK = {"cpu": 2**18, "cuda": 2**28}
"""Bytes of activations of one perturbation up to which many at once are faster (measured: benchmarks/perturbations.py)."""
REFUSALS = (RuntimeError, NotImplementedError, TypeError, ValueError)
"""What `vmap` raises where it cannot follow a model."""


def check_positive(**settings: float) -> None:
    """Refuse settings that must be positive and finite and are not."""
    for name, value in settings.items():
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} must be a positive number, got {value}")


def included(probe: Probe, include: Include) -> Probe:
    """The same point with only the perturbed parameters measured.

    `"all"` are the probe's parameters; `"weights"` those of at least two dimensions outside normalisation layers, so no
    biases, scales and shifts; otherwise names, layers or patterns, of which those count that the probe measures.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3), nn.Linear(3, 2))
    >>> probe = Probe(net, (torch.randn(4, 2), torch.tensor([0, 1, 0, 1])))
    >>> included(probe, "weights").space.names, included(probe, ("2",)).space.names
    (('0.weight', '2.weight'), ('2.weight', '2.bias'))
    """
    return probe if include == "all" else _restricted(probe, include)


@once_per_probe
def _restricted(probe: Probe, include: Include) -> Probe:
    if include == "weights":
        norms = {name for name, module in probe.modules.items() if isinstance(module, NORM_LAYERS)}
        chosen = {name for name, p in probe.params.items() if p.dim() > 1 and name.rpartition(".")[0] not in norms}
    else:
        chosen = set(select_parameters(probe.modules[""], include))
    names = [name for name in probe.space.names if name in chosen]
    if not names:
        raise NotApplicableError(f"include={include!r} leaves nothing to perturb among {', '.join(probe.space.names)}")
    return probe.restrict(names)


def direction(probe: Probe, seed: int, index: int) -> Tensor:
    """Standard normal numbers (P,), the same on every device and in every dtype."""
    return normal((probe.n_params,), generator(seed, "direction", index), torch.float32, probe.device).to(probe.dtype)


def antithetic(normals: Callable[[int], Tensor], scale: Tensor | float) -> Callable[[int], Tensor]:
    """Perturbations in pairs: scale ⊙ z and −scale ⊙ z, with z = normals(pair). What is odd in them cancels in a pair."""

    def delta(j: int) -> Tensor:
        return (-1.0 if j % 2 else 1.0) * scale * normals(j // 2)

    return delta


def on_sphere(vectors: Tensor, radius: float) -> Tensor:
    """Vectors (…, P) scaled to the Euclidean length `radius`, up to rounding; zero stays zero.

    >>> on_sphere(torch.tensor([3.0, 4.0]), 1.0)
    tensor([0.6000, 0.8000])
    """
    lengths = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True, dtype=torch.float64)
    return vectors * torch.where(lengths > 0, radius / lengths, 0.0).to(vectors.dtype)


def sample_losses(probe: Probe, params: Mapping[str, Tensor], batch: Batch) -> Tensor:
    """The loss of each sample (n,), or their sum (1,) where the loss function gives one number for the batch."""
    outputs = probe.outputs(params, batch)
    if probe.loss.reduction != "per_sample":
        return probe.loss_of(outputs, batch).reshape(1)
    losses = probe.loss.function(outputs, probe.second(batch))
    return losses.reshape(batch.size, -1).sum(1)


@dataclass(frozen=True)
class Shifts:
    """By how much perturbations change a mean over samples, in float64.

    `mean` (k,) holds the mean over samples of d_ij = v_i(θ + δ_j) − v_i(θ), `base` that of v_i(θ), and `gram` (g, g) that of
    d_ij d_ij' for the first g perturbations: the data error of every combination of them. `None`: no values per sample.
    """

    base: float
    mean: Tensor
    gram: Tensor | None
    samples: int

    def pair_mean(self) -> tuple[float, float]:
        """The mean over antithetic pairs and its standard error over pairs.

        The error is widened by Student's factor for so many pairs (7 for two, 1.3 for five), so that two of it cover 95 %.
        """
        pairs = self.mean.reshape(-1, 2).mean(1)
        student = float(stdtrit(len(pairs) - 1, ndtr(2))) / 2
        return float(pairs.mean()), student * float(pairs.std()) / math.sqrt(len(pairs))

    def data_stderr(self, weights: Tensor) -> float | None:
        """The standard error over the data of Σ_j w_j mean_j; weights beyond the first g are passed on to those."""
        if self.gram is None or self.samples < 2:
            return None
        g = len(self.gram)
        w = weights.double()[:g]
        if not bool(w.any()):
            return None
        w = w * (weights.abs().sum() / w.abs().sum())
        variance = w @ self.gram @ w - (w @ self.mean[:g]) ** 2
        return math.sqrt(max(float(variance), 0.0) / (self.samples - 1))


def losses_at(
    probe: Probe, delta: Callable[[int], Tensor], count: int, values: SampleFunction = sample_losses
) -> Shifts:
    """Evaluate θ + delta(0), …, θ + delta(count − 1) on all samples. (k + 1) forward passes, plus one for each further group.

    As many perturbations as fit into memory are held at once. `values` replaces the loss by another number per sample.

    >>> probe = Probe(nn.Linear(1, 1, bias=False), (torch.ones(4, 1), torch.zeros(4, 1)), "mse")
    >>> w = probe.vector()
    >>> shifts = losses_at(probe, lambda j: j - w, 3)    # L(0), L(1), L(2) against L(w)
    >>> (shifts.mean + shifts.base).round(decimals=5).abs()
    tensor([0., 1., 4.], dtype=torch.float64)
    """
    group = width(probe, count, vectors=4)
    means, base, gram = [], 0.0, None
    for start in range(0, count, group):
        rows = torch.stack([delta(j) for j in range(start, min(start + group, count))]).to(probe.dtype)
        sums, products, at_rest, counted = (part.cpu() / probe.n_samples for part in _evaluate(probe, rows, values))
        means.append(sums)
        if start == 0:
            base, gram = float(at_rest), products if round(float(counted), 6) == 1 else None
    return Shifts(base, torch.cat(means), gram, probe.n_samples)


def _evaluate(probe: Probe, rows: Tensor, values: SampleFunction) -> tuple[Tensor, ...]:
    """Sums over samples: Σ_i d_ij, Σ_i d_ij d_ij', Σ_i v_i(θ), and how many samples had a value of their own."""
    theta = probe.vector()
    here = torch.zeros_like(rows[:1])

    def piece(batch: Batch, at_once: bool) -> tuple[Tensor, ...]:
        def one(row: Tensor) -> Tensor:
            return values(probe, probe.space.unflatten(theta + row), batch)

        every: Iterable[Tensor] = (*here, *rows)
        v = (vmap(one)(torch.cat([here, rows])) if at_once else torch.stack([one(row) for row in every])).double()
        d = v[1:] - v[0]
        single = d.shape[1] == batch.size
        gram = d @ d.T if single else d.new_zeros(len(d), len(d))
        return d.sum(1), gram, v[0].sum(), v.new_tensor(float(single * batch.size))

    count = len(rows) + 1
    if count > 2 and together(probe, probe.n_samples / processes()):
        try:
            return probe.total(lambda batch: piece(batch, True), load=0.25 * count, passes=FORWARD * count, grad=False)
        except REFUSALS as error:
            if isinstance(error, BudgetSpentError):
                raise
    return probe.total(lambda batch: piece(batch, False), load=0.25, passes=FORWARD * count, grad=False)


@once_per_probe
def _activation_bytes(probe: Probe) -> float:
    """Bytes per sample that a forward pass keeps for its backward pass."""
    few = next(next(probe.batches()).pieces(2))
    sample = Batch(map_tensors(torch.clone, probe.ready(few.raw)), few.size, few.divisible)  # no view of all the data
    leaves = {name: p.clone().requires_grad_() for name, p in probe.params.items()}
    model = probe.modules[""]
    with probe.measuring():
        kept = saved_bytes(
            lambda: probe.loss_sum(leaves, sample), [*leaves.values(), *model.parameters(), *model.buffers()]
        )
    return max(kept, 64) / sample.size


def together(probe: Probe, samples: float) -> bool:
    """Whether many perturbations on so many samples each are faster as one program than one by one."""
    return _activation_bytes(probe) * samples <= SMALL_WORK.get(probe.device.type, SMALL_WORK["cuda"])


def fitting_samples(probe: Probe) -> int:
    """How many samples' activations of one gradient a quarter of the free memory holds."""
    return max(1, int(available_bytes(probe.device) // (4 * _activation_bytes(probe))))


def width(probe: Probe, count: int, vectors: int, samples: float = 0.0) -> int:
    """How many perturbations a quarter of the free memory holds: so many vectors (P,) and activations of `samples` each.

    All processes take the number of the first one, so that they add up sums of the same shape.
    """
    each = vectors * probe.n_params * torch.finfo(probe.dtype).bits // 8 + _activation_bytes(probe) * samples
    fitting = max(1, min(count, int(available_bytes(probe.device) // (4 * each))))
    if processes() == 1:
        return fitting
    first = torch.tensor(float(fitting if dist.get_rank() == 0 else 0), device=probe.device)
    return int(sum_over_processes(first).item())


# Losses and gradients at many perturbed parameters: all rows on all data, or each row on a batch of its own.
#
# At once (`vmap` over rows and batches) or one by one; what `vmap` refuses, or what does not fit into memory together, goes one
# by one. Values are sums of per-sample losses in float64, so that small rises survive in float32.


RowLosses = Callable[[Tensor, bool], tuple[Tensor, Tensor]]
"""(perturbations (k, P), whether gradients are wanted) → mean losses (k,) in float64, gradients (k, P)."""


def losses_on_all_data(probe: Probe, at_once: bool) -> RowLosses:
    """Every row on all samples of all processes."""

    def losses(rows: Tensor, slopes: bool) -> tuple[Tensor, Tensor]:
        def piece(batch: Batch, at_once: bool) -> tuple[Tensor, ...]:
            return _sums(probe, rows, [batch], slopes, at_once)

        cost = len(rows) * (1.0 if slopes else FORWARD)
        if at_once and len(rows) > 1:
            try:
                load = len(rows) * (1.0 if slopes else 0.25)
                sums = probe.total(lambda batch: piece(batch, True), load=load, passes=cost, grad=slopes)
            except REFUSALS as error:
                if isinstance(error, BudgetSpentError):
                    raise
            else:
                return sums[0] / probe.n_samples, sums[1] / probe.n_samples
        sums = probe.total(lambda batch: piece(batch, False), load=1.0 if slopes else 0.25, passes=cost, grad=slopes)
        return sums[0] / probe.n_samples, sums[1] / probe.n_samples

    return losses


def losses_on_batches(probe: Probe, batches: Sequence[Batch], at_once: bool) -> RowLosses:
    """Row j of the perturbations on batch j, which is cut into pieces where it does not fit into memory."""
    sizes = torch.tensor([batch.size for batch in batches], dtype=torch.float64, device=probe.device)
    share = float(sizes.sum()) * processes() / probe.n_samples
    ways = [True, False] if at_once and len(batches) > 1 else [False]
    pieces = PieceSize(fitting_samples(probe))

    def one_by_one(rows: Tensor, slopes: bool) -> tuple[Tensor, Tensor]:
        values, gradients = [], []
        for row, batch in zip(rows, batches, strict=True):
            piece = lambda part, row=row: _sums(probe, row[None], [part], slopes, False)  # noqa: E731
            sums = accumulate([batch], piece, pieces, probe.device, lambda raw: raw)
            assert sums is not None, "there is one batch"
            values.append(sums[0])
            gradients.append(sums[1])
        return torch.cat(values), torch.cat(gradients)

    def losses(rows: Tensor, slopes: bool) -> tuple[Tensor, Tensor]:
        probe.ledger.check()
        with probe.ledger.timed(probe.device), probe.measuring(), torch.set_grad_enabled(slopes):
            if ways[0]:
                try:
                    values, gradients = _sums(probe, rows, batches, slopes, True)
                except REFUSALS:
                    ways.pop(0)
            if not ways[0]:
                values, gradients = one_by_one(rows, slopes)
        probe.ledger.add(share * (1.0 if slopes else FORWARD))
        return values / sizes, gradients / sizes[:, None].to(gradients.dtype) if slopes else gradients

    return losses


def _sums(probe: Probe, rows: Tensor, batches: Sequence[Batch], slopes: bool, at_once: bool) -> tuple[Tensor, Tensor]:
    """Σ of the loss over a batch at each θ + row, in float64, and its gradients; one batch for all rows or one for each."""
    theta = probe.vector()

    def total(vector: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        losses = sample_losses(probe, probe.space.unflatten(vector), batch)
        return losses.sum(), losses.detach().double().sum()

    if at_once:
        return _vmapped(total, theta + rows, batches, slopes)
    values, gradients = [], []
    for j, row in enumerate(rows):
        vector = (theta + row).requires_grad_(slopes)
        loss, value = total(vector, batches[j % len(batches)])
        values.append(value)
        if slopes:
            gradients += torch.autograd.grad(loss, vector, materialize_grads=True, allow_unused=True)
    return torch.stack(values), torch.stack(gradients) if slopes else rows.new_zeros(1)


def _vmapped(
    total: Callable[[Tensor, Batch], tuple[Tensor, Tensor]], points: Tensor, batches: Sequence[Batch], slopes: bool
) -> tuple[Tensor, Tensor]:
    size, divisible = batches[0].size, batches[0].divisible
    leaves, specs = zip(*(pytree.tree_flatten(batch.raw) for batch in batches), strict=True)
    shared = len(batches) == 1
    columns = leaves[0] if shared else [torch.stack(column) for column in zip(*leaves, strict=True)]

    def one(vector: Tensor, columns: list[Tensor]) -> tuple[Tensor, Tensor]:
        return total(vector, Batch(pytree.tree_unflatten(columns, specs[0]), size, divisible))

    if slopes:
        gradients, values = vmap(grad(one, has_aux=True), (0, None if shared else 0))(points, columns)
        return values, gradients
    return vmap(one, (0, None if shared else 0))(points, columns)[1], points.new_zeros(1)

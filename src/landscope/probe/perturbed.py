"""The loss at perturbed parameters: which parameters move, along which directions, and what happens there.

Only parameters move: buffers (BatchNorm statistics) and the temperature are part of the function. Random directions are made
from a seed and their number when they are needed, as float32 normals, so that they are the same on every device and in
every dtype. How many perturbations are evaluated at once is decided in `probe.points`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn.modules.batchnorm import _NormBase
from torch.utils import _pytree as pytree

from landscope.core.distributed import processes
from landscope.core.errors import NotApplicableError
from landscope.core.estimate import student_factor
from landscope.core.parameters import select_parameters
from landscope.core.seeding import generator, normal
from landscope.probe.batches import Batch
from landscope.probe.points import (
    SampleFunction,
    evaluated_together,
    fitting_samples,
    summed_at_points,
    together,
    width,
)
from landscope.probe.probe import Probe
from landscope.probe.shared import FORWARD_LOAD, FORWARD_SHARE, once_per_probe
from landscope.probe.totals import FORWARD, PieceSize, accumulate

Include = str | tuple[str, ...]
"""Which parameters are perturbed: `"all"`, `"weights"`, or names, layers and patterns."""
NORM_LAYERS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


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
    drawn: dict[int, Tensor] = {}

    def delta(j: int) -> Tensor:
        if j // 2 not in drawn:
            drawn.clear()
            drawn[j // 2] = scale * normals(j // 2)
        return -drawn[j // 2] if j % 2 else drawn[j // 2]

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

        The error is widened by Student's factor for their number (7 for two, 1.3 for five), so that two of it cover 95 %.
        """
        pairs = self.mean.reshape(-1, 2).mean(1)
        return float(pairs.mean()), student_factor(len(pairs) - 1) * float(pairs.std()) / math.sqrt(len(pairs))

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

    def piece(batch: Batch, at_once: bool) -> tuple[Tensor, ...]:
        v = _values(probe, rows, values, batch, at_once)
        d = v[1:] - v[0]
        single = d.shape[1] == batch.size
        gram = d @ d.T if single else d.new_zeros(len(d), len(d))
        return d.sum(1), gram, v[0].sum(), v.new_tensor(float(single * batch.size))

    count = len(rows) + 1
    return summed_at_points(
        probe, piece, count, count > 2 and together(probe, probe.n_samples / processes()), slopes=False
    )


def _values(probe: Probe, rows: Tensor, values: SampleFunction, batch: Batch, at_once: bool) -> Tensor:
    """v_i(θ) and v_i(θ + δ_j) of a piece (1 + k, n), in float64."""
    theta = probe.vector()

    def one(row: Tensor) -> Tensor:
        return values(probe, probe.space.unflatten(theta + row), batch)

    if at_once:
        return vmap(one)(torch.cat([torch.zeros_like(rows[:1]), rows])).double()
    return torch.stack([values(probe, probe.params, batch), *map(one, rows)]).double()


class RowChanges:
    """v_i(θ) and v_i(θ + δ_j) − v_i(θ) as numbers of the rows of a piece (n, 1 + k): what `Shifts` are the means of.

    >>> probe = Probe(nn.Linear(1, 1, bias=False), (torch.ones(4, 1), torch.zeros(4, 1)), "mse")
    >>> w = probe.vector()
    >>> changes = RowChanges(probe, lambda j: j - w, 3)
    >>> changes(next(probe.batches())).shape
    torch.Size([4, 4])
    """

    LARGEST = 2**30
    """Bytes of numbers above which sums alone are kept."""

    def __init__(
        self, probe: Probe, delta: Callable[[int], Tensor], count: int, values: SampleFunction = sample_losses
    ) -> None:
        self._probe, self._values = probe, values
        self._rows = torch.stack([delta(j) for j in range(count)]).to(probe.dtype)
        self._at_once = count > 1 and together(probe, probe.n_samples)
        self.load = FORWARD_SHARE * (count + 1) if self._at_once else FORWARD_LOAD
        self.passes = FORWARD * (count + 1)

    @classmethod
    def fit(cls, probe: Probe, count: int, values: SampleFunction = sample_losses) -> bool:
        """Whether samples have numbers of their own, rows can be taken, and all of it fits into memory at once."""
        single = values is not sample_losses or probe.loss.reduction == "per_sample"
        small = 8 * probe.n_samples * (count + 1) <= cls.LARGEST
        return probe.takes_rows and single and small and width(probe, count, vectors=4) == count

    def of(self, numbers: Tensor) -> Tensor:
        """The numbers of some samples of held data, on the CPU, in pieces that fit."""
        batches = [self._probe.rows(numbers)]
        pieces = self._probe.each(
            lambda batch: (self(batch).cpu(),), load=self.load, passes=self.passes, grad=False, batches=batches
        )
        return torch.cat([values for _, (values,) in pieces])

    def __call__(self, batch: Batch) -> Tensor:
        """The numbers of a piece; one perturbation after the other where `vmap` cannot follow the model."""

        def work(at_once: bool) -> Tensor:
            v = _values(self._probe, self._rows, self._values, batch, at_once)
            return torch.cat([v[:1], v[1:] - v[0]]).T

        return evaluated_together(self._probe, self._at_once, work)


def shifts_of(changes: Tensor) -> Shifts:
    """The means over all rows of their changes (n, 1 + k)."""
    d, n = changes[:, 1:], len(changes)
    return Shifts(float(changes[:, 0].mean()), d.mean(0), d.T @ d / n, n)


# Losses and gradients at many perturbed parameters: all rows on all data, or each row on a batch of its own.
#
# Values are sums of per-sample losses in float64, so that small rises survive in float32.


RowLosses = Callable[[Tensor, bool], tuple[Tensor, Tensor]]
"""(perturbations (k, P), whether gradients are wanted) → mean losses (k,) in float64, gradients (k, P)."""


def losses_on_all_data(probe: Probe, at_once: bool) -> RowLosses:
    """Every row on all samples of all processes."""

    def losses(rows: Tensor, slopes: bool) -> tuple[Tensor, Tensor]:
        def piece(batch: Batch, at_once: bool) -> tuple[Tensor, ...]:
            return _sums(probe, rows, [batch], slopes, at_once)

        values, gradients = summed_at_points(probe, piece, len(rows), at_once and len(rows) > 1, slopes)
        return values / probe.n_samples, gradients / probe.n_samples

    return losses


def losses_on_batches(probe: Probe, batches: Sequence[Batch], at_once: bool) -> RowLosses:
    """Row j of the perturbations on batch j, which is cut into pieces where it does not fit into memory."""
    sizes = torch.tensor([batch.size for batch in batches], dtype=torch.float64, device=probe.device)
    share = float(sizes.sum()) * processes() / probe.n_samples
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
            values, gradients = evaluated_together(
                probe,
                at_once and len(batches) > 1,
                lambda many: _sums(probe, rows, batches, slopes, True) if many else one_by_one(rows, slopes),
            )
        probe.ledger.add(share * (1.0 if slopes else FORWARD))
        return values / sizes, gradients / sizes[:, None].to(gradients.dtype) if slopes else gradients

    return losses


def _sums(probe: Probe, rows: Tensor, batches: Sequence[Batch], slopes: bool, at_once: bool) -> tuple[Tensor, Tensor]:
    """Σ of the loss over a batch at each θ + row, in float64, and its gradients; one batch for all rows or one for each."""
    theta = probe.vector()

    def total(vector: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        losses = sample_losses(probe, probe.space.unflatten(vector), batch)
        if batch.weights is not None:
            losses = losses * batch.weights
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

"""Losses and gradients at many perturbed parameters: all rows on all data, or each row on a batch of its own.

At once (`vmap` over rows and batches) or one by one; what `vmap` refuses, or what does not fit into memory together, goes one
by one. Values are sums of per-sample losses in float64, so that small rises survive in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.utils import _pytree as pytree

from landscope.core.accumulation import PieceSize, accumulate
from landscope.core.batches import Batch
from landscope.core.distributed import processes
from landscope.core.errors import BudgetSpentError
from landscope.core.ledger import FORWARD
from landscope.core.probe import Probe
from landscope.measures.sharpness.perturbation import REFUSALS, fitting_samples, sample_losses

__all__ = ["RowLosses", "losses_on_all_data", "losses_on_batches"]

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

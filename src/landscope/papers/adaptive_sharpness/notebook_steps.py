"""The parts of the notebooks' gradient ascents: the clamp, the losses and gradients, the model in training mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from landscope.core.distributed import processes
from landscope.core.errors import NotApplicableError
from landscope.core.seeding import generator, preserved_rng
from landscope.papers.adaptive_sharpness.left_in_evaluation import return_to_training
from landscope.probe.batches import Batch
from landscope.probe.probe import Probe
from landscope.probe.rows.samples import m_batches
from landscope.probe.totals import FORWARD

__all__ = [
    "batch_gradients",
    "batch_sums",
    "clamped",
    "dropout_from",
    "in_training_mode",
    "mean_loss",
    "refuse_processes",
    "sum_of_batch_means",
]


def clamped(weights: Tensor, centre: Tensor, radius: Tensor) -> Tensor:
    """The weights clamped to centre ± radius; where the radius is negative the limits are crossed and the upper one wins.

    >>> c = torch.tensor([1.0, -1.0])
    >>> clamped(torch.tensor([2.0, -1.0]), c, 0.5 * c.abs()), clamped(torch.tensor([2.0, -1.0]), c, 0.5 * c)
    (tensor([ 1.5000, -1.0000]), tensor([ 1.5000, -1.5000]))
    """
    return torch.clamp(weights, centre - radius, centre + radius)


def batch_sums(probe: Probe, weights: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """The gradient and the loss at some weights, summed over the samples of a batch."""
    leaves = {name: value.detach().requires_grad_() for name, value in probe.space.unflatten(weights).items()}
    loss = probe.loss_sum(leaves, batch)
    gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
    return probe.space.flatten(dict(zip(leaves, gradients, strict=True))), loss.detach().double()


@contextmanager
def batch_gradients(probe: Probe) -> Iterator[Callable[[Tensor, Batch], Tensor]]:
    """Inside, `gradient(weights, batch)` is the gradient of the mean loss over one batch.

    The conditions of measuring are set once for all steps: setting them takes as long as a step of a small network.
    """

    def gradient(weights: Tensor, batch: Batch) -> Tensor:
        probe.ledger.check()
        found, _ = batch_sums(probe, weights, batch)
        probe.ledger.add(batch.size / probe.n_samples)
        return found / batch.size

    with probe.ledger.timed(probe.device), probe.measuring():
        yield gradient


def mean_loss(probe: Probe, weights: Tensor) -> float:
    """The mean loss over all data, in whatever mode the probe's model is."""
    params = probe.space.unflatten(weights)
    (total,) = probe.total(
        lambda batch: (probe.loss_sum(params, batch).double(),), load=0.25, passes=FORWARD, grad=False
    )
    return float(total) / probe.n_samples


def sum_of_batch_means(probe: Probe, weights: Tensor, size: int, seed: int) -> float:
    """Σ over batches of their mean losses, in whatever mode the model is; `seed` cuts the data into batches of `size` and a rest.

    Every batch has a forward pass, and so a draw of dropout, of its own; the rest weighs as much as a whole batch. Where one
    batch holds all the data there is nothing to cut.
    """
    if probe.n_samples <= size:
        return mean_loss(probe, weights)
    params = probe.space.unflatten(weights)
    total = 0.0
    with probe.ledger.timed(probe.device), probe.measuring(), torch.no_grad():
        for whole in m_batches(probe, probe.n_samples, seed=seed):
            for batch in whole.pieces(size):
                probe.ledger.check()
                total += float(probe.loss_sum(params, batch)) / batch.size
                probe.ledger.add(FORWARD * batch.size / probe.n_samples)
    return total


def in_training_mode(probe: Probe) -> Probe:
    """The same data at a copy of the model in training mode: dropout draws, BatchNorm follows the batches."""
    return probe.with_model(return_to_training)


@contextmanager
def dropout_from(seed: int) -> Iterator[None]:
    """Dropout draws from torch's global generators: seeded inside, as they were afterwards."""
    with preserved_rng():
        torch.manual_seed(generator(seed, "dropout").initial_seed())
        yield


def refuse_processes() -> None:
    """Several processes cannot share an ascent in which every step needs the one before."""
    if processes() > 1:
        raise NotApplicableError("the notebook climbs from one batch to the next: run it on one process")

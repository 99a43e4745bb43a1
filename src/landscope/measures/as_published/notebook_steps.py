"""The parts of the notebooks' gradient ascents: the clamp, the losses and gradients, the model in training mode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from landscope.core.distributed import processes
from landscope.core.errors import NotApplicableError
from landscope.core.seeding import generator, preserved_rng
from landscope.probe.batches import Batch
from landscope.probe.probe import Probe
from landscope.probe.totals import FORWARD

__all__ = [
    "batch_gradient",
    "batch_sums",
    "clamped",
    "dropout_from",
    "in_training_mode",
    "mean_loss",
    "refuse_processes",
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
    leaf = weights.clone().requires_grad_()
    loss = probe.loss_sum(probe.space.unflatten(leaf), batch)
    (gradient,) = torch.autograd.grad(loss, leaf, allow_unused=True, materialize_grads=True)
    return gradient, loss.detach().double()


def batch_gradient(probe: Probe, weights: Tensor, batch: Batch) -> Tensor:
    """The gradient of the mean loss over one batch."""
    probe.ledger.check()
    with probe.ledger.timed(probe.device), probe.measuring():
        gradient, _ = batch_sums(probe, weights, batch)
    probe.ledger.add(batch.size / probe.n_samples)
    return gradient / batch.size


def mean_loss(probe: Probe, weights: Tensor) -> float:
    """The mean loss over all data, in whatever mode the probe's model is."""
    params = probe.space.unflatten(weights)
    (total,) = probe.total(
        lambda batch: (probe.loss_sum(params, batch).double(),), load=0.25, passes=FORWARD, grad=False
    )
    return float(total) / probe.n_samples


def in_training_mode(probe: Probe) -> Probe:
    """The same data at a copy of the model in training mode: dropout draws, BatchNorm follows the batches."""

    def edit(model: nn.Module) -> None:
        model.train()

    return probe.with_model(edit)


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

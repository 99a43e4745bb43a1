"""How many samples of a batch a model gets right, from outputs that are there already."""

from __future__ import annotations

import torch
from torch import Tensor

from landscope.core.errors import LossError, NotApplicableError
from landscope.probe.batches import Batch
from landscope.probe.checks import tensor_output
from landscope.probe.loss.targets import class_dimension
from landscope.probe.probe import Probe

__all__ = ["right_answers", "why_no_accuracy"]


def right_answers(probe: Probe, outputs: object, batch: Batch) -> Tensor:
    """The number of samples whose most likely class is their label, as float64 (); of several labels the share counts.

    Yes/no outputs are right where their sign is. Outputs that are NaN or infinite are never right.

    >>> probe = Probe(torch.nn.Linear(2, 2), (torch.eye(2), torch.tensor([0, 1])))
    >>> right_answers(probe, torch.tensor([[1.0, 0.0], [1.0, 0.0]]), next(probe.batches()))
    tensor(1., dtype=torch.float64)
    """
    z, y = tensor_output(outputs), probe.targets(batch)
    likelihood = probe.loss.likelihood
    if likelihood == "gaussian" or not isinstance(y, Tensor):
        raise NotApplicableError(f"with the loss {probe.loss.name!r} there are no classes to be right about")
    if likelihood == "bernoulli" and y.numel() == z.numel():
        y = y.reshape(z.shape)
        right, counted = ((z > 0) == (y > 0.5)) & torch.isfinite(z), torch.ones_like(y, dtype=torch.bool)
    else:
        if y.is_floating_point():
            raise NotApplicableError(f"accuracy needs class labels; the targets are {y.dtype} numbers")
        try:
            dim = class_dimension(z, y, probe.loss.classes_last)
        except LossError as error:
            raise NotApplicableError(f"accuracy needs a label for every prediction: {error}") from error
        counted = y != -100
        right = (z.argmax(dim) == y) & counted & torch.isfinite(z).all(dim)
    right, counted = (t.double().reshape(batch.size, -1).sum(1) for t in (right, counted))
    return (right / counted.clamp(min=1)).sum()


def why_no_accuracy(probe: Probe) -> str:
    """Why there is no accuracy at a probe; empty where there is one."""
    few = next(next(probe.batches()).pieces(2))
    batch = few.prepared(probe.ready)
    with probe.measuring(), torch.no_grad():
        try:
            right_answers(probe, probe.outputs(probe.params, batch), batch)
        except NotApplicableError as error:
            return str(error)
    return ""

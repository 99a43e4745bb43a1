"""How the outputs move with the parameters: J_i v for every sample, by one forward-mode derivative."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from torch.func import jvp

from landscope.core.batches import Batch
from landscope.core.errors import DifferentiationError, LandscopeError, NotApplicableError
from landscope.core.memory import is_out_of_memory
from landscope.core.probe import Probe

__all__ = ["TANGENT_LOAD", "TANGENT_PASSES", "output_tangents", "sample_rows"]

TANGENT_PASSES = 2 / 3
"""Cost of one forward-mode derivative, in gradients: twice a forward pass."""
TANGENT_LOAD = 0.5
"""Memory of one forward-mode derivative, in gradients: nothing is kept for a way back."""


def sample_rows(outputs: object, batch: Batch, what: str) -> Tensor:
    """The outputs, if they are one tensor with one row per sample."""
    if not isinstance(outputs, Tensor):
        raise NotApplicableError(f"{what} needs a model that returns one tensor, got {type(outputs).__name__}")
    if outputs.dim() == 0 or outputs.shape[0] != batch.size:
        raise NotApplicableError(
            f"{what} needs outputs with one row per sample, got {tuple(outputs.shape)} for {batch.size} samples"
        )
    return outputs


def output_tangents(probe: Probe, batch: Batch, direction: Mapping[str, Tensor], what: str) -> tuple[Tensor, Tensor]:
    """The outputs z and their derivative J v along `direction`, for one piece of data.

    >>> import torch
    >>> probe = Probe(torch.nn.Linear(1, 1, bias=False), (torch.ones(2, 1), torch.zeros(2, 1)), "mse")
    >>> z, u = output_tangents(probe, next(probe.batches()), probe.params, "a doctest")
    >>> bool(torch.equal(z, u))                 # a linear map along its own weights
    True
    """

    def outputs(params: Mapping[str, Tensor]) -> Tensor:
        return sample_rows(probe.outputs(params, batch), batch, what)

    try:
        found = jvp(outputs, (dict(probe.params),), (dict(direction),))
    except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
        if isinstance(error, LandscopeError) or is_out_of_memory(error):
            raise
        raise DifferentiationError(
            f"{what} needs a forward-mode derivative, which an operation of the model lacks: {str(error).splitlines()[0]}"
        ) from error
    return found[0], found[1]

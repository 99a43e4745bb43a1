"""Embeddings whose padding row is a constant in every mode of differentiation.

`nn.Embedding(padding_idx=…)` promises that the padding row gets no gradient. Torch keeps that in reverse mode only: in forward
mode (2.13) the row's tangent passes, so that J and Jᵀ are not transposes of each other. Here the outputs that come from the row
are cut off instead, and the row's other uses (a weight that is tied to a linear layer) are not.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class _ConstantPadding(nn.Embedding):
    """The same embedding, whose padding row is a constant."""

    def forward(self, input: Tensor) -> Tensor:
        assert self.padding_idx is not None
        found = super().forward(input)
        return torch.where(input.eq(self.padding_idx).unsqueeze(-1), found.detach(), found)


def keep_padding_constant(model: nn.Module) -> None:
    """Let embeddings with a padding row cut it off in every mode, in place.

    A subclass keeps its own `forward`; what it inherits is replaced.

    >>> layer = nn.Embedding(3, 1, padding_idx=0)
    >>> keep_padding_constant(layer)
    >>> v = torch.ones(3, 1)
    >>> torch.func.jvp(lambda w: torch.func.functional_call(layer, {"weight": w}, torch.tensor([0, 2])), (v,), (v,))[1]
    tensor([[0.],
            [1.]])
    """
    for module in model.modules():
        if isinstance(module, nn.Embedding) and module.padding_idx is not None:
            kind = type(module)
            if not issubclass(kind, _ConstantPadding):
                bases = (_ConstantPadding,) if kind is nn.Embedding else (kind, _ConstantPadding)
                module.__class__ = type(kind.__name__, bases, {})


def padding_rows(model: nn.Module) -> list[tuple[Tensor, int]]:
    """The weights that embeddings of the model use, each with its padding row."""
    return [
        (module.weight, module.padding_idx)
        for module in model.modules()
        if isinstance(module, nn.Embedding) and module.padding_idx is not None
    ]

"""Bags of embeddings that can be differentiated twice, and forwards.

`torch.nn.functional.embedding_bag` has neither a second nor a forward-mode derivative (torch 2.13). The same sum, mean or maximum
over looked-up rows has both:

    bag_i = Σ_{j in bag i} w_j E[x_j],     over those j that are no padding
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding


def differentiate_embedding_bags(model: nn.Module) -> None:
    """Have plain `nn.EmbeddingBag` layers look rows up and reduce them, in place.

    >>> layer = nn.EmbeddingBag(3, 2, mode="sum")
    >>> rows, starts = torch.tensor([0, 2, 2]), torch.tensor([0, 1])
    >>> before = layer(rows, starts)
    >>> differentiate_embedding_bags(layer)
    >>> bool(torch.allclose(layer(rows, starts), before))
    True
    """
    for module in model.modules():
        if type(module) is nn.EmbeddingBag:
            module.__class__ = _PlainBag


class _PlainBag(nn.EmbeddingBag):
    """The same bags, of operations with every derivative."""

    def forward(self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        """As `nn.EmbeddingBag`."""
        if offsets is None:
            count = len(input)
            bags = torch.arange(count, device=input.device).repeat_interleave(input.shape[1])
        else:
            count = len(offsets) - self.include_last_offset
            places = torch.arange(len(input), device=input.device)
            bags = torch.searchsorted(offsets[:count].contiguous(), places, right=True) - 1
        flat = input.reshape(-1)
        kept = torch.ones_like(flat, dtype=torch.bool) if self.padding_idx is None else flat != self.padding_idx
        rows = embedding(flat, self.weight)
        if per_sample_weights is not None:
            rows = rows * per_sample_weights.reshape(-1, 1)
        bags, where = bags[:, None].expand_as(rows), kept[:, None]
        if self.mode == "max":
            lowest = rows.new_full((count, rows.shape[1]), -torch.inf)
            found = lowest.scatter_reduce(0, bags, rows.where(where, -torch.inf), "amax")
            return found.where(found > -torch.inf, 0.0)
        total = rows.new_zeros(count, rows.shape[1]).scatter_add(0, bags, rows.where(where, 0.0))
        if self.mode == "sum":
            return total
        held = rows.new_zeros(count).scatter_add(0, bags[:, 0], kept.to(rows.dtype))
        return total / held.clamp(min=1)[:, None]

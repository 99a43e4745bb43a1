"""Graph attention network (Veličković et al. 2018), two layers, as the fifth paper trains on Cora.

The paper's code has one attention head of 8 units; Veličković et al. have eight heads of 8 (`heads=8`: 92,373
parameters). Dropout acts on the attention weights and between the layers; `input_dropout` adds it on the node features,
as Veličković et al. do.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import elu

from landscope.models.catalogue import ParameterCount, register, require
from landscope.specs.schema import Natural, Probability


def _ring(nodes: int, shape: Sequence[int], rng: torch.Generator) -> tuple[Tensor, ...]:
    """Node features and a ring that joins every node with both neighbours."""
    here = torch.arange(nodes)
    there = (here + 1) % nodes
    edges = torch.stack([torch.cat([here, there]), torch.cat([there, here])])
    return torch.randn(nodes, *shape, generator=rng), edges


@register(
    "gat",
    description="two graph attention layers; the last layer, conv2, is a GATConv with a Linear conv2.lin",
    input_shape=(1433,),
    classifier="conv2",
    counts=(
        ParameterCount((1433 * 8 + 3 * 8) + (8 * 7 + 3 * 7), "matrix sizes of the fifth paper's code"),
        ParameterCount(92_373, "Veličković et al. on Cora", {"heads": 8}),
    ),
    extra="graphs",
    sampler=_ring,
)
class GAT(nn.Module):
    """Attention layer, ELU, dropout, attention layer; one row of logits per node."""

    def __init__(
        self,
        *,
        in_features: Natural = 1433,
        hidden: Natural = 8,
        heads: Natural = 1,
        num_classes: Natural = 7,
        dropout: Probability = 0.6,
        input_dropout: Probability = 0.0,
    ) -> None:
        super().__init__()
        layer = require("torch_geometric.nn", extra="graphs", purpose="the graph attention network").GATConv
        self.input_dropout, self.dropout = nn.Dropout(input_dropout), nn.Dropout(dropout)
        self.conv1: nn.Module = layer(in_features, hidden, heads=heads, dropout=dropout)
        self.conv2: nn.Module = layer(hidden * heads, num_classes, heads=1, concat=False, dropout=dropout)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits (nodes, classes) from features (nodes, in_features) and edges (2, edges) from row 0 to row 1."""
        x = self.dropout(elu(self.conv1(self.input_dropout(x), edge_index)))
        return self.conv2(x, edge_index)

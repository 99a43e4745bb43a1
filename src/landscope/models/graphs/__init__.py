"""Networks for graphs, called as `model(x, edge_index)`."""

from landscope.models.graphs.gat import GAT

__all__ = ["GAT"]

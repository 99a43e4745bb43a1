"""What lies between two tensors in the graph that autograd has recorded: read, not run.

Whether a network is piecewise linear there, and whether BatchNorm mixes the rows of a batch, is a property of its operations;
numbers can hide it (a branch whose last scale begins at zero).
"""

from __future__ import annotations

from torch import Tensor
from torch.autograd.graph import Node, get_gradient_edge

__all__ = ["between", "is_straight", "normalises_batches"]

LINEAR = """
    AdaptiveAvgPool2D AdaptiveAvgPool3D Add Alias AsStrided AvgPool2D AvgPool3D Cat Clone ConstantPadNd Expand Flip Gather Index
    IndexSelect Mean NativeDropout Neg Permute ReflectionPad1D ReflectionPad2D ReflectionPad3D Repeat ReplicationPad1D
    ReplicationPad2D ReplicationPad3D ReshapeAlias Roll Select Slice Split SplitWithSizes Squeeze Stack Sub Sum T ToCopy Transpose
    Unbind UnsafeView Unsqueeze UpsampleBilinear2D UpsampleNearest1D UpsampleNearest2D UpsampleNearest3D View
"""
PIECEWISE = """
    Abs AdaptiveMaxPool2D AdaptiveMaxPool3D Amax Hardtanh LeakyRelu MaxPool2DWithIndices MaxPool3DWithIndices Relu Threshold
"""
BILINEAR = "Addmm Baddbmm Bmm Convolution CudnnConvolution Mm Mul"
"""Linear where one factor only depends on what is asked about."""
STRAIGHT = frozenset(f"{LINEAR} {PIECEWISE}".split())
ONE_FACTOR = frozenset(f"{BILINEAR} NativeBatchNorm CudnnBatchNorm".split())


def between(top: Tensor, bottom: Tensor, without: Tensor | None = None) -> dict[Node, int]:
    """The operations that made `top` from `bottom`, not through `without`, each with how many of its inputs depend on `bottom`.

    >>> import torch
    >>> x = torch.ones(2, requires_grad=True)
    >>> y = x.exp() * 2
    >>> [node.name() for node in between(y, x)], between(y, x.exp())
    (['ExpBackward0', 'MulBackward0'], {})
    """
    start, end = get_gradient_edge(top).node, get_gradient_edge(bottom).node
    inputs = {end: 1}
    if without is not None:
        inputs[get_gradient_edge(without).node] = 0
    open_ = [start]
    while open_:
        node = open_[-1]
        children = [child for child, _ in node.next_functions if child is not None]
        new = [] if node in inputs else [child for child in children if child not in inputs]
        if new:
            open_.extend(new)
            continue
        open_.pop()
        if node not in inputs:
            inputs[node] = sum(inputs[child] > 0 for child in children)
    return {node: count for node, count in inputs.items() if count and node is not end}


def is_straight(top: Tensor, bottom: Tensor) -> bool:
    """Whether `top` is a piecewise linear function of `bottom`, by the operations that made it.

    >>> import torch
    >>> x = torch.ones(2, 3, requires_grad=True)
    >>> is_straight(x.relu() @ torch.ones(3, 4), x), is_straight(x.tanh(), x), is_straight(x * x.relu(), x)
    (True, False, False)
    """
    for node, count in between(top, bottom).items():
        kind = node.name().rstrip("0123456789").removesuffix("Backward")
        once = kind in ONE_FACTOR and count == 1 and not ("BatchNorm" in kind and _on_batch(node))
        if kind not in STRAIGHT and not once:
            return False
    return True


def normalises_batches(top: Tensor, bottom: Tensor) -> bool:
    """Whether BatchNorm on batch statistics lies between the two."""
    return any("BatchNorm" in node.name() and _on_batch(node, rows=2) for node in between(top, bottom))


def _on_batch(node: Node, rows: int = 1) -> bool:
    """Whether a BatchNorm uses the statistics of its batch, of at least so many rows: InstanceNorm is one of a single row."""
    saved: Tensor | None = getattr(node, "_saved_input", None)
    return bool(getattr(node, "_saved_training", True)) and (saved is None or len(saved) >= rows)

"""What one layer did in a user's own forward pass: its input, output and weight, and the model's output, with their graph.

The output that follows sees is a clone, so that work in place (`nn.ReLU(inplace=True)`) leaves the recorded one as it is.
Passes without gradients are not recorded. At most the last two calls are kept: a loss that depends on both shows that the
layer runs more than once. Copies and pickles of the model carry a recorder that does nothing, and no graph.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge

from landscope.core.errors import NotApplicableError, UnknownNameError
from landscope.curvature.layer.behind import Call
from landscope.curvature.layer.geometry import Layer, Linear


@dataclass(frozen=True)
class RecordedCall(Call):
    """One call of a layer in a forward pass, and what the model made of it."""

    version: int
    """Of the inputs: work in place behind the layer would have changed them since."""
    results: Tensor | None = None
    """The model's output, where it is one tensor."""
    made_by: Node | None = None
    """What made that output: work in place would have changed it since."""


class Recorder:
    """Forward hooks that keep the last two calls of a layer.

    >>> layer, recorder = nn.Linear(3, 2), Recorder()
    >>> handle = layer.register_forward_hook(recorder.after_layer, with_kwargs=True)
    >>> _ = layer(torch.ones(5, 3))
    >>> [call.outputs.shape for call in recorder.taken()], recorder.taken()
    ([torch.Size([5, 2])], [])
    """

    def __init__(self, active: bool = True) -> None:
        self.active = active
        self._calls: list[RecordedCall] = []

    def after_layer(
        self, module: Layer, args: tuple[Tensor, ...], kwargs: dict[str, Tensor], output: Tensor
    ) -> Tensor | None:
        """Note one call; what follows gets a clone of the output."""
        if not self.active or not torch.is_grad_enabled():
            return None
        inputs = args[0] if args else next(iter(kwargs.values()))
        held = output if output.requires_grad else output.detach().requires_grad_()
        self._calls = [*self._calls[-1:], RecordedCall(module, inputs, held, module.weight, inputs._version)]
        return held.clone()

    def after_model(self, _: nn.Module, __: object, output: object) -> None:
        if self._calls and isinstance(output, Tensor) and torch.is_grad_enabled():
            self._calls[-1] = replace(self._calls[-1], results=output, made_by=output.grad_fn)

    def taken(self) -> list[RecordedCall]:
        """The calls since the last time, which are then forgotten."""
        calls, self._calls = self._calls, []
        return calls

    def __reduce__(self) -> tuple[Callable[[bool], Recorder], tuple[bool]]:
        return Recorder, (False,)


def find_layer(model: nn.Module, name: str | None) -> tuple[str, Layer]:
    """A linear or convolutional layer by its name; by default the last linear one.

    >>> find_layer(nn.Sequential(nn.Linear(4, 2), nn.ReLU()), "0")
    ('0', Linear(in_features=4, out_features=2, bias=True))
    """
    modules = dict(model.named_modules())
    suitable = [key for key, module in modules.items() if isinstance(module, Layer)]
    if name is None:
        linear = [key for key in suitable if isinstance(modules[key], Linear)]
        name = (linear or suitable or [""])[-1]
    if name not in modules:
        raise UnknownNameError.among("layer", name, suitable)
    layer = modules[name]
    if not isinstance(layer, Layer):
        raise NotApplicableError(
            f"relative flatness is defined for linear and convolutional layers; {name!r} is a {type(layer).__name__}. "
            f"Choices: {', '.join(suitable) or 'none in this model'}"
        )
    return name, layer


# What lies between two tensors in the graph that autograd has recorded: read, not run.
#
# Whether a network is piecewise linear there, and whether BatchNorm mixes the rows of a batch, is a property of its operations;
# numbers can hide it (a branch whose last scale begins at zero).


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
    """Whether a BatchNorm uses the statistics of its batch, of at least this many rows: InstanceNorm is one of a single row."""
    saved: Tensor | None = getattr(node, "_saved_input", None)
    return bool(getattr(node, "_saved_training", True)) and (saved is None or len(saved) >= rows)

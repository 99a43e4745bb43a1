"""Convolutions whose derivatives of every order are convolutions of the plain kind.

A convolution is one side of a form that is linear in three tensors,

    T(g, x, w) = ⟨g, x ∗ w⟩ = ⟨∂x(g, w), x⟩ = ⟨∂w(g, x), w⟩

so that x ∗ w, its gradient to the input ∂x and its gradient to the weight ∂w have only each other for derivatives. Torch writes
the second derivatives of a convolution differently, as convolutions with kernels as large as an image; and a third derivative
differentiates that again. Inside of `plain_derivatives` what runs in each order is what a plain training step runs. Relative
flatness of a 3-D auto-encoder (64³ voxels, 10 rows) took 0.69 of its time on one CPU thread (n = 2 pairs of runs).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import batch_norm
from torch.overrides import TorchFunctionMode

_SIDES = {
    torch.conv1d: 1,
    torch.conv2d: 2,
    torch.conv3d: 3,
    torch.conv_transpose1d: 1,
    torch.conv_transpose2d: 2,
    torch.conv_transpose3d: 3,
}
_TENSORS = ("g", "x", "w")
_ORDER = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_ORDER_TRANSPOSED = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")


class _Geometry(NamedTuple):
    """The arguments of `aten::convolution`."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    transposed: bool
    output_padding: list[int]
    groups: int


class _Partial(Function):
    """The derivative of T to one of its three tensors ("g", "x" or "w"), from the other two in this order.

    To g it is x ∗ w itself. Its own derivatives are the two other partials, with the seed in the place of the missing tensor.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(first: Tensor, second: Tensor, missing: str, geometry: _Geometry, shape: torch.Size) -> Tensor:
        """`shape` is that of the missing tensor; of g it follows from the others."""
        if missing == "g":
            return torch.ops.aten.convolution(first, second, None, *geometry)
        unknown = first.new_empty(1).expand(shape)  # its shape is all that is looked at
        x, w = (unknown, second) if missing == "x" else (second, unknown)
        wanted = [missing == "x", missing == "w", False]
        found: Sequence[Tensor] = torch.ops.aten.convolution_backward(first, x, w, None, *geometry, wanted)
        return found[0 if missing == "x" else 1]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, str, _Geometry, torch.Size], output: Tensor) -> None:
        first, second, ctx.missing, ctx.geometry, _ = inputs
        ctx.save_for_backward(first, second)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, seed: Tensor | None) -> tuple[Tensor | None, ...]:
        """To the first and the second tensor, where that is wanted."""
        nothing = (None,) * 5
        if seed is None:
            return nothing
        names = [name for name in _TENSORS if name != ctx.missing]
        held = {**dict(zip(names, ctx.saved_tensors, strict=True)), ctx.missing: seed}
        slopes = [
            _partial(held, name, ctx.geometry, held[name].shape) if wanted else None
            for name, wanted in zip(names, ctx.needs_input_grad, strict=False)
        ]
        return (*slopes, *nothing[2:])


_Partial.forward.__signature__ = inspect.signature(_Partial.forward)  # type: ignore[attr-defined]  # torch asks at every call


def _partial(held: Mapping[str, Tensor], missing: str, geometry: _Geometry, shape: torch.Size) -> Tensor:
    first, second = (held[name] for name in _TENSORS if name != missing)
    return _Partial.apply(first, second, missing, geometry, shape)


class plain_derivatives(TorchFunctionMode):  # noqa: N801
    """Convolutions that run in here have fast derivatives of every order; nothing else changes.

    Those under autocast, on single images, or with `padding="same"` stay as they are.

    >>> net, x = torch.nn.Conv2d(2, 3, 3, stride=2), torch.ones(4, 2, 8, 8)
    >>> with plain_derivatives():
    ...     out = net(x)
    >>> torch.equal(out, net(x)), out.grad_fn.next_functions[0][0].name()
    (True, '_PartialBackward')
    """

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        options = dict(kwargs or {})
        found = None
        if func in _SIDES:
            found = _convolved(func, args, options)
        elif func is batch_norm:
            found = _normalised(*args, **options)  # type: ignore[arg-type]
        if found is not None:
            return found
        return func(*args, **options)


WIDE = 32
"""Channels of a convolution from which on tensor cores want them next to each other."""


class channels_last(TorchFunctionMode):  # noqa: N801
    """Wide convolutions of images that run in here keep the channels of each pixel together, as tensor cores take them.

    For products in TF32 on a GPU: ResNet-18 on an H200, 2,000 images, recorded: 0.84 of the time of a Hessian product, 0.69 of
    that of a Gauss–Newton product. Only the order of sums is another; what a model views as rows is copied where it must be.
    """

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        del types
        if func is torch.conv2d and len(args) > 1 and args[0].dim() == 4 and min(args[1].shape[:2]) >= WIDE:
            first, second = (tensor.contiguous(memory_format=torch.channels_last) for tensor in args[:2])
            args = (first, second, *args[2:])
        elif func is Tensor.view and args[0].dim() == 4 and len(args) > 1 and not isinstance(args[1], torch.dtype):
            func = Tensor.reshape
        return func(*args, **(kwargs or {}))


def _normalised(
    x: Tensor,
    mean: Tensor | None,
    variance: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor | None:
    """Batch norm with given statistics on a GPU, as the product and sum that it is: torch's own second derivative takes longer.

    ResNet-18 on an H200 in TF32: 0.88 of the time of a product in pieces of 500 images, 0.83 in pieces of 1,000.
    """
    del momentum
    if training or mean is None or variance is None or x.device.type != "cuda" or x.dtype != mean.dtype:
        return None
    scale = torch.rsqrt(variance + eps) if weight is None else torch.rsqrt(variance + eps) * weight
    shift = -mean * scale if bias is None else bias - mean * scale
    shape = [1, -1, *[1] * (x.dim() - 2)]
    return torch.addcmul(shift.view(shape), x, scale.view(shape))


def _convolved(func: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]) -> Tensor | None:
    sides, transposed = _SIDES[func], "transpose" in func.__name__
    given: dict[str, Any] = {**dict(zip(_ORDER_TRANSPOSED if transposed else _ORDER, args, strict=False)), **kwargs}
    x, w, bias = given["input"], given["weight"], given.get("bias")
    if x.dim() != sides + 2 or isinstance(given.get("padding"), str) or torch.is_autocast_enabled(x.device.type):
        return None

    def each(name: str, default: int) -> list[int]:
        value = given.get(name, default)
        numbers = [value] if isinstance(value, int) else list(value)
        return numbers * sides if len(numbers) == 1 else numbers

    geometry = _Geometry(
        each("stride", 1),
        each("padding", 0),
        each("dilation", 1),
        transposed,
        each("output_padding", 0),
        given.get("groups", 1),
    )
    found = _partial({"x": x, "w": w}, "g", geometry, torch.Size())
    return found if bias is None else found + bias.view(-1, *[1] * sides)

"""Convolutions whose derivatives of every order are convolutions of the plain kind.

A convolution is one side of a form that is linear in three tensors,

    T(g, x, w) = ⟨g, x ∗ w⟩ = ⟨∂x(g, w), x⟩ = ⟨∂w(g, x), w⟩

so that x ∗ w, its gradient to the input ∂x and its gradient to the weight ∂w have only each other for derivatives. Torch writes
the second derivatives of a convolution differently, as convolutions with kernels as large as an image, for which the libraries
of a GPU have no fast code; and a third derivative differentiates that again. Inside of `plain_derivatives` what runs in each
order is what a plain training step runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import FunctionCtx
from torch.overrides import TorchFunctionMode

__all__ = ["plain_derivatives"]

_SIDES = {
    torch.conv1d: 1,
    torch.conv2d: 2,
    torch.conv3d: 3,
    torch.conv_transpose1d: 1,
    torch.conv_transpose2d: 2,
    torch.conv_transpose3d: 3,
}
_ORDER = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_ORDER_TRANSPOSED = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")


class _Geometry(NamedTuple):
    """As `aten::convolution` has it."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    transposed: bool
    output_padding: list[int]
    groups: int


class _Context(FunctionCtx):
    """What the three functions keep."""

    saved_tensors: tuple[Tensor, Tensor]
    needs_input_grad: tuple[bool, ...]
    geometry: _Geometry


class _TrilinearFunction(Function):
    """A function of two tensors, a geometry and the shape of its result."""

    generate_vmap_rule = True

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, _Geometry, torch.Size], output: Tensor) -> None:
        """Keep both tensors."""
        del output
        first, second, ctx.geometry, _ = inputs
        ctx.save_for_backward(first, second)
        ctx.set_materialize_grads(False)


class _Convolution(_TrilinearFunction):
    """x ∗ w."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, geometry: _Geometry, shape: torch.Size) -> Tensor:
        """Of an input and a weight; the shape of the result follows from them."""
        del shape
        return torch.ops.aten.convolution(x, w, None, *geometry)

    @staticmethod
    def backward(ctx: _Context, g: Tensor | None) -> tuple[Tensor | None, ...]:
        """To x and w: ∂x and ∂w."""
        (x, w), geometry = ctx.saved_tensors, ctx.geometry
        return _two(
            ctx,
            g,
            lambda g: _InputGradient.apply(g, w, geometry, x.shape),
            lambda g: _WeightGradient.apply(g, x, geometry, w.shape),
        )


class _InputGradient(_TrilinearFunction):
    """∂x(g, w)."""

    @staticmethod
    def forward(g: Tensor, w: Tensor, geometry: _Geometry, shape: torch.Size) -> Tensor:
        """Of a slope at the result, and the weight."""
        return _backward(g, g.new_empty(1).expand(shape), w, geometry, 0)

    @staticmethod
    def backward(ctx: _Context, h: Tensor | None) -> tuple[Tensor | None, ...]:
        """To g and w: h ∗ w and ∂w(g, h)."""
        (g, w), geometry = ctx.saved_tensors, ctx.geometry
        return _two(
            ctx,
            h,
            lambda h: _Convolution.apply(h, w, geometry, g.shape),
            lambda h: _WeightGradient.apply(g, h, geometry, w.shape),
        )


class _WeightGradient(_TrilinearFunction):
    """∂w(g, x)."""

    @staticmethod
    def forward(g: Tensor, x: Tensor, geometry: _Geometry, shape: torch.Size) -> Tensor:
        """Of a slope at the result, and the input."""
        return _backward(g, x, g.new_empty(1).expand(shape), geometry, 1)

    @staticmethod
    def backward(ctx: _Context, v: Tensor | None) -> tuple[Tensor | None, ...]:
        """To g and x: x ∗ v and ∂x(g, v)."""
        (g, x), geometry = ctx.saved_tensors, ctx.geometry
        return _two(
            ctx,
            v,
            lambda v: _Convolution.apply(x, v, geometry, g.shape),
            lambda v: _InputGradient.apply(g, v, geometry, x.shape),
        )


def _two(
    ctx: _Context, seed: Tensor | None, first: Callable[[Tensor], Tensor], second: Callable[[Tensor], Tensor]
) -> tuple[Tensor | None, ...]:
    """The derivatives to both tensors, where they are wanted."""
    if seed is None:
        return None, None, None, None
    wants = ctx.needs_input_grad
    return first(seed) if wants[0] else None, second(seed) if wants[1] else None, None, None


def _backward(g: Tensor, x: Tensor, w: Tensor, geometry: _Geometry, which: int) -> Tensor:
    wanted = [which == 0, which == 1, False]
    found: Sequence[Tensor] = torch.ops.aten.convolution_backward(g, x, w, None, *geometry, wanted)
    return found[which]


class plain_derivatives(TorchFunctionMode):  # noqa: N801
    """Convolutions that run in here have fast derivatives of every order; nothing else changes.

    Those under autocast, on single images, or with `padding="same"` stay as they are.

    >>> net, x = torch.nn.Conv2d(2, 3, 3, stride=2), torch.ones(4, 2, 8, 8)
    >>> with plain_derivatives():
    ...     out = net(x)
    >>> torch.equal(out, net(x)), out.grad_fn.next_functions[0][0].name()
    (True, '_ConvolutionBackward')
    """

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Stands for torch's convolutions."""
        del types
        options = dict(kwargs or {})
        if func in _SIDES:
            found = _convolved(func, args, options)
            if found is not None:
                return found
        return func(*args, **options)


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
    found: Tensor = _Convolution.apply(x, w, geometry, torch.Size())
    return found if bias is None else found + bias.view(-1, *[1] * sides)

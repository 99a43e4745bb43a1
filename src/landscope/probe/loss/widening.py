"""Weights that stay in half precision while everything is computed in float32.

A large model that was trained in bfloat16 has its weights in 2 bytes each, and copies in float32 may not fit. Here the point is
the model as it is, its weights exactly: each is widened where an operation uses it, and dropped. So the function, its gradients
and its Hessian are those of a float32 model with these weights. What is rounded is vectors, which have the precision of the
weights: a gradient by a weight is complete in float32 before it is rounded, once for each piece of data and each use.

A linear layer and an embedding keep the narrow weight for the way back, where automatic differentiation would keep the wide one,
and add up by the narrow one. Other operations see a wide copy, which is small for norms and biases.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

NARROW = torch.bfloat16
"""What weights may stay in: float16 has gradients that are too small for it."""
ROUNDING = 2.0**-9
"""Relative error of a long vector that is rounded to bfloat16 once: the root of the mean square is 0.8 of it."""
QUIET = frozenset(
    {
        *(
            "__get__",
            "__set__",
            "__len__",
            "__hash__",
            "__repr__",
            "size",
            "dim",
            "numel",
            "nelement",
            "stride",
            "is_contiguous",
        ),
        *(
            "ndimension",
            "element_size",
            "data_ptr",
            "storage_offset",
            "untyped_storage",
            "is_floating_point",
            "is_complex",
        ),
        *(
            "get_device",
            "requires_grad_",
            "detach",
            "t",
            "transpose",
            "permute",
            "view",
            "reshape",
            "flatten",
            "chunk",
            "split",
        ),
        *(
            "unbind",
            "select",
            "narrow",
            "squeeze",
            "unsqueeze",
            "expand",
            "contiguous",
            "swapaxes",
            "movedim",
            "__getitem__",
        ),
    }
)
"""What tells something of a tensor or gives a view of it: nothing is computed."""


def transformed() -> bool:
    """Whether something of `torch.func`, or forward mode, is at work here: both need every operation in the open."""
    return forward_ad._current_level >= 0 or torch._C._functorch.peek_interpreter_stack() is not None


class widening(TorchFunctionMode):  # noqa: N801
    """What runs in here computes with float32 copies of tensors in half precision, which it takes for float32 throughout.

    >>> layer = torch.nn.Linear(2, 2).bfloat16()
    >>> with widening():
    ...     out, kind = layer(torch.ones(1, 2)), layer.weight.dtype
    >>> out.dtype, kind, bool(torch.equal(out, layer.float()(torch.ones(1, 2))))
    (torch.float32, torch.float32, True)
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        del types
        options = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name in QUIET:
            found = func(*args, **options)
            return torch.float32 if found is NARROW and name == "__get__" else found
        if func in _STAND_INS and not transformed():
            found = _STAND_INS[func](*args, **options)
            if found is not None:
                return found
        if not any(_is_narrow(leaf) for leaf in pytree.tree_leaves((args, options))):
            return func(*args, **options)
        wide_args, wide_options = pytree.tree_map(
            lambda leaf: leaf.float() if _is_narrow(leaf) else leaf, (args, options)
        )
        return func(*wide_args, **wide_options)


def _is_narrow(leaf: object) -> bool:
    return isinstance(leaf, Tensor) and leaf.dtype == NARROW


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
    if not _is_narrow(weight) or _is_narrow(x):
        return None
    found: Tensor = _Linear.apply(x, weight)
    return found if bias is None else found + (bias.float() if _is_narrow(bias) else bias)


def _addmm(bias: Tensor, x: Tensor, weight: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor | None:
    """Hugging Face's `Conv1D`: a linear layer with its weight transposed."""
    return _linear(x, weight.t(), bias) if beta == alpha == 1 and weight.dim() == 2 else None


def _embedding(
    numbers: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor | None:
    del norm_type
    if not _is_narrow(weight) or max_norm is not None or scale_grad_by_freq or sparse:
        return None
    row = -1 if padding_idx is None else padding_idx % len(weight)
    found: Tensor = _Embedding.apply(numbers, weight, row)
    return found


_STAND_INS: Mapping[object, Callable[..., Tensor | None]] = {
    functional.linear: _linear,
    torch.addmm: _addmm,
    functional.embedding: _embedding,
}


class _Linear(torch.autograd.Function):
    """y = x Wᵀ with W in half precision."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return functional.linear(x, weight.to(x.dtype))

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, Tensor | None]:
        by_x, by_weight = _LinearSlopes.apply(*ctx.saved_tensors, slopes[0], *ctx.needs_input_grad)
        return by_x, by_weight


class _LinearSlopes(torch.autograd.Function):
    """S ↦ S W and Sᵀ x, of which the first is as wide as x and the second as narrow as W."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, slope: Tensor, for_x: bool, for_weight: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        ctx.save_for_backward(x, weight, slope)
        ctx.set_materialize_grads(False)
        return (
            slope @ weight.to(slope.dtype) if for_x else None,
            (_rows(slope).T @ _rows(x)).to(weight.dtype) if for_weight else None,
        )

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_x: Tensor | None, to_weight: Tensor | None) -> tuple[Tensor | None, ...]:
        x, weight, slope = ctx.saved_tensors
        for_x, for_weight, for_slope, *_ = ctx.needs_input_grad
        by_x = by_weight = by_slope = None
        if to_weight is not None:
            wide = to_weight.to(slope.dtype)
            by_x = slope @ wide if for_x else None
            by_slope = functional.linear(x, wide) if for_slope else None
        if to_x is not None:
            by_weight = (_rows(slope).T @ _rows(to_x)).to(weight.dtype) if for_weight else None
            if for_slope:
                more = functional.linear(to_x, weight.to(slope.dtype))
                by_slope = more if by_slope is None else by_slope.add_(more)
        return by_x, by_weight, by_slope, None, None


def _rows(x: Tensor) -> Tensor:
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


class _Embedding(torch.autograd.Function):
    """Rows of W, which is in half precision."""

    @staticmethod
    def forward(ctx: Any, numbers: Tensor, weight: Tensor, padding: int) -> Tensor:
        ctx.save_for_backward(numbers)
        ctx.rows, ctx.padding = len(weight), padding
        return functional.embedding(numbers, weight).float()

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        (numbers,) = ctx.saved_tensors
        return None, _EmbeddingSlopes.apply(numbers, slopes[0], ctx.rows, ctx.padding), None


class _EmbeddingSlopes(torch.autograd.Function):
    """What every row of W collects from the positions that use it."""

    @staticmethod
    def forward(ctx: Any, numbers: Tensor, slope: Tensor, rows: int, padding: int) -> Tensor:
        ctx.save_for_backward(numbers)
        ctx.padding = padding
        return torch.ops.aten.embedding_dense_backward(slope, numbers, rows, padding, False).to(NARROW)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *along: Tensor) -> tuple[Tensor | None, ...]:
        (numbers,) = ctx.saved_tensors
        found = functional.embedding(numbers, along[0]).float()
        return (
            None,
            found if ctx.padding < 0 else found.masked_fill_((numbers == ctx.padding)[..., None], 0.0),
            None,
            None,
        )

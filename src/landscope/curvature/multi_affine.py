"""Whether the outputs are affine in every single parameter: then the Hessian and the Gauss–Newton matrix have one diagonal.

The diagonals of the two matrices differ by Σ_c ∂ℓ/∂z_c ∂²z_c/∂θ_j². A network of linear, convolutional and frozen normalisation
layers with rectifiers, pooling and sums between them is a polynomial of its parameters, away from kinks, in which every
parameter has the power 0 or 1 (each weight is multiplied with what others made, never with itself). So ∂²z_c/∂θ_j² = 0, and

    diag H = diag GGN,   tr H = tr GGN,   for the whole network and for every part of it.

One forward pass of two samples finds out: every operation is looked up in a list of those that keep this true, and a product is
allowed where its factors depend on different parameters. What is not in the list is taken for curved.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakIdKeyDictionary

from landscope.core.errors import LandscopeError
from landscope.core.memory import is_out_of_memory
from landscope.core.torch_fixes import LightDispatchMode
from landscope.probe.probe import Probe
from landscope.probe.shared import once_per_probe

# fmt: off
AFFINE = frozenset({
    "abs", "adaptive_avg_pool2d", "_adaptive_avg_pool2d", "adaptive_avg_pool3d", "_adaptive_avg_pool3d",
    "adaptive_max_pool2d", "add", "alias", "amax", "amin", "avg_pool1d", "avg_pool2d", "avg_pool3d", "cat", "clamp",
    "clamp_max", "clamp_min", "clone", "constant_pad_nd", "contiguous", "copy", "detach", "diagonal", "expand",
    "flatten", "flip", "gather", "hardtanh", "index", "index_select", "leaky_relu", "max_pool2d_with_indices",
    "max_pool3d_with_indices", "maximum", "mean", "minimum", "narrow", "neg", "permute", "pixel_shuffle",
    "reflection_pad2d", "relu", "relu6", "repeat", "replication_pad2d", "reshape", "_reshape_alias", "roll", "rsub",
    "select", "slice", "split", "split_with_sizes", "squeeze", "stack", "sub", "sum", "t", "threshold", "_to_copy",
    "transpose", "unbind", "unfold", "_unsafe_view", "unsqueeze", "upsample_bilinear2d", "upsample_nearest2d",
    "view",
})
# fmt: on
"""Operations that are piecewise affine in all that they are given together."""
PRODUCTS = {
    **dict.fromkeys(("bmm", "convolution", "dot", "matmul", "mm", "mul", "mv", "_prelu_kernel"), (0, 1)),
    "addmm": (1, 2),
}
"""Operations that multiply two arguments; whatever else they are given is added."""
BATCH_NORMS = frozenset(
    {"native_batch_norm", "_native_batch_norm_legit_no_training", "cudnn_batch_norm", "_batch_norm_no_update"}
)


class _CurvedError(Exception):
    """An operation that is not piecewise affine in a parameter."""


class _Dependence(LightDispatchMode):
    """Follows which parameters every tensor depends on, and stops at the first operation that curves."""

    def __init__(self, params: dict[str, Tensor]) -> None:
        super().__init__()
        self._of: Any = WeakIdKeyDictionary()
        for name, tensor in params.items():
            self._of[tensor] = frozenset((name,))

    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        given = [self._union(argument) for argument in (*args, *(kwargs or {}).values())]
        names = frozenset().union(*given)
        operation = func.overloadpacket.__name__
        changed = operation.endswith("_") and not operation.startswith("__")
        if names:
            self._check(operation.rstrip("_") if changed else operation, args, kwargs or {}, given)
            if changed and args[0]._is_view():
                raise _CurvedError(f"{operation} changes a part of a tensor")
        out = func(*args, **(kwargs or {}))
        for tensor in _tensors(out):
            self._of[tensor] = names
        return out

    def _union(self, argument: object) -> frozenset[str]:
        return frozenset().union(*(self._of.get(tensor, frozenset()) for tensor in _tensors(argument)))

    def _check(
        self, operation: str, args: tuple[Any, ...], kwargs: dict[str, Any], given: list[frozenset[str]]
    ) -> None:
        if operation in AFFINE:
            return
        if operation in PRODUCTS:
            first, second = PRODUCTS[operation]
            if given[first] & given[second]:
                raise _CurvedError(f"{operation} of two tensors that depend on the same parameter")
            return
        if operation == "div" and not given[1]:
            return
        training = args[5] if operation in ("native_batch_norm", "cudnn_batch_norm") and len(args) > 5 else False
        if operation in BATCH_NORMS and not training and not (given[0] & given[1] or given[3] or given[4]):
            return
        raise _CurvedError(operation)


def _tensors(tree: object) -> Iterator[Tensor]:
    return (leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor))


@once_per_probe
def is_multi_affine(probe: Probe) -> bool:
    """Whether the outputs of the model are piecewise affine in every single measured parameter. Two samples' forward pass.

    >>> from torch import nn
    >>> data = torch.randn(4, 3), torch.tensor([0, 1, 0, 1])
    >>> layers = nn.Linear(3, 5), nn.Linear(5, 2)
    >>> [is_multi_affine(Probe(nn.Sequential(layers[0], f, layers[1]), data)) for f in (nn.ReLU(), nn.Tanh())]
    [True, False]
    """
    sample = next(next(probe.batches()).pieces(2)).prepared(probe.ready)
    params = {name: p.detach().clone() for name, p in probe.params.items()}
    try:
        with probe.measuring(), torch.no_grad(), _Dependence(params):
            probe.outputs(params, sample)
    except _CurvedError:
        return False
    except Exception as error:
        if isinstance(error, LandscopeError) or is_out_of_memory(error):
            raise
        return False  # a model that cannot be followed
    return True

"""What one layer adds to the Jacobian Gram matrix Θ = J Jᵀ, from its inputs and its output gradients alone.

A layer whose weight acts alike at T positions of a sample (a linear layer, a convolution on its patches, an embedding on
one-hot inputs) has ∂z_ic/∂W = Σ_t δ_ict a_itᵀ, with inputs a (K numbers; a bias is one more input, the number 1) and output
gradients δ (O numbers). Its part of Θ is found in one of two ways, whichever takes fewer operations:

    position pairs     Θ_{ic,jd} += Σ_{s,t} ⟨a_is, a_jt⟩ ⟨δ_ics, δ_jdt⟩       (nT)² K + (nCT)² O
    sample gradients   Θ += R Rᵀ with rows R_ic = Σ_t δ_ict a_itᵀ              nCT·KO + (nC)² KO, R in slices of O

A norm layer y = w ∘ x̂ + b has the rows Σ_t δ_ict ∘ x̂_it and Σ_t δ_ict. A layer that is used several times adds positions.
Products are summed in float64, so that a float32 network loses no more than its own rounding.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

__all__ = ["LayerRule", "add_gram", "rule_for"]

BLOCK = 2048
"""Rows of Θ per product: large enough for full speed, small enough to skip the lower triangle."""
ELEMENTWISE = 16
"""What weighting one entry of the position pairs costs, in multiplications of a matrix product."""


def add_gram(theta: Tensor, rows: Tensor) -> None:
    """Θ += R Rᵀ in float64, upper triangle only.

    >>> theta = torch.zeros(2, 2, dtype=torch.float64)
    >>> add_gram(theta, torch.tensor([[1.0, 2.0], [0.0, 1.0]])); theta.triu()
    tensor([[5., 2.],
            [0., 1.]], dtype=torch.float64)
    """
    rows = rows.to(theta.dtype)
    for start in range(0, len(rows), BLOCK):
        theta[start : start + BLOCK, start:].addmm_(rows[start : start + BLOCK], rows[start:].T)


@dataclass(frozen=True)
class LayerRule(ABC):
    """How one layer's measured parameters enter Θ: `weight` and `bias` are their names, `None` where not measured.

    `inputs` are what the layer was given, one tensor (n, …) for each use; `grads` are ∂z_c/∂output, (q, n, …) for each use and
    q of the outputs. What `keep` makes of them, (n, q, …), is all that is held.
    """

    module: nn.Module
    weight: str | None
    bias: str | None

    @property
    def names(self) -> tuple[str, ...]:
        """The measured parameters that this rule accounts for."""
        return tuple(name for name in (self.weight, self.bias) if name is not None)

    @abstractmethod
    def fits(self, x: Tensor, y: Tensor) -> bool:
        """Whether an input and an output have the shapes that the rule expects."""

    @abstractmethod
    def keep(self, inputs: Sequence[Tensor], grads: Sequence[Tensor]) -> Tensor:
        """What is needed of the output gradients, (n, q, …)."""

    @abstractmethod
    def add(self, theta: Tensor, inputs: Sequence[Tensor], kept: Tensor, room: int) -> None:
        """Θ += this layer's part, given all samples and outputs, within about `room` bytes."""

    @abstractmethod
    def total(self, inputs: Sequence[Tensor], grads: Sequence[Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        """The gradients summed over samples (with q = 1), and a bound on their norm without cancellation."""


class SharedLinear(LayerRule):
    """A weight (G groups of O×K) that multiplies inputs (n, G, T, K) at T positions."""

    def patches(self, inputs: Sequence[Tensor]) -> Tensor:
        """The inputs of every use and position (n, G, T, K), with the number 1 for the bias."""
        patches = torch.cat([self._patches(x) for x in inputs], 2)
        ones = patches.new_ones(*patches.shape[:3], 1)
        if self.weight is None:
            return ones
        return patches if self.bias is None else torch.cat([patches, ones], 3)

    def _patches(self, x: Tensor) -> Tensor:
        return x.reshape(len(x), 1, -1, x.shape[-1])

    def _deltas(self, grad: Tensor) -> Tensor:
        """Output gradients (q, n, …) as (n, q, G, T, O)."""
        return grad.reshape(*grad.shape[:2], 1, -1, grad.shape[-1]).transpose(0, 1)

    def _keeps_rows(self, deltas: Tensor) -> bool:
        """Sample gradients are kept instead of output gradients where they are smaller."""
        parameters = sum(p.numel() for p in (self.module.weight, self.module.bias) if isinstance(p, Tensor))
        return parameters <= math.prod(deltas.shape[2:])

    def fits(self, x: Tensor, y: Tensor) -> bool:
        """(n, …, K) in, (n, …, O) out."""
        out = self.module.weight.shape[0]  # type: ignore[union-attr, index]
        return y.dim() >= 2 and x.shape[:-1] == y.shape[:-1] and y.shape[-1] == out

    def keep(self, inputs: Sequence[Tensor], grads: Sequence[Tensor]) -> Tensor:
        """Output gradients (n, q, G, T, O), or sample gradients (n, q, P)."""
        deltas = torch.cat([self._deltas(grad) for grad in grads], 3)
        if not self._keeps_rows(deltas):
            return deltas
        return torch.einsum("ngtk,nqgto->nqgok", self.patches(inputs), deltas).flatten(2)

    def add(self, theta: Tensor, inputs: Sequence[Tensor], kept: Tensor, room: int) -> None:
        """By position pairs or by sample gradients."""
        if kept.dim() == 3:
            return add_gram(theta, kept.flatten(0, 1))
        patches = self.patches(inputs)
        n, q, groups, positions, out = kept.shape
        width = patches.shape[3]
        pairs = groups * ((n * positions) ** 2 * width + (n * q * positions) ** 2 * (out + ELEMENTWISE))
        gradients = groups * out * width * (n * q * positions + (n * q) ** 2)
        affordable = 8 * (n * positions) ** 2 <= room and 16 * (q * positions) ** 2 <= room
        if pairs < gradients and affordable:
            return add_position_pairs(theta, patches, kept, room)
        return add_sample_gradients(theta, patches, kept, room)

    def total(self, inputs: Sequence[Tensor], grads: Sequence[Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        """Σ_i Σ_t δ_it a_itᵀ, and ‖δ‖ ‖a‖."""
        deltas, patches = torch.cat([self._deltas(grad) for grad in grads], 3)[:, 0], self.patches(inputs)
        sums, out = torch.einsum("ngto,ngtk->gok", deltas, patches).flatten(0, 1), {}
        if self.bias is not None:
            out[self.bias] = sums[:, -1]
        if self.weight is not None:
            out[self.weight] = sums[:, : sums.shape[1] - (self.bias is not None)].reshape(self.module.weight.shape)  # type: ignore[union-attr, arg-type]
        return out, deltas.norm() * patches.norm()


class Convolution(SharedLinear):
    """Convolutions of any dimension, stride, dilation, padding and number of groups, on their patches."""

    module: _ConvNd

    def fits(self, x: Tensor, y: Tensor) -> bool:
        """(n, channels, …) in and out, of the sizes that the module's own settings give."""
        conv = self.module
        spatial = len(conv.kernel_size)
        if x.dim() != spatial + 2 or y.dim() != spatial + 2 or x.shape[1] != conv.in_channels:
            return False
        sizes = zip(_padded_size(conv, x), conv.kernel_size, conv.dilation, conv.stride, strict=True)
        expected = tuple((size - (k - 1) * d - 1) // s + 1 for size, k, d, s in sizes)
        return tuple(y.shape[1:]) == (conv.out_channels, *expected)

    def _patches(self, x: Tensor) -> Tensor:
        conv = self.module
        spatial = len(conv.kernel_size)
        mode = "constant" if conv.padding_mode == "zeros" else conv.padding_mode
        x = F.pad(x, conv._reversed_padding_repeated_twice, mode)
        for dim, (k, d, s) in enumerate(zip(conv.kernel_size, conv.dilation, conv.stride, strict=True), start=2):
            x = x.unfold(dim, (k - 1) * d + 1, s)[..., ::d]
        x = x.unflatten(1, (conv.groups, -1))
        places, kernel = range(3, 3 + spatial), range(3 + spatial, 3 + 2 * spatial)
        x = x.permute(0, 1, *places, 2, *kernel)
        return x.flatten(2 + spatial).flatten(2, 1 + spatial)

    def _deltas(self, grad: Tensor) -> Tensor:
        return grad.flatten(3).unflatten(2, (self.module.groups, -1)).permute(1, 0, 2, 4, 3)


def _padded_size(conv: _ConvNd, x: Tensor) -> list[int]:
    pads = conv._reversed_padding_repeated_twice[::-1]
    return [size + pads[2 * d] + pads[2 * d + 1] for d, size in enumerate(x.shape[2:])]


class OneHot(SharedLinear):
    """An embedding: a linear layer on one-hot inputs, restricted to the indices that occur."""

    module: nn.Embedding

    def fits(self, x: Tensor, y: Tensor) -> bool:
        """(n, …) indices in, (n, …, E) out."""
        return not x.is_floating_point() and y.shape == (*x.shape, self.module.embedding_dim)

    def _keeps_rows(self, deltas: Tensor) -> bool:
        return False

    def patches(self, inputs: Sequence[Tensor]) -> Tensor:
        """One-hot vectors (n, 1, T, indices in use); the padding index has no gradient and is all zeros."""
        indices = torch.cat([x.flatten(1) for x in inputs], 1)
        used, place = indices.unique(return_inverse=True)
        one_hot = F.one_hot(place, len(used)).to(self.module.weight.dtype)
        if self.module.padding_idx is not None:
            one_hot = one_hot * (used != self.module.padding_idx)
        return one_hot[:, None]

    def total(self, inputs: Sequence[Tensor], grads: Sequence[Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        """Σ_i Σ_t δ_it in the rows of the indices, and a bound."""
        deltas, patches = torch.cat([self._deltas(grad) for grad in grads], 3)[:, 0], self.patches(inputs)
        used = torch.cat([x.flatten(1) for x in inputs], 1).unique()
        whole = torch.zeros_like(self.module.weight)
        whole[used] = torch.einsum("ngto,ngtk->ko", deltas, patches)
        return dict.fromkeys(self.names, whole), deltas.norm() * patches.norm()


@dataclass(frozen=True)
class Normalisation(LayerRule):
    """A norm layer y = w ∘ x̂ + b: BatchNorm with running statistics, LayerNorm, GroupNorm, RMSNorm."""

    def fits(self, x: Tensor, y: Tensor) -> bool:
        """Same shape in and out, and something to normalise with."""
        frozen = not isinstance(self.module, _BatchNorm) or self.module.running_mean is not None
        return x.shape == y.shape and x.dim() >= 2 and frozen

    def _normalised(self, x: Tensor) -> Tensor:
        m = self.module
        if isinstance(m, _BatchNorm):
            return F.batch_norm(x, m.running_mean, m.running_var, training=False, eps=m.eps)
        if isinstance(m, nn.LayerNorm):
            return F.layer_norm(x, list(m.normalized_shape), eps=m.eps)
        if isinstance(m, nn.GroupNorm):
            return F.group_norm(x, m.num_groups, eps=m.eps)
        assert isinstance(m, nn.RMSNorm)
        return F.rms_norm(x, list(m.normalized_shape), eps=m.eps)

    def _over_positions(self, products: Tensor) -> Tensor:
        """(q, n, …) summed over all but the features: (n, q, features)."""
        if isinstance(self.module, (nn.LayerNorm, nn.RMSNorm)):
            features = math.prod(self.module.normalized_shape)
            return products.reshape(*products.shape[:2], -1, features).sum(2).transpose(0, 1)
        return products.reshape(*products.shape[:3], -1).sum(3).transpose(0, 1)

    def keep(self, inputs: Sequence[Tensor], grads: Sequence[Tensor]) -> Tensor:
        """Sample gradients (n, q, P)."""
        rows: list[Tensor] = []
        if self.weight is not None:
            rows.append(sum(self._over_positions(d * self._normalised(x)) for x, d in zip(inputs, grads, strict=True)))  # type: ignore[arg-type]
        if self.bias is not None:
            rows.append(sum(self._over_positions(d) for d in grads))  # type: ignore[arg-type]
        return torch.cat(rows, 2)

    def add(self, theta: Tensor, inputs: Sequence[Tensor], kept: Tensor, room: int) -> None:
        """From the rows."""
        add_gram(theta, kept.flatten(0, 1))

    def total(self, inputs: Sequence[Tensor], grads: Sequence[Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        """The rows summed over samples, and the sum of their norms."""
        rows = self.keep(inputs, grads)[:, 0]
        parts = rows.sum(0).chunk(len(self.names))
        return {n: p.reshape(self.module.weight.shape) for n, p in zip(self.names, parts, strict=True)}, rows.norm(
            dim=1
        ).sum()  # type: ignore[union-attr, arg-type]


def add_position_pairs(theta: Tensor, patches: Tensor, deltas: Tensor, room: int) -> None:
    """Θ_{ic,jd} += Σ_{s,t} ⟨a_is, a_jt⟩ ⟨δ_ics, δ_jdt⟩ from (n, G, T, K) and (n, C, G, T, O), upper triangle of blocks."""
    n, q, groups, positions, _ = deltas.shape
    side = max(1, math.isqrt(room // 16) // (q * positions))
    for g in range(groups):
        a = patches[:, g].flatten(0, 1).to(theta.dtype)
        weights = (a @ a.T).view(n, 1, positions, n, 1, positions)
        d = deltas[:, :, g].to(theta.dtype)
        for i in range(0, n, side):
            for j in range(i, n, side):
                left, right = d[i : i + side], d[j : j + side]
                pairs = left.flatten(0, 2) @ right.flatten(0, 2).T
                pairs = pairs.view(*left.shape[:3], *right.shape[:3]).mul_(weights[i : i + side, :, :, j : j + side])
                rows, columns = slice(i * q, (i + side) * q), slice(j * q, (j + side) * q)
                theta[rows, columns] += pairs.sum((2, 5)).flatten(2, 3).flatten(0, 1)


def add_sample_gradients(theta: Tensor, patches: Tensor, deltas: Tensor, room: int) -> None:
    """Θ += R Rᵀ with R_ic = Σ_t δ_ict a_itᵀ, as many columns of R at a time as fit."""
    n, q, groups, _, out = deltas.shape
    each = n * q * patches.shape[3] * (deltas.element_size() + theta.element_size())
    slots = max(1, room // each)
    together, step = max(1, slots // out), min(slots, out)
    for g in range(0, groups, together):
        for o in range(0, out, step):
            part = deltas[:, :, g : g + together, :, o : o + step]
            rows = torch.einsum("ngtk,nqgto->nqgok", patches[:, g : g + together], part)
            add_gram(theta, rows.flatten(2).flatten(0, 1))


_RULES: tuple[tuple[tuple[type[nn.Module], ...], type[LayerRule]], ...] = (
    ((nn.Linear,), SharedLinear),
    ((nn.Conv1d, nn.Conv2d, nn.Conv3d), Convolution),
    ((nn.Embedding,), OneHot),
    ((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm), Normalisation),
)


def rule_for(module: nn.Module, names: Mapping[str, str]) -> LayerRule | None:
    """The rule for a layer, given the names of its measured parameters (`weight`, `bias`); `None` where there is none.

    >>> rule_for(nn.Linear(2, 3), {"weight": "fc.weight"}).names
    ('fc.weight',)
    >>> rule_for(nn.LSTM(2, 3), {"weight_hh_l0": "rnn.weight_hh_l0"})
    """
    if not names or not set(names) <= {"weight", "bias"}:
        return None
    for kinds, rule in _RULES:
        if isinstance(module, kinds):
            return rule(module, names.get("weight"), names.get("bias"))
    return None

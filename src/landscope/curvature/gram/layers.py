"""Layers as shared weights: what each kind multiplies its weight with, and at which positions.

A layer's measured parameters form a weight in G groups of O×K that multiplies inputs a (n, G, T, K) at T positions of every
sample; a bias is one more input, the number 1. Then the inputs and the gradients δ of the layer's outputs are all that is needed:

    linear            the features at every position
    convolution       the patches under the kernel, for any dimension, stride, dilation, padding and number of groups
    embedding         one-hot vectors over the indices that occur
    normalisation     y = w ∘ x̂ + b: a group per feature, with the one input x̂

A layer that is used several times has the positions of all its uses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

# Two ways to the part of Θ = J Jᵀ that belongs to a weight used alike at T positions of every sample.
#
# With inputs a (n, G, T, K) and output gradients δ (n, C, G, T, O) of a weight in G groups of O×K, ∂z_ic/∂W_g =
# Σ_t δ_icgt a_igtᵀ, and
#
#     position pairs     Θ_{ic,jd} += Σ_g Σ_{s,t} ⟨a_igs, a_jgt⟩ ⟨δ_icgs, δ_jdgt⟩     G ((nT)² K + (nCT)² O) multiplications
#     sample gradients   Θ += R Rᵀ, rows R_ic = all Σ_t δ_icgt a_igtᵀ                 G K O (nCT + (nC)²), R in slices
#
# Few positions favour the first (one: (A Aᵀ) ∘ (D Dᵀ), whatever the size of the weight), many the second. Sums are in
# float64, so
# that a float32 network loses no more than its own rounding; Θ is filled in its upper triangle.


BLOCKS = {"cpu": 256, "cuda": 2048}
"""Rows of Θ per product, by device: large enough for full speed, small enough to leave out the lower triangle."""
ELEMENTWISE = 16
"""What weighting one entry of the position pairs costs, in multiplications of a matrix product."""


def add_gram(theta: Tensor, rows: Tensor) -> None:
    """Θ += R Rᵀ.

    >>> theta = torch.zeros(2, 2, dtype=torch.float64)
    >>> add_gram(theta, torch.tensor([[1.0, 2.0], [0.0, 1.0]])); theta.triu()
    tensor([[5., 2.],
            [0., 1.]], dtype=torch.float64)
    """
    rows = rows.to(theta.dtype)
    block = BLOCKS.get(theta.device.type, 2048)
    for start in range(0, len(rows), block):
        theta[start : start + block, start:].addmm_(rows[start : start + block], rows[start:].T)


def multiplications(n: int, q: int, groups: int, positions: int, out: int, width: int) -> tuple[int, int]:
    """What position pairs and sample gradients cost for n samples with q outputs, in multiplications.

    >>> multiplications(2, 3, 1, 1, 10, 100)
    (1336, 42000)
    """
    pairs = groups * ((n * positions) ** 2 * width + (n * q * positions) ** 2 * (out + ELEMENTWISE))
    return pairs, groups * out * width * (n * q * positions + (n * q) ** 2)


def add_shared_weight(theta: Tensor, patches: Tensor, deltas: Tensor, room: int) -> None:
    """Θ += the part of a shared weight, the way that takes fewer operations within about `room` bytes."""
    n, q, groups, positions, out = deltas.shape
    pairs, gradients = multiplications(n, q, groups, positions, out, patches.shape[3])
    affordable = 16 * max(n * positions, q * positions) ** 2 <= room
    if pairs < gradients and (affordable or positions == 1):
        add_position_pairs(theta, patches, deltas, room)
    else:
        add_sample_gradients(theta, patches, deltas, room)


def add_position_pairs(theta: Tensor, patches: Tensor, deltas: Tensor, room: int) -> None:
    """Θ_{ic,jd} += Σ_{s,t} ⟨a_is, a_jt⟩ ⟨δ_ics, δ_jdt⟩, block by block of samples."""
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
    """Θ += R Rᵀ, as many columns of R at a time as fit."""
    n, q, groups, _, out = deltas.shape
    each = n * q * patches.shape[3] * (deltas.element_size() + theta.element_size())
    slots = max(1, room // each)
    together, step = max(1, slots // out), min(slots, out)
    for g in range(0, groups, together):
        for o in range(0, out, step):
            part = deltas[:, :, g : g + together, :, o : o + step]
            rows = torch.einsum("ngtk,nqgto->nqgok", patches[:, g : g + together], part)
            add_gram(theta, rows.flatten(2).flatten(0, 1))


@dataclass(frozen=True)
class LayerRule:
    """A linear layer; the base of the others.

    `weight` and `bias` are the names of the measured parameters, `None` where not measured, and `shape` is the weight's.
    `inputs` are what the layer was given, one tensor (n, …) for each use; `grads` are ∂z_c/∂output for q of the outputs z_c,
    (q, n, …) for each use. What `keep` makes of them is all that is held.
    """

    module: nn.Module
    shape: torch.Size
    weight: str | None
    bias: str | None

    keeps_gradients: ClassVar[bool | None] = None
    """Whether sample gradients are kept instead of output gradients; `None`: where they are smaller."""

    @property
    def names(self) -> tuple[str, ...]:
        """The measured parameters that this rule accounts for."""
        return tuple(name for name in (self.weight, self.bias) if name is not None)

    def fits(self, x: Tensor, y: Tensor) -> bool:
        """Whether an input and an output have the shapes that the rule expects: (n, …, K) and (n, …, O)."""
        return y.dim() >= 2 and x.shape[:-1] == y.shape[:-1] and (y.shape[-1], x.shape[-1]) == tuple(self.shape)

    def keep(self, inputs: Sequence[Tensor], grads: Sequence[Tensor]) -> Tensor:
        """Output gradients (n, q, G, T, O), or sample gradients (n, q, P)."""
        deltas = self.deltas(grads)
        if len(self.kept_shape(grads)) > 1:
            return deltas
        return torch.einsum("ngtk,nqgto->nqgok", self.patches(inputs), deltas).flatten(2)

    def kept_shape(self, grads: Sequence[Tensor]) -> tuple[int, ...]:
        """The shape of what is kept for one sample and output: (G, T, O) or (P,)."""
        _, _, groups, positions, out = self.deltas(grads).shape
        weight = math.prod(self.shape)
        smaller = weight <= groups * positions * out
        if not (smaller if self.keeps_gradients is None else self.keeps_gradients):
            return groups, positions, out
        return (weight * (self.weight is not None) + groups * out * (self.bias is not None),)

    def add(self, theta: Tensor, inputs: Sequence[Tensor], kept: Tensor, room: int) -> None:
        """Θ += this layer's part, given all samples and all outputs, within about `room` bytes."""
        if kept.dim() == 3:
            add_gram(theta, kept.flatten(0, 1))
        else:
            add_shared_weight(theta, self.patches(inputs), kept, room)

    def squared_norms(self, inputs: Sequence[Tensor], grads: Sequence[Tensor]) -> Tensor:
        """Σ_q ‖sample gradient‖² (n,) in float64: by pairs of positions or by the gradients, whichever is smaller."""
        deltas, patches = self.deltas(grads), self.patches(inputs)
        _, _, _, positions, out = deltas.shape
        if positions == 1:
            squares = (
                patches.square().sum((2, 3), dtype=torch.float64),
                deltas.square().sum((3, 4), dtype=torch.float64),
            )
            return torch.einsum("ng,nqg->n", *squares)
        if positions * (out + patches.shape[3]) < out * patches.shape[3]:
            pairs = (patches @ patches.mT)[:, None] * (deltas @ deltas.mT)
            return pairs.flatten(1).sum(1, dtype=torch.float64)
        gradients = torch.einsum("ngtk,nqgto->nqgok", patches, deltas)
        return gradients.square_().flatten(1).sum(1, dtype=torch.float64)

    def total(self, inputs: Sequence[Tensor], grads: Sequence[Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        """The gradients summed over samples (with q = 1), flat, and a bound on their norm if nothing cancelled."""
        deltas, patches = self.deltas(grads)[:, 0], self.patches(inputs)
        sums, out = torch.einsum("ngto,ngtk->gok", deltas, patches).flatten(0, 1), {}
        if self.bias is not None:
            out[self.bias] = sums[:, -1]
        if self.weight is not None:
            out[self.weight] = (sums if self.bias is None else sums[:, :-1]).flatten()
        return out, deltas.norm() * patches.norm()

    def patches(self, inputs: Sequence[Tensor]) -> Tensor:
        """The inputs of every use and position (n, G, T, K), with the number 1 for the bias."""
        patches = _joined([self._patches(x) for x in inputs], 2)
        ones = patches.new_ones(*patches.shape[:3], 1)
        if self.weight is None:
            return ones
        return patches if self.bias is None else torch.cat([patches, ones], 3)

    def deltas(self, grads: Sequence[Tensor]) -> Tensor:
        """The output gradients of every use and position (n, q, G, T, O)."""
        return _joined([self._deltas(grad) for grad in grads], 3)

    def _patches(self, x: Tensor) -> Tensor:
        return x.reshape(len(x), 1, -1, x.shape[-1])

    def _deltas(self, grad: Tensor) -> Tensor:
        return grad.reshape(*grad.shape[:2], 1, -1, grad.shape[-1]).transpose(0, 1)


def _joined(parts: list[Tensor], dim: int) -> Tensor:
    """The parts along a dimension, without a copy where there is one only."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)


class Convolution(LayerRule):
    """`nn.Conv1d`, `nn.Conv2d`, `nn.Conv3d`."""

    module: _ConvNd

    def fits(self, x: Tensor, y: Tensor) -> bool:
        """(n, channels, …) in and out, of the sizes that the module's own settings give."""
        conv = self.module
        if x.dim() != len(conv.kernel_size) + 2 or x.shape[1] != conv.in_channels:
            return False
        pads = conv._reversed_padding_repeated_twice[::-1]
        padded = [size + pads[2 * i] + pads[2 * i + 1] for i, size in enumerate(x.shape[2:])]
        sizes = zip(padded, conv.kernel_size, conv.dilation, conv.stride, strict=True)
        expected = tuple((size - (k - 1) * d - 1) // s + 1 for size, k, d, s in sizes)
        return tuple(y.shape[1:]) == (conv.out_channels, *expected)

    def _patches(self, x: Tensor) -> Tensor:
        conv = self.module
        spatial = len(conv.kernel_size)
        mode = "constant" if conv.padding_mode == "zeros" else conv.padding_mode
        x = F.pad(x, conv._reversed_padding_repeated_twice, mode)
        if spatial == 2:  # ten times as fast as strided views, whose copies jump through memory
            columns = F.unfold(x, conv.kernel_size, conv.dilation, stride=conv.stride)
            return columns.unflatten(1, (conv.groups, -1)).mT
        for dim, (k, d, s) in enumerate(zip(conv.kernel_size, conv.dilation, conv.stride, strict=True), start=2):
            x = x.unfold(dim, (k - 1) * d + 1, s)[..., ::d]
        x = x.unflatten(1, (conv.groups, -1))
        positions, kernel = range(3, 3 + spatial), range(3 + spatial, 3 + 2 * spatial)
        return x.permute(0, 1, *positions, 2, *kernel).flatten(2 + spatial).flatten(2, 1 + spatial)

    def _deltas(self, grad: Tensor) -> Tensor:
        return grad.flatten(3).unflatten(2, (self.module.groups, -1)).permute(1, 0, 2, 4, 3)


class Embedding(LayerRule):
    """`nn.Embedding`, of which only the indices that occur count."""

    module: nn.Embedding
    keeps_gradients = False

    def fits(self, x: Tensor, y: Tensor) -> bool:
        """(n, …) indices in, (n, …, E) out."""
        return not x.is_floating_point() and y.shape == (*x.shape, self.shape[1])

    def patches(self, inputs: Sequence[Tensor]) -> Tensor:
        """One-hot vectors (n, 1, T, indices that occur); the padding index has no gradient and is all zeros."""
        used, place = _indices(inputs).unique(return_inverse=True)
        one_hot = F.one_hot(place, len(used)).to(self.module.weight.dtype)
        if self.module.padding_idx is not None:
            one_hot = one_hot * (used != self.module.padding_idx)
        return one_hot[:, None]

    def total(self, inputs: Sequence[Tensor], grads: Sequence[Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        """Each position's output gradient, added to the row of its index; and the bound."""
        deltas, patches = self.deltas(grads)[:, 0], self.patches(inputs)
        rows = torch.einsum("ngto,ngtk->ko", deltas, patches)
        whole = rows.new_zeros(self.shape).index_copy_(0, _indices(inputs).unique(), rows)
        return dict.fromkeys(self.names, whole.flatten()), deltas.norm() * patches.norm()


def _indices(inputs: Sequence[Tensor]) -> Tensor:
    return torch.cat([x.flatten(1) for x in inputs], 1)


class Normalisation(LayerRule):
    """BatchNorm with running statistics, LayerNorm, GroupNorm, RMSNorm."""

    keeps_gradients = True

    def fits(self, x: Tensor, y: Tensor) -> bool:
        """Same shape in and out, and statistics that are not the batch's."""
        frozen = not isinstance(self.module, _BatchNorm) or self.module.running_mean is not None
        return x.shape == y.shape and x.dim() >= 2 and frozen

    def _patches(self, x: Tensor) -> Tensor:
        return self._by_feature(self._normalised(x), 1)[..., None]

    def _deltas(self, grad: Tensor) -> Tensor:
        return self._by_feature(grad, 2)[..., None].transpose(0, 1)

    def _by_feature(self, x: Tensor, dim: int) -> Tensor:
        """Features first, then positions, from dimension `dim` on."""
        if isinstance(self.module, (nn.LayerNorm, nn.RMSNorm)):
            return x.reshape(*x.shape[:dim], -1, math.prod(self.shape)).transpose(-1, -2)
        return x.reshape(*x.shape[: dim + 1], -1)

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


_RULES: tuple[tuple[tuple[type[nn.Module], ...], type[LayerRule]], ...] = (
    ((nn.Linear,), LayerRule),
    ((nn.Conv1d, nn.Conv2d, nn.Conv3d), Convolution),
    ((nn.Embedding,), Embedding),
    ((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm), Normalisation),
)


def rule_for(module: nn.Module, names: Mapping[str, str]) -> LayerRule | None:
    """The rule for a layer, given the names of its measured parameters (`weight`, `bias`); `None` where there is none.

    >>> rule_for(nn.Linear(2, 3), {"weight": "fc.weight"}).names
    ('fc.weight',)
    >>> rule_for(nn.LSTM(2, 3), {"weight_hh_l0": "rnn.weight_hh_l0"})
    """
    weight = getattr(module, "weight", None)
    if not names or not set(names) <= {"weight", "bias"} or not isinstance(weight, Tensor):
        return None
    for kinds, rule in _RULES:
        if isinstance(module, kinds):
            return rule(module, weight.shape, names.get("weight"), names.get("bias"))
    return None

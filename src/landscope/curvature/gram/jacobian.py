"""What any parameters add to the Jacobian Gram matrix Θ = J Jᵀ, from rows of J in slices that fit into memory.

This is right for everything that can be differentiated (tied and custom parameters, recurrent layers, attention's own
projections, samples that depend on each other) and costs C backward passes for every slice of columns. Independent samples
are differentiated together under `vmap`; a model that `vmap` cannot follow, one sample after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import jacrev, vmap
from torch.utils import _pytree as pytree

from landscope.core.errors import LandscopeError
from landscope.core.memory import is_out_of_memory
from landscope.core.parameters import ParameterSpace
from landscope.curvature.gram.layers import add_gram
from landscope.probe.batches import Batch
from landscope.probe.probe import Probe


def backward_rows(outputs: Tensor, inputs: Sequence[object], seeds: Tensor) -> list[Tensor | None]:
    """∂⟨seed, outputs⟩/∂input for every seed (k, …), as (k, …) for each input; `None` where nothing depends on it.

    All seeds at once, or one after the other where an operation cannot be batched. The graph is kept.
    """
    if len(seeds) > 1:
        try:
            return list(
                torch.autograd.grad(outputs, inputs, seeds, retain_graph=True, allow_unused=True, is_grads_batched=True)  # type: ignore[arg-type]
            )
        except (RuntimeError, NotImplementedError) as error:
            if is_out_of_memory(error):
                raise
    rows = [torch.autograd.grad(outputs, inputs, seed, retain_graph=True, allow_unused=True) for seed in seeds]  # type: ignore[arg-type]
    return [None if column[0] is None else torch.stack(column) for column in zip(*rows, strict=True)]


@dataclass
class _JacobianRows:
    """The rows of J for some parameters, a few samples at a time."""

    probe: Probe
    batch: Batch
    per_sample: float
    room: int

    def slices(self, names: Sequence[str], outputs: int) -> Iterator[Tensor]:
        """Blocks of J (n, P') for consecutive `names`, samples in order; `outputs` is C."""
        space = ParameterSpace(tuple(names), tuple(self.probe.params[name].shape for name in names))
        each = outputs * (self.per_sample + 2 * space.size * torch.finfo(self.probe.dtype).bits // 8)
        count = max(1, int(self.room / each))
        if not self.batch.divisible:
            yield from self._one_graph(self.batch, space, count * outputs)
            return
        pieces = list(self.batch.pieces(count))
        while pieces:
            try:
                rows = self._together(pieces[0], space)
            except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
                if isinstance(error, LandscopeError) or is_out_of_memory(error):
                    raise
                break
            yield rows
            pieces.pop(0)
        for piece in pieces:
            for sample in piece.pieces(1):
                yield from self._one_graph(sample, space, outputs)

    def _together(self, piece: Batch, space: ParameterSpace) -> Tensor:
        leaves, spec = pytree.tree_flatten(piece.raw)
        rest = {name: p for name, p in self.probe.params.items() if name not in space.names}

        def outputs(params: dict[str, Tensor], *sample: Tensor) -> Tensor:
            raw = pytree.tree_unflatten([leaf[None] for leaf in sample], spec)
            z = self.probe.outputs({**rest, **params}, Batch(raw, 1, True))
            assert isinstance(z, Tensor)
            return z.reshape(-1)

        params = {name: self.probe.params[name] for name in space.names}
        jacobian = vmap(jacrev(outputs), in_dims=(None, *(0 for _ in leaves)))(params, *leaves)
        return torch.cat([jacobian[name].flatten(2) for name in space.names], 2).flatten(0, 1).detach()

    def _one_graph(self, piece: Batch, space: ParameterSpace, at_once: int) -> Iterator[Tensor]:
        chosen = {name: self.probe.params[name].detach().requires_grad_() for name in space.names}
        z = self.probe.outputs({**self.probe.params, **chosen}, piece)
        assert isinstance(z, Tensor)
        seeds = torch.eye(z.numel(), dtype=z.dtype, device=z.device).view(-1, *z.shape)
        for part in seeds.split(at_once):
            if not z.requires_grad:
                yield z.new_zeros(len(part), space.size)
                continue
            rows = backward_rows(z, list(chosen.values()), part)
            flat = [
                z.new_zeros(len(part), size) if row is None else row.flatten(1)
                for row, size in zip(rows, space.sizes, strict=True)
            ]
            yield torch.cat(flat, 1)


def add_jacobian(
    theta: Tensor, probe: Probe, batch: Batch, names: Sequence[str], *, per_sample: float, room: int
) -> None:
    """Θ += J Jᵀ over the named parameters, within about `room` bytes.

    The samples of a divisible batch do not depend on each other; `per_sample` is the bytes of one's activations.
    """
    held = len(theta) * (torch.finfo(probe.dtype).bits // 8 + theta.element_size())
    width = max(1, room // held)
    outputs = len(theta) // batch.size
    where = ParameterSpace(tuple(names), tuple(probe.params[name].shape for name in names)).slices()
    size = max((part.stop for part in where.values()), default=0)
    rows_of = _JacobianRows(probe, batch, per_sample, room)
    for start in range(0, size, width):
        stop = min(start + width, size)
        inside = [name for name in names if where[name].start < stop and where[name].stop > start]
        first = where[inside[0]].start
        blocks = [rows[:, start - first : stop - first].clone() for rows in rows_of.slices(inside, outputs)]
        add_gram(theta, torch.cat(blocks))

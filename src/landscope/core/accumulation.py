"""Sums over samples in pieces that fit into memory."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from landscope.core.batches import Batch
from landscope.core.errors import OutOfMemoryError
from landscope.core.memory import available_bytes, is_out_of_memory

__all__ = ["PieceSize", "accumulate", "bytes_of_gradient", "samples_that_fit", "saved_bytes"]

CPU_WORKING_SET = 2**30
"""Bytes of activations at once on a CPU: more brings no speed there."""

PieceFunction = Callable[[Batch], tuple[Tensor, ...]]


class PieceSize:
    """The largest number of samples that is worked on at once; it only ever shrinks."""

    def __init__(self, limit: int) -> None:
        self.limit = max(1, limit)

    def halve(self, piece: Batch, device: torch.device) -> None:
        """After a failed allocation: half of what was tried; one sample that does not fit is an error."""
        if not piece.divisible or piece.size == 1:
            kind = "one sample" if piece.size == 1 else f"a batch of {piece.size} that cannot be cut"
            raise OutOfMemoryError(
                f"{kind} does not fit into the memory of {device}. Measure fewer parameters (params=…), smaller batches, or "
                f"on a device with more memory."
            )
        self.limit = max(1, min(self.limit, piece.size) // 2)
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()


def accumulate(
    batches: Iterable[Batch],
    function: PieceFunction,
    size: PieceSize,
    device: torch.device,
    prepare: Callable[[object], object],
) -> tuple[Tensor, ...] | None:
    """Σ of `function` over all batches, cut into pieces of at most `size`; `None` where there are no batches.

    Where memory runs out, the piece is halved and tried again, and later pieces are as small.
    """
    sums: tuple[Tensor, ...] | None = None
    for batch in batches:
        queue = deque([batch])
        while queue:
            piece = queue.popleft()
            if piece.divisible and piece.size > size.limit:
                queue.extendleft(reversed(list(piece.pieces(size.limit))))
                continue
            part = _attempt(function, Batch(prepare(piece.raw), piece.size, piece.divisible))
            if part is None:
                size.halve(piece, device)
                queue.appendleft(piece)
            elif sums is None:
                sums = tuple(p.clone() for p in part)
            else:
                for whole, p in zip(sums, part, strict=True):
                    whole += p
    return sums


def _attempt(function: PieceFunction, piece: Batch) -> tuple[Tensor, ...] | None:
    """The function's value, or `None` where memory ran out; the failed frames are released before it returns."""
    try:
        return function(piece)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return None


def saved_bytes(function: Callable[[], Tensor], held: Iterable[Tensor] = ()) -> int:
    """Bytes that a forward pass keeps for its backward pass, apart from tensors that are `held` anyway."""
    seen: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        seen[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()  # a node that kept its own result, history and all, would never be freed

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        result = function()
    del result
    for tensor in held:
        seen.pop(tensor.untyped_storage().data_ptr(), None)
    return sum(seen.values())


def bytes_of_gradient(
    loss: Callable[[dict[str, Tensor]], Tensor], params: Mapping[str, Tensor], held: Iterable[Tensor]
) -> int:
    """Bytes of activations that one gradient of a loss keeps, beside parameters and what is `held` anyway."""
    leaves = {name: p.clone().requires_grad_() for name, p in params.items()}
    with torch.enable_grad():
        return saved_bytes(lambda: loss(leaves), [*leaves.values(), *held])


def samples_that_fit(bytes_each: float, load: float, device: torch.device) -> int:
    """What is free over what one sample takes, `load` times its bytes; at least 1."""
    free = available_bytes(device)
    room = min(free // 4, CPU_WORKING_SET) if device.type == "cpu" else free // 2
    return max(1, int(room / (max(64, bytes_each) * load)))

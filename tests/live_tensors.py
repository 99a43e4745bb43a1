"""How many tensors this process holds, to find what is never freed."""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch

__all__ = ["left_behind"]


def left_behind(function: Callable[[], object]) -> int:
    """Tensors that a second call leaves in memory; the first may fill caches that are meant to stay.

    >>> kept = []
    >>> left_behind(lambda: kept.append(torch.ones(2)))
    1
    >>> left_behind(lambda: torch.ones(2))
    0
    """
    function()
    before = _count()
    function()
    return _count() - before


def _count() -> int:
    gc.collect()
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())

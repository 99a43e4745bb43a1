"""What a network wants as its input."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from landscope.models.catalogue import MODELS

__all__ = ["takes_vectors"]


def takes_vectors(model: nn.Module, name: str) -> bool:
    """Whether a network declares vectors: in the catalogue under `name`, or else by an attribute `input_shape` of its own.

    >>> takes_vectors(nn.Identity(), "deep_linear"), takes_vectors(nn.Identity(), "resnet18")
    (True, False)
    """
    declared = MODELS[name].input_shape if name in MODELS else getattr(model, "input_shape", None)
    return isinstance(declared, Sequence) and len(declared) == 1

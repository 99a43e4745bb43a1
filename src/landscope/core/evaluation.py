"""The conditions under which a model is evaluated and differentiated, whatever the caller has switched on or off.

Gradients on, autocast and inference mode off, attention through kernels that have second derivatives, full float32
precision unless TF32 is asked for, global random state preserved. Everything is put back afterwards.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from landscope.core.seeding import preserved_rng

__all__ = ["Precision", "measuring"]

Precision = Literal["highest", "tf32"]


@contextmanager
def measuring(device: torch.device, precision: Precision = "highest", recurrent: bool = False) -> Iterator[None]:
    """Evaluate inside this context; it can be nested.

    `recurrent` switches cuDNN and oneDNN off: their recurrent layers have no forward or second derivatives, and cuDNN's no
    backward pass in eval mode.
    """
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message=".*There is a performance drop because we have not yet implemented")
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(torch.autocast(device.type, enabled=False))
        stack.enter_context(preserved_rng())
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(_no_encoder_fast_path())
        if device.type == "cuda":
            stack.enter_context(_float32_products(precision))
        if recurrent:
            stack.enter_context(_switched_off(torch.backends.mkldnn))
            stack.enter_context(_switched_off(torch.backends.cudnn))
        yield


@contextmanager
def _switched_off(backend: Any) -> Iterator[None]:
    """A backend off; its own `flags` context would touch the TF32 settings too."""
    before = backend.enabled
    backend.enabled = False
    try:
        yield
    finally:
        backend.enabled = before


@contextmanager
def _no_encoder_fast_path() -> Iterator[None]:
    """`nn.TransformerEncoderLayer` in eval mode would take a fused path without derivatives."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextmanager
def _float32_products(precision: Precision) -> Iterator[None]:
    """Matrix products and convolutions in float32 (`highest`) or TF32; cuDNN would use TF32 by default."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    if hasattr(matmul, "fp32_precision") and hasattr(getattr(cudnn, "conv", None), "fp32_precision"):
        wanted = "tf32" if precision == "tf32" else "ieee"
        homes: tuple[Any, ...] = (matmul, cudnn.conv, cudnn.rnn)  # type: ignore[attr-defined]
        before = [home.fp32_precision for home in homes]
        try:
            for home in homes:
                home.fp32_precision = wanted
            yield
        finally:
            for home, value in zip(homes, before, strict=True):
                home.fp32_precision = value
    else:
        allowed = (matmul.allow_tf32, cudnn.allow_tf32)
        try:
            matmul.allow_tf32 = cudnn.allow_tf32 = precision == "tf32"
            yield
        finally:
            matmul.allow_tf32, cudnn.allow_tf32 = allowed

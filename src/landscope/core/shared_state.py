"""Process-wide state that several threads want changed at once: the first one in saves it, the last one out puts it back.

If each thread restored what it found, one would restore what another had set, and the final state would depend on who was last.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

Precision = Literal["highest", "tf32"]


@dataclass
class _Holding:
    """What was found, and how many scopes of each thread hold it changed."""

    found: Any
    scopes: dict[int, int] = field(default_factory=dict)


_lock = threading.RLock()
_holdings: dict[Hashable, _Holding] = {}
_entered: dict[Hashable, tuple[int, AbstractContextManager[object]]] = {}


@contextmanager
def entered(key: Hashable, make: Callable[[], AbstractContextManager[object]]) -> Iterator[None]:
    """A context that is entered once, however many scopes of whichever threads are in it.

    >>> @contextmanager
    ... def noted():
    ...     print("in")
    ...     yield
    ...     print("out")
    >>> with entered("noted", noted), entered("noted", noted):
    ...     print("work")
    in
    work
    out
    """
    with _lock:
        count, context = _entered.get(key) or (0, make())
        if not count:
            context.__enter__()
        _entered[key] = count + 1, context
    try:
        yield
    finally:
        with _lock:
            count, context = _entered[key]
            if count > 1:
                _entered[key] = count - 1, context
            else:
                del _entered[key]
                context.__exit__(None, None, None)


@contextmanager
def held(
    key: Hashable, read: Callable[[], Any], write: Callable[[Any], object], change: Callable[[], None] | None = None
) -> Iterator[None]:
    """Within it, what `read` finds may be changed, by `change` to begin with; in the end `write` puts it back.

    A scope within another one of the same thread puts back what the outer one had set.

    >>> state = [1]
    >>> with held("state", lambda: state[0], lambda found: state.__setitem__(0, found), lambda: state.__setitem__(0, 2)):
    ...     state
    [2]
    >>> state
    [1]
    """
    me = threading.get_ident()
    with _lock:
        before = read()
        holding = _holdings.setdefault(key, _Holding(before))
        holding.scopes[me] = holding.scopes.get(me, 0) + 1
        if change is not None:
            change()
    try:
        yield
    finally:
        with _lock:
            holding.scopes[me] -= 1
            if holding.scopes[me]:
                write(before)
            else:
                del holding.scopes[me]
                if not holding.scopes:
                    del _holdings[key]
                    write(holding.found)


@contextmanager
def _float32_products(device: torch.device, precision: Precision) -> Iterator[None]:
    """Matrix products and convolutions in float32 (`highest`) or TF32.

    cuDNN would use TF32 by default; a CPU bfloat16 after `torch.set_float32_matmul_precision("medium")`.
    """
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    homes: tuple[tuple[Any, str], ...]
    if device.type == "cuda" and hasattr(getattr(cudnn, "conv", None), "fp32_precision"):
        homes = tuple((home, "fp32_precision") for home in (matmul, cudnn.conv, cudnn.rnn))  # type: ignore[attr-defined]
        wanted: object = "tf32" if precision == "tf32" else "ieee"
    elif device.type == "cuda":
        homes, wanted = ((matmul, "allow_tf32"), (cudnn, "allow_tf32")), precision == "tf32"
    elif not hasattr(torch.backends.mkldnn, "matmul"):  # before torch 2.9
        with held(
            "float32 products",
            torch.get_float32_matmul_precision,
            torch.set_float32_matmul_precision,
            lambda: torch.set_float32_matmul_precision("highest"),
        ):
            yield
        return
    else:
        parts = (getattr(torch.backends.mkldnn, name, None) for name in ("matmul", "conv", "rnn"))
        settings = [(part, getattr(part, "fp32_precision", "none")) for part in parts]
        homes, wanted = tuple((part, "fp32_precision") for part, now in settings if now in ("bf16", "tf32")), "ieee"

    def write(values: list[object]) -> None:
        for (home, name), value in zip(homes, values, strict=True):
            setattr(home, name, value)

    if not homes:
        yield
        return
    with held(
        ("float32 products", device.type),
        lambda: [getattr(home, name) for home, name in homes],
        write,
        lambda: write([wanted] * len(homes)),
    ):
        yield


@contextmanager
def plain_arithmetic(
    device: torch.device, dtype: torch.dtype | None = None, precision: Precision = "highest"
) -> Iterator[None]:
    """Autocast and inference mode off, full float32 products, torch's own default type and device, whatever the caller has set.

    A default type of `dtype` counts as not set; `precision="tf32"` allows products of TF32 on a GPU.

    >>> a = torch.full((1, 1), 1.001)
    >>> with torch.autocast("cpu", torch.bfloat16), plain_arithmetic(a.device):
    ...     (a @ a).dtype
    torch.float32
    """
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        for kind in {"cpu", device.type}:
            stack.enter_context(torch.autocast(kind, enabled=False))
        stack.enter_context(_float32_products(device, precision))
        if torch.empty(0).device.type not in ("cpu", device.type):
            stack.enter_context(torch.device("cpu"))
        if torch.get_default_dtype() not in (torch.float32, dtype):
            stack.enter_context(
                held(
                    "default type",
                    torch.get_default_dtype,
                    torch.set_default_dtype,
                    lambda: torch.set_default_dtype(torch.float32),
                )
            )
        yield

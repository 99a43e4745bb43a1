"""A graphics card for machines without one: tensors that say they are on it, computed on the CPU, and refused beside others.

Inside `pretend_card()` `torch.cuda.is_available()` is true. What is moved or made there says `cuda:0` as its device and is an
ordinary CPU tensor; an operation that takes tensors of both devices raises as on a real card, and so does `.numpy()` of one that
is there. So code that forgets to move a tensor is found without a card. What a card computes otherwise (bfloat16, recorded or
compiled steps) is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
import torch._decomp.decompositions_for_jvp  # compiles what is patched below
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

CPU, CARD = torch.device("cpu"), torch.device("cuda", 0)
ANYWHERE = None
"""Of tensors that torch's own code makes for a derivative: on a real card they are where the others are."""
FACTORIES = (
    "arange", "empty", "empty_strided", "eye", "full", "linspace", "ones", "rand", "randint", "randn", "randperm", "tensor",
    "as_tensor", "zeros", "logspace", "tril_indices", "triu_indices", "scalar_tensor",
)  # fmt: skip
FREE = {"copy_", "_to_copy", "set_", "is_same_size", "resize_"}
"""May take tensors of two devices."""
INDEXED = {"index", "index_put", "index_put_", "_unsafe_index", "_unsafe_index_put", "_index_put_impl_"}
"""Take indices that are on the CPU."""
WHOLE = {"cat", "stack", "_foreach_add_", "index_select", "gather", "embedding"}
"""Take no single number from the CPU."""


def _unwrapped(tensor: Tensor) -> Tensor:
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor


class _Places(TorchDispatchMode):
    """Where storages are: those that are not known are on the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[int, tuple[StorageWeakRef, torch.device | None]] = {}
        self.asked: list[torch.device] = []
        """Where the present call of a user's code wants its result."""

    def of(self, tensor: Tensor) -> torch.device | None:
        try:
            storage = _unwrapped(tensor).untyped_storage()
        except (RuntimeError, NotImplementedError):
            return CPU
        return self._known.get(storage._cdata, (None, CPU))[1]

    def put(self, tensor: Tensor, where: torch.device | None) -> None:
        storage = tensor.untyped_storage()
        if where == CPU:
            self._known.pop(storage._cdata, None)
        else:
            self._known[storage._cdata] = StorageWeakRef(storage), where  # its address is not used again

    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = func.overloadpacket.__name__
        given = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Tensor)]
        where = self._common(name, args, given)
        device = kwargs.get("device")
        if device is not None:
            kwargs["device"] = CPU
        if self.asked:
            where = self.asked[-1]
        elif device is not None and device.type == "cuda":
            where = CARD
        elif device is not None and not given:
            where = ANYWHERE
        if where == CARD and kwargs.get("generator") is not None:
            raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")
        kwargs.pop("pin_memory", None)
        before = {tensor.untyped_storage()._cdata for tensor in given}
        found = func(*args, **kwargs)
        for leaf in tree_flatten(found)[0]:
            if isinstance(leaf, Tensor) and leaf.untyped_storage()._cdata not in before:
                self.put(leaf, where)
        return found

    def _common(self, name: str, args: Any, given: list[Tensor]) -> torch.device | None:
        if name in INDEXED:
            given = [given[0], *[leaf for leaf in tree_flatten(args[2:])[0] if isinstance(leaf, Tensor)]]
        if name in FREE:
            given = given[:1]
        numbers = name not in WHOLE
        there = {self.of(tensor) for tensor in given if tensor.dim() or not numbers} - {ANYWHERE}
        if len(there) > 1:
            shapes = ", ".join(f"{self.of(t)} {tuple(t.shape)}" for t in given)
            raise RuntimeError(f"Expected all tensors to be on the same device, but {name} was given {shapes}")
        single = {self.of(tensor) for tensor in given}
        return next(iter(there or single - {ANYWHERE}), CPU if not given else ANYWHERE)


def _parsed(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[torch.device | None, dict[str, Any]]:
    """The device among the arguments of `Tensor.to`, and the others by name."""
    first = "dtype" if args and isinstance(args[0], torch.dtype) else "device"
    names = [first, *([] if first == "dtype" else ["dtype"]), "non_blocking", "copy"]
    if args and isinstance(args[0], Tensor):
        args = args[0].device, args[0].dtype, *args[1:]
    given = dict(zip(names, args, strict=False)) | kwargs
    device = given.pop("device", None)
    return None if device is None else torch.device(device), {k: v for k, v in given.items() if v is not None}


@contextmanager
def pretend_card() -> Iterator[None]:
    """Inside, there is one card."""
    places = _Places()
    to, numpy = Tensor.to, Tensor.numpy

    def moved(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        device, kwargs = _parsed(args, kwargs)
        if device is None or device.type == (places.of(tensor) or CARD).type:
            return to(tensor, **kwargs) if kwargs else tensor
        places.asked.append(CARD if device.type == "cuda" else CPU)
        try:
            return to(tensor, **{**kwargs, "copy": True})
        finally:
            places.asked.pop()

    def made(factory: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def make(*args: Any, **kwargs: Any) -> Tensor:
            device = kwargs.pop("device", None)
            given = args[0] if args and isinstance(args[0], Tensor) else None
            if given is not None and device is None:
                return factory(*args, **kwargs)
            if given is not None:
                return moved(factory(*args, **kwargs), device)
            target = CARD if device is not None and torch.device(device).type == "cuda" else CPU
            if target == CARD and kwargs.get("generator") is not None:
                raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")
            found = factory(*args, **kwargs)
            places.put(found, target)
            return found

        return make

    def to_numpy(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        if tensor.device.type == "cuda":
            raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first")
        return numpy(tensor, *args, **kwargs)

    patches = {
        "torch.Tensor.device": property(lambda tensor: places.of(tensor) or CARD),
        "torch.Tensor.is_cuda": property(lambda tensor: (places.of(tensor) or CARD).type == "cuda"),
        "torch.Tensor.to": moved,
        "torch.Tensor.cpu": lambda tensor, *_, **__: moved(tensor, CPU),
        "torch.Tensor.cuda": lambda tensor, *_, **__: moved(tensor, CARD),
        "torch.Tensor.pin_memory": lambda tensor, *_: tensor,
        "torch.Tensor.numpy": to_numpy,
        "torch.cuda._lazy_init": lambda: None,
        "torch.cuda.is_available": lambda: True,
        "torch.cuda.is_bf16_supported": lambda *_: True,
        "torch.cuda.device_count": lambda: 1,
        "torch.cuda.current_device": lambda: 0,
        "torch.cuda.get_device_name": lambda *_: "a pretended card",
        "torch.cuda.mem_get_info": lambda *_: (2**33, 2**33),
        "torch.cuda.default_generators": (torch.Generator(),),
        "landscope.training.fast_steps.Captured.__call__": lambda step, x, y: step._step(x, y),
        "landscope.training.loop.train.own_stream": lambda *_: nullcontext(),
        "landscope.training.pool.runs.own_stream": lambda *_: nullcontext(),
        "landscope.curvature.compilation.PAYS": (),
        "landscope.curvature.recording.LAUNCHING": 2.0,  # no part of a time is as much: nothing is recorded
    }
    silent = (
        "synchronize",
        "empty_cache",
        "reset_peak_memory_stats",
        "set_per_process_memory_fraction",
        "manual_seed_all",
    )
    counted = ("memory_allocated", "memory_reserved", "max_memory_allocated")
    with ExitStack() as stack:
        for name, value in patches.items():
            stack.enter_context(mock.patch(name, value))
        for name in (*silent, *counted):
            stack.enter_context(mock.patch.object(torch.cuda, name, return_value=0))
        for name in FACTORIES:
            stack.enter_context(mock.patch.object(torch, name, made(getattr(torch, name))))
        stack.enter_context(places)
        yield

"""Passes that leave the running statistics of normalisation layers where they are.

Sharpness-aware steps evaluate a batch twice, the second time at perturbed weights. The running mean and variance that a network
will be evaluated with belong to the weights it keeps, so only the first pass may move them; both passes normalise by the
batch (Foret et al. 2021 do so too).

An optimizer knows parameters, not modules. Where no model is named, the layers are found as they run: a hook sees every module
that is called, and takes the layers of all that is inside it (`calls`).
"""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.modules.module import _global_forward_pre_hooks
from torch.utils.hooks import RemovableHandle

# Which modules run: seen by one hook for all modules of the process, installed only while it is needed.
#
# Compiled code calls no hooks, and `torch.compile` warns of them: there, modules are looked for among the interpreter's
# objects.


class _Watchers(threading.local):
    """Watchers, in this thread, of which modules are called."""

    def __init__(self) -> None:
        self.all: list[Callable[[nn.Module], None]] = []


_watchers = _Watchers()
_lock = threading.Lock()
_watches = 0
"""Number of watches in all threads."""
_KEY = RemovableHandle(_global_forward_pre_hooks).id
"""Compiled code is compiled again where the hooks have other keys, so it is one key for good."""


def _called(module: nn.Module, _: object) -> None:
    if not torch.compiler.is_compiling():
        for watcher in tuple(_watchers.all):
            watcher(module)


@contextmanager
def calls_seen_by(watcher: Callable[[nn.Module], None]) -> Iterator[None]:
    """Inside, the watcher sees every module that this thread is about to call, but for those that run compiled."""
    global _watches
    own = _watchers.all
    own.append(watcher)
    with _lock:
        _watches += 1
        _global_forward_pre_hooks[_KEY] = _called
    try:
        yield
    finally:
        own.remove(watcher)
        with _lock:
            _watches -= 1
            if not _watches:
                del _global_forward_pre_hooks[_KEY]


@contextmanager
def first_call() -> Iterator[list[nn.Module]]:
    """The first module that this thread calls inside, if any; none where all runs compiled."""
    met: list[nn.Module] = []
    with ExitStack() as stack:

        def called(module: nn.Module) -> None:
            met.append(module)
            stack.close()  # what is compiled inside the module is compiled without the hook

        stack.enter_context(calls_seen_by(called))
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message="Using `torch.compile.* when there are global hooks")
        yield met


def runs_compiled(module: nn.Module) -> bool:
    """Whether this module, or one inside it, was made by `torch.compile`."""
    from torch._dynamo.eval_frame import OptimizedModule  # slow to import, and loaded where anything was compiled

    return any(isinstance(inner, OptimizedModule) for inner in module.modules())


def owners(params: Collection[Tensor]) -> list[nn.Module]:
    """All modules that have one of these parameters, themselves or inside them; a walk through the interpreter's objects.

    >>> net = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    >>> [type(module).__name__ for module in sorted(owners([net[0].weight]), key=lambda module: len(list(module.modules())))]
    ['Linear', 'Sequential']
    """
    own = {id(param) for param in params}
    modules = [
        thing for thing in gc.get_objects() if issubclass(type(thing), nn.Module) and "_parameters" in vars(thing)
    ]
    return [module for module in modules if any(id(param) in own for param in module.parameters())]


NAMES = ("running_mean", "running_var", "num_batches_tracked")

_given_copies: WeakSet[nn.Module] = WeakSet()
"""Layers that write to copies just now."""


@contextmanager
def frozen_statistics(model: nn.Module | None = None, *, of: Collection[Tensor] | None = None) -> Iterator[None]:
    """Inside, no running mean, variance or count of batches moves; what the layers compute is unchanged.

    Layers in training mode normalise by the batch, layers in evaluation mode by their running statistics, also where the mode is
    changed inside. Momentum (None included) is not touched, and everything is put back whatever happens. Without a model,
    this holds for every layer that this thread calls inside; with `of`, only in modules that have one of these parameters.

    >>> import torch
    >>> layer = nn.BatchNorm1d(2)
    >>> with frozen_statistics():
    ...     outputs = layer(torch.tensor([[1.0, 2.0], [3.0, 6.0]]))
    >>> outputs[0], layer.running_mean, int(layer.num_batches_tracked)
    (tensor([-1.0000, -1.0000], grad_fn=<SelectBackward0>), tensor([0., 0.]), 0)
    """
    with ExitStack() as stack:
        stack.enter_context(_reaching(model, of, lambda layer: _freeze(layer, stack)))
        yield


@contextmanager
def repeated_statistics(model: nn.Module | None) -> Iterator[Callable[[], None]]:
    """What is yielded puts the statistics back that moved inside, for a pass that turns out to have been made before."""
    kept: list[tuple[Tensor, Tensor]] = []

    def back() -> None:
        for buffer, value in kept:
            buffer.copy_(value)

    def keep(layer: nn.Module) -> None:
        kept.extend((buffer, buffer.clone()) for _, buffer in _statistics(layer))

    with _reaching(model, None, keep):
        yield back


@contextmanager
def _reaching(
    model: nn.Module | None, of: Collection[Tensor] | None, act: Callable[[nn.Module], None]
) -> Iterator[None]:
    """Act once on each layer with running statistics: those of the model, or those that are called, before they are."""
    seen: set[nn.Module] = set()
    own = None if of is None else {id(param) for param in of}

    def reach(module: nn.Module) -> None:
        for layer in module.modules():
            if layer not in seen:
                seen.add(layer)
                if _statistics(layer):
                    act(layer)

    def called(module: nn.Module) -> None:
        if module not in seen and (own is None or any(id(param) in own for param in module.parameters())):
            reach(module)

    if model is not None:
        reach(model)
        yield
        return
    with calls_seen_by(called):
        yield


def _statistics(layer: nn.Module) -> list[tuple[str, Tensor]]:
    """The running statistics that a layer moves: torch's layers, and others that call theirs by the same names."""
    if isinstance(layer, _NormBase) and not layer.track_running_stats:
        return []
    return [(name, buffer) for name, buffer in layer.named_buffers(recurse=False) if name in NAMES]


def _freeze(layer: nn.Module, undo: ExitStack) -> None:
    if isinstance(layer, _NormBase) and not isinstance(layer, _InstanceNorm):
        layer.track_running_stats = False
        undo.callback(setattr, layer, "track_running_stats", True)
    elif layer not in _given_copies:
        # an instance norm that does not track would ignore its statistics in evaluation mode, and other layers may do anything
        _given_copies.add(layer)
        undo.callback(_given_copies.discard, layer)
        for name, buffer in _statistics(layer):
            setattr(layer, name, buffer.clone())
            undo.callback(setattr, layer, name, buffer)

"""Which modules run: told by one hook for all modules of the process, there only while somebody wants to know.

Compiled code calls no hooks, and `torch.compile` warns of them: there, modules are looked for among the interpreter's objects.
"""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _global_forward_pre_hooks
from torch.utils.hooks import RemovableHandle

__all__ = ["calls_seen_by", "first_call", "owners", "runs_compiled"]


class _Watchers(threading.local):
    """Who wants to know, in this thread, which modules are called."""

    def __init__(self) -> None:
        self.all: list[Callable[[nn.Module], None]] = []


_watchers = _Watchers()
_lock = threading.Lock()
_watches = 0
"""In all threads."""
_KEY = RemovableHandle(_global_forward_pre_hooks).id
"""Compiled code is compiled anew where the hooks have other keys, so it is one key for good."""


def _called(module: nn.Module, _: object) -> None:
    if not torch.compiler.is_compiling():
        for watcher in tuple(_watchers.all):
            watcher(module)


@contextmanager
def calls_seen_by(watcher: Callable[[nn.Module], None]) -> Iterator[None]:
    """Inside, the watcher is told of every module that this thread is about to call, but for those that run compiled."""
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

"""Steps made fast: recorded as a CUDA graph, or compiled."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from landscope.core.errors import SpecError
from landscope.core.seeding import release_generator
from landscope.core.text import first_line

# A step recorded once as a CUDA graph and replayed: small networks are bound by the launching of kernels, not by their work.
#
# The first steps run as they are, and are real steps; then one is recorded, which computes nothing, and replayed from there on.
# Batches of another size (the last of an epoch) run as they are. Random numbers of a replay come from the generator's present
# seed, so noise is seeded step by step as usual.


WARM_UP = 3
"""Steps before recording: optimizers make their state, libraries choose their kernels."""

StepFunction = Callable[[Tensor, Tensor], Tensor]


@contextmanager
def own_stream(device: torch.device, wanted: bool) -> Iterator[None]:
    """Work on a stream of its own, where recording is allowed."""
    if not wanted:
        yield
        return
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream(device).wait_stream(stream)


class Captured:
    """`step` as a function with the same effects, recorded after some calls; `before` runs ahead of each replay.

    What the step draws on the CPU, `before` has to draw into the tensors that were recorded.
    """

    def __init__(self, step: StepFunction, rows: int, before: Callable[[], None] | None = None) -> None:
        self._step, self._rows, self._before = step, rows, before
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._able = True

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """The step on a batch; what it returns is overwritten by the next one."""
        if not self._able or len(y) != self._rows:
            return self._step(x, y)
        if self._graph is not None:
            self._x.fill(x)
            self._y.fill(y)
            if self._before is not None:
                self._before()
            self._graph.replay()
            return self._metrics
        self._calls += 1
        if self._calls <= WARM_UP:
            return self._step(x, y)
        self._record(x, y)
        return self(x, y)

    def _record(self, x: Tensor, y: Tensor) -> None:
        self._x, self._y = _Input(x), _Input(y)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
                self._metrics = self._step(self._x.recorded, self._y.recorded)
        except RuntimeError as error:
            reason = first_line(error)
            warnings.warn(f"the training step cannot be recorded and runs as it is: {reason}", stacklevel=3)
            self._able = False
            release_generator(x.device)
            return
        self._graph = graph


class _Input:
    """A recorded input. The same tensor as last time, if not written to since, is not copied again.

    >>> rows = torch.zeros(2)
    >>> held = _Input(rows)
    >>> copies = held.recorded._version
    >>> held.fill(rows)
    >>> held.recorded._version - copies
    0
    >>> held.fill(rows.add_(1))
    >>> held.recorded, held.recorded._version - copies
    (tensor([1., 1.]), 1)
    """

    def __init__(self, batch: Tensor) -> None:
        self.recorded = batch.clone()
        self._note(batch)

    def fill(self, batch: Tensor) -> None:
        if self._last() is batch and self._state == _state(batch) is not None:
            return
        self.recorded.copy_(batch)
        self._note(batch)

    def _note(self, batch: Tensor) -> None:
        self._last, self._state = weakref.ref(batch), _state(batch)


def _state(tensor: Tensor) -> tuple[int, int] | None:
    """Where a tensor lies and how often it was written to, which is not counted for inference tensors."""
    return None if tensor.is_inference() else (tensor.data_ptr(), tensor._version)


# Passes through the network compiled by `torch.compile`: what lies between convolutions and products becomes few kernels.
#
# Steps on whole batches run compiled. The last, smaller batch of an epoch, evaluation and the model that comes back are the
# network as it is: each would be compiled again. FAM differentiates twice what lies behind its layer, which compiled code cannot
# do; there the modules before the layer are compiled.
#
# ResNet-18, batch 64, bfloat16, channels last, recorded, one H200: the kernels of a step take 1.92 ms instead of 2.41 (600
# replays each, cuDNN's benchmark mode on).


def parts_to_compile(model: nn.Module, before: nn.Module | None = None) -> tuple[nn.Module, ...]:
    """The network as a whole, or the largest modules of it that come `before` one of its layers.

    Modules come in the order in which they were registered, which is nearly always that in which they run. Where it is not,
    FAM says that it cannot differentiate a compiled module twice: no number is wrong.

    >>> net = nn.Sequential(nn.Sequential(nn.Linear(2, 3), nn.ReLU()), nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)))
    >>> parts_to_compile(net) == (net,), parts_to_compile(net, before=net[1][1]) == (net[0], net[1][0])
    (True, True)
    """
    if before is None:
        return (model,)
    found: list[nn.Module] = []
    _collect(model, before, found)
    return tuple(found)


def _collect(module: nn.Module, before: nn.Module, found: list[nn.Module]) -> bool:
    """Collect the modules before the layer; returns whether the layer was reached."""
    for child in module.children():
        if child is before:
            return True
        mere_list = isinstance(child, nn.ModuleList | nn.ModuleDict)  # never called itself
        if mere_list or any(inner is before for inner in child.modules()):
            if _collect(child, before, found):
                return True
        else:
            found.append(child)
    return False


class Compiled:
    """`step` with parts of the network compiled, for batches of `rows` rows."""

    def __init__(
        self,
        step: StepFunction,
        rows: int,
        parts: Sequence[nn.Module],
        backend: str | Callable[..., object] = "inductor",
    ) -> None:
        self._step, self._rows = step, rows
        self._fast = [(part, torch.compile(part.forward, dynamic=False, backend=backend)) for part in parts]

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        if len(y) != self._rows:
            return self._step(x, y)
        try:
            with self._in_place():
                return self._step(x, y)
        except RuntimeError as error:
            from torch._dynamo.exc import TorchDynamoException  # a second of importing, for those who compile

            if not isinstance(error, TorchDynamoException):
                raise
            lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
            reason = " ".join(lines[:2]).rstrip(".")
            raise SpecError(f"compile: torch cannot compile this network: {reason}. Set compile: false.") from error

    @contextmanager
    def _in_place(self) -> Iterator[None]:
        """The compiled forward passes stand for those of the modules; copies that are made elsewhere know nothing of them."""
        own = [vars(part).get("forward") for part, _ in self._fast]
        for part, forward in self._fast:
            part.forward = forward
        try:
            yield
        finally:
            for (part, _), before in zip(self._fast, own, strict=True):
                del part.forward
                if before is not None:
                    part.forward = before

"""A step recorded once as a CUDA graph and replayed: small networks are bound by the launching of kernels, not by their work.

The first steps run as they are, and are real steps; then one is recorded, which computes nothing, and replayed from there on.
Batches of another size (the last of an epoch) run as they are. Random numbers of a replay come from the generator's present
seed, so noise is seeded step by step as ever.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

__all__ = ["Captured", "own_stream"]

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
    """`step` as a function with the same effects, recorded after some calls."""

    def __init__(self, step: StepFunction, rows: int) -> None:
        self._step, self._rows = step, rows
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._able = True

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """The step on a batch; what it returns is overwritten by the next one."""
        if not self._able or len(y) != self._rows:
            return self._step(x, y)
        if self._graph is not None:
            self._x.copy_(x)
            self._y.copy_(y)
            self._graph.replay()
            return self._metrics
        self._calls += 1
        if self._calls <= WARM_UP:
            return self._step(x, y)
        self._record(x, y)
        return self(x, y)

    def _record(self, x: Tensor, y: Tensor) -> None:
        self._x, self._y = x.clone(), y.clone()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
                self._metrics = self._step(self._x, self._y)
        except RuntimeError as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            warnings.warn(f"the training step cannot be recorded and runs as it is: {reason}", stacklevel=3)
            self._able = False
            _release_generator(x.device)
            return
        self._graph = graph


def _release_generator(device: torch.device) -> None:
    """A recording that fails leaves the device's generator waiting for its end, and it refuses to draw: give it a new state."""
    own = torch.cuda.default_generators[device.index or 0]
    seed = own.initial_seed()
    own.graphsafe_set_state(torch.Generator(device).graphsafe_get_state())
    own.manual_seed(seed)

"""Compile when the work is worth it.

On a GPU a compiled product of a transformer takes half of the time; on CPUs nothing was gained (`docs/speed.md`), so products are
compiled there only if asked for. Compiling costs a minute; how many products will follow is not known. As with renting
skis, it is optimal to continue as before until what has been spent equals the price, and to buy then: never more than twice what
the best choice in hindsight would have cost. A compiled product that is not faster, or that does not compile, is dropped.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from landscope.core.errors import OperandError
from landscope.curvature.differentiation import Method
from landscope.probe.batches import Batch

Compile = Literal["auto", True, False]
Piece = Callable[..., Tensor]

COMPILE_SECONDS = 60.0
"""What compiling a product is expected to cost: 30–110 s were seen for ResNet-18 and a two-layer transformer."""

PAYS = ("cuda",)
"""Kinds of devices on which products are compiled by themselves."""

ROOM = 20
"""Where there is a deadline, this many times the price must be left: compiling cannot be stopped half-way."""

log = logging.getLogger("landscope")


class Compiler:
    """Chooses, product by product, between the fastest way as it is and the fastest compiled one."""

    def __init__(
        self, wish: Compile, device: torch.device, seconds_left: Callable[[], float] = lambda: float("inf")
    ) -> None:
        if wish not in ("auto", True, False):
            raise OperandError(f"compile must be 'auto', True or False, got {wish!r}")
        self.wish = wish
        self.device = device
        self.seconds_left = seconds_left
        self.spent = 0.0
        self._eager: dict[tuple[int, int], float] = {}
        self._compiled: dict[tuple[str, int, int], Piece] = {}
        self._declined: set[int] = set()

    def choose(self, methods: Sequence[Method], vectors: int) -> Method:
        """The first method, or the first that compiles once compiling is due."""
        if not self._due(vectors):
            return methods[0]
        return next((method for method in methods if method.compilable), methods[0])

    def _due(self, vectors: int) -> bool:
        if self.wish is False or vectors in self._declined:
            return False
        if self.wish == "auto" and self.device.type not in PAYS:
            return False
        return self.wish is True or (self.spent >= COMPILE_SECONDS and self.seconds_left() > ROOM * COMPILE_SECONDS)

    def __call__(self, method: Method, piece: Piece, eager: Piece, batch: Batch, vectors: int) -> Piece:
        """The function to call for this method, batch size and number of vectors: `eager`, or `piece` compiled."""
        if self.wish is False:
            return eager
        known = self._compiled.get((method.name, batch.size, vectors))
        if known is not None:
            return known
        if method.compilable and self._due(vectors):
            return self._compile(piece, method, batch.size, vectors)
        return self._timed(eager, (batch.size, vectors))

    def _timed(self, piece: Piece, key: tuple[int, int]) -> Piece:
        def call(*args: object) -> Tensor:
            seconds, result = self._clock(piece, args)
            self.spent += seconds
            self._eager[key] = min(seconds, self._eager.get(key, seconds))
            return result

        return call

    def _compile(self, piece: Piece, method: Method, size: int, vectors: int) -> Piece:
        def call(*args: object) -> Tensor:
            try:
                compiled = torch.compile(piece, fullgraph=True, dynamic=False)
                compiled(*args)
                seconds, result = self._clock(compiled, args)
            except Exception as error:
                log.info("the product could not be compiled and runs as it is: %s", error)
                self._declined.add(vectors)
                return piece(*args)
            if self.wish == "auto" and seconds > self._eager.get((size, vectors), float("inf")):
                self._declined.add(vectors)
            else:
                self._compiled[method.name, size, vectors] = compiled
            return result

        return call

    def _clock(self, function: Piece, args: tuple[object, ...]) -> tuple[float, Tensor]:
        start = time.perf_counter()
        result = function(*args)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter() - start, result

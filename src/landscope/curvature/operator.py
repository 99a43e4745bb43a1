"""A curvature matrix that is known through its products with vectors.

The matrix is a sum over samples divided by their number, whatever the batches: each piece of data adds its part, and where
several processes share the data one all-reduce adds theirs.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from landscope.core.errors import DifferentiationError, LandscopeError, NonFiniteLossError, OperandError
from landscope.core.memory import available_bytes, is_out_of_memory
from landscope.core.parameters import ParameterSpace, Selection, Vectors
from landscope.core.seeding import generator
from landscope.core.shared_state import Precision
from landscope.core.torch_fixes.convolutions import channels_last
from landscope.curvature.compilation import Compile, Compiler
from landscope.curvature.differentiation import Method, Params
from landscope.curvature.recording import Recorder
from landscope.probe.batches import Batch
from landscope.probe.loss.widening import ROUNDING as NARROW_ROUNDING
from landscope.probe.points import is_small
from landscope.probe.probe import Probe

if TYPE_CHECKING:
    from typing import Self

    from scipy.sparse.linalg import LinearOperator

NARROW_OPERATIONS = 4
"""Roundings of a vector in half precision from one product to the next: the two parts of a product, two steps of a recurrence."""
ROUNDING_UNITS = 32
"""Relative rounding error of a product in units of the machine epsilon: seen below 10 on the networks of the tests."""


class CurvatureOperator(ABC):
    """Base of the curvature matrices: a symmetric (P, P) matrix at a probe.

    Args:
        probe: the point.
        params: a subset of the probe's parameters; the rest are constants.
        compile: compile the products (`True`), never (`False`), or on a GPU once the time spent on them has repaid it (`"auto"`;
            not where the last layer is differentiated apart, `landscope.probe.loss.head`).
        precision: `"highest"` (float32 is float32), or `"tf32"` on GPUs that have it; its rounding is measured and becomes
            part of every stated error.
    """

    def __init__(
        self, probe: Probe, *, params: Selection = None, compile: Compile = "auto", precision: Precision = "highest"
    ) -> None:
        if precision not in ("highest", "tf32"):
            raise OperandError(f"precision must be 'highest' or 'tf32', got {precision!r}")
        self.probe = probe if params is None else probe.restrict(params)
        self.precision: Precision = precision
        self.products = 0
        """How many vectors have been multiplied so far: each costs one pass over the data."""
        large = compile == "auto" and self.probe.head is not None
        plain = self.probe.sharding is None and not self.probe.narrow
        self._compile: Compile = False if large or not plain else compile
        self._pieces = 1
        self._compiler = Compiler(self._compile, self.probe.device, self.probe.ledger.seconds_left)
        self._recorder = Recorder(self.probe.device)
        self._methods = {block: list(self._ways(block)) for block in (False, True)}
        if self.probe.sharding is not None:  # the processes take the same way, and nothing keeps whole weights
            self._methods = {block: [way for way in self._ways(False) if way.reverse] for block in (False, True)}
        self._rounding: float | None = None

    @abstractmethod
    def _ways(self, block: bool) -> tuple[Method, ...]:
        """The ways to multiply by one vector or by a block, the fastest first."""

    @abstractmethod
    def _piece(self, method: Method, params: Params, rows: Tensor, batch: Batch, space: ParameterSpace) -> Tensor:
        """The rows of products, summed over the samples of one piece of data."""

    # The contract

    @property
    def shape(self) -> tuple[int, int]:
        """(P, P)."""
        return self.probe.n_params, self.probe.n_params

    @property
    def vectors(self) -> Vectors:
        """How long the vectors are that it multiplies, and what of them lies in this process."""
        return self.probe.vectors

    @property
    def dtype(self) -> torch.dtype:
        """The type of the numbers in its products."""
        return self.probe.stored

    @property
    def device(self) -> torch.device:
        """Where its products live."""
        return self.probe.device

    @property
    def rounding(self) -> float:
        """Relative rounding error of a product: a multiple of the machine epsilon; measured where TF32 is allowed.

        Of vectors in half precision that of the vectors: of a product, of its sum over pieces, and of what is made of it.
        """
        if self.probe.narrow:
            return NARROW_ROUNDING * math.sqrt(NARROW_OPERATIONS + self._pieces)
        if self._rounding is None:
            self._rounding = ROUNDING_UNITS * torch.finfo(self.dtype).eps
            if self.precision == "tf32" and self.device.type == "cuda" and self.dtype == torch.float32:
                v = self.vectors.normal(generator(self.probe.seed, "rounding"), self.dtype, self.device)
                exact = type(self)(self.probe, compile=False) @ v
                coarse = type(self)(self.probe, compile=False, precision="tf32") @ v
                self._rounding += float(
                    self.vectors.norms(coarse - exact)
                    / self.vectors.norms(exact).clamp(min=torch.finfo(self.dtype).tiny)
                )
        return self._rounding

    def __matmul__(self, other: Tensor) -> Tensor:
        self._check_operand(other)
        with self.probe.measuring():
            return self._product(other.clone() if other.is_inference() else other.detach())

    def _product(self, other: Tensor) -> Tensor:
        columns = other.to(self.dtype)
        rows = columns[None] if columns.dim() == 1 else columns.T
        if not len(rows):
            return columns.clone()
        width = self._block_width()
        parts = [self._multiply(rows[start : start + width].contiguous()) for start in range(0, len(rows), width)]
        product = parts[0] if len(parts) == 1 else torch.cat(parts)
        return product[0] if columns.dim() == 1 else product.T.contiguous()

    def dense(self) -> Tensor:
        """The whole (P, P) matrix from P products, made exactly symmetric; for small P."""
        if self.probe.sharding is not None:
            raise OperandError(
                "the parameters are sharded: no process holds the whole matrix. Multiply vectors instead."
            )
        matrix = self @ torch.eye(self.shape[0], dtype=self.dtype, device=self.device)
        return (matrix + matrix.T) / 2

    def to_scipy(self) -> LinearOperator:
        """The same matrix as a `scipy.sparse.linalg.LinearOperator` (NumPy in, NumPy out)."""
        from scipy.sparse.linalg import LinearOperator

        def multiply(array: np.ndarray) -> np.ndarray:
            block = torch.from_numpy(np.ascontiguousarray(array)).to(self.device, self.dtype)
            return (self @ block).cpu().numpy()

        kind = np.float64 if self.dtype == torch.float64 else np.float32
        return LinearOperator(
            self.shape,
            matvec=lambda v: multiply(v.reshape(-1)),
            matmat=multiply,
            rmatvec=lambda v: multiply(v.reshape(-1)),
            rmatmat=multiply,
            dtype=kind,
        )

    def restrict(self, params: Selection) -> Self:
        """The diagonal block of these parameters: the rest are constants.

        Same point, same data; costs only what these parameters' derivatives need.
        """
        return type(self)(self.probe, params=params, compile=self._compile, precision=self.precision)

    def on(self, probe: Probe) -> Self:
        """The matrix at other rows of the same point, whose products are replayed from the same recordings."""
        twin = type(self)(probe, compile=False, precision=self.precision)
        twin._recorder = self._recorder
        return twin

    def blocks(self) -> dict[str, Self]:
        """The diagonal block of each layer, by the layer's name."""
        return {layer: self.restrict(names) for layer, names in self.probe.layers().items()}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.probe!r})"

    # The work

    def _check_operand(self, other: object) -> None:
        if not isinstance(other, Tensor):
            raise OperandError(
                f"{type(self).__name__} multiplies torch tensors, got {type(other).__name__}; for NumPy arrays use .to_scipy()"
            )
        size = self.vectors.length
        if other.dim() not in (1, 2) or other.shape[0] != size:
            raise OperandError(f"expected a vector ({size},) or a block ({size}, k), got shape {tuple(other.shape)}")
        if not other.is_floating_point():
            raise OperandError(f"expected real numbers ({self.dtype}), got {other.dtype}")
        if other.device.type != self.device.type:
            raise OperandError(f"the operand is on {other.device}, the operator on {self.device}; move one of them")

    def _block_width(self) -> int:
        """How many vectors at once: their products and tangents may take an eighth of the free memory."""
        bytes_each = 4 * max(self.vectors.length, 1) * torch.finfo(self.dtype).bits // 8
        return int(self.vectors.least(max(1, min(64, available_bytes(self.device) // (8 * bytes_each)))))

    def _multiply(self, rows: Tensor) -> Tensor:
        probe, count = self.probe, len(rows)
        methods, trial = self._methods[count > 1], self._trial(count > 1)
        tried = methods[:2] if trial.running else trial.order(methods)[:1]
        load = max(m.load(count) for m in tried)
        usual = min(probe.n_samples, probe.fitting(load)) if trial.running else 0
        refused: list[str] = []
        pieces = 0

        def piece(batch: Batch) -> tuple[Tensor, ...]:
            nonlocal pieces
            pieces += 1
            while True:
                method = self._compiler.choose(trial.order(methods), count)
                start = time.perf_counter()
                try:
                    eager = self._piece if trial.running else self._recorded_piece
                    call = self._compiler(method, self._piece, eager, batch, count)
                    found = call(method, dict(probe.params), rows, batch, probe.space).detach()
                except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
                    if isinstance(error, LandscopeError) or is_out_of_memory(error):
                        raise
                    refused.append(f"{method.name}: {_first_line(error)}")
                    if len(methods) == 1:
                        raise DifferentiationError(
                            f"the model or the loss cannot be differentiated twice. {'; '.join(refused)}"
                        ) from error
                    methods.remove(method)
                    continue
                if trial.running and 2 * batch.size >= usual:  # smaller ones take the time of launches
                    if probe.device.type == "cuda":
                        torch.cuda.synchronize(probe.device)
                    trial.note(method, (time.perf_counter() - start) / batch.size)
                return (found,)

        passes = min(m.passes(count) for m in methods[:2])
        (total,) = probe.total(piece, load=load, passes=passes, precision=self.precision, along=1)
        self.products += count
        self._pieces = max(self._pieces, pieces)
        product = total.div_(probe.n_samples)
        if not self.vectors.finite(product):
            raise NonFiniteLossError(
                f"the product of {type(self).__name__} with a vector is not finite: the loss has an infinite or undefined "
                f"second derivative here (square roots at zero, overflow). Try dtype=torch.float64, or look at the inputs."
            )
        return product

    def _laid_out(self) -> AbstractContextManager[object]:
        """How images are held during a forward pass: as tensor cores take them."""
        cores = self.precision == "tf32" and self.device.type == "cuda" and self.dtype == torch.float32
        return channels_last() if cores and not torch.compiler.is_compiling() else nullcontext()

    def _recorded_piece(
        self, method: Method, params: Params, rows: Tensor, batch: Batch, space: ParameterSpace
    ) -> Tensor:
        """`_piece`, from a recording where that is faster."""
        if (
            self.probe.head is not None or self.probe.sharding is not None or self.probe.narrow
        ):  # large, of several steps
            return self._piece(method, params, rows, batch, space)
        size = method.load(len(rows)) * self.probe.activation_bytes * batch.size
        return self._recorder(
            method.name, lambda rows, batch: self._piece(method, params, rows, batch, space), rows, batch, size
        )

    def _trial(self, block: bool) -> Trial:
        """One for each model, matrix and precision: what was found out once holds for parts of the data, too."""
        known = _trials.setdefault(self.probe.module(""), {})
        key = (type(self).__name__, self.precision, block, self.probe.space.names)
        if key not in known:
            timed = self.probe.head is None and self.probe.sharding is None and not self.probe.narrow
            known[key] = Trial(running=timed and not is_small(self.probe))
        return known[key]


class Trial:
    """Which of the two ways that may be the fastest is so here: each works on a piece of real data after one that warms it up.

    Where all of the data is little work nothing is timed, so that the same call gives the same digits again.

    >>> from landscope.curvature.differentiation import hessian_methods
    >>> ways, trial = list(hessian_methods(False, torch.device("cpu"))), Trial(running=True)
    >>> for seconds in (9.0, 9.0, 2.0, 1.0): trial.note(trial.order(ways)[0], seconds)
    >>> trial.running, trial.order(ways)[0] is ways[1]
    (False, True)
    """

    CLEARLY = 0.9
    """A way replaces the one that comes first where it takes less than this part of its time."""

    def __init__(self, running: bool) -> None:
        self.running = running
        self._seconds: dict[str, list[float]] = {}
        self._best = ""

    def order(self, methods: Sequence[Method]) -> list[Method]:
        """The methods, the one to take now first."""
        if self.running and len(methods) > 1:
            return sorted(methods[:2], key=lambda m: len(self._seconds.get(m.name, ())))
        return sorted(methods, key=lambda m: m.name != self._best)

    def note(self, method: Method, seconds: float) -> None:
        """How long a piece took, for each of its samples; the first of each way does not count."""
        self._seconds.setdefault(method.name, []).append(seconds)
        timed = {name: min(times[1:]) for name, times in self._seconds.items() if len(times) > 1}
        if len(timed) < 2:
            return
        (first, before), (second, after) = timed.items()
        self._best, self.running = second if after < self.CLEARLY * before else first, False


_trials: WeakKeyDictionary[nn.Module, dict[tuple[object, ...], Trial]] = WeakKeyDictionary()


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]

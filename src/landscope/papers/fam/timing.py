"""What the Hessian of a layer costs, and its trace: figures 4 and 5 of the fourth paper, as measures whose value is a time.

Hessian: a loop of autograd calls, the same calls as one batch (`is_grads_batched`), `torch.func.hessian`. Trace: of that matrix,
Hutchinson's estimate, and ours, the exact identity over the layer's outputs,

    tr H = mean over samples of ‖φ‖² tr ∂²L/∂z²,

in one value, and with one random product per batch (both as `FAM(form="layerwise")` computes them, less its ‖W‖²).
"""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.func import functional_call, hessian

from landscope.analysis import mean
from landscope.core.errors import NotApplicableError, OutOfMemoryError
from landscope.core.estimate import Estimate, Status
from landscope.core.memory import is_out_of_memory
from landscope.core.seeding import generator, rademacher
from landscope.measures.base import Measure
from landscope.papers.framework.answers import Answer, Unit
from landscope.papers.framework.claims import Claim
from landscope.papers.framework.questions import asked
from landscope.papers.framework.values import NoAnswerError, Tables, rows_at
from landscope.probe.probe import Probe
from landscope.probe.shared import once_per_probe
from landscope.training.objectives import FAM

__all__ = ["TIMING", "HessianTime", "Way", "layer_rows", "timing_claims", "ways"]

Way = Literal[
    "hessian.loop",
    "hessian.batched",
    "hessian.functional",
    "trace.functional",
    "trace.hutchinson",
    "trace.exact",
    "trace.one_probe",
]
MEDIAN_ERROR = math.sqrt(math.pi / 2)
"""Standard error of a median over that of a mean, for normal noise."""


def layer_rows(units: int, rows: int = 64, classes: int = 10, seed: int = 0) -> dict[str, tuple[Tensor, Tensor]]:
    """Normal inputs for a layer of so many units, and labels: what they are is nothing to the time.

    >>> x, y = layer_rows(3, rows=5)["train"]
    >>> x.shape, y.tolist()
    (torch.Size([5, 3]), [0, 1, 2, 3, 4])
    """
    x = torch.randn(rows, units, generator=generator(seed, "layer rows"))
    return {"train": (x, torch.arange(rows) % classes)}


def ways(model: nn.Module, x: Tensor, y: Tensor, probes: int = 10, seed: int = 0) -> dict[Way, Callable[[], Tensor]]:
    """The Hessian of cross-entropy in the weight of the first linear layer, and its trace, each in every way.

    >>> net = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2))
    >>> every = ways(net, torch.randn(8, 3), torch.arange(8) % 2)
    >>> every["hessian.loop"]().shape
    torch.Size([9, 9])
    >>> bool(torch.isclose(every["trace.exact"](), every["trace.functional"](), rtol=1e-3))
    True
    """
    layer, weight = _first_linear(model)
    size = weight.numel()

    def loss() -> Tensor:
        return nn.functional.cross_entropy(model(x), y)

    def gradient() -> Tensor:
        (found,) = torch.autograd.grad(loss(), weight, create_graph=True)
        return found.flatten()

    def loop() -> Tensor:
        first = gradient()
        rows = [torch.autograd.grad(first[i], weight, retain_graph=True)[0].flatten() for i in range(size)]
        return torch.stack(rows)

    def batched() -> Tensor:
        directions = torch.eye(size, dtype=weight.dtype, device=weight.device)
        return torch.autograd.grad(gradient(), weight, directions, is_grads_batched=True)[0].reshape(size, size)

    def functional() -> Tensor:
        def of_weight(w: Tensor) -> Tensor:
            return nn.functional.cross_entropy(functional_call(model, {f"{layer}.weight": w}, (x,)), y)

        found: Tensor = hessian(of_weight)(weight.detach())
        return found.reshape(size, size)

    rng = generator(seed, "hutchinson")

    def hutchinson() -> Tensor:
        first = gradient()
        draws = []
        for _ in range(probes):
            v = rademacher((size,), rng, weight.dtype, weight.device)
            (product,) = torch.autograd.grad(first, weight, v, retain_graph=True)
            draws.append(v @ product.flatten())
        return torch.stack(draws).mean()

    def identity(number: int | None) -> Callable[[], Tensor]:
        def trace() -> Tensor:
            return fam.penalty(loss()).detach() / weight.detach().square().sum()

        fam = FAM(model, layer, strength=1.0, form="layerwise", probes=number, seed=seed)
        return trace

    return {
        "hessian.loop": loop,
        "hessian.batched": batched,
        "hessian.functional": functional,
        "trace.functional": lambda: functional().trace(),
        "trace.hutchinson": hutchinson,
        "trace.exact": identity(None),
        "trace.one_probe": identity(1),
    }


def _first_linear(model: nn.Module) -> tuple[str, Tensor]:
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            return name, module.weight
    raise NotApplicableError("there is no linear layer whose Hessian could be timed")


@once_per_probe
def _times(probe: Probe, rounds: int, probes: int, seed: int) -> Mapping[Way, list[float] | str]:
    """Seconds of every way in interleaved rounds, after one that warms up; a reason where memory ran out."""
    if probe.loss.name != "cross_entropy" or probe.temperature != 1:
        raise NotApplicableError("the ways are written for cross_entropy at temperature 1")
    model = copy.deepcopy(probe.module("")).requires_grad_(True)
    batch = probe.ready(next(iter(probe.batches())).raw)
    if not (isinstance(batch, tuple | list) and len(batch) == 2):
        raise NotApplicableError("the rows are not pairs of inputs and labels")
    x, y = batch
    every = ways(model, x, y, probes, seed)
    found: dict[Way, list[float] | str] = {}
    for name, way in every.items():
        try:
            _seconds(way, probe.device)
            found[name] = []
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            found[name] = f"{name} does not fit into the memory of {probe.device}"
    for _ in range(rounds):
        for name, taken in found.items():
            if isinstance(taken, list):
                taken.append(_seconds(every[name], probe.device))
    return found


def _seconds(way: Callable[[], Tensor], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    way()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


@dataclass(frozen=True, kw_only=True)
class HessianTime(Measure):
    """Median seconds that one way takes to the Hessian of the first linear layer, or to its trace, at the first batch.

    The error bar is that of the median over `rounds`. All ways of one probe are timed together, in turns.

    Source: appendix A of the paper. Cost: every way, `rounds` + 1 times.

    >>> net = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2))
    >>> HessianTime(way="trace.exact", rounds=2)(Probe(net, (torch.randn(8, 3), torch.arange(8) % 2))).value > 0
    True
    """

    way: Way = "hessian.functional"
    rounds: int = 5
    probes: int = 10
    """Products of Hutchinson's estimate."""

    def __post_init__(self) -> None:
        if self.way not in get_args(Way):
            raise ValueError(f"way must be one of {', '.join(get_args(Way))}; got {self.way!r}")

    def _measure(self, probe: Probe) -> Estimate:
        taken = _times(probe, self.rounds, self.probes, self.seed)[self.way]
        if isinstance(taken, str):
            raise OutOfMemoryError(taken)
        spread = statistics.stdev(taken) if len(taken) > 1 else 0.0
        return Estimate(
            statistics.median(taken),
            stderr=MEDIAN_ERROR * spread / math.sqrt(len(taken)),
            status=Status.CONVERGED,
            details={"seconds": list(taken)},
        )


# The appendix says that one batch of autograd calls saves up to three orders of magnitude over a loop of them, that functorch
# (now `torch.func`) saves another for large Hessians, and shows Hutchinson's trace beside that of the whole matrix.

TIMING = "hessian-timing"
PARTS = (TIMING, "hessian-timing-cpu")
_WORDS: dict[Way, str] = {
    "hessian.loop": "a loop of autograd calls",
    "hessian.batched": "one batch of autograd calls",
    "hessian.functional": "torch.func.hessian",
    "trace.functional": "the trace of torch.func.hessian",
    "trace.hutchinson": "Hutchinson's trace",
    "trace.exact": "the exact trace over the layer's outputs",
    "trace.one_probe": "that trace by one random product",
}


def _named(way: str) -> str:
    """What a way is reported as.

    >>> _named("trace.exact"), _named("hessian.loop")
    ('seconds_to_trace.exact', 'seconds_to_Hessian.loop')
    """
    return f"seconds_to_{way}".replace("hessian", "Hessian")


def _column(way: str) -> str:
    return f"train.{_named(way)}"


COMPARED: tuple[tuple[Way, Way, str, float, str], ...] = (
    ("hessian.batched", "hessian.loop", "at every layer", 1.0, ""),
    ("hessian.batched", "hessian.loop", "at some layer", 10**2.5, ", by up to three orders of magnitude"),
    ("hessian.functional", "hessian.batched", "at the largest layer", 10**0.5, " by an order of magnitude"),
    ("trace.hutchinson", "trace.functional", "at the largest layer", 1.0, ""),
    ("trace.exact", "trace.hutchinson", "at the largest layer", 1.0, ""),
)


def timing_claims() -> Iterator[Claim]:
    """Ratios of times; a claim about large layers is asked of the largest, one of the kind "up to" where the ratio is largest.

    How many times less is a matter of the machine, and the paper's was another: that can be shown here, not refuted.
    """
    for part, (fast, slow, where, factor, how) in product(PARTS, COMPARED):
        yield Claim(
            part=part,
            text=f"{part}: {_WORDS[fast]} takes less time than {_WORDS[slow]} {where}{how}",
            question=asked(part, _faster(part, fast, slow, where, factor)),
            ours=fast == "trace.exact",
            trains=True,
        )


def _faster(part: str, fast: str, slow: str, where: str, factor: float) -> Callable[[Tables], list[Answer]]:
    """How many times as long `slow` takes, layer by layer, of the layers that are asked about; a network is a unit."""

    def answers(tables: Tables) -> list[Answer]:
        table = rows_at(tables, part)
        columns = [_column(fast), _column(slow)]
        if not set(columns) <= set(table):
            raise NoAnswerError(f"{part} has no times of {fast} and {slow}")
        known = table.dropna(subset=columns)
        units = known["axis.units"].str.removesuffix(" units").astype(int)
        ratios = (known[columns[1]] / known[columns[0]]).groupby(units)
        means = ratios.mean()
        sizes = {"at every layer": list(means.index), "at some layer": [means.idxmax()]}.get(where, [units.max()])
        return [
            Answer(
                f"{size} units",
                mean([math.log(value) for value in ratios.get_group(size)]).shifted(-math.log(factor)),
                None,
                Unit(ratio=True, symbol="× ", word="" if factor == 1 else f"as long, less a factor of {factor:.3g}"),
                n=str(len(ratios.get_group(size))),
            )
            for size in sizes
        ]

    return answers

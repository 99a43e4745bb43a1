"""The members of a pool: one spec each, which differ in their seeds and in numbers."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

import torch
from torch import Tensor, nn

from landscope.core.distributed import processes
from landscope.core.errors import SpecError, UnknownNameError
from landscope.core.memory import available_bytes, is_out_of_memory
from landscope.core.seeding import preserved_rng
from landscope.data import Split
from landscope.probe.totals import saved_bytes
from landscope.specs.overlay import get, with_value
from landscope.specs.schema import parse, to_plain
from landscope.training.evaluate import autocast, evaluate
from landscope.training.pool.passes import Passes, stacked
from landscope.training.spec import TrainingSpec
from landscope.training.task import Task

__all__ = ["NUMBERS", "Choice", "Overrides", "Way", "choose", "member_specs", "members_at_once", "unsupported"]


Overrides = Mapping[str, Sequence[object]]
"""Keys of a spec, such as "optimizer.lr", with one value for each member."""

NUMBERS = (
    "optimizer.lr",
    "optimizer.momentum",
    "optimizer.betas",
    "optimizer.eps",
    "optimizer.weight_decay",
    "sam.rho",
    "sam.eta",
    "clip_norm",
)
"""What may differ from member to member."""


def member_specs(
    spec: TrainingSpec, seeds: int | Sequence[int], overrides: Overrides | None = None
) -> list[TrainingSpec]:
    """The spec of every member; a number of seeds means so many from `spec.seed` on.

    >>> from landscope.training.spec import ModelSpec
    >>> specs = member_specs(TrainingSpec(model=ModelSpec(name="mlp"), seed=4), 2, {"optimizer.lr": [0.1, 0.2]})
    >>> [(one.seed, one.optimizer.lr) for one in specs]
    [(4, 0.1), (5, 0.2)]
    """
    if isinstance(seeds, int):
        if isinstance(seeds, bool) or seeds < 1:
            raise SpecError(f"seeds: a number of members ≥ 1 or a list of seeds was expected, got {seeds!r}")
        seeds = range(spec.seed, spec.seed + seeds)
    if not len(seeds):
        raise SpecError("seeds: the list is empty; a pool has at least one member")
    given = overrides or {}
    for key, values in given.items():
        if key not in NUMBERS:
            raise UnknownNameError.among("number that may differ between members", key, NUMBERS)
        if isinstance(values, str) or not isinstance(values, Sequence) or len(values) != len(seeds):
            found = f"{len(values)} values" if isinstance(values, Sequence) else repr(values)
            raise SpecError(f"overrides[{key!r}]: one value for each of {len(seeds)} members was expected, got {found}")
    return [_member(spec, seed, {key: values[at] for key, values in given.items()}) for at, seed in enumerate(seeds)]


def _member(spec: TrainingSpec, seed: int, numbers: Mapping[str, object]) -> TrainingSpec:
    if not numbers and type(seed) is int and seed >= 0:
        return replace(spec, seed=seed)  # nothing to be checked
    plain = {**cast(dict[str, object], to_plain(spec)), "seed": seed}
    for key, value in numbers.items():
        part = key.rpartition(".")[0]
        if part and get(plain, part) is None:
            raise SpecError(f"overrides[{key!r}]: the spec has no {part}; say `{part}` in it first")
        plain = with_value(plain, key, to_plain(value))
    return parse(TrainingSpec, plain)


def unsupported(spec: TrainingSpec) -> str | None:
    """What of a spec the one program of a pool cannot do, by its key; `None` where it can do everything.

    >>> from landscope.training.spec import ModelSpec
    >>> unsupported(TrainingSpec(model=ModelSpec(name="mlp"), precision="float16"))
    'precision: float16 scales the loss of each member by a factor of its own; bfloat16 does not'
    """
    if spec.fam is not None:
        return "fam: its third derivatives are taken model by model"
    if spec.precision == "float16":
        return "precision: float16 scales the loss of each member by a factor of its own; bfloat16 does not"
    return None


# How a pool is trained: all members as one program, or one after another; and how many fit into memory together.
#
# One program pays where a machine spends its time on starting operations instead of working: on a GPU nearly always, on a CPU
# for small networks and batches. By the bytes of activations of one member's batch, 50 members on one core took less time than
# `train` for each by these factors (benchmarks/pool.py):
#
#     4 kB      8        MLP 2-100-100-2, batch 5
#     33 kB     4        MLP 10-64-64-1, batch 64
#     57 kB     1.7      MLP 784-100-10, batch 128
#     413 kB    1.0      LeNet-5, batch 4
#     516 kB    1.2      MLP 2-64-64-1, batch 1000
#     6.6 MB    0.4      LeNet-5, batch 64: convolutions become grouped ones, and activations leave the caches
#
# The choice depends on the network and the batch alone, not on a clock, so that a pool trained twice is the same twice.


Way = Literal["together", "one by one"]

SMALL_WORK = 2**19
"""Bytes of activations of one member's batch up to which one program is faster on a CPU."""
COPIES = 6
"""Tensors of the size of the weights that a member needs: weights, gradients, the optimizer's, SAM's and the best ones."""


@dataclass(frozen=True)
class Choice:
    """How a pool is trained, and why."""

    way: Way
    reason: str


def choose(task: Task, wanted: Way | Literal["auto"], problem: str | None) -> Choice:
    """The way that was asked for if it can be gone, or the faster one; `problem` is what one program cannot do of the spec."""
    if wanted == "one by one":
        return Choice(wanted, "as asked for")
    if problem is None and processes() > 1:
        problem = "several processes share the batches of one model"
    if problem is None and wanted == "auto" and task.train.y.device.type == "cpu":
        size = activation_bytes(task)
        if size > SMALL_WORK:
            return Choice("one by one", f"with {size / 2**20:.1f} MiB of activations one program is slower on a CPU")
    problem = problem or _refusal(task)
    if problem is None:
        return Choice("together", "as asked for" if wanted == "together" else "one program is faster")
    if wanted == "together":
        raise SpecError(f"{problem}. Use train for each member, or way='one by one', which does that")
    return Choice("one by one", problem)


def members_at_once(task: Task, members: int) -> int:
    """How many members half of the free memory holds."""
    weights = sum(tensor.nbytes for tensor in task.model.state_dict().values() if isinstance(tensor, Tensor))
    x, y = _batch(task)
    each = COPIES * weights + 2 * activation_bytes(task) + x.nbytes + y.nbytes
    return max(1, min(members, available_bytes(task.train.y.device) // (2 * max(1, each))))


def activation_bytes(task: Task) -> int:
    """Bytes that the forward pass of one batch keeps for its backward pass, apart from weights and data."""
    x, y = _batch(task)
    model = _copy(task)

    def objective() -> Tensor:
        with autocast(task, x.device):
            return task.objective.sum(task.forward(model, x), y, len(y))

    held = [*model.parameters(), *model.buffers(), x, y, *task.train, *task.rows.extra.values()]
    with preserved_rng(), torch.enable_grad():
        return saved_bytes(objective, held)


def _batch(task: Task) -> tuple[Tensor, Tensor]:
    size = len(task.train.y) if task.spec.batch_size == "full" else task.spec.batch_size
    x, y = task.train
    return x[:size], y[:size]


def _copy(task: Task) -> nn.Module:
    """The model, in training mode and with statistics of its own."""
    return copy.deepcopy(task.model).train()


def _refusal(task: Task) -> str | None:
    """Why one program for two members does not work, or does not give their own numbers; `None` where it does both.

    Where training is random, numbers are compared in evaluation mode.
    """
    x, y = (part.expand(2, *part.shape) for part in _batch(task))
    passes = Passes(task)
    try:
        with preserved_rng():
            together, _ = passes.objectives(stacked([task.model, task.model], x.device), x, y)
            alone, again = _objective_alone(task), _objective_alone(task)
            if alone != again:
                split = Split(*_batch(task))
                scores = passes.scores(stacked([task.model, task.model], x.device), split) or ()
                together = torch.tensor([score.loss for score in scores], dtype=torch.float64)
                score = evaluate(task, _copy(task), split)
                alone = score.loss if score is not None else math.nan
    except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
        if is_out_of_memory(error):
            return None  # so does one member: training will say so
        reason = (str(error) or type(error).__name__).splitlines()[0]
        return f"model: {task.spec.model.name} does not work with torch.func.vmap: {reason}"
    close = 1e-2 if task.spec.precision == "bfloat16" else 1e-4
    if all(math.isclose(value, alone, rel_tol=close, abs_tol=1e-8) for value in together.tolist()):
        return None
    return f"model: {task.spec.model.name} gives other numbers under torch.func.vmap"


@torch.no_grad()
def _objective_alone(task: Task) -> float:
    """The objective of one member by itself, summed over its batch, in training mode."""
    x, y = _batch(task)
    with autocast(task, x.device):
        return float(task.objective.sum(task.forward(_copy(task), x), y, len(y)))

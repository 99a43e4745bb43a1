"""`train_pool`: n models that differ in their seeds and numbers, trained as one program.

Every member is the model that `train` gives for its spec: initial weights, order of the data and augmentation are functions of
its own seed. In float64 the two agree to rounding for many steps; in float32 they drift apart slowly, as two orders of summation
do, with the same statistics at the end. With dropout only the statistics agree, because one stream of draws serves all members.
"""

from __future__ import annotations

import copy
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, cast

import torch
from torch import Tensor, nn

from landscope.core.distributed import processes
from landscope.core.errors import SpecError, UnknownNameError
from landscope.core.memory import available_bytes, is_out_of_memory
from landscope.core.seeding import preserved_rng
from landscope.core.text import first_line
from landscope.data import Split
from landscope.probe.totals import saved_bytes
from landscope.specs.overlay import get, with_value
from landscope.specs.schema import parse, to_plain
from landscope.training.evaluate import autocast, evaluate
from landscope.training.loop.folder import fingerprints
from landscope.training.loop.interruption import interruptible
from landscope.training.pool.passes import Passes, stacked
from landscope.training.pool.result import Choice, Overrides, Pool, Strategy
from landscope.training.pool.runs import PoolFolder, PoolRun, train_sequentially, train_stacked
from landscope.training.spec import SpecLike, TrainingSpec, training_spec
from landscope.training.task import Task, make_task
from landscope.training.task_data import DataLike


def train_pool(  # noqa: PLR0913 (options of a public function, by keyword)
    spec: SpecLike,
    seeds: int | Sequence[int] = 50,
    *,
    overrides: Overrides | None = None,
    data: DataLike | None = None,
    strategy: Strategy | Literal["auto"] = "auto",
    at_once: int | None = None,
    folder: str | os.PathLike[str] | None = None,
    resume: bool = True,
    device: torch.device | str | None = None,
    time_limit: float | None = None,
    should_stop: Callable[[], bool] | None = None,
    checkpoint_every: float = 60.0,
    progress: bool | None = None,
    graphs: bool | None = None,
) -> Pool:
    """Train n copies of a spec that differ in their seeds, and in numbers if asked for.

    Args:
        spec: a `TrainingSpec`, the same as a mapping, or a file. Its seed is the first of the pool's.
        seeds: how many members, or a seed for each of them.
        overrides: numbers that differ, one for each member: `{"optimizer.lr": [0.1, 0.05, …]}`. Also momentum, betas, eps,
            weight_decay, sam.rho, sam.eta and clip_norm.
        data: used instead of the data that the spec names.
        strategy: `"stacked"`, all members as one program; `"sequential"`, `train` for one after another; the faster one by
            default. What one program cannot do (FAM, float16, models that `vmap` does not follow) is sequential.
        at_once: how many members are stacked at most; as many as memory holds by default.
        folder: where results and checkpoints go, in the folder of a run for each member. What is finished there is not done
            again, and what has begun is resumed.
        resume: False discards the folder's contents and starts over.
        device: CUDA's by default where there is one.
        time_limit: seconds after which a checkpoint is written and the pool returned as it is; so it is at SIGTERM.
        should_stop: asked after every step; the pool ends as at a time limit once it says yes.
        checkpoint_every: seconds between checkpoints; 0 writes one after every step.
        progress: a bar on a terminal by default; True also writes lines elsewhere, False nothing.
        graphs: whether steps on a GPU are recorded as a CUDA graph; by default they are.

    A member that converges or stops early leaves the program at that row of its history. One whose loss is not finite is frozen
    before that step and marked as failed; the others continue. `channels_last` and `compile` have no effect on stacked tensors.

    >>> pool = train_pool({"model": "mlp", "data": "circles", "epochs": 2, "batch_size": 25}, seeds=3)
    >>> pool.seeds, pool.choice.strategy, pool.losses("test").shape
    ((0, 1, 2), 'stacked', torch.Size([3]))
    """
    started = time.monotonic()
    if strategy not in ("auto", "stacked", "sequential"):
        raise SpecError(f"strategy: expected 'auto', 'stacked' or 'sequential', got {strategy!r}")
    if at_once is not None and at_once < 1:
        raise SpecError(f"at_once: expected a number of members ≥ 1, got {at_once!r}")
    specs = member_specs(training_spec(spec), seeds, overrides)
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    task = make_task(specs[0], data=data).to(place)
    home = PoolFolder(folder, specs, fingerprints(task, model=False, data=data is not None), resume=resume)
    choice = choose(task, home.strategy() or strategy if strategy == "auto" else strategy, unsupported(specs[0]))
    home.keep(choice.strategy)
    results = (
        {number: found for number in home.members if (found := home.finished(number, task.model))} if resume else {}
    )
    missing = [number for number in range(len(specs)) if number not in results]
    with preserved_rng(), interruptible(time_limit, should_stop) as interruption:
        run = PoolRun(
            task=task,
            specs=specs,
            data=data,
            folder=home,
            interruption=interruption,
            should_stop=should_stop,
            deadline=None if time_limit is None else started + time_limit,
            resume=resume,
            checkpoint_every=checkpoint_every,
            progress=progress,
            graphs=graphs,
        )
        if choice.strategy == "stacked":
            results |= train_stacked(run, missing, at_once or members_at_once(task, len(specs)))
        else:
            results |= train_sequentially(run, missing)
        stopped = interruption.reason()
    if stopped == "SIGINT":
        raise KeyboardInterrupt
    return Pool(
        members=tuple(results[number] for number in range(len(specs))),
        overrides=dict(overrides or {}),
        choice=choice,
        task=task,
        seconds=time.monotonic() - started,
    )


# The members: one spec each, which differ in their seeds and in numbers.


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
    """The spec of every member; a number of seeds means that many from `spec.seed` on.

    >>> from landscope.training.spec import ModelSpec
    >>> specs = member_specs(TrainingSpec(model=ModelSpec(name="mlp"), seed=4), 2, {"optimizer.lr": [0.1, 0.2]})
    >>> [(one.seed, one.optimizer.lr) for one in specs]
    [(4, 0.1), (5, 0.2)]
    """
    if isinstance(seeds, int):
        if isinstance(seeds, bool) or seeds < 1:
            raise SpecError(f"seeds: expected a number of members ≥ 1 or a list of seeds, got {seeds!r}")
        seeds = range(spec.seed, spec.seed + seeds)
    if not len(seeds):
        raise SpecError("seeds: the list is empty; a pool has at least one member")
    given = overrides or {}
    for key, values in given.items():
        if key not in NUMBERS:
            raise UnknownNameError.among("number that may differ between members", key, NUMBERS)
        if isinstance(values, str) or not isinstance(values, Sequence) or len(values) != len(seeds):
            found = f"{len(values)} values" if isinstance(values, Sequence) else repr(values)
            raise SpecError(f"overrides[{key!r}]: expected one value for each of {len(seeds)} members, got {found}")
    return [_member(spec, seed, {key: values[at] for key, values in given.items()}) for at, seed in enumerate(seeds)]


def _member(spec: TrainingSpec, seed: int, numbers: Mapping[str, object]) -> TrainingSpec:
    if not numbers and type(seed) is int and seed >= 0:
        return replace(spec, seed=seed)  # nothing to be checked
    plain = {**cast(dict[str, object], to_plain(spec)), "seed": seed}
    for key, value in numbers.items():
        part = key.rpartition(".")[0]
        if part and get(plain, part) is None:
            raise SpecError(f"overrides[{key!r}]: the spec has no {part}; set `{part}` in it first")
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


SMALL_WORK = 2**19
"""Bytes of activations of one member's batch up to which one program is faster on a CPU."""
COPIES = 6
"""Tensors of the size of the weights that a member needs: weights, gradients, the optimizer's, SAM's and the best ones."""


def choose(task: Task, wanted: Strategy | Literal["auto"], problem: str | None) -> Choice:
    """The strategy that was asked for if it works, or the faster one; `problem` is what one program cannot do of the spec."""
    if wanted == "sequential":
        return Choice(wanted, "as asked for")
    if problem is None and processes() > 1:
        problem = "several processes share the batches of one model"
    if problem is None and wanted == "auto" and task.train.y.device.type == "cpu":
        size = activation_bytes(task)
        if size > SMALL_WORK:
            return Choice("sequential", f"with {size / 2**20:.1f} MiB of activations one program is slower on a CPU")
    problem = problem or _refusal(task)
    if problem is None:
        return Choice("stacked", "as asked for" if wanted == "stacked" else "one program is faster")
    if wanted == "stacked":
        raise SpecError(f"{problem}. Use train for each member, or strategy='sequential', which does that")
    return Choice("sequential", problem)


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

    held = [*model.parameters(), *model.buffers(), x, y, *task.train, *task.data.extra.values()]
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
        reason = first_line(error)
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

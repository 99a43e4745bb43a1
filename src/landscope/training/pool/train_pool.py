"""`train_pool`: n models that differ in their seeds and numbers, trained as one program.

Every member is the model that `train` gives for its spec: initial weights, order of the data and augmentation are functions of
its own seed. In float64 the two agree to rounding for many steps; in float32 they part slowly, as two orders of summation do, and
have the same statistics at the end. With dropout they have the same statistics from the start: its draws are for all members.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import torch

from landscope.core.errors import SpecError
from landscope.core.seeding import preserved_rng
from landscope.training.loop.fingerprints import fingerprints, training_spec
from landscope.training.loop.interruption import interruptible
from landscope.training.pool.members import Overrides, Way, choose, member_specs, members_at_once, unsupported
from landscope.training.pool.result import Pool
from landscope.training.pool.runs import Conditions, PoolFolder, one_by_one, together
from landscope.training.rows import DataLike
from landscope.training.spec import TrainingSpec
from landscope.training.task import make_task

__all__ = ["train_pool"]


def train_pool(
    spec: TrainingSpec | Mapping[str, object] | str | os.PathLike[str],
    seeds: int | Sequence[int] = 50,
    *,
    overrides: Overrides | None = None,
    data: DataLike | None = None,
    way: Way | Literal["auto"] = "auto",
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
        way: `"together"` as one program, `"one by one"` with `train`, or the faster of the two (see `pool_ways`). What one
            program cannot do (FAM, float16, models that `vmap` does not follow) goes one by one.
        at_once: how many members train together at most; as many as memory holds by default.
        folder: where results and checkpoints go, in the folder of a run for each member. What is finished there is not done
            again, and what is under way goes on.
        resume: False begins anew whatever the folder holds.
        device: CUDA's by default where there is one.
        time_limit: seconds after which a checkpoint is written and the pool returned as it is; so it is at SIGTERM.
        should_stop: asked after every step; the pool ends as at a time limit once it says yes.
        checkpoint_every: seconds between checkpoints; 0 writes one after every step.
        progress: a bar on a terminal by default; True also writes lines elsewhere, False nothing.
        graphs: whether steps on a GPU are recorded as a CUDA graph; by default they are.

    A member that converges or stops early leaves the program at that row of its history. One whose loss is not finite is frozen
    before that step and marked as failed; the others go on. `channels_last` and `compile` have no effect on stacked tensors.

    >>> pool = train_pool({"model": "mlp", "data": "circles", "epochs": 2, "batch_size": 25}, seeds=3)
    >>> pool.seeds, pool.choice.way, pool.losses("test").shape
    ((0, 1, 2), 'together', torch.Size([3]))
    """
    started = time.monotonic()
    if way not in ("auto", "together", "one by one"):
        raise SpecError(f"way: 'auto', 'together' or 'one by one' was expected, got {way!r}")
    if at_once is not None and at_once < 1:
        raise SpecError(f"at_once: a number of members ≥ 1 was expected, got {at_once!r}")
    specs = member_specs(training_spec(spec), seeds, overrides)
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    task = make_task(specs[0], data=data).to(place)
    home = PoolFolder(folder, specs, fingerprints(task, model=False, data=data is not None), resume=resume)
    choice = choose(task, home.way() or way if way == "auto" else way, unsupported(specs[0]))
    home.keep(choice.way)
    results = (
        {number: found for number in home.members if (found := home.finished(number, task.model))} if resume else {}
    )
    missing = [number for number in range(len(specs)) if number not in results]
    with preserved_rng(), interruptible(time_limit, should_stop) as interruption:
        on = Conditions(
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
        if choice.way == "together":
            results |= together(on, missing, at_once or members_at_once(task, len(specs)))
        else:
            results |= one_by_one(on, missing)
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

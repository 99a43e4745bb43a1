"""`train`: one run from a spec to its weights.

Everything random is a function of the seed and the step, and a checkpoint holds the rest: a run that was interrupted, in the
middle of an epoch or by `kill -9`, ends with the same weights as one that was not (bit for bit on the CPU).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn

from landscope.core.distributed import processes
from landscope.core.seeding import preserved_rng
from landscope.training.callbacks import Callback
from landscope.training.evaluate import evaluate, rank
from landscope.training.fast_steps import own_stream
from landscope.training.loop.fingerprints import SpecLike, fingerprints, training_spec
from landscope.training.loop.folder import Trained, load_result, prepare_folder, save_result, with_weights
from landscope.training.loop.interruption import Interruption, interruptible
from landscope.training.loop.run import Run
from landscope.training.progress import Display, training_display
from landscope.training.rows import SPLITS, DataLike
from landscope.training.task import Task, make_task

__all__ = ["train"]

REASONS = ("time limit", "SIGTERM", "SIGINT", "request")


def train(
    spec: SpecLike,
    *,
    model: nn.Module | None = None,
    data: DataLike | None = None,
    folder: str | os.PathLike[str] | None = None,
    resume: bool = True,
    device: torch.device | str | None = None,
    time_limit: float | None = None,
    should_stop: Callable[[], bool] | None = None,
    checkpoint_every: float = 60.0,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
    threads: int | None = None,
    graphs: bool | None = None,
) -> Trained:
    """Train the model of a spec on its data.

    Args:
        spec: a `TrainingSpec`, the same as a mapping, or a YAML, TOML or JSON file.
        model: trained instead of the one that the spec names; it is copied, never touched.
        data: used instead of the data that the spec names.
        folder: where checkpoints and the result go. A finished run there is returned as it is, an interrupted one goes on.
        resume: False begins anew whatever the folder holds.
        device: CUDA's by default where there is one.
        time_limit: seconds after which the run writes a checkpoint and returns with `finished=False`; so it does at SIGTERM.
            Ctrl-C writes a checkpoint, too, and raises `KeyboardInterrupt`; a second one does not wait for the step to end.
        should_stop: asked after every step; the run ends as at a time limit once it says yes.
        checkpoint_every: seconds between checkpoints; 0 writes one after every step.
        callbacks: told about every step and every row of the history.
        progress: a bar on a terminal by default; True also writes lines elsewhere, False nothing.
        threads: of the CPU.
        graphs: whether steps on a GPU are recorded as a CUDA graph; by default where that can be done.

    With `torch.distributed` initialised, each process takes its share of every batch, and process 0 writes (see `sharing`).

    >>> result = train({"model": "mlp", "data": "circles", "epochs": 2, "batch_size": 25})
    >>> result.finished, len(result.history), sorted(result.history[-1])[:3]
    (True, 2, ['epoch', 'lr', 'seconds'])
    """
    settings = training_spec(spec, model)
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    task = make_task(settings, model=model, data=data).to(place)
    given = fingerprints(task, model=model is not None, data=data is not None)
    where = prepare_folder(folder, settings, resume=resume, writes=rank() == 0) if folder is not None else None
    if where is not None and resume and (done := load_result(where, settings, task.model, given)):
        return done
    with preserved_rng(), _threads(threads), interruptible(time_limit, should_stop) as interruption:
        run = Run(task, folder=where, callbacks=callbacks, graphs=graphs)
        try:
            with own_stream(place, run.captures):
                run.begin(resume, given)
                wish = progress if run.writes else False
                with training_display(wish, task.steps, settings.epochs, run.state.step) as display:
                    stopped = _run(run, interruption, display, checkpoint_every)
                result = _result(run, stopped)
        finally:
            if run.fam is not None:
                run.fam.remove()
    if where is not None and run.writes and result.finished:
        save_result(where, result, given)
    if processes() > 1:
        dist.barrier()  # nobody looks for the result before it is written
    if run.writes:
        for callback in callbacks:
            callback.on_end(result)
    if stopped == "SIGINT":
        raise KeyboardInterrupt
    return result


def _run(run: Run, interruption: Interruption, display: Display, every: float) -> str:
    """Step after step until the run is over or somebody asks to stop: why."""
    state, model = run.state, run.state.model
    if run.writes:
        for callback in run.callbacks:
            callback.on_start(run.task.spec, model)
    model.train()
    ended = run.at_end_of_epoch()  # a checkpoint is written before its epoch is evaluated
    while True:
        while not ended:
            run.advance()
            display.step(state.step, run.means)
            reason = _agreed(interruption.reason(), state.totals.device)
            run.save(0.0 if reason else every)
            if reason:
                return reason
            ended = run.at_end_of_epoch()
        if over := run.end_epoch(display):
            run.check_weights()
            return over
        ended = False


def _agreed(reason: str | None, device: torch.device) -> str | None:
    """The same answer on every process: if one is asked to stop, all stop after the same step."""
    if processes() == 1:
        return reason
    code = torch.tensor(0 if reason is None else 1 + REASONS.index(reason), device=device)
    dist.all_reduce(code, op=dist.ReduceOp.MAX)
    return None if not int(code) else REASONS[int(code) - 1]


def _result(run: Run, stopped: str) -> Trained:
    state, task = run.state, run.task
    finished = stopped not in REASONS
    if run.fam is not None:
        run.fam.remove()
    models = {"final": with_weights(state.model, {})}
    if state.best is not None:
        models["best"] = with_weights(state.model, state.best)
    if (average := run.averaged()) is not None:
        models["average"] = average
    for net in models.values():
        net.eval()
    return Trained(
        model=models["final"],
        best=models.get("best"),
        average=models.get("average"),
        snapshots=run.snapshots,
        history=state.history,
        scores={name: _scores(task, net) for name, net in models.items()} if finished else {},
        finished=finished,
        stopped=stopped,
        spec=task.spec,
        seconds=run.elapsed(),
        folder=run.folder,
        rows=task.rows.name,
    )


def _scores(task: Task, model: nn.Module) -> dict[str, float]:
    found = {split: evaluate(task, model, getattr(task.rows, split)) for split in SPLITS}
    return {
        f"{split}_{key}": value
        for split, score in found.items()
        if score is not None
        for key, value in (("loss", score.loss), ("error", score.error))
        if value is not None
    }


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)

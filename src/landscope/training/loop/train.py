"""`train`: one run from a spec to its weights.

Everything random is a function of the seed and the step, and a checkpoint holds the rest: a run that was interrupted, in the
middle of an epoch or by `kill -9`, ends with the same weights as one that was not (bit for bit on the CPU).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from landscope.core.distributed import processes
from landscope.core.seeding import preserved_rng
from landscope.training.callbacks import Callback, training_display
from landscope.training.evaluate import rank
from landscope.training.fast_steps import own_stream
from landscope.training.loop.folder import (
    TrainingResult,
    check_same_inputs,
    fingerprints,
    load_result,
    load_state,
    prepare_folder,
)
from landscope.training.loop.interruption import interruptible
from landscope.training.loop.program import SingleProgram
from landscope.training.loop.run import Places, Run
from landscope.training.loop.state import State
from landscope.training.spec import SpecLike, training_spec
from landscope.training.task import make_task
from landscope.training.task_data import DataLike


def train(  # noqa: PLR0913 (options of a public function, by keyword)
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
) -> TrainingResult:
    """Train the model of a spec on its data.

    Args:
        spec: a `TrainingSpec`, the same as a mapping, or a YAML, TOML or JSON file.
        model: trained instead of the one that the spec names; it is copied, never touched.
        data: used instead of the data that the spec names.
        folder: where checkpoints and the result go. A finished run there is returned as it is, an interrupted one is resumed.
        resume: False discards the folder's contents and starts over.
        device: CUDA's by default where there is one.
        time_limit: seconds after which the run writes a checkpoint and returns with `finished=False`; so it does at SIGTERM.
            Ctrl-C writes a checkpoint, too, and raises `KeyboardInterrupt`; a second one does not wait for the step to end.
        should_stop: asked after every step; the run ends as at a time limit once it says yes.
        checkpoint_every: seconds between checkpoints; 0 writes one after every step.
        callbacks: called after every step and every row of the history.
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
        program = SingleProgram(task, folder=where, graphs=graphs)
        try:
            with own_stream(place, program.captures):
                state = _begun(program, where, given, place) if where is not None and resume else None
                members = {} if where is None else {0: where}
                run = Run(task, program, state or State.fresh([0], place), Places(where, members, given), callbacks)
                wish = progress if rank() == 0 else False
                with training_display(wish, task.steps, settings.epochs, run.state.step) as display:
                    stopped = run.until_over(interruption, display, checkpoint_every)
        finally:
            program.close()
    result = run.results[0]
    if processes() > 1:
        dist.barrier()  # nobody looks for the result before it is written
    if rank() == 0:
        for callback in callbacks:
            callback.on_end(result)
    if stopped == "SIGINT":
        raise KeyboardInterrupt
    return result


def _begun(program: SingleProgram, folder: Path, given: Mapping[str, str], device: torch.device) -> State | None:
    """The state of the last checkpoint in a folder, with the program where it was then; `None` where there is none."""
    found = load_state(folder)
    if found is None:
        return None
    tensors, plain = found[0], cast(dict[str, Any], found[1])
    check_same_inputs(folder, plain["given"], given)
    program.restore(tensors, plain)
    if "numbers" not in plain:
        tensors, plain = _of_one_member(tensors, plain, list(program.parameters()))
    return State.restored(tensors, plain, device)


def _of_one_member(
    tensors: Mapping[str, Tensor], plain: Mapping[str, Any], parameters: Sequence[str]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """A checkpoint of version 0.1, where one model was not a run of n = 1 members, as it is written today."""
    found = {"totals": tensors["totals"].unsqueeze(0)}
    for key, value in tensors.items():
        group, _, name = key.partition(".")
        if group == "best":
            found[f"best/{name}"] = value.unsqueeze(0)
        elif group == "average":
            found[f"average/{parameters[int(name)]}"] = value.unsqueeze(0)
    return found, {**plain, "numbers": [0], "history": [plain["history"]]}


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)

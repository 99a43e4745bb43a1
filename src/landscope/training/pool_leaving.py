"""From stacked weights to the results of single members: models, scores on every split, why they ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn

from landscope.training.averaging import averaged_model
from landscope.training.evaluating import Score
from landscope.training.pool_program import Program, Stack, stacked
from landscope.training.pool_state import ChunkState
from landscope.training.result import Trained, with_weights
from landscope.training.rows import SPLITS
from landscope.training.spec import TrainingSpec

__all__ = ["FAILED", "leave"]

FAILED = "failed: "
"""How the reason of a member begins whose loss or weights became NaN or infinite."""


def leave(
    program: Program, specs: Mapping[int, TrainingSpec], state: ChunkState, reasons: Sequence[str], *, finished: bool
) -> dict[int, Trained]:
    """What `train` returns, for every member of a state, by its number; scores are evaluated for all of them together."""
    task = program.task
    stacks = {"final": state.stack}
    if state.best:
        stacks["best"] = Stack(
            *({name: state.best[name] for name in part} for part in (state.stack.params, state.stack.buffers))
        )
    models = {
        name: [with_weights(task.model, stack.member(at)).eval() for at in range(len(stack))]
        for name, stack in stacks.items()
    }
    if state.averaged:
        models["average"] = [_average(program, state, at, model) for at, model in enumerate(models["final"])]
        stacks["average"] = stacked(models["average"], state.totals.device)
    scores = {name: _scores(program, stack) for name, stack in stacks.items()} if finished else {}
    found = {}
    for at, (number, reason) in enumerate(zip(state.numbers, reasons, strict=True)):
        well = not reason.startswith(FAILED)
        found[number] = Trained(
            model=models["final"][at],
            best=models["best"][at] if "best" in models else None,
            average=models["average"][at] if "average" in models else None,
            snapshots={},
            history=state.history[at],
            scores={name: values[at] for name, values in scores.items()} if well else {},
            finished=finished and well,
            stopped=reason,
            spec=specs[number],
            seconds=state.seconds,
            rows=task.rows.name,
        )
    return found


def _average(program: Program, state: ChunkState, at: int, model: nn.Module) -> nn.Module:
    weights = [
        state.average[name][at] if name in state.average else value.detach() for name, value in model.named_parameters()
    ]
    x, size = program.task.train.x, program.task.spec.batch_size
    return averaged_model(model, weights, program.task.forward, x, len(x) if size == "full" else size).eval()


def _scores(program: Program, stack: Stack) -> list[dict[str, float]]:
    """Each member's loss and error on each split that has rows."""
    every: list[dict[str, float]] = [{} for _ in range(len(stack))]
    for split in SPLITS:
        scores: Sequence[Score] = program.scores(stack, getattr(program.task.rows, split)) or ()
        for own, score in zip(every, scores, strict=False):
            own[f"{split}_loss"] = score.loss
            if score.error is not None:
                own[f"{split}_error"] = score.error
    return every

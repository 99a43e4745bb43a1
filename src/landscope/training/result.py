"""What a run leaves: models, history, scores; in a folder, whole or not at all.

spec.json                        what was asked for
final.safetensors                the weights after the last step
best.safetensors                 those that were best on the validation rows (with early stopping)
average.safetensors              the average of the iterates (with averaging)
snapshots/step-N.safetensors     the weights after step N
history.json                     the history, the scores, why the run ended: written last, so its presence means done
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor, nn

from landscope.core.errors import TrainingError
from landscope.core.files import LARGEST_RECORD, read_regular
from landscope.core.json_text import parse_json
from landscope.core.plain_objects import LIST, NUMBER, OBJECT, TEXT, checked
from landscope.core.schema import Plain, to_plain
from landscope.training.checkpoint import forget_state, read_tensors, write_json, write_tensors
from landscope.training.given import require_same
from landscope.training.history import Row
from landscope.training.rows import GIVEN
from landscope.training.spec import TrainingSpec
from landscope.training.state import weights_of

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Trained", "forget_result", "load_result", "save_result", "save_snapshot", "with_weights"]

SPEC, HISTORY, WEIGHTS = "spec.json", "history.json", ("final", "best", "average")
_CONTENT = {"stopped": TEXT, "seconds": NUMBER, "scores": OBJECT, "history": LIST, "given": OBJECT}


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A run that is over, or that was stopped (`finished` is False) and can be resumed from its folder.

    `model` has the final weights, `best` those that were best on the validation rows, `average` those of the average: copies that
    share no storage. `scores` has loss and error of each of them on each split; `snapshots` weights by optimizer step.
    """

    model: nn.Module
    best: nn.Module | None
    average: nn.Module | None
    snapshots: Mapping[int, Mapping[str, Tensor]]
    history: list[Row]
    scores: Mapping[str, Mapping[str, float]]
    finished: bool
    stopped: str
    """Why it ended: "all epochs done", "early stopping: …", "converged: …", "time limit", "SIGTERM"."""
    spec: TrainingSpec
    seconds: float
    folder: Path | None = None
    rows: str = ""
    """What it was trained on: the name of a data set, or the given data."""

    @property
    def epochs(self) -> int:
        """Epochs up to the last row of the history: all that were trained, if the run is finished."""
        return int(self.history[-1]["epoch"]) if self.history else 0

    def to_frame(self) -> pd.DataFrame:
        """The history as a table."""
        import pandas as pd

        return pd.DataFrame(self.history)

    def __repr__(self) -> str:
        state = "finished" if self.finished else "stopped"
        what = f"{self.spec.model.name} on {self.rows or self.spec.data.name}"
        return f"Trained({what}, {self.epochs} epochs, {self.seconds:.1f} s, {state}: {self.stopped})"


def with_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> nn.Module:
    """A copy of the model with other weights."""
    twin = copy.deepcopy(model)
    twin.load_state_dict(dict(weights), strict=False)
    return twin


def save_snapshot(folder: Path, step: int, weights: Mapping[str, Tensor]) -> None:
    """Keep the weights after a step."""
    (folder / "snapshots").mkdir(exist_ok=True)
    write_tensors(_snapshot(folder, step), weights)


def load_snapshots(folder: Path | None, steps: tuple[int, ...], until: int) -> dict[int, dict[str, Tensor]]:
    """The snapshots that were kept until a step; one whose file is gone is warned of."""
    if folder is None:
        return {}
    paths = {step: _snapshot(folder, step) for step in steps if step <= until}
    if gone := [str(path) for path in paths.values() if not path.is_file()]:
        warnings.warn(
            f"{', '.join(gone)}: gone, so these snapshots are missing. resume=False makes them anew", stacklevel=2
        )
    return {step: read_tensors(path)[0] for step, path in paths.items() if path.is_file()}


def _snapshot(folder: Path, step: int) -> Path:
    return folder / "snapshots" / f"step-{step}.safetensors"


def save_result(folder: Path, result: Trained, given: Mapping[str, str]) -> None:
    """Write a finished run; the checkpoint that it came from is no longer needed."""
    for name, model in zip(WEIGHTS, (result.model, result.best, result.average), strict=True):
        if model is not None:
            write_tensors(folder / f"{name}.safetensors", weights_of(model))
    content: dict[str, Plain] = {
        "stopped": result.stopped,
        "seconds": result.seconds,
        "scores": to_plain(result.scores),
        "history": [dict(row) for row in result.history],
        "given": dict(given),
    }
    write_json(folder / HISTORY, content)
    forget_state(folder)


def forget_result(folder: Path) -> None:
    """Remove everything that a run has written but its spec; the history first, whose presence means done."""
    (folder / HISTORY).unlink(missing_ok=True)
    forget_state(folder)
    for old in (*(folder / f"{name}.safetensors" for name in WEIGHTS), *folder.glob("snapshots/step-*.safetensors")):
        old.unlink(missing_ok=True)


def load_result(folder: Path, spec: TrainingSpec, model: nn.Module, given: Mapping[str, str]) -> Trained | None:
    """The finished run in a folder, `None` where there is none; one that was given something else is refused."""
    path = folder / HISTORY
    if not path.is_file():
        return None
    try:
        content = checked(parse_json(read_regular(path, LARGEST_RECORD), finite=False), "a history", _CONTENT)
        history = [
            dict(checked(row, "a row of the history", {"step": NUMBER, "epoch": NUMBER})) for row in content["history"]
        ]
        scores = {name: checked(of, "scores", {}) for name, of in content["scores"].items()}
        there = content["given"]
    except (OSError, ValueError) as error:
        raise TrainingError(f"{path} is damaged: {error}. Train anew with resume=False") from error
    require_same(folder, there, given)

    def kept(name: str) -> nn.Module | None:
        file = folder / f"{name}.safetensors"
        return with_weights(model, read_tensors(file)[0]).eval() if file.is_file() else None

    final = kept("final")
    if final is None:
        raise TrainingError(f"{folder / 'final.safetensors'} is gone. Train anew with resume=False")
    return Trained(
        model=final,
        best=kept("best") if spec.early_stopping else None,
        average=kept("average") if spec.averaging else None,
        snapshots=load_snapshots(folder, spec.snapshots, int(history[-1]["step"]) if history else 0),
        history=history,
        scores=scores,
        finished=True,
        stopped=content["stopped"],
        spec=spec,
        seconds=content["seconds"],
        folder=folder,
        rows=GIVEN if "data" in there else spec.data.name,
    )

"""What a run leaves: models, history, scores; in a folder, whole or not at all.

spec.json                        what was asked for
final.safetensors                the weights after the last step
best.safetensors                 those that were best on the validation samples (with early stopping)
average.safetensors              the average of the iterates (with averaging)
snapshots/step-N.safetensors     the weights after step N
history.json                     the history, the scores, why the run ended: written last, so its presence means done
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import re
import warnings
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from landscope.core.errors import SpecError, TrainingError
from landscope.core.files import LARGEST_DOCUMENT, LARGEST_RECORD, check_regular, read_regular, write_whole, writing
from landscope.core.json import LIST, NUMBER, OBJECT, TEXT, Plain, checked, parse_json
from landscope.specs.names import public_names
from landscope.specs.overlay import differing
from landscope.specs.schema import parse, to_plain
from landscope.training.schedule import Row, steps_below
from landscope.training.spec import TrainingSpec
from landscope.training.task import Task
from landscope.training.task_data import GIVEN

if TYPE_CHECKING:
    import pandas as pd


# Files of tensors that are there whole or not at all.
#
# A checkpoint is one safetensors file: every tensor of the state, and everything else as JSON in its header (or, where a long
# history does not fit there, as a tensor of bytes), with a checksum over both. It is written aside, flushed to the disk and
# renamed; the previous one is kept, so that whatever happens to the last one (a full disk, a broken machine) a run resumes from a
# state that was whole.


STATE, PREVIOUS = "state.safetensors", "state.previous.safetensors"
_KEY, _SUM = "landscope", "checksum"
_LARGEST_HEADER = 2**24
"""A header may have 100 MB; longer texts are stored as bytes."""


def write_tensors(path: Path, tensors: Mapping[str, Tensor], plain: Plain = None) -> None:
    """Write tensors and plain values, whole or not at all."""
    own = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    text = json.dumps(plain, sort_keys=True)
    if len(text) > _LARGEST_HEADER:
        own[_KEY] = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
        text = ""
    with writing(path) as aside:
        save_file(own, aside, metadata={_KEY: text, _SUM: str(_checksum(own, text))})


def write_json(path: Path, value: Plain) -> None:
    """Write a JSON file, whole or not at all."""
    write_whole(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def read_tensors(path: Path) -> tuple[dict[str, Tensor], Plain]:
    """What `write_tensors` wrote; a file that is damaged is refused."""
    try:
        check_regular(path)
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is not a mapping)
        text = about[_KEY]
        if about[_SUM] != str(_checksum(tensors, text)):
            raise ValueError("its checksum is wrong")
        plain = parse_json(text or tensors.pop(_KEY).numpy().tobytes(), finite=False)
    except (SafetensorError, OSError, KeyError, ValueError, TypeError, RuntimeError) as error:
        raise TrainingError(f"{path} is damaged or was not written by landscope: {error}") from error
    return tensors, plain


def save_state(folder: Path, tensors: Mapping[str, Tensor], plain: Plain) -> None:
    """Write the state of a run, keeping the one before."""
    aside = folder / f"{STATE}.new"
    write_tensors(aside, tensors, plain)
    if (folder / STATE).exists():
        os.replace(folder / STATE, folder / PREVIOUS)
    os.replace(aside, folder / STATE)
    _flush_folder(folder)


def load_state(folder: Path) -> tuple[dict[str, Tensor], Plain] | None:
    """The last state of a run, or the one before where that is damaged; `None` where there is none."""
    for name in (STATE, PREVIOUS):
        if not (folder / name).exists():
            continue
        try:
            return read_tensors(folder / name)
        except TrainingError as error:
            warnings.warn(f"{error}. The run resumes from the checkpoint before it, or starts over.", stacklevel=2)
    return None


def forget_state(folder: Path) -> None:
    """Remove the state of a run."""
    for name in (STATE, PREVIOUS):
        (folder / name).unlink(missing_ok=True)


def _checksum(tensors: Mapping[str, Tensor], text: str) -> int:
    total = zlib.crc32(text.encode())
    for name in sorted(tensors):
        total = zlib.crc32(tensors[name].reshape(-1).view(torch.uint8).numpy().data, zlib.crc32(name.encode(), total))
    return total


def _flush_folder(folder: Path) -> None:
    if os.name == "nt":  # folders cannot be opened there
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


SPEC, HISTORY, WEIGHTS = "spec.json", "history.json", ("final", "best", "average")
FAILED = "failed: "
"""What the reason begins with when a pool member's loss or weights became NaN or infinite."""
_CONTENT = {"stopped": TEXT, "seconds": NUMBER, "scores": OBJECT, "history": LIST, "given": OBJECT}


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """A run that is over, or that was stopped (`finished` is False) and can be resumed from its folder.

    `model` has the final weights, `best` those that were best on the validation samples, `average` those of the average:
    copies that share no storage. `scores` has the loss and error of each on each split; `snapshots` weights by optimizer step.
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
    def below(self) -> dict[float, int]:
        """The snapshot of each loss in `snapshots_below` that was reached, by its step."""
        return steps_below(self.history, self.spec.snapshots_below)

    @property
    def epochs(self) -> int:
        """Epochs up to the last row of the history: all that were trained, if the run is finished."""
        return int(self.history[-1]["epoch"]) if self.history else 0

    def to_frame(self) -> pd.DataFrame:
        """The history, one row per evaluated epoch."""
        import pandas as pd

        return pd.DataFrame(self.history)

    def __repr__(self) -> str:
        state = "finished" if self.finished else "stopped"
        what = f"{self.spec.model.name} on {self.rows or self.spec.data.name}"
        return f"TrainingResult({what}, {self.epochs} epochs, {self.seconds:.1f} s, {state}: {self.stopped})"


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, as copies that share no storage with the model or with each other."""
    return {name: value.detach().clone() for name, value in model.state_dict().items() if isinstance(value, Tensor)}


def with_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> nn.Module:
    """A copy of the model with other weights."""
    twin = copy.deepcopy(model)
    twin.load_state_dict(dict(weights), strict=False)
    return twin


def save_snapshot(folder: Path, step: int, weights: Mapping[str, Tensor]) -> None:
    """Keep the weights after a step."""
    (folder / "snapshots").mkdir(exist_ok=True)
    write_tensors(_snapshot(folder, step), weights)


def load_snapshots(
    folder: Path | None, spec: TrainingSpec, history: Sequence[Row], until: int
) -> dict[int, dict[str, Tensor]]:
    """The snapshots kept up to a step, with a warning for one whose file is gone."""
    if folder is None:
        return {}
    steps = sorted({*spec.snapshots, *steps_below(history, spec.snapshots_below).values()})
    paths = {step: _snapshot(folder, step) for step in steps if step <= until}
    if gone := [str(path) for path in paths.values() if not path.is_file()]:
        warnings.warn(
            f"{', '.join(gone)}: gone, so these snapshots are missing. resume=False makes them again", stacklevel=2
        )
    return {step: read_tensors(path)[0] for step, path in paths.items() if path.is_file()}


def _snapshot(folder: Path, step: int) -> Path:
    return folder / "snapshots" / f"step-{step}.safetensors"


def save_result(folder: Path, result: TrainingResult, given: Mapping[str, str]) -> None:
    """Write a finished run; its checkpoint is no longer needed."""
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


def load_result(folder: Path, spec: TrainingSpec, model: nn.Module, given: Mapping[str, str]) -> TrainingResult | None:
    """The finished run in a folder, `None` where there is none; one that was given another model or data is refused."""
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
        raise TrainingError(f"{path} is damaged: {error}. Train again with resume=False (--restart)") from error
    check_same_inputs(folder, there, given)

    def kept(name: str) -> nn.Module | None:
        file = folder / f"{name}.safetensors"
        return with_weights(model, read_tensors(file)[0]).eval() if file.is_file() else None

    final = kept("final")
    if final is None:
        raise TrainingError(f"{folder / 'final.safetensors'} is gone. Train again with resume=False (--restart)")
    return TrainingResult(
        model=final,
        best=kept("best") if spec.early_stopping else None,
        average=kept("average") if spec.averaging else None,
        snapshots=load_snapshots(folder, spec, history, int(history[-1]["step"]) if history else 0),
        history=history,
        scores=scores,
        finished=True,
        stopped=content["stopped"],
        spec=spec,
        seconds=content["seconds"],
        folder=folder,
        rows=GIVEN if "data" in there else spec.data.name,
    )


# What a run was given that no spec describes: a model, or data.


FIRST, LATER = ("model", "data"), ("structure", "rows")
"""Fingerprints that every version wrote, and those that folders of older versions lack."""
PASSING = re.compile(r" at 0x[0-9a-fA-F]+| \((?:cuda|mps|xpu)(?::\d+)?\)")
"""What a text of a module says of this process only: addresses in memory, devices."""


def fingerprints(task: Task, *, model: bool, data: bool) -> dict[str, str]:
    """Checksums of the model and of the data that were given as arguments: a spec does not say what they are.

    `model` and `data` are the bytes of the weights and of the training samples. `structure` is the text of the module, with its
    types and settings, which tensors there are and which of them are trained; `rows` is everything about all splits.
    """
    found: dict[str, str] = {}
    if model:
        net = task.model
        weights = {name: value for name, value in net.state_dict().items() if isinstance(value, Tensor)}
        trained = [name for name, parameter in net.named_parameters() if parameter.requires_grad]
        about = [PASSING.sub("", repr(net)), *map(_form, weights, weights.values()), *trained]
        found |= {"model": _fingerprint(weights.values()), "structure": _fingerprint((), about)}
    if data:
        rows = task.data
        parts = {"train": rows.train, "validation": rows.validation, "test": rows.test, "extra": rows.extra.values()}
        tensors = [tensor for part in parts.values() for tensor in part]
        about = [rows.kind, str(rows.classes), *rows.extra, *(_form(name, t) for name in parts for t in parts[name])]
        found |= {"data": _fingerprint(rows.train), "rows": _fingerprint(tensors, about)}
    return found


def check_same_inputs(folder: Path, there: Mapping[str, str], here: Mapping[str, str]) -> None:
    """Refuse to resume a run that was given another model or other data; what an older version did not note is not compared.

    >>> check_same_inputs(Path("run"), {"data": "1"}, {"data": "1", "rows": "2"})
    >>> check_same_inputs(Path("run"), {"data": "1", "rows": "3"}, {"data": "1", "rows": "2"})
    Traceback (most recent call last):
    landscope.core.errors.SpecError: run holds a run that began from another model or other data. Choose ...
    """
    noted = [*FIRST, *(key for key in LATER if key in there)]
    if any(there.get(key) != here.get(key) for key in noted):
        raise SpecError(
            f"{folder} holds a run that began from another model or other data. Choose another folder, or start over with "
            "resume=False (--restart)"
        )


def _form(name: str, tensor: Tensor) -> str:
    return f"{name} {tensor.dtype} {tuple(tensor.shape)}"


def _fingerprint(tensors: Iterable[Tensor], about: Sequence[str] = ()) -> str:
    digest = hashlib.sha256("\n".join(about).encode())
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


# The folder of a run: it belongs to one spec.


def prepare_folder(folder: str | os.PathLike[str], spec: TrainingSpec, *, resume: bool, writes: bool) -> Path:
    """The folder, created if need be; one that holds a run of another spec is refused, unless it starts over."""
    path, own = Path(folder), to_plain(spec)
    if path.exists() and not path.is_dir():
        raise SpecError(f"{path}: expected the folder of a run, found a file")
    if resume and (path / SPEC).is_file():
        try:
            there = parse_json(read_regular(path / SPEC, LARGEST_DOCUMENT), finite=False)
        except (OSError, ValueError) as error:
            raise SpecError(
                f"{path / SPEC} is damaged: {error}. Choose another folder, or start over with resume=False (--restart)"
            ) from error
        differ = differing(_as_today(there), public_names(own))
        if words := [f"{key} is {json.dumps(old)} there and {json.dumps(new)} here" for key, old, new in differ]:
            raise SpecError(
                f"{path} holds a run of another spec: {'; '.join(words)}. Choose another folder, or start over with "
                "resume=False (--restart)"
            )
    if writes:
        path.mkdir(parents=True, exist_ok=True)
        if not resume:
            forget_result(path)
        write_json(path / SPEC, own)
    return path


def _as_today(there: Plain) -> Plain:
    """A spec as it is written today: with later fields at their defaults, and with public names."""
    with suppress(SpecError):  # what cannot be parsed is compared verbatim
        there = to_plain(parse(TrainingSpec, there))
    return public_names(there)

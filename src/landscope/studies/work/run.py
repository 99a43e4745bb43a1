"""One run, from its spec to its record: train or take a model, measure it, note its cost.

Whatever is finished is kept at once: the training keeps its checkpoints, and what is measured is written after every split, every
figure, and the measure in progress when the run is asked to stop. A run that ends at any moment resumes from there.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import cast

import torch
from safetensors.torch import save_file
from torch import Tensor

from landscope.core.errors import SpecError, StoreError
from landscope.core.files import LARGEST_RECORD, read_regular
from landscope.core.json import Plain, parse_json
from landscope.core.weights import load_weights, read_weights
from landscope.specs.schema import parse
from landscope.studies.record import MeasuredModel, Record, outputs_file
from landscope.studies.spec import CheckpointsSpec, MeasuringSpec
from landscope.studies.store.identity import POOL
from landscope.studies.store.parts import TAKEN, TakenParts
from landscope.studies.store.run_folder import SECONDS, RunFolder
from landscope.studies.work import attempt
from landscope.studies.work.measure import FIGURES, fitted_temperatures, measure_model
from landscope.studies.work.meter import ModelMeter, WeightsAtTemperatures
from landscope.studies.work.pools import train_together
from landscope.training.loop.folder import TrainingResult
from landscope.training.loop.train import train
from landscope.training.spec import TrainingSpec
from landscope.training.task import Task, make_task

Weights = Mapping[str, Tensor]


def run_in_folder(spec: Mapping[str, Plain], folder: str) -> None:
    """Run what a spec asks for in `folder`, or train a pool of runs there; `attempt_run` calls it, holding the run's claim."""
    run = RunFolder(folder)
    started = time.monotonic()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if POOL in spec:
        train_together(spec[POOL], run, device)
        return
    forget_peak_memory(device)
    measuring = parse(MeasuringSpec, spec["measuring"])
    if "training" in spec:
        task, models, history = _trained(run, parse(TrainingSpec, spec["training"]), measuring, device)
    else:
        task, models = _taken(parse(CheckpointsSpec, spec["checkpoint"]))
        history = []
    meter = ModelMeter(task.to(device), measuring, device, attempt.stop_requested)
    taken = TakenParts(spec, cast(dict[str, Plain], _noted(run, TAKEN, {})))
    subjects = tuple(_subjects(run, meter, models, taken, figures=bool(spec.get("figures"))))
    record = Record(
        run=run.key,
        condition="",
        axes={},
        seed=task.spec.seed,
        spec=spec,
        subjects=subjects,
        history=tuple(history),
        environment=environment(device),
        seconds=_seconds_before(run) + time.monotonic() - started,
        peak_memory=peak_memory(device),
    )
    run.finish(record.to_dict())


def _trained(
    run: RunFolder, training: TrainingSpec, measuring: MeasuringSpec, device: torch.device
) -> tuple[Task, dict[str, Weights], list[Mapping[str, Plain]]]:
    started = time.monotonic()
    trained = train(
        training, folder=run.path("training"), device=device, progress=False, should_stop=attempt.stop_requested
    )
    if not trained.finished:
        _note_seconds(run, time.monotonic() - started)
        attempt.request_stop()  # a signal that the training took was meant for this whole process
        attempt.raise_if_stopping()
    models = {
        name: _weights(trained, name)
        for name in measuring.checkpoints
        if not name.startswith("loss ") or float(name[5:]) in trained.below
    }
    return make_task(training), models, [cast(dict[str, Plain], dict(row)) for row in trained.history]


def _weights(trained: TrainingResult, checkpoint: str) -> Weights:
    if checkpoint.startswith("loss "):
        return trained.snapshots[trained.below[float(checkpoint[5:])]]
    if checkpoint.startswith("step "):
        return trained.snapshots[int(checkpoint.removeprefix("step "))]
    model = {"final": trained.model, "best": trained.best, "average": trained.average}[checkpoint]
    if model is None:
        raise SpecError(f"the training made no {checkpoint!r} model")
    return model.state_dict()


def _taken(taken: CheckpointsSpec) -> tuple[Task, dict[str, Weights]]:
    """A model that exists: its task, and its weights under the name "final"."""
    weights = read_weights(Path(taken.files[0]))
    task = make_task(
        TrainingSpec(model=taken.model, data=taken.data, loss=taken.loss, batch_size="full"),
        prepare=lambda model: load_weights(model, weights, remedy=f"Look at the options of {taken.model.name}"),
    )
    return task, {"final": {name: value.clone() for name, value in task.model.state_dict().items()}}


def _subjects(
    run: RunFolder, meter: ModelMeter, models: Mapping[str, Weights], taken: TakenParts, *, figures: bool
) -> Iterator[MeasuredModel]:
    """Every model at every temperature; those that were measured before, under this name or another, are read."""
    spec = meter.spec
    for number, (checkpoint, weights) in enumerate(models.items()):
        if spec.consistency and len(meter.rows("test").y):
            with run.writing(outputs_file(checkpoint)) as path:
                save_file({"test": meter.outputs(meter.model(weights), "test").contiguous()}, path)
        before = [] if _differ(spec) else list(models)[:number]
        same = next((name for name in before if _are_same(models[name], weights)), None)
        if same is None:
            _measure_all(run, meter, checkpoint, weights, taken, figures=figures and number == 0)
        for file in _files(spec, same or checkpoint):
            subject = _kept_subject(run.path(file))
            yield subject if same is None else _renamed(subject, checkpoint)


def _measure_all(
    run: RunFolder, meter: ModelMeter, checkpoint: str, weights: Weights, taken: TakenParts, *, figures: bool
) -> None:
    """Measure a model at the temperatures at which it was not measured before."""
    spec = meter.spec
    if all(run.path(file).exists() for file in _files(spec, checkpoint)):
        return
    temperatures = fitted_temperatures(meter, meter.model(weights))
    files = dict(enumerate(_files(spec, checkpoint)))
    waiting = {number: temperatures[number] for number, file in files.items() if not run.path(file).exists()}
    point = WeightsAtTemperatures(meter, weights, waiting)

    def keep(so_far: MeasuredModel) -> None:
        taken.add(so_far.to_dict(), number)
        run.write_json(TAKEN, taken.parts)
        attempt.raise_if_stopping()

    for number in waiting:
        drawn = figures and number == 0
        model = measure_model(point, checkpoint, number, taken=taken, figures=drawn, note=print, keep=keep)
        run.write_json(files[number], model.to_dict())
        attempt.raise_if_stopping()


def _files(spec: MeasuringSpec, checkpoint: str) -> list[str]:
    """Where what was measured of a model is kept, one file for each temperature."""
    return [
        f"state/measured/{checkpoint.replace(' ', '-')}-{number}.json" for number in range(len(spec.temperature_fits))
    ]


def _differ(spec: MeasuringSpec) -> bool:
    """Whether checkpoints are measured in different ways."""
    return any(split.taking(name).checkpoints for split in spec.splits.values() for name in split.written())


def _are_same(one: Weights, other: Weights) -> bool:
    """Whether two models are one: the best is often the last."""
    return one.keys() == other.keys() and all(
        torch.equal(value.cpu(), other[name].cpu()) for name, value in one.items()
    )


def _kept_subject(path: Path) -> MeasuredModel:
    try:
        return MeasuredModel.from_dict(cast("dict[str, Plain]", parse_json(read_regular(path, LARGEST_RECORD))))
    except ValueError as error:
        raise StoreError(f"{path} is damaged: {error}. Remove it and resume: the model is measured again") from error


def _renamed(subject: MeasuredModel, checkpoint: str) -> MeasuredModel:
    """What was measured of the same weights under another name, without the extras made for one model only."""
    extras = {name: extra for name, extra in subject.extras.items() if name not in FIGURES}
    return replace(subject, checkpoint=checkpoint, extras=extras)


def _note_seconds(run: RunFolder, seconds: float) -> None:
    run.write_json(SECONDS, _seconds_before(run) + seconds)


def _seconds_before(run: RunFolder) -> float:
    noted = _noted(run, SECONDS, 0.0)
    return float(noted) if isinstance(noted, int | float) else 0.0


def _noted(run: RunFolder, name: str, default: Plain) -> Plain:
    """What was noted before this attempt; where it is damaged only timings are lost, so the run continues."""
    try:
        found = parse_json(read_regular(run.path(name), LARGEST_RECORD))
    except (FileNotFoundError, ValueError):
        return default
    return found if isinstance(found, dict) or not isinstance(default, dict) else default


# Where and with what a run was made: versions, hardware, the commit of the code, and how much memory it took.


PACKAGES = ("torch", "numpy", "scipy")


def environment(device: torch.device) -> dict[str, Plain]:
    """Versions, hardware and commit, as plain values.

    >>> sorted(environment(torch.device("cpu")))
    ['commit', 'device', 'host', 'landscope', 'numpy', 'platform', 'processor', 'python', 'scipy', 'threads', 'torch', 'tree']
    """
    import landscope

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
    return {
        "landscope": landscope.__version__,
        "commit": _commit(),
        "tree": _package_tree(),
        "python": platform.python_version(),
        **{package: _version(package) for package in PACKAGES},
        "platform": platform.platform(),
        "processor": _processor(),
        "device": name,
        "threads": torch.get_num_threads(),
        "host": platform.node(),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@functools.cache
def _commit() -> str | None:
    """The commit of the source tree that landscope is imported from, with "+" where files differ from it."""
    here = Path(__file__).resolve().parent

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(here), *words], capture_output=True, text=True, timeout=10, check=True)
        return done.stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")) not in here.parents:
            return None
        changed = git("status", "--porcelain", "--untracked-files=no", "--", str(here.parent))
        return git("rev-parse", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None


@functools.cache
def _package_tree() -> str:
    """The package's own files as git names them, also where there is none: `git rev-parse COMMIT:src/landscope`."""
    return git_tree(Path(__file__).resolve().parents[2])


def git_tree(folder: Path) -> str:
    """SHA-1 of a folder as a tree object of git, its files not executable; without what Python compiled.

    Each entry is a mode, a name and the digest of its own; folders sort as if a slash ended their names.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as empty:
    ...     git_tree(Path(empty))
    '4b825dc642cb6eb9a060e54bf8d69288fbee4904'
    """
    entries, empty = [], _git_object(b"tree", b"")
    for path in folder.iterdir():
        if path.is_dir():
            if path.name != "__pycache__" and (found := git_tree(path)) != empty:
                entries.append((f"{path.name}/", b"40000", found))
        elif path.suffix != ".pyc":
            entries.append((path.name, b"100644", _git_object(b"blob", path.read_bytes())))
    each = (
        b"%b %b\0%b" % (mode, name.rstrip("/").encode(), bytes.fromhex(digest))
        for name, mode, digest in sorted(entries, key=lambda entry: entry[0].encode())
    )
    return _git_object(b"tree", b"".join(each))


def _git_object(kind: bytes, content: bytes) -> str:
    return hashlib.sha1(b"%b %d\0%b" % (kind, len(content), content), usedforsecurity=False).hexdigest()


@functools.cache
def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        return f"{names[0]} × {os.cpu_count()}" if names else platform.processor()
    except OSError:
        return platform.processor()


def forget_peak_memory(device: torch.device) -> None:
    """Reset the peak, so that earlier runs of this process do not count."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with contextlib.suppress(OSError):  # only Linux can; elsewhere the peak is that of the process
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory(device: torch.device) -> int:
    """Bytes: of the accelerator where one is used, otherwise of the process."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return int(peak if sys.platform == "darwin" else peak * 1024)

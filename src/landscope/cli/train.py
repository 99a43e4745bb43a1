"""`landscope train`: one training run from a spec file, resumable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from landscope.cli.failures import CommandError, StoppedError
from landscope.cli.options import Device, Json, TimeLimit, optional
from landscope.cli.output import console, note, print_json, table, writable_folder
from landscope.core.text import duration, examples

if TYPE_CHECKING:
    from rich.table import Table

    from landscope.training.callbacks import Callback
    from landscope.training.loop.folder import TrainingResult

EXAMPLES = examples(
    "landscope train resnet.yaml",
    "landscope train resnet.yaml --set seed=2 --set optimizer.lr=0.1 --into runs/resnet-2",
    "landscope train resnet.yaml --time-limit 3600        # run it again to resume",
    "landscope measure runs/resnet                        # on the data that it was trained on",
) + (
    "\n\n\b\nA spec names data and model; everything else has a default:\n"
    "  data: {name: cifar10, pixels: standard}\n  model: resnet18\n  epochs: 30\n"
    "  optimizer: {name: sgd, lr: 0.1, momentum: 0.9, weight_decay: 5e-4}\n  schedule: cosine\n  sam: 0.05"
)


def train(
    spec: Annotated[
        Path, typer.Argument(metavar="SPEC", help="A training run in YAML, TOML or JSON.", show_default=False)
    ],
    into: Annotated[
        Path | None, optional(metavar="FOLDER", help="Folder of the run.  [default: runs/NAME-OF-SPEC]")
    ] = None,
    change: Annotated[
        list[str] | None,
        optional(
            "--set", metavar="KEY=VALUE", help="Set a key of the spec, such as optimizer.lr=0.1; may be repeated."
        ),
    ] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Discard the folder's contents and start over.")] = False,
    time_limit: TimeLimit = None,
    checkpoint_every: Annotated[float, typer.Option(metavar="SECONDS", help="Time between checkpoints.")] = 60.0,
    device: Device = None,
    threads: Annotated[int | None, optional(min=1, help="CPU threads.")] = None,
    tensorboard: Annotated[
        Path | None, optional(metavar="FOLDER", help="Also write the history for TensorBoard.")
    ] = None,
    wandb: Annotated[str | None, optional(metavar="PROJECT", help="Also send the history to Weights & Biases.")] = None,
    as_json: Json = False,
) -> None:
    """Train the model of a spec, or resume its training.

    The folder gets weights (final, and best or average if the spec asks for them), history and spec. If the command is stopped
    by Ctrl-C, killed, or the power fails, run it again: it resumes from the last checkpoint, and ends with the same weights.
    """
    from landscope.cli.sources import usable_device
    from landscope.core.errors import UnknownNameError
    from landscope.data import DATASETS
    from landscope.models import MODELS
    from landscope.probe.totals import checked_seconds
    from landscope.specs.documents import read_document
    from landscope.specs.names import is_import, search_also
    from landscope.specs.schema import parse
    from landscope.training.loop.train import train as run
    from landscope.training.spec import TrainingSpec

    checked_seconds("--time-limit", time_limit)
    checked_seconds("--checkpoint-every", checkpoint_every)
    document = read_document(spec)
    if isinstance(document.content, dict) and "training" in document.content:
        raise CommandError(f"{spec} describes a study; run it with: landscope study run {spec}")
    search_also(spec.absolute().parent)
    settings = parse(TrainingSpec, _changed(document.content, change or ()), document.place)
    for key, known in (("data", DATASETS), ("model", MODELS)):
        name = getattr(settings, key).name
        if not is_import(name) and name not in known:
            raise CommandError(f"{document.place.get((key,), spec)}: {key}: {UnknownNameError.among(key, name, known)}")
    folder = writable_folder(into or Path("runs") / spec.stem)
    callbacks = _callbacks(tensorboard, wandb)
    try:
        result = run(
            settings,
            folder=folder,
            resume=not restart,
            device=usable_device(device),
            time_limit=time_limit,
            checkpoint_every=checkpoint_every,
            callbacks=callbacks,
            progress=True,
            threads=threads,
        )
    except KeyboardInterrupt:
        note(f"checkpoint written: {folder}; run the same command to resume")
        raise
    if as_json:
        print_json(_summary(result))
    elif result.finished:
        console().print(_scores(result))
        note(f"{result.stopped}, {duration(result.seconds)}; written: {folder}. Next: landscope measure {folder}")
    if not result.finished:
        raise StoppedError(
            f"stopped after {result.epochs} of {settings.epochs} epochs ({result.stopped}); run the same command to resume"
        )


def _changed(content: object, changes: Sequence[str]) -> object:
    """The content of a spec with other values, by dotted keys."""
    from landscope.cli.sources import parsed_options
    from landscope.specs.overlay import with_value

    for pair in changes:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise CommandError(f"expected --set key=value, such as optimizer.lr=0.1, got {pair!r}")
        if not isinstance(content, Mapping):
            raise CommandError("--set changes keys, and this spec has none")
        content = with_value(content, key, parsed_options([f"value={text}"])["value"])
    return content


def _callbacks(tensorboard: Path | None, wandb: str | None) -> list[Callback]:
    from landscope.training.callbacks import TensorBoard, WeightsAndBiases

    chosen: list[Callback] = [TensorBoard(tensorboard)] if tensorboard is not None else []
    return chosen + ([WeightsAndBiases(project=wandb)] if wandb is not None else [])


def _scores(result: TrainingResult) -> Table:
    splits = ("train", "validation", "test")
    shown = table("weights", *splits, right=splits, title="loss, and share of wrong classes")
    for name, scores in result.scores.items():
        cells = []
        for split in splits:
            parts = [f"{scores[f'{split}_{key}']:.4g}" for key in ("loss", "error") if f"{split}_{key}" in scores]
            cells.append(", ".join(parts) or "–")
        shown.add_row(name, *cells)
    return shown


def _summary(result: TrainingResult) -> dict[str, object]:
    return {
        "finished": result.finished,
        "stopped": result.stopped,
        "seconds": result.seconds,
        "folder": str(result.folder),
        "scores": result.scores,
        "history": result.history,
    }

"""`landscope train`: one training run from a spec file, resumable."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from landscope.cli.failures import CommandError, StoppedError
from landscope.cli.options import Device, Json
from landscope.cli.output import console, note, print_json, table, writable_folder
from landscope.core.text import duration, examples

if TYPE_CHECKING:
    from rich.table import Table

    from landscope.training.callbacks import Callback
    from landscope.training.loop.folder import Trained

__all__ = ["EXAMPLES", "train"]

EXAMPLES = examples(
    "landscope train resnet.yaml",
    "landscope train resnet.yaml --set seed=2 --set optimizer.lr=0.1 --into runs/resnet-2",
    "landscope train resnet.yaml --time-limit 3600        # the same command goes on",
    "landscope measure runs/resnet/final.safetensors --model resnet18 --data cifar10",
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
        Path | None,
        typer.Option(metavar="FOLDER", help="Where the run goes.  [default: runs/NAME-OF-SPEC]", show_default=False),
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Another value for a key, such as optimizer.lr=0.1.", show_default=False
        ),
    ] = None,
    anew: Annotated[bool, typer.Option("--anew", help="Begin anew whatever the folder holds.")] = False,
    time_limit: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", help="Stop in order after so long; the same command goes on.", show_default=False
        ),
    ] = None,
    checkpoint_every: Annotated[float, typer.Option(metavar="SECONDS", help="Between checkpoints.")] = 60.0,
    device: Device = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Of the CPU.", show_default=False)] = None,
    tensorboard: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write the history for TensorBoard, too.", show_default=False)
    ] = None,
    wandb: Annotated[
        str | None,
        typer.Option(metavar="PROJECT", help="Send the history to Weights & Biases, too.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Train a model as a spec says.

    The folder gets weights (final, and best or average where the spec asks for them), history and spec. Stop it with Ctrl-C,
    kill it, pull the plug: the same command goes on from the last checkpoint, and ends with the same weights.
    """
    from landscope.cli.sources import usable_device
    from landscope.probe.totals import checked_seconds
    from landscope.specs.documents import read_document
    from landscope.specs.schema import build
    from landscope.training.loop.train import train as run
    from landscope.training.spec import TrainingSpec

    checked_seconds("--time-limit", time_limit)
    checked_seconds("--checkpoint-every", checkpoint_every)
    document = read_document(spec)
    settings = build(TrainingSpec, _changed(document.content, change or ()), document.place)
    folder = writable_folder(into or Path("runs") / spec.stem)
    callbacks = _callbacks(tensorboard, wandb)
    try:
        result = run(
            settings,
            folder=folder,
            resume=not anew,
            device=usable_device(device),
            time_limit=time_limit,
            checkpoint_every=checkpoint_every,
            callbacks=callbacks,
            progress=True,
            threads=threads,
        )
    except KeyboardInterrupt:
        note(f"checkpoint written: {folder}; the same command goes on from there")
        raise
    if as_json:
        print_json(_summary(result))
    elif result.finished:
        console().print(_scores(result))
        note(f"{result.stopped}, {duration(result.seconds)}; written: {folder}")
    if not result.finished:
        raise StoppedError(
            f"stopped after {result.epochs} of {settings.epochs} epochs ({result.stopped}); the same command goes on"
        )


def _changed(content: object, changes: list[str] | tuple[()]) -> object:
    """The content of a spec with other values, by dotted keys."""
    from landscope.cli.sources import parsed_options

    if not changes:
        return content
    if not isinstance(content, dict):
        raise CommandError("--set changes keys, and this spec has none")
    changed = dict(content)
    for pair in changes:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise CommandError(f"--set is written key=value, such as optimizer.lr=0.1; {pair!r} came")
        *path, last = key.split(".")
        place = changed
        for name in path:
            inner = place.get(name)
            # a bare value is the name of an optimizer, a schedule, …
            place[name] = dict(inner) if isinstance(inner, dict) else {} if inner is None else {"name": inner}
            place = place[name]
        place[last] = parsed_options([f"value={text}"])["value"]
    return changed


def _callbacks(tensorboard: Path | None, wandb: str | None) -> list[Callback]:
    from landscope.training.callbacks import TensorBoard, WeightsAndBiases

    chosen: list[Callback] = [TensorBoard(tensorboard)] if tensorboard is not None else []
    return chosen + ([WeightsAndBiases(project=wandb)] if wandb is not None else [])


def _scores(result: Trained) -> Table:
    splits = ("train", "validation", "test")
    shown = table("weights", *splits, right=splits, title="loss, and share of wrong classes")
    for name, scores in result.scores.items():
        cells = []
        for split in splits:
            parts = [f"{scores[f'{split}_{key}']:.4g}" for key in ("loss", "error") if f"{split}_{key}" in scores]
            cells.append(", ".join(parts) or "–")
        shown.add_row(name, *cells)
    return shown


def _summary(result: Trained) -> dict[str, object]:
    return {
        "finished": result.finished,
        "stopped": result.stopped,
        "seconds": result.seconds,
        "folder": str(result.folder),
        "scores": result.scores,
        "history": result.history,
    }

"""`landscope robustness`: accuracy under every corruption at every severity, in one command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from landscope.cli.failures import CommandError
from landscope.cli.options import Checkpoint, DataOptions, Device, Json, Model, ModelOptions, PixelScale, Root, Samples
from landscope.cli.output import console, note, print_json, progress, table, target
from landscope.core.text import examples, shape

if TYPE_CHECKING:
    from rich.table import Table
    from torch import Tensor

    from landscope.data import DataCard, Pixels
    from landscope.measures.robustness import CorruptionAccuracy

__all__ = ["EXAMPLES", "robustness"]

EXAMPLES = examples(
    "landscope robustness vgg.safetensors --model vgg19 --data cifar10 --pixels standard --output vgg.csv",
    "landscope robustness net.pt --model resnet20 --data cifar10 --corruptions fog,snow --severities 3,5",
    "landscope robustness net.pt --model lenet5 --data mnist --samples 500 --json",
)


def robustness(
    checkpoint: Checkpoint,
    model: Model,
    data: Annotated[str, typer.Option(help="A set of images from `landscope data list`.", show_default=False)],
    option: ModelOptions = None,
    data_option: DataOptions = None,
    severities: Annotated[str, typer.Option(metavar="1,2,…", help="How strong, from 1 to 5.")] = "1,2,3,4,5",
    corruptions: Annotated[
        str, typer.Option(metavar="all|main|A,B,…", help="All 19, the 15 of CIFAR-C's table, or some by name.")
    ] = "all",
    samples: Samples = None,
    pixels: PixelScale = "unit",
    batch_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Bounds memory; the result does not depend on it.  [default: 500, on a GPU 2000]",
            show_default=False,
        ),
    ] = None,
    precision: Annotated[
        Literal["tf32", "highest"],
        typer.Option(help="On a GPU, tf32 is several times as fast and hardly ever changes a prediction."),
    ] = "tf32",
    device: Device = None,
    seed: Annotated[int, typer.Option(help="Of the noise.")] = 0,
    root: Root = None,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.csv",
            help="Write a row for each corruption and severity (0 is clean), with standard errors.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Score a saved classifier on corrupted images.

    All 19 corruptions of CIFAR-C at severities 1 to 5, on the whole test set. The corrupted images are made where the
    model is, in batches, and never stored; they are normalised as --pixels says after corruption.
    """
    from landscope.cli import sources
    from landscope.core.files import write_whole
    from landscope.data import corrupt
    from landscope.measures.robustness import Classifier, corruption_accuracy

    if pixels == "raw":
        raise CommandError("--pixels raw: corruptions are made on images in [0, 1]; choose unit, symmetric or standard")
    target(output)
    names, levels = _names(corruptions), _levels(severities)
    place = sources.usable_device(device)
    net = sources.loaded_model(checkpoint, model, option)
    splits = sources.loaded_data(data, root, "raw", **{"validation": 0, **sources.parsed_options(data_option)})
    x, y = (rows[:samples] for rows in splits.test)
    if x.dim() != 4 or not splits.card.classes:
        raise CommandError(f"{data} holds no images with classes ({splits.card.task}, inputs {tuple(x.shape[1:])})")
    flat = sources.takes_vectors(net, model)
    if flat:
        note(f"{model} declares vectors: images {shape(x.shape[1:])} are flattened after corruption")
    prepare = _preparation(pixels, splits.card, flat)
    sources.check_fits(net, prepare(x[:2]), splits.card.n_classes, data)
    with progress() as tick:
        scores = corruption_accuracy(
            Classifier.of(net, place, precision, batch_size),
            x,
            y,
            corrupt,
            names,
            levels,
            prepare=prepare,
            seed=seed,
            progress=lambda done, total, what: tick(what, done, total),
        )
    if output is not None:
        write_whole(output, scores.to_long_frame().to_csv(index=False).encode(), flush=False)
        note(f"written: {output}")
    if as_json:
        about = {"checkpoint": str(checkpoint), "model": model, "data": f"{data} ({splits.card.version})"}
        print_json({**about, "pixels": pixels, "seed": seed, **_plain(scores)})
    else:
        console().print(_table(scores, f"{model} on {data}: {scores.samples:,} images"))
        if scores.mean_stderr is not None:
            typer.echo(f"Other images would change the mean by ± {100 * scores.mean_stderr:.2g}.")


def _preparation(pixels: Pixels, card: DataCard, flat: bool) -> Callable[[Tensor], Tensor]:
    """From corrupted bytes to what `landscope.data.load(pixels=…)` would have given."""
    from landscope.data import scaled

    def prepare(images: Tensor) -> Tensor:
        x = scaled(images, pixels, card.mean, card.std)
        return x.flatten(1) if flat else x

    return prepare


def _names(words: str) -> list[str]:
    from landscope.data import CORRUPTIONS, MAIN_CORRUPTIONS

    if words in ("all", "main"):
        return list(CORRUPTIONS if words == "all" else MAIN_CORRUPTIONS)
    names = list(dict.fromkeys(name.strip() for name in words.split(",")))
    for name in names:
        CORRUPTIONS[name]
    return names


def _levels(words: str) -> list[int]:
    levels = list(dict.fromkeys(word.strip() for word in words.split(",")))
    if not all(level in {"1", "2", "3", "4", "5"} for level in levels):
        raise CommandError(f"--severities: expected whole numbers from 1 to 5, such as 1,3,5, got {words!r}")
    return [int(level) for level in levels]


def _table(scores: CorruptionAccuracy, title: str) -> Table:
    columns = [*map(str, scores.severities), "mean"]
    shown = table("accuracy, %", *columns, right=columns, title=title)
    for name, row in scores.to_frame().iterrows():
        shown.add_row(str(name), *(f"{100 * accuracy:.1f}" for accuracy in row))
    means = [*scores.accuracy.mean(0), scores.accuracy.mean()]
    shown.add_section()
    shown.add_row("mean", *(f"{100 * mean:.1f}" for mean in means), style="bold")
    shown.add_row("clean", *[""] * len(scores.severities), f"{100 * scores.clean:.1f}")
    return shown


def _plain(scores: CorruptionAccuracy) -> dict[str, object]:
    rows = {
        str(name): {str(column): float(accuracy) for column, accuracy in row.items()}
        for name, row in scores.to_frame().iterrows()
    }
    by_severity = dict(zip(map(str, scores.severities), scores.accuracy.mean(0).tolist(), strict=True))
    return {
        "samples": scores.samples,
        "clean": scores.clean,
        "mean": float(scores.accuracy.mean()),
        "mean_stderr": scores.mean_stderr,
        "mean_by_severity": by_severity,
        "accuracy": rows,
    }

"""`landscope robustness`: accuracy under every corruption at every severity, or under attack, in one command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from landscope.cli.failures import CommandError
from landscope.cli.options import (
    FROM_SPEC,
    Checkpoint,
    DataOptions,
    Device,
    Json,
    Model,
    ModelOptions,
    PixelScale,
    Root,
    Samples,
    optional,
)
from landscope.cli.output import console, note, print_json, progress, table, target
from landscope.core.text import examples, shape

if TYPE_CHECKING:
    from rich.table import Table
    from torch import Tensor

    from landscope.data import DataCard, Pixels
    from landscope.measures.robustness import Classifier, CorruptionAccuracy

EXAMPLES = examples(
    "landscope robustness runs/first                       # what `landscope train` left there",
    "landscope robustness vgg.safetensors --model vgg19 --data cifar10 --pixels standard --output vgg.csv",
    "landscope robustness net.pt --model resnet20 --data cifar10 --corruptions fog,snow --severities 3,5",
    "landscope robustness net.pt --model lenet5 --data mnist --samples 500 --json",
    "landscope robustness net.pt --model resnet20 --data cifar10 --samples 200 --eps 0.03",
)


def robustness(
    checkpoint: Checkpoint,
    model: Model = None,
    data: Annotated[str | None, optional(help=f"A set of images from `landscope data list`.{FROM_SPEC}")] = None,
    option: ModelOptions = None,
    data_option: DataOptions = None,
    severities: Annotated[str, typer.Option(metavar="1,2,…", help="How strong, from 1 to 5.")] = "1,2,3,4,5",
    corruptions: Annotated[
        str, typer.Option(metavar="all|main|A,B,…", help="All 19, the 15 of CIFAR-C's table, or some by name.")
    ] = "all",
    eps: Annotated[
        float | None, optional(min=0.0, help="Attack instead: how far each pixel in [0, 1] may be moved.")
    ] = None,
    samples: Samples = None,
    pixels: PixelScale = None,
    batch_size: Annotated[
        int | None,
        optional(min=1, help="Bounds memory; the result does not depend on it.  [default: 500, on a GPU 2000]"),
    ] = None,
    precision: Annotated[
        Literal["tf32", "highest"],
        typer.Option(help="On a GPU, tf32 is several times as fast and hardly ever changes a prediction."),
    ] = "tf32",
    device: Device = None,
    seed: Annotated[int, typer.Option(help="Seed of the noise.")] = 0,
    root: Root = None,
    output: Annotated[
        Path | None,
        optional(
            metavar="FILE.csv", help="Write a row for each corruption and severity (0 is clean), with standard errors."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Score a saved classifier on corrupted images, or on attacked ones.

    All 19 corruptions of CIFAR-C at severities 1 to 5, on the whole test set. The corrupted images are made where the
    model is, in batches, and never stored; they are normalised as --pixels says after corruption.

    With --eps the images are attacked instead, by one step, by ascent on the cross-entropy, and by attacks that are hard to
    fool. Each leaves an accuracy that the robust accuracy is at most: quote the last.
    """
    from dataclasses import replace

    from landscope.cli.sources import Given, saved_network, usable_device
    from landscope.core.files import write_whole
    from landscope.data import DATASETS, corrupt, load, scaled
    from landscope.data.loading import draw
    from landscope.measures.robustness import Classifier, corruption_accuracy
    from landscope.models.catalogue import takes_vectors
    from landscope.specs.names import is_import

    of = saved_network(checkpoint, Given(model, option, data, data_option, pixels, root))
    model, data = of.model.name, of.data.name
    pixels = cast("Pixels", of.data.options.get("pixels", "unit"))
    if pixels == "raw":
        raise CommandError("--pixels raw: corruptions are made on images in [0, 1]; choose unit, symmetric or standard")
    target(output)
    names, levels = _names(corruptions), _levels(severities)
    place = usable_device(device)
    given = {key: value for key, value in of.data.options.items() if key not in ("pixels", "root")}
    if is_import(data) or DATASETS[data].task != "classification":
        raise CommandError(f"{data} holds no images with classes; corruptions and attacks are for those")
    splits = load(data, root=root, pixels="raw", **{"validation": 0, **given})  # type: ignore[arg-type]
    x, y = splits.test
    if samples is not None and samples < len(y):
        chosen, _ = draw(y, samples, seed, "corrupted")  # as a study draws them
        x, y = x[chosen], y[chosen]
    if x.dim() != 4 or not splits.card.classes:
        raise CommandError(f"{data} holds no images with classes: its inputs are {shape(x.shape[1:])}")
    net = of.task().model
    flat = takes_vectors(net, model)
    if flat:
        note(f"{model} declares vectors: images {shape(x.shape[1:])} are flattened after corruption")
    prepare = _preparation(pixels, splits.card, flat)
    version = f"{data} ({splits.card.version})"
    about = {"checkpoint": str(checkpoint), "model": model, "data": version, "pixels": pixels, "seed": seed}
    title = f"{model} on {data}: {len(x):,} images"
    if eps is not None:
        classifier = replace(Classifier.of(net, place, precision, batch_size), prepare=prepare)
        left, blind = _attacked(classifier, scaled(x, "unit", (), ()), y, eps, seed)
        if blind:
            note(
                f"warning: no gradient led anywhere on {blind:.0%} of the images, so attacks by gradient tell nothing of them. "
                f"Does the network round or threshold its inputs? Attack it without that step"
            )
        if as_json:
            print_json({**about, "eps": eps, "samples": len(x), "accuracy_at_most": left, "blind": blind})
        else:
            console().print(_attack_table(left, len(x), f"{title}, each pixel moved by at most {eps:g}"))
        if output is not None:
            rows = "".join(f"{name},{accuracy}\n" for name, accuracy in left.items())
            write_whole(output, f"attack,accuracy\n{rows}".encode(), flush=False)
            note(f"written: {output}")
        return
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
    if as_json:
        print_json({**about, **_plain(scores)})
    else:
        console().print(_table(scores, title))
        if scores.mean_stderr is not None:
            typer.echo(f"Other images would change the mean by ± {100 * scores.mean_stderr:.2g}.")
    if output is not None:
        write_whole(output, scores.to_long_frame().to_csv(index=False).encode(), flush=False)
        note(f"written: {output}")


def _preparation(pixels: Pixels, card: DataCard, flat: bool) -> Callable[[Tensor], Tensor]:
    """From corrupted bytes to what `landscope.data.load(pixels=…)` would have given."""
    from landscope.data import scaled

    def prepare(images: Tensor) -> Tensor:
        x = scaled(images, pixels, card.mean, card.std)
        return x.flatten(1) if flat else x

    return prepare


def _attacked(classifier: Classifier, x: Tensor, y: Tensor, eps: float, seed: int) -> tuple[dict[str, float], float]:
    """The accuracy that each attack leaves, from the weakest to all of them together; the share of images without a gradient."""
    from landscope.measures.robustness import fgsm, pgd, strongest

    with progress() as tick:
        tick("one step", 0, 3)
        step = fgsm(classifier, x, y, eps)
        tick("ascent on the cross-entropy", 1, 3)
        ascent = pgd(classifier, x, y, eps, steps=40, seed=seed)
        tick("attacks that are hard to fool", 2, 3)
        found = strongest(classifier, x, y, eps, seed=seed)
    together = float((step.correct & ascent.correct & found.correct).double().mean())
    clean, *others = found.after.items()
    left = [clean, ("FGSM", step.accuracy.value), ("PGD-40", ascent.accuracy.value), *others, ("all", together)]
    return dict(left), found.blind


def _attack_table(left: dict[str, float], n: int, title: str) -> Table:
    shown = table("attack", "accuracy, %", "± other images", right=["accuracy, %", "± other images"], title=title)
    for name, accuracy in left.items():
        bound = "" if name == "clean" or accuracy == 0 else "at most "
        error = 100 * (accuracy * (1 - accuracy) / max(n - 1, 1)) ** 0.5
        shown.add_row(name, f"{bound}{100 * accuracy:.1f}", f"{error:.1f}", style="bold" if name == "all" else "")
    return shown


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

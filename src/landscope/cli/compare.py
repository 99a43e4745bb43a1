"""`landscope compare` and `landscope compare-studies`: saved models on the same data, or whole studies, side by side."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from landscope.cli.failures import CommandError
from landscope.cli.options import (
    DataName,
    DataOptions,
    Device,
    Json,
    Measures,
    MeasureSeed,
    Model,
    ModelOptions,
    PixelScale,
    Root,
    Samples,
    named_measures,
    optional,
)
from landscope.cli.output import console, note, print_json, target
from landscope.cli.study.showing import opened, reports_without_script, write_report
from landscope.core.text import examples

EXAMPLES = examples(
    "landscope compare before.safetensors after.safetensors --model resnet20 --data cifar10 --samples 1000",
    "landscope compare sgd.pt sam.pt asam.pt --model mlp -o in_features=64 --data digits --figure changes.png",
    "landscope compare a.pt b.pt --model my_package.nets:build --data my_package.rows:load --split test --json",
)


def compare(
    checkpoints: Annotated[
        list[Path],
        typer.Argument(
            metavar="FIRST OTHER…", help="Weights of two models or more; the others are compared with the first."
        ),
    ],
    model: Model = None,
    data: DataName = None,
    option: ModelOptions = None,
    data_option: DataOptions = None,
    split: Annotated[Literal["train", "validation", "test"], typer.Option(help="Split to compare on.")] = "train",
    samples: Samples = None,
    pixels: PixelScale = None,
    measures: Measures = None,
    loss: Annotated[
        str | None,
        optional(
            help="cross_entropy, mse, binary_cross_entropy, exponential.  [default: cross_entropy for classes, else mse]"
        ),
    ] = None,
    device: Device = None,
    seconds: Annotated[
        float | None, optional(help="Stop after about this many seconds; then no difference is paired row by row.")
    ] = None,
    seed: MeasureSeed = 0,
    root: Root = None,
    output: Annotated[Path | None, optional(metavar="FILE.json", help="Also write the comparison there.")] = None,
    figure: Annotated[Path | None, optional(metavar="FILE.png", help="Also draw it there: png, svg or pdf.")] = None,
    as_json: Json = False,
) -> None:
    """Compare saved models on the same rows: every measure, its difference, and whether that is real.

    With it comes the loss on the straight line between them, how often they disagree, and how alike their features are.
    """
    from copy import deepcopy

    import landscope
    from landscope.cli import sources
    from landscope.cli.sources import Given, saved_networks
    from landscope.measures.resolve import resolve_measures
    from landscope.probe.loss.losses import LOSSES
    from landscope.probe.totals import checked_limit

    checked_limit("--seconds", seconds)
    if len(checkpoints) < 2:
        raise CommandError("two checkpoints or more are needed, such as before.safetensors after.safetensors")
    if loss is not None:
        LOSSES[loss]
    target(output)
    target(figure)
    if figure is not None and figure.suffix not in (".png", ".svg", ".pdf"):
        raise CommandError(f"--figure {figure}: expected a file that ends in .png, .svg or .pdf")
    wanted = measures if measures in (None, "all", "core") else named_measures(measures)
    chosen = resolve_measures(wanted, seed)
    place = sources.usable_device(device)
    given = saved_networks(checkpoints, Given(model, option, data, data_option, pixels, root, loss))
    meter = given[0].meter(seed, place)
    nets = {
        name: deepcopy(meter.model(one.weights(meter.task.model)))
        for name, one in zip(_names(checkpoints), given, strict=True)
    }
    x, y = meter.rows(split, samples)
    if not len(x):
        raise CommandError(f"{given[0].data.name} has no {split} rows")
    comparison = landscope.compare(
        nets, (x, y), chosen, seconds=seconds, progress=True, loss=meter.task.loss, device=place, seed=seed
    )
    if as_json:
        print_json(comparison.to_dict())
    else:
        console().print(comparison)
    if output is not None:
        note(f"written: {comparison.save(output)}")
    if figure is not None:
        comparison.plot().savefig(figure, dpi=150)
        note(f"written: {figure}")


def _names(checkpoints: Sequence[Path]) -> list[str]:
    """What the models are called: their files' names, or paths where two are called the same.

    >>> _names([Path("a/net.pt"), Path("b/net.pt"), Path("last.pt")])
    ['a/net.pt', 'b/net.pt', 'last']
    """
    stems = Counter(path.stem for path in checkpoints)
    names = [path.stem if stems[path.stem] == 1 else str(path) for path in checkpoints]
    if len(set(names)) < len(names):
        raise CommandError("the same checkpoint is given twice")
    return names


# Several studies on one page, with their reports.


STUDIES_EXAMPLES = examples(
    "landscope compare-studies studies/digits studies/cifar10 --output index.html",
    "landscope compare-studies studies/*",
)


def compare_studies(
    folders: Annotated[list[Path], typer.Argument(metavar="STUDY OTHER…", help="The folders of two studies or more.")],
    output: Annotated[Path, typer.Option(metavar="FILE.html", help="Where to write the page.")] = Path("studies.html"),
    as_json: Json = False,
) -> None:
    """Write one page of several studies: what each answers, and how its conditions differ from its baseline.

    The report of each is written again, and the page leads there.
    """
    from landscope.report.of_study import options_of, write_landing_page
    from landscope.report.write import StudyReport

    if len({folder.resolve() for folder in folders}) < 2:
        raise CommandError("expected two studies or more to compare; for one: landscope report STUDY")
    target(output)
    light = reports_without_script()
    reports = {}
    for folder in folders:
        study = opened(folder)
        records = study.records()
        if not records:
            raise CommandError(f"no run of {folder} is done yet; see: landscope study status {folder}")
        page, _ = write_report(study, folder / "report.html", (), study.statuses(), light=light)
        address = Path(os.path.relpath(page, output.parent)).as_posix()
        reports[address] = StudyReport.of(records, options_of(study.spec, records))
    written = write_landing_page(reports, output)
    if as_json:
        print_json({"page": written, "reports": [str(folder / "report.html") for folder in folders]})
    else:
        typer.echo(f"page: {written}")

"""`landscope measure`: every measure of a saved model, from a checkpoint to a report."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from landscope.cli.failures import CommandError
from landscope.cli.options import (
    Checkpoint,
    DataName,
    DataOptions,
    Device,
    Json,
    Model,
    ModelOptions,
    PixelScale,
    Root,
    Samples,
    named_measures,
)
from landscope.cli.output import console, note, target
from landscope.core.text import examples, shape

if TYPE_CHECKING:
    from landscope.measures.resolve import Wanted

__all__ = ["EXAMPLES", "measure"]

EXAMPLES = examples(
    "landscope measure net.safetensors --model mlp -o in_features=64 --data digits",
    "landscope measure vgg.pt --model vgg19 --data cifar10 --pixels standard --samples 2000 \\",
    "    --measures loss,accuracy,hessian_top_eigenvalue,relative_flatness --output vgg.json",
    "landscope measure net.pt --model my_package.nets:build -o width=32 --data mnist --split test",
    "landscope measure net.pt --model resnet20 --data cifar10 --settings chosen.yaml --seconds 600",
    "landscope measure net.pt --model my_package.nets:build --data my_package.rows:load",
    "torchrun --nproc-per-node 4 -m landscope measure net.pt --model resnet18 --data cifar10",
) + (
    "\n\n\b\nA settings file names measures and what to change in them:\n"
    "  loss:\n  hessian_trace: {tol: 0.01}\n  relative_flatness: {layer: fc}"
)


def measure(
    checkpoint: Checkpoint,
    model: Model,
    data: DataName,
    option: ModelOptions = None,
    data_option: DataOptions = None,
    split: Annotated[Literal["train", "validation", "test"], typer.Option(help="Split to measure on.")] = "train",
    samples: Samples = None,
    pixels: PixelScale = "unit",
    measures: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,C", help="Names from `landscope measures`.  [default: all that apply]", show_default=False
        ),
    ] = None,
    settings: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.yaml", help="Measures with their settings, instead of --measures.", show_default=False
        ),
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(
            help="cross_entropy, mse, binary_cross_entropy, exponential.  [default: cross_entropy for classes, else mse]",
            show_default=False,
        ),
    ] = None,
    mode: Annotated[
        Literal["eval", "batch_statistics"], typer.Option(help="BatchNorm's statistics: its own, or each batch's.")
    ] = "eval",
    batch_size: Annotated[
        int | None,
        typer.Option(
            min=1, help="Rows per batch; part of the definition with --mode batch_statistics.", show_default=False
        ),
    ] = None,
    temperature: Annotated[float, typer.Option(help="Divide the outputs by this.")] = 1.0,
    device: Device = None,
    dtype: Annotated[Literal["float32", "float64"] | None, typer.Option(help="Precision.", show_default=False)] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Stop after about this many seconds.", show_default=False)
    ] = None,
    passes: Annotated[
        float | None, typer.Option(help="Stop after about this many passes over the data.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the measures; that of the data is --data-option seed=…")] = 0,
    root: Root = None,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Also write the report there.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure a saved model on a data set.

    The report has value, error bar, status and cost of every measure. On a terminal the table fills while you wait and its
    error bars shrink; Ctrl-C keeps what is there. With --seconds or --passes every measure gets a first estimate, then a
    fair share of what is left.

    Under torchrun each process takes its part of the rows, on a GPU of its own where there are several.
    """
    from dataclasses import replace

    import torch

    import landscope
    from landscope.cli import sources
    from landscope.measures.measuring import INTERRUPTED
    from landscope.measures.resolve import resolve_measures
    from landscope.probe.loss.losses import LOSSES
    from landscope.probe.totals import checked_limit

    checked_limit("--seconds", seconds)
    checked_limit("--passes", passes)
    if loss is not None:
        LOSSES[loss]
    target(output)
    chosen = resolve_measures(_wanted(measures, settings), seed)
    place = sources.usable_device(device)
    net = sources.loaded_model(checkpoint, model, option)
    found = sources.loaded_rows(data, root, pixels, split, **sources.parsed_options(data_option))
    x, y = found.x[:samples], found.y[:samples]
    if not len(x):
        raise CommandError(f"{data} has no {split} rows")
    if x.dim() > 2 and sources.takes_vectors(net, model):
        note(f"{model} declares vectors: inputs {shape(x.shape[1:])} are flattened")
        x = x.flatten(1)
    sources.check_fits(net, x, found.classes, data)
    with sources.process_group(place) as (place, rank, world):
        report = landscope.measure(
            net,
            (x[rank::world], y[rank::world]),
            chosen,
            loss=loss or ("cross_entropy" if found.classes else "mse"),
            mode=mode,
            temperature=temperature,
            batch_size=batch_size,
            device=place,
            dtype=getattr(torch, dtype) if dtype else None,
            seed=seed,
            seconds=seconds,
            passes=passes,
            progress=rank == 0,
            watch=rank == 0 and not as_json and sys.stderr.isatty(),
        )
    if rank > 0:  # every process has the same report; one shows it
        return
    origin = {"checkpoint": str(checkpoint), "source": model, "data": f"{data} ({found.version})", "split": split}
    report = replace(report, about={**report.about, **origin, "pixels": pixels})
    if output is not None:
        report.save(output)
        note(f"written: {output}")
    if as_json:
        typer.echo(report.to_json())
    else:
        console().print(report.table())
    if any(estimate.reason.startswith(INTERRUPTED) for estimate in report.values()):
        raise typer.Exit(130)


def _wanted(names: str | None, settings: Path | None) -> Wanted:
    """What is to be measured: all, some by name, or some with settings from a file."""
    if settings is None:
        return None if names is None else named_measures(names)
    if names is not None:
        raise CommandError("give --measures or --settings, not both")
    from landscope.core.errors import SpecError
    from landscope.specs.documents import read_document

    try:
        content = read_document(settings, any_name=True).content
    except SpecError as error:
        raise CommandError(f"--settings {error}") from error
    if isinstance(content, list) and all(isinstance(name, str) for name in content):
        return [str(name) for name in content]
    if not isinstance(content, dict) or not content:
        raise CommandError(
            f"--settings {settings}: expected measures with settings, such as `hessian_trace: {{tol: 0.01}}`"
        )
    for name, value in content.items():
        if value is not None and not isinstance(value, dict):
            raise CommandError(
                f"--settings {settings}: the settings of {name} must be written {{key: value}}, not {value!r}"
            )
    return {str(name): value for name, value in content.items()}

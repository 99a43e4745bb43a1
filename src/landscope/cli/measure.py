"""`landscope measure`: every measure of a saved model, from a checkpoint to a report."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from landscope.cli.failures import CommandError
from landscope.cli.options import (
    DataName,
    DataOptions,
    Device,
    Json,
    Measures,
    MeasureSeed,
    ModelOptions,
    ModelOrFolder,
    OptionalCheckpoint,
    PixelScale,
    Root,
    Samples,
    named_measures,
    optional,
)
from landscope.cli.output import console, note, target
from landscope.core.text import examples

if TYPE_CHECKING:
    from landscope.core.json import Plain
    from landscope.measures.resolve import Wanted

EXAMPLES = examples(
    "landscope measure runs/first                          # what `landscope train` left there",
    "landscope measure net.safetensors --model mlp --data digits",
    "landscope measure vgg.pt --model vgg19 --data cifar10 --pixels standard --samples 2000 \\",
    "    --measures loss,accuracy,hessian_top_eigenvalue,relative_flatness --output vgg.json",
    "landscope measure net.pt --model my_package.nets:build -o width=32 --data mnist --split test",
    "landscope measure net.pt --model resnet20 --data cifar10 --settings chosen.yaml --seconds 600",
    "landscope measure net.pt --model my_package.nets:build --data my_package.rows:load",
    "torchrun --nproc-per-node 4 -m landscope measure net.pt --model resnet18 --data cifar10",
    "torchrun --nproc-per-node 8 -m landscope measure --model hf:runs/llama --data texts.jsonl --shard",
    "landscope measure --model hf:runs/gpt2 --data texts.jsonl --max-length 512",
) + (
    "\n\n\b\nA settings file names measures and what to change in them:\n"
    "  loss:\n  hessian_trace: {tol: 0.01}\n  relative_flatness: {layer: fc}"
)


def measure(
    checkpoint: OptionalCheckpoint = None,
    model: ModelOrFolder = None,
    data: DataName = None,
    option: ModelOptions = None,
    data_option: DataOptions = None,
    split: Annotated[Literal["train", "validation", "test"], typer.Option(help="Split to measure on.")] = "train",
    samples: Samples = None,
    pixels: PixelScale = None,
    measures: Measures = None,
    settings: Annotated[
        Path | None, optional(metavar="FILE.yaml", help="Measures with their settings, instead of --measures.")
    ] = None,
    loss: Annotated[
        str | None,
        optional(
            help="model (what the model computes from the labels), cross_entropy, mse, binary_cross_entropy, exponential.  "
            "[default: the model's own where it has one, otherwise cross_entropy for classes, else mse]"
        ),
    ] = None,
    mode: Annotated[
        Literal["eval", "batch_statistics"], typer.Option(help="BatchNorm's statistics: its own, or each batch's.")
    ] = "eval",
    per: Annotated[
        Literal["token", "sequence"] | None,
        optional(help="What counts the same where samples are sequences.  [default: token]"),
    ] = None,
    max_length: Annotated[
        int | None, optional(min=2, help="Tokens of a text at most.  [default: the model's limit, 1024 at most]")
    ] = None,
    text_column: Annotated[str | None, optional(metavar="NAME", help="Column of the texts.  [default: text]")] = None,
    label_column: Annotated[
        str | None, optional(metavar="NAME", help="Column of the labels.  [default: label]")
    ] = None,
    batch_size: Annotated[
        int | None, optional(min=1, help="Rows per batch; part of the definition with --mode batch_statistics.")
    ] = None,
    temperature: Annotated[float, typer.Option(help="Divide the outputs by this.")] = 1.0,
    device: Device = None,
    shard: Annotated[
        bool, typer.Option("--shard", help="Under torchrun: share out the parameters, too, each layer a unit of FSDP2.")
    ] = False,
    dtype: Annotated[Literal["float32", "float64"] | None, optional(help="Precision.")] = None,
    seconds: Annotated[float | None, optional(help="Stop after about this many seconds.")] = None,
    passes: Annotated[float | None, optional(help="Stop after about this many passes over the data.")] = None,
    seed: MeasureSeed = 0,
    root: Root = None,
    output: Annotated[Path | None, optional(metavar="FILE.json", help="Also write the report there.")] = None,
    as_json: Json = False,
) -> None:
    """Measure a saved model on a data set.

    The folder of a training, or weights in it, are measured on the data that they were trained on, on the same scale and
    splits, as the spec there says; options given here take precedence, with a warning where they differ.

    The report has the value of every measure, its error bars, and a reading in words. On a terminal the table fills while
    you wait and its error bars shrink; Ctrl-C keeps what is there. With --seconds or --passes every measure gets a first
    estimate, then a fair share of what is left.

    A model of Hugging Face's (hf:FOLDER) is measured on texts, at the loss that it computes itself: --data names a .txt file
    with a text per line, or a .jsonl file with an object per line (text; prompt and completion; text and label; text and target;
    tokens and labels).

    Under torchrun each process takes its part of the rows, on its own GPU where there are several. With --shard it also holds
    only a part of the parameters: what no single device can hold is measured by several.
    """
    from dataclasses import replace

    import torch

    import landscope
    from landscope.cli import sources
    from landscope.cli.sources import Given, saved_network
    from landscope.measures.measuring import INTERRUPTED
    from landscope.measures.resolve import resolve_measures
    from landscope.models.pretrained import PREFIX
    from landscope.probe.loss.losses import LOSSES
    from landscope.probe.totals import checked_limit

    checked_limit("--seconds", seconds)
    checked_limit("--passes", passes)
    if loss not in (None, "model"):
        LOSSES[loss]
    target(output)
    chosen = resolve_measures(_wanted(measures, settings), seed)
    place = sources.usable_device(device)
    if model is not None and model.startswith(PREFIX):
        subject = sources.loaded_texts(
            model,
            checkpoint,
            data,
            samples=samples,
            max_length=max_length,
            text_column=text_column,
            label_column=label_column,
            seed=seed,
        )
    elif checkpoint is None:
        if model is None:
            raise CommandError(
                "nothing to measure; name a file of weights, or the folder of a training, such as runs/first"
            )
        raise CommandError(
            f"--model {model} needs a CHECKPOINT with its weights; the folder of a training needs no --model"
        )
    else:
        given = Given(model, option, data, data_option, pixels, root, loss)
        subject = saved_network(checkpoint, given).subject(split, samples, seed, place)
    with sources.process_group(place) as (place, rank, world):
        report = landscope.measure(
            sources.sharded(subject.model, place, world) if shard else subject.model,
            subject.part(rank, world),
            chosen,
            loss=loss if subject.loss is None else subject.loss,
            mode=mode,
            per=per,
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
        about = subject.about
        del subject  # a sharded model holds the group, which ends here
    if rank > 0:  # every process has the same report; one shows it
        return
    notices = [
        *cast("list[Plain]", report.about.get("notices", [])),
        *cast("list[Plain]", about.get("notices", [])),
    ]
    named = {"notices": notices} if notices else {}
    report = replace(report, about={**report.about, **about, **named})
    if as_json:
        typer.echo(report.to_json())
    else:
        console().print(report)
    if output is not None:  # last: what was measured is on the screen even where no file can be written any more
        report.save(output)
        note(f"written: {output}")
    if any(estimate.reason.startswith(INTERRUPTED) for estimate in report.values()):
        note("this is what was measured until you stopped it; the same command would start over")
        raise typer.Exit(130)


def _wanted(names: str | None, settings: Path | None) -> Wanted:
    """What is to be measured: the core set, all, some by name, or some with settings from a file."""
    if settings is None:
        return names if names in (None, "all", "core") else named_measures(names)
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

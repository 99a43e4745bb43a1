"""Options that several commands share, each defined once."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from landscope.cli.failures import CommandError

optional = partial(typer.Option, show_default=False)
"""An option that may be left out, with no default to show."""
Pixels = Literal["unit", "raw", "standard", "symmetric"]
"""As in `landscope.data`, which would bring torch: help comes without it."""

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Root = Annotated[
    Path | None, optional(help="Folder of the data sets.  [default: $LANDSCOPE_DATA, then the user's cache]")
]
_WEIGHTS = typer.Argument(
    metavar="CHECKPOINT",
    help="The folder of a training; or weights: a safetensors file, or a state dict written by torch.save, also under the "
    "key 'state_dict', 'model_state_dict' or 'model'.",
    show_default=False,
)
Checkpoint = Annotated[Path, _WEIGHTS]
OptionalCheckpoint = Annotated[Path | None, _WEIGHTS]
FROM_SPEC = "  [default: that of the spec beside the weights]"
Model = Annotated[
    str | None,
    optional(
        metavar="NAME|MODULE:FUNCTION",
        help="A name from `landscope models`, or package.module:function, which is called with the options and returns "
        f"an nn.Module; the current folder is searched, too.{FROM_SPEC}",
    ),
]
ModelOrFolder = Annotated[
    str | None,
    optional(
        "--model",
        metavar="NAME|MODULE:FUNCTION|hf:FOLDER",
        help="A name from `landscope models`; package.module:function, which is called with the options and returns "
        "an nn.Module (the current folder is searched, too); or hf:FOLDER, made by save_pretrained, which brings its weights."
        f"{FROM_SPEC}",
    ),
]
Measures = Annotated[
    str | None, optional(metavar="core|all|A,B,C", help="Names from `landscope measures`, or all.  [default: core]")
]
MeasureSeed = Annotated[int, typer.Option(help="Seed of the measures; that of the data is --data-option seed=…")]
ModelOptions = Annotated[
    list[str] | None,
    optional(
        "--option",
        "-o",
        metavar="KEY=VALUE",
        help="An option of the model, such as num_classes=100 or widths=[64,64]; may be repeated.",
    ),
]
DataName = Annotated[
    str | None,
    optional(
        metavar="NAME|MODULE:FUNCTION|FILE",
        help="A name from `landscope data list`; package.module:function, which is called with --data-option and returns "
        f"a mapping from train, validation and test to (x, y) or to a Dataset; for hf: models a file of texts.{FROM_SPEC}",
    ),
]
DataOptions = Annotated[
    list[str] | None,
    optional(
        metavar="KEY=VALUE",
        help="An option of landscope.data.load, such as label_noise=0.1, seed=3, or verify=false for files of your own; "
        "may be repeated.",
    ),
]
PixelScale = Annotated[
    Pixels | None,
    optional(
        help="Scale of the inputs: images in [0, 1] (unit), in [−1, 1] (symmetric), with the training set's mean 0 "
        "and deviation 1 (standard), or bytes (raw). Use the one the model was trained with."
        "  [default: that of the spec beside the weights, else unit]"
    ),
]
Samples = Annotated[
    int | None,
    optional(
        min=1,
        metavar="N",
        help="Use N samples, drawn in proportion to the classes; of a file of texts the first N.  [default: all]",
    ),
]
Device = Annotated[str | None, optional(help="Where to compute: cpu, cuda, cuda:1, …  [default: cuda if available]")]
TimeLimit = Annotated[
    float | None,
    optional(metavar="SECONDS", min=0, help="Stop cleanly after this many seconds; run the same command to resume."),
]


# How the runs of a study, or of a paper, are run.


ExecutorName = Literal["local", "ray", "slurm"]
ExecutorOption = Annotated[
    ExecutorName, typer.Option("--executor", help="Where to run: on this machine, on a Ray cluster, or through Slurm.")
]
ExecutorOptions = Annotated[
    list[str] | None,
    optional(
        "--executor-option",
        "-e",
        metavar="KEY=VALUE",
        help="A setting of the executor: workers=4, per_gpu=2, mps=true (local), address=auto (ray), minutes=120 (slurm); may be "
        "repeated.",
    ),
]
Gpus = Annotated[
    int | None, optional(min=0, metavar="N", help="GPUs per run.  [default: 1 if this machine has one, otherwise 0]")
]
Pool = Annotated[
    bool | None,
    optional(
        "--pool/--no-pool",
        help="Train runs that differ only in seeds and numbers together, as one program, where that is faster; each is then "
        "measured by itself.",
    ),
]
Only = Annotated[
    list[str] | None,
    optional(
        metavar="NAME=VALUE", help="Only runs with this level of an axis, this seed or this condition; may be repeated."
    ),
]
RetryFailed = Annotated[bool, typer.Option("--retry-failed", help="Run failed runs again.")]


def named_measures(words: str) -> list[str]:
    """The names given to --measures.

    >>> named_measures("loss, l2_norm")
    ['loss', 'l2_norm']
    """
    names = [word.strip() for word in words.split(",") if word.strip()]
    if not names:
        raise CommandError(f"--measures: expected names such as loss,accuracy, got {words!r}. See: landscope measures")
    return names

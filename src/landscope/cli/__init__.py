"""The command line: thin commands over the library. Nothing imports it; it may import everything.

A file per command. What a command needs is imported when it runs, so that help stays quick.
"""

from __future__ import annotations

import atexit
import gc
import signal
import sys
from typing import Annotated

import typer

from landscope.cli import bench, catalogues, compare, doctor, measure, paper, robustness, study, train
from landscope.cli.failures import EXIT_CODES, Commands, interrupted
from landscope.core.text import examples

__all__ = ["app", "main"]

app = typer.Typer(
    name="landscope",
    cls=Commands,
    help="What kind of minimum does your trained network sit in? Measure its sharpness, calibration and robustness, "
    "each with an error bar; train pools of networks, and report which measures correlate with which outcomes.",
    epilog=examples(
        "landscope doctor                                     # check the installation",
        "landscope data list                                  # list the data sets",
        "landscope measure net.safetensors --model resnet20 --data cifar10 --samples 1000",
        "landscope compare before.pt after.pt --model resnet20 --data cifar10   # what differs, and whether it is real",
        "landscope train spec.yaml                            # one network, resumable",
        "landscope study run study.yaml                       # a pool of networks, and a report",
        "landscope paper run adaptive-sharpness --size tiny   # a paper's experiment",
        "landscope robustness net.safetensors --model resnet20 --data cifar10",
        "landscope measure --help                             # every command has examples",
    )
    + "\n\n\b\nExit codes:\n"
    + "\n".join(f"  {code:<4}{meaning}" for code, meaning in EXIT_CODES.items()),
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
)

app.add_typer(catalogues.data_app, name="data")
app.add_typer(study.app, name="study")
app.add_typer(paper.app, name="paper")
app.add_typer(paper.app, name="recipe", hidden=True)  # its name before 0.1.0
app.command("train", epilog=train.EXAMPLES)(train.train)
app.command("report", epilog=study.REPORT_EXAMPLES)(study.report)
app.command("models", epilog=catalogues.MODEL_EXAMPLES)(catalogues.models)
app.command("measures", epilog=catalogues.MEASURE_EXAMPLES)(catalogues.measures)
app.command("measure", epilog=measure.EXAMPLES)(measure.measure)
app.command("compare", epilog=compare.EXAMPLES)(compare.compare)
app.command("compare-studies", epilog=compare.STUDIES_EXAMPLES)(compare.compare_studies)
app.command("robustness", epilog=robustness.EXAMPLES)(robustness.robustness)
app.command("doctor", epilog=doctor.EXAMPLES)(doctor.doctor)
app.command("bench", epilog=bench.EXAMPLES)(bench.bench)


@app.callback(invoke_without_command=True)
def landscope(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks; works after a command, too.")] = False,
) -> None:
    """Show the version or the help where no command is given."""
    del debug  # taken from the arguments before they are parsed, see `Commands`
    if version:
        from landscope import __version__

        typer.echo(f"landscope {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """Run the command that the process was started with."""
    signal.signal(signal.SIGINT, interrupted)
    gc.set_threshold(200_000, 50, 50)  # thousands of records are read at once, and none of them is a cycle
    atexit.register(gc.freeze)  # a search for cycles in all of torch, at the very end, would take 0.2 s
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a terminal without λ and ± shows ? instead of failing
    app(prog_name="landscope")

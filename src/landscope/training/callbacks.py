"""What a run reports while it trains: subclass `Callback`, or use TensorBoard or Weights & Biases; and the progress display."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING

from torch import Tensor, nn

from landscope.core.errors import MissingExtraError
from landscope.core.json import Plain
from landscope.core.progress import Progress, progress_display
from landscope.specs.schema import to_plain
from landscope.training.schedule import Row
from landscope.training.spec import TrainingSpec

if TYPE_CHECKING:
    from landscope.training.loop.folder import TrainingResult


class Callback:
    """Does nothing by default; a subclass overrides what it needs.

    In a run of several processes only the first one calls it. A resumed run begins again with `on_start`, and epochs after the
    checkpoint are reported again.
    """

    def on_start(self, spec: TrainingSpec, model: nn.Module) -> None:
        """Before the first step."""

    def on_step(self, step: int, loss: Tensor, lr: float) -> None:
        """After an optimizer step, `step` counted from 1. `loss` is the batch's mean, still on the device: reading it waits."""

    def on_epoch(self, row: Row, model: nn.Module) -> None:
        """After an epoch that has a row of the history, with the row and the model, which must be left as it is.

        Every epoch has one, or with `evaluate_every` every n-th and the last.
        """

    def on_end(self, result: TrainingResult) -> None:
        """After the run, finished or not."""


class TensorBoard(Callback):
    """Writes the history to a folder that `tensorboard --logdir` shows."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        module = _extra("torch.utils.tensorboard", "tensorboard", "the TensorBoard callback")
        self._writer = module.SummaryWriter(log_dir=os.fspath(folder))

    def on_epoch(self, row: Row, model: nn.Module) -> None:
        for name, value in _figures(row).items():
            self._writer.add_scalar(name, value, global_step=int(row["step"]))

    def on_end(self, result: TrainingResult) -> None:
        self._writer.close()


class WeightsAndBiases(Callback):
    """Sends the spec and the history to a run of Weights & Biases; the options are those of `wandb.init`."""

    def __init__(self, **options: object) -> None:
        self._wandb = _extra("wandb", "wandb", "the Weights & Biases callback")
        self._options = options

    def on_start(self, spec: TrainingSpec, model: nn.Module) -> None:
        """Begin a run with the spec as its configuration."""
        config: Plain = to_plain(spec)
        self._run = self._wandb.init(**{"config": config, **self._options})

    def on_epoch(self, row: Row, model: nn.Module) -> None:
        self._run.log(dict(_figures(row)), step=int(row["step"]))

    def on_end(self, result: TrainingResult) -> None:
        """Finish the run, with exit code 1 if the training was interrupted."""
        self._run.finish(exit_code=0 if result.finished else 1)


def _figures(row: Row) -> Mapping[str, float]:
    return {name: value for name, value in row.items() if name != "step"}


def _extra(module: str, extra: str, purpose: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError.of(extra, extra, purpose) from error


# What a person sees: a bar with loss and accuracy on a terminal, a line for each row of the history in a log, or nothing.


INTERVAL = 0.25
"""Seconds between two looks at the running means, each of which waits for the device."""

Means = Callable[[], tuple[float, float | None]]
"""Loss and error since the last row of the history."""


class TrainingDisplay:
    """Notified after every step and every row of the history."""

    def __init__(self, progress: Progress, epochs: int, steps: int, done: int) -> None:
        self._progress, self._epochs, self._steps, self._before = progress, epochs, steps, done
        self._started, self._shown, self._validation = time.monotonic(), 0.0, ""

    def step(self, done: int, means: Means) -> None:
        """This many optimizer steps are done."""
        now = time.monotonic()
        if not self._progress.live or now - self._shown < INTERVAL:
            return
        self._shown = now
        loss, error = means()
        accuracy = "" if error is None else f", accuracy {100 * (1 - error):.1f} %"
        epoch = min(self._epochs, done * self._epochs // self._steps + 1)
        self._progress.show(done, doing=f"epoch {epoch}/{self._epochs}: loss {loss:.4g}{accuracy}{self._validation}")

    def epoch(self, row: Row) -> None:
        """An epoch that has a row is over."""
        _, comma, validation = in_words(row).partition(", validation")
        self._validation = comma + validation
        spent = time.monotonic() - self._started
        left = spent / max(1, row["step"] - self._before) * (self._steps - row["step"])
        self._progress.line(f"[{row['epoch']:.0f}/{self._epochs}] {in_words(row)}, {spent:.1f} s, {left:.0f} s left")


def in_words(row: Row) -> str:
    """The figures of an epoch.

    >>> in_words({"epoch": 1, "train_loss": 0.5, "train_error": 0.25, "validation_error": 0.5})
    'loss 0.5, accuracy 75.0 %, validation accuracy 50.0 %'
    """
    parts = [f"loss {row['train_loss']:.4g}"]
    if "train_error" in row:
        parts.append(f"accuracy {100 * (1 - row['train_error']):.1f} %")
    if "validation_error" in row:
        parts.append(f"validation accuracy {100 * (1 - row['validation_error']):.1f} %")
    elif "validation_loss" in row:
        parts.append(f"validation loss {row['validation_loss']:.4g}")
    return ", ".join(parts)


@contextmanager
def training_display(wish: bool | None, steps: int, epochs: int, done: int) -> Iterator[TrainingDisplay]:
    """The display of a run of `steps` steps, `done` of them before: on a terminal unless switched off; elsewhere if asked for."""
    with progress_display(wish, steps, done) as progress:
        yield TrainingDisplay(progress, epochs, steps, done)

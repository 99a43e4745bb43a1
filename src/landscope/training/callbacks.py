"""What a run reports while it trains: subclass `Callback`, or use TensorBoard or Weights & Biases."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING

from torch import Tensor, nn

from landscope.core.errors import MissingExtraError
from landscope.core.json import Plain
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
        """One point on every curve."""
        del model
        for name, value in _figures(row).items():
            self._writer.add_scalar(name, value, global_step=int(row["step"]))

    def on_end(self, result: TrainingResult) -> None:
        """Everything is on the disk."""
        del result
        self._writer.close()


class WeightsAndBiases(Callback):
    """Sends the spec and the history to a run of Weights & Biases; the options are those of `wandb.init`."""

    def __init__(self, **options: object) -> None:
        self._wandb = _extra("wandb", "wandb", "the Weights & Biases callback")
        self._options = options

    def on_start(self, spec: TrainingSpec, model: nn.Module) -> None:
        """Begin a run with the spec as its configuration."""
        del model
        config: Plain = to_plain(spec)
        self._run = self._wandb.init(**{"config": config, **self._options})

    def on_epoch(self, row: Row, model: nn.Module) -> None:
        """One point on every curve."""
        del model
        self._run.log(dict(_figures(row)), step=int(row["step"]))

    def on_end(self, result: TrainingResult) -> None:
        """Close the run."""
        self._run.finish(exit_code=0 if result.finished else 1)


def _figures(row: Row) -> Mapping[str, float]:
    return {name: value for name, value in row.items() if name != "step"}


def _extra(module: str, extra: str, purpose: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError.of(extra, extra, purpose) from error

"""What is known of a run, epoch by epoch."""

from __future__ import annotations

from typing import TypeAlias

from torch import Tensor

from landscope.training.evaluating import Score
from landscope.training.step import METRICS

__all__ = ["Row", "epoch_row"]

Row: TypeAlias = dict[str, float]
"""epoch, step, lr, train_loss, train_error, validation_loss, validation_error, kappa, seconds: as far as they exist.

Training figures are means over the batches of the epoch as they were met (with the weights and the augmentation of that moment);
validation figures are those of the weights at its end. `kappa` is FAM's κ. `seconds` count from the start of the run.
"""


def epoch_row(
    *,
    epoch: int,
    step: int,
    lr: float,
    totals: Tensor,
    rows: int,
    validation: Score | None,
    classes: int,
    fam: bool,
    seconds: float,
) -> Row:
    """The row of an epoch from the sums over its batches."""
    means = dict(zip(METRICS, (totals / rows).tolist(), strict=True))
    row: Row = {"epoch": epoch, "step": step, "lr": lr, "train_loss": means["loss"]}
    if classes:
        row["train_error"] = means["error"]
    if validation is not None:
        row["validation_loss"] = validation.loss
        if validation.error is not None:
            row["validation_error"] = validation.error
    if fam:
        row["kappa"] = means["kappa"]
    row["seconds"] = seconds
    return row

"""What is known of a run: a row after every epoch, or after every `evaluate_every` of them."""

from __future__ import annotations

from typing import TypeAlias

from torch import Tensor

from landscope.training.evaluating import Score
from landscope.training.spec import TrainingSpec
from landscope.training.step import METRICS

__all__ = ["Row", "epoch_row", "has_row", "row_before"]

Row: TypeAlias = dict[str, float]
"""epoch, step, lr, train_loss, train_error, validation_loss, validation_error, kappa, seconds: as far as they exist.

Training figures are means over the batches since the row before, as they were met (with the weights and the augmentation of that
moment); validation figures are those of the weights at the end of the epoch. `kappa` is FAM's κ. `seconds` count from the start
of the run.
"""


def has_row(spec: TrainingSpec, epoch: int) -> bool:
    """Whether an epoch, counted from 1, ends with a row.

    >>> from landscope.training.spec import ModelSpec
    >>> spec = TrainingSpec(model=ModelSpec(name="mlp"), epochs=5, evaluate_every=2)
    >>> [epoch for epoch in range(1, 6) if has_row(spec, epoch)]
    [2, 4, 5]
    """
    return epoch % spec.evaluate_every == 0 or epoch == spec.epochs


def row_before(spec: TrainingSpec, epoch: int) -> int:
    """The last epoch before this one, both counted from 1, that has a row; 0 if none has.

    >>> from landscope.training.spec import ModelSpec
    >>> row_before(TrainingSpec(model=ModelSpec(name="mlp"), epochs=5, evaluate_every=2), 4)
    2
    """
    return (epoch - 1) // spec.evaluate_every * spec.evaluate_every


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
    """The row of an epoch from the sums over the batches, of so many rows of data, since the row before."""
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

"""Accuracy and error: the share of samples whose most probable class is, or is not, the label."""

from __future__ import annotations

from landscope.core.estimate import Estimate
from landscope.measures.calibration.resampling import mean_estimate
from landscope.measures.calibration.scores import Array, Logits, Scores

__all__ = ["accuracy", "accuracy_value", "error", "error_value"]


def accuracy_value(logits: Logits, labels: Array) -> float:
    """mean_i 1[argmax_c z_ic = y_i]; where classes tie, the first of them is the prediction."""
    return float(Scores.of(logits, labels).correct.mean())


def accuracy(logits: Logits, labels: Array) -> Estimate:
    """The accuracy with its standard error.

    >>> import torch
    >>> accuracy(torch.eye(4), torch.tensor([0, 1, 2, 0])).value
    0.75
    """
    return mean_estimate(Scores.of(logits, labels).correct)


def error_value(logits: Logits, labels: Array) -> float:
    """1 − accuracy."""
    return float(1 - Scores.of(logits, labels).correct.mean())


def error(logits: Logits, labels: Array) -> Estimate:
    """The error rate with its standard error.

    >>> import torch
    >>> error(torch.eye(4), torch.tensor([0, 1, 2, 0])).value
    0.25
    """
    return mean_estimate(1 - Scores.of(logits, labels).correct)

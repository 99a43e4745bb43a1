"""Calibration: whether stated probabilities are true. Functions of logits and labels, and measures at a probe.

Every function takes tensors or NumPy arrays: logits, or probabilities as `probabilities(p)`. It returns an `Estimate` whose
error bar says what another sample of that size would change. Importing this package registers the measures.

>>> import torch
>>> from landscope.measures.calibration import ece, nll
>>> logits, labels = torch.randn(500, 10, generator=torch.Generator().manual_seed(0)), torch.arange(500) % 10
>>> 0 < float(ece(logits, labels)) < 1 and nll(logits, labels).stderr > 0
True
"""

from landscope.measures.calibration import measures as at_probe
from landscope.measures.calibration.errors import (
    BrierParts,
    accuracy,
    ace,
    brier,
    brier_parts,
    classwise_ece,
    ece,
    error,
    mce,
    nll,
)
from landscope.measures.calibration.human import (
    human_cross_entropy,
    human_distance,
    human_ece,
    human_entropy_error,
    human_kl,
)
from landscope.measures.calibration.reliability import Reliability, reliability
from landscope.measures.calibration.scores import Probabilities, probabilities
from landscope.measures.calibration.temperature import Calibrated, TemperatureFit, calibrated, fit_temperature

__all__ = [
    "BrierParts",
    "Calibrated",
    "Probabilities",
    "Reliability",
    "TemperatureFit",
    "accuracy",
    "ace",
    "at_probe",
    "brier",
    "brier_parts",
    "calibrated",
    "classwise_ece",
    "ece",
    "error",
    "fit_temperature",
    "human_cross_entropy",
    "human_distance",
    "human_ece",
    "human_entropy_error",
    "human_kl",
    "mce",
    "nll",
    "probabilities",
    "reliability",
]

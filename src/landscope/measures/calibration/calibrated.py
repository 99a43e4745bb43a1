"""Temperature scaling as it is to be used: fitted on validation samples, applied to others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from landscope.core.errors import DataError, OperandError
from landscope.measures.calibration.scores import Array, Logits, checked_logits
from landscope.measures.calibration.temperature import TemperatureFit, fit_temperature

__all__ = ["Calibrated", "calibrated", "repeated_samples"]

REPEATED = 0.05
"""Share of validation samples that may reappear among the test samples: data sets do hold a few duplicates."""


@dataclass(frozen=True, eq=False)
class Calibrated:
    """Test logits divided by the temperature that was fitted on validation samples."""

    logits: Tensor
    fit: TemperatureFit


def calibrated(validation_logits: Logits, validation_labels: Array, test_logits: Logits) -> Calibrated:
    """Fit on the validation samples and scale the test logits; refused where samples are in both.

    A temperature that is scored on the samples it was fitted to looks better than it is. Samples are recognised by their
    logits, bit for bit: more than 5 % of the validation samples among the test samples are taken for a mistake.

    >>> import torch
    >>> z = torch.randn(400, 3, generator=torch.Generator().manual_seed(0))
    >>> y = torch.multinomial(z.softmax(1), 1, generator=torch.Generator().manual_seed(1))[:, 0]
    >>> calibrated(5 * z[:200], y[:200], 5 * z[200:]).logits.shape
    torch.Size([200, 3])
    >>> calibrated(5 * z[:200], y[:200], 5 * z)
    Traceback (most recent call last):
    landscope.core.errors.DataError: 200 of 200 validation samples are among the test samples ...
    """
    validation, test = checked_logits(validation_logits), checked_logits(test_logits)
    if validation.shape[1] != test.shape[1]:
        raise OperandError(f"validation logits have {validation.shape[1]} classes, test logits {test.shape[1]}")
    repeated = repeated_samples(validation, test)
    if repeated > REPEATED * len(validation):
        raise DataError(
            f"{repeated} of {len(validation)} validation samples are among the test samples (equal logits). A temperature is "
            f"never scored on samples that it was fitted to: split the data, and pass the test half only."
        )
    fit = fit_temperature(validation_logits, validation_labels)
    return Calibrated(fit.scale(test), fit)


def repeated_samples(first: Tensor, second: Tensor) -> int:
    """How many rows of the first matrix are rows of the second, bit for bit. O(n log n).

    >>> import torch
    >>> repeated_samples(torch.eye(3), torch.eye(3)[1:])
    2
    """
    row = np.dtype((np.void, first.shape[1] * first.element_size()))  # a whole row as one value
    mine, others = (np.ascontiguousarray(t.numpy()).view(row)[:, 0] for t in (first, second))
    return int(np.isin(mine, others).sum())

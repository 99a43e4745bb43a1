"""Mean and standard deviation of numbers of any size: those of a run that diverged have squares beyond what a float can hold."""

from __future__ import annotations

import math
import sys

import numpy as np

from landscope.analysis.coefficients import Floats

__all__ = ["mean_and_deviation", "scaled"]


def scaled(values: Floats) -> tuple[Floats, int]:
    """Numbers of size 1 and less (those that are finite), and which power of two they were divided by; no digit changes.

    >>> scaled(np.array([3e200, -1.0]))[0].round(2), scaled(np.array([1.0, 8.0]))
    (array([ 0.98, -0.  ]), (array([0.0625, 0.5   ]), 4))
    """
    power = int(np.frexp(np.abs(values[np.isfinite(values)]).max(initial=0.0))[1])
    return np.ldexp(values, -power), power


def mean_and_deviation(values: Floats) -> tuple[float, float]:
    """Of finite numbers, with n − 1 in the denominator: NaN for one alone, the largest float where it would be larger still.

    >>> [round(number, 4) for number in mean_and_deviation(np.array([1.0, 3.0]))]
    [2.0, 1.4142]
    """
    small, power = scaled(values)
    deviation = float(np.std(small, ddof=1)) if len(small) > 1 else math.nan
    with np.errstate(over="ignore"):
        return float(np.ldexp(small.mean(), power)), min(float(np.ldexp(deviation, power)), sys.float_info.max)

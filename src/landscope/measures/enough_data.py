"""How many samples suffice: from the error over the data, which shrinks with the square root of their number."""

from __future__ import annotations

import math

from landscope.core.errors import NotApplicableError
from landscope.core.probe import Probe
from landscope.measures.base import Measure
from landscope.measures.measuring import resolve_measures

__all__ = ["enough_data"]


def enough_data(measure: Measure | str, probe: Probe, rel: float = 0.05) -> int:
    """Samples after which the error over the data is `rel` of the value: n (data_stderr / (rel · |value|))².

    One measurement on the samples at hand; a rule for more of the same kind of data.

    >>> import torch
    >>> net = torch.nn.Linear(3, 2)
    >>> probe = Probe(net, (torch.randn(200, 3), torch.arange(200) % 2))
    >>> 1 < enough_data("relative_flatness", probe, rel=0.05) < 10_000
    True
    """
    if not rel > 0:
        raise ValueError(f"rel must be positive, got {rel}")
    (one,) = resolve_measures(measure, probe.seed).values()
    estimate = one(probe)
    if not estimate.status.has_value:
        raise NotApplicableError(f"{one.key}: {estimate.reason}")
    if estimate.data_stderr is None or estimate.value == 0:
        raise NotApplicableError(
            f"{one.key} has no error over the data here, so it cannot say how many samples suffice"
        )
    return max(2, math.ceil(probe.n_samples * (estimate.data_stderr / (rel * abs(estimate.value))) ** 2))

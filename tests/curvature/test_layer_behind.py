"""Whether samples act on each other behind a layer."""

from __future__ import annotations

import pytest
import torch

from landscope.curvature.layer.behind import behind, samples_mix


@pytest.mark.parametrize("n", [2, 3, 8, 13])
def test_any_pair_of_samples_that_mixes_is_found(n: int) -> None:
    for i in range(n):
        for j in range(i):
            a = torch.randn(n, 2, dtype=torch.float64, requires_grad=True)
            alone = a.pow(4).sum()
            assert samples_mix(behind(alone, a)) is False
            assert samples_mix(behind(alone + (a[i] * a[j]).sum(), a)) is True

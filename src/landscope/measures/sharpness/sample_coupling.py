"""Whether what follows a layer treats each sample of a batch by itself, found out by trying.

In eval mode it does: a probe refuses models whose outputs depend on the rest of the batch. With batch statistics, normalisation
couples the samples, be it a BatchNorm layer or written by hand, and second derivatives across samples count.
"""

from __future__ import annotations

import torch
from torch import Tensor

from landscope.core.batches import Batch, tensors_in
from landscope.core.distributed import sum_over_processes
from landscope.core.probe import Probe
from landscope.measures.shared import once_per_probe
from landscope.measures.sharpness.layer_sites import nearly_equal, replaced_output

__all__ = ["samples_stay_apart"]


@once_per_probe
def samples_stay_apart(probe: Probe, layer: str) -> bool:
    """The layer's output is changed for some samples of a batch: the model's outputs for the others must not notice.

    Three forward passes over the first batch of several samples; none in eval mode.

    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 2))
    >>> probe = Probe(net, (torch.randn(8, 2), torch.arange(8) % 2), mode="batch_statistics")
    >>> samples_stay_apart(probe, "0"), samples_stay_apart(probe, "2")
    (False, True)
    """
    if probe.mode == "eval":
        return True
    batch = next((batch for batch in probe.batches() if batch.size > 1), None)
    moved = 0 if batch is None else _moved(probe, layer, Batch(probe.ready(batch.raw), batch.size, batch.divisible))
    return float(sum_over_processes(torch.tensor(float(moved), device=probe.device))) == 0


def _moved(probe: Probe, layer: str, batch: Batch) -> int:
    """How many of the model's outputs notice what happens to other samples."""
    place = torch.arange(batch.size, device=probe.device)
    rounding = 100 * torch.finfo(probe.dtype).eps

    def outputs(changed: Tensor) -> list[Tensor]:
        def change(_: Tensor, out: Tensor) -> Tensor:
            return torch.where(changed.view(-1, *[1] * (out.dim() - 1)), 1 - 2 * out, out)

        with replaced_output(probe.module(layer), change):
            return tensors_in(probe.outputs(probe.params, batch))

    def same(a: Tensor, b: Tensor, kept: Tensor) -> bool:
        return a.shape[:1] == (batch.size,) and nearly_equal(a[kept], b[kept], rounding)

    with probe.measuring(), torch.no_grad():
        before = outputs(place < 0)
        return sum(
            not same(a, b, ~changed)
            for changed in (place % 2 == 0, place < batch.size // 2)
            for a, b in zip(before, outputs(changed), strict=True)
        )

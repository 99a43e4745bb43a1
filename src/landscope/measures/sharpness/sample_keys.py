"""A 64-bit key for every sample, from its content and the number of its copy: not from its place in the data.

Copies of a sample must not share random numbers, or an error bar that takes samples as independent is too small. They are told
apart by counting: whichever copy comes first is the first, and as copies are alike, sums over samples do not depend on the batch
size, the order of the data and the number of processes. One pass over the data (hashing, no model), once per probe.
"""

from __future__ import annotations

from collections import Counter

import torch
import torch.distributed as dist
from torch import Tensor

from landscope.core.batches import Batch
from landscope.core.distributed import processes
from landscope.core.probe import Probe
from landscope.core.reading import sample_hashes
from landscope.measures.shared import once_per_probe

__all__ = ["SampleKeys"]

GOLDEN = 0x9E3779B97F4A7C15
"""2⁶⁴ over the golden ratio: the keys of copies lie that far apart."""


class SampleKeys:
    """The keys of one pass over the data: `of` a piece before it is worked on, `count` once that has succeeded.

    >>> probe = Probe(torch.nn.Linear(1, 1), (torch.ones(3, 1), torch.zeros(3, 1)), "mse")
    >>> keys = SampleKeys(probe)
    >>> len(set(keys.of(next(probe.batches())).tolist()))
    3
    """

    def __init__(self, probe: Probe) -> None:
        self._device = probe.device
        self._repeated = _repeated(probe)
        self._seen = Counter(self._repeated)

    def of(self, batch: Batch) -> Tensor:
        """One key per sample (n,), a signed 64-bit integer."""
        hashes = sample_hashes(batch.raw)
        if self._repeated:
            here = Counter[int]()
            for place, content in enumerate(hashes.tolist()):
                if content in self._repeated:
                    hashes[place] = _wrapped(content + (self._seen[content] + here[content]) * GOLDEN)
                    here[content] += 1
        return hashes.to(self._device)

    def count(self, batch: Batch) -> None:
        """Its copies are taken: those that follow get other keys."""
        if self._repeated:
            self._seen.update(content for content in sample_hashes(batch.raw).tolist() if content in self._repeated)


@once_per_probe
def _repeated(probe: Probe) -> dict[int, int]:
    """Contents that occur more than once in all processes, and how often in those of a lower rank."""
    mine = torch.cat([sample_hashes(probe.ready(batch.raw)) for batch in probe.batches()])
    parts, rank = [mine], 0
    if processes() > 1:
        gathered: list[Tensor | None] = [None] * processes()
        dist.all_gather_object(gathered, mine)
        parts, rank = [part for part in gathered if part is not None], dist.get_rank()
    contents, counts = torch.cat(parts).unique(return_counts=True)
    repeated = set(contents[counts > 1].tolist())
    before = Counter(content for part in parts[:rank] for content in part.tolist() if content in repeated)
    return {content: before[content] for content in repeated}


def _wrapped(number: int) -> int:
    """Modulo 2⁶⁴, as a signed integer."""
    return (number + 2**63) % 2**64 - 2**63

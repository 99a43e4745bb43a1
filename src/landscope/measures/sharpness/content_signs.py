"""Random signs that belong to a sample: drawn from its key, not from its place in the data.

Where every sample gets probes of its own, the noise of an estimate falls with the number of samples, not only with the
number of probes. Drawn from the sample's key (`sample_keys`: its content and the number of its copy), the probes are
the same whatever the batch size, the order of the data and the number of processes. The bits are those of splitmix64
(Steele, Lea & Flood 2014) in counter mode.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["content_signs"]

GOLDEN = -7046029254386353131
"""2⁶⁴ over the golden ratio, as a signed integer."""


def content_signs(keys: Tensor, seed: int, stream: int, length: int, dtype: torch.dtype) -> Tensor:
    """Independent ±1 of shape (n, length), for n 64-bit keys, a seed and the number of a stream.

    >>> keys = torch.tensor([3, 5, 3])
    >>> signs = content_signs(keys, seed=0, stream=1, length=64, dtype=torch.float32)
    >>> bool(torch.equal(signs[0], signs[2])), bool(torch.equal(signs[0], signs[1])), signs.unique().tolist()
    (True, False, [-1.0, 1.0])
    """
    start = _mix(torch.tensor([seed, stream], dtype=torch.int64, device=keys.device) * GOLDEN)
    own = _mix(keys ^ _mix(start[0] + start[1] * GOLDEN))
    bits = _mix(own[:, None] + torch.arange(1, length + 1, device=keys.device) * GOLDEN)
    return (bits & 1).to(dtype).mul_(2).sub_(1)


def _mix(z: Tensor) -> Tensor:
    z = (z ^ _shift(z, 30)) * -4658895280553007687
    z = (z ^ _shift(z, 27)) * -7723592293110705685
    return z ^ _shift(z, 31)


def _shift(z: Tensor, bits: int) -> Tensor:
    """To the right, filling with zeros: torch's own shift of a signed integer repeats the sign."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)

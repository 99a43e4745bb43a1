"""Randomness is an argument: generators made from seeds, never global state.

Random vectors are drawn on the CPU whatever the device, so that a seed gives the same numbers on every machine and on
every process of a distributed run.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from landscope.core.shared_state import held

MANY = 2**24
"""Normal numbers from which on drawing them one after the other, on the CPU, takes longer than a product."""


def generator(seed: int, *stream: str | int) -> torch.Generator:
    """A CPU generator for `seed`, independent for each named stream.

    >>> a, b = generator(0, "trace"), generator(0, "eigen")
    >>> bool(torch.equal(torch.rand(4, generator=a), torch.rand(4, generator=b)))
    False
    """
    return torch.Generator("cpu").manual_seed(stream_seed(seed, *stream))


def stream_seed(seed: int, *stream: str | int) -> int:
    """The number that seeds `generator`, for generators that exist already.

    >>> stream_seed(0, "trace") == generator(0, "trace").initial_seed()
    True
    """
    digest = hashlib.sha256(repr((int(seed), *stream)).encode()).digest()
    return int.from_bytes(digest[:8], "little") % 2**63


def rademacher(
    shape: Sequence[int], rng: torch.Generator, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> Tensor:
    """Independent ±1 with equal chance.

    >>> rademacher((4,), generator(0), torch.float32).abs()
    tensor([1., 1., 1., 1.])
    """
    bits = torch.randint(0, 2, tuple(shape), generator=rng, dtype=torch.int8, device=rng.device)
    return bits.to(device).to(dtype).mul_(2).sub_(1)


def normal(
    shape: Sequence[int], rng: torch.Generator, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> Tensor:
    """Independent standard normal numbers; `MANY` and more of them are hashed where they are used, the same on every device."""
    count = math.prod(shape)
    if count < MANY:
        return torch.randn(tuple(shape), generator=rng, dtype=dtype, device=rng.device).to(device)
    found = torch.empty(count, dtype=dtype, device=device)
    for part in found.split(MANY):
        start = int(torch.randint(2**62, (1,), generator=rng, device=rng.device))
        words = splitmix(torch.arange(1, -(-len(part) // 2) + 1, device=device) * GOLDEN + start)
        size = (-2 * ((shifted(words, 40) + 1) * 2.0**-24).log()).sqrt()  # Box and Muller 1958
        angle = (words & (2**24 - 1)) * (2.0**-23 * math.pi)
        part.copy_(torch.cat((size * angle.cos(), size * angle.sin()))[: len(part)])
    return found.view(tuple(shape))


@contextmanager
def preserved_rng(*extra: torch.Generator) -> Iterator[None]:
    """Restore the global generators (torch, NumPy, Python) and `extra` ones, whatever happens inside.

    Reading a `DataLoader` draws from torch's global generator even without shuffling; users' transforms draw from all
    three. Where several threads are inside at once, the last one out puts back what the first one found.
    """
    with ExitStack() as stack:
        stack.enter_context(held("random state", _global_states, _set_global_states))
        for rng in extra:
            stack.enter_context(held(("generator", id(rng)), rng.get_state, rng.set_state))
        yield


def _global_states() -> tuple[Any, ...]:
    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() and torch.cuda.is_initialized() else ()
    cuda = {device: torch.cuda.get_rng_state(device) for device in devices}
    return random.getstate(), np.random.get_state(), torch.get_rng_state(), cuda  # noqa: NPY002 (it is what users draw from)


def _set_global_states(states: tuple[Any, ...]) -> None:
    python, legacy, cpu, cuda = states
    random.setstate(python)
    np.random.set_state(legacy)  # noqa: NPY002
    torch.set_rng_state(cpu)
    for device, state in cuda.items():
        torch.cuda.set_rng_state(state, device)


def release_generator(device: torch.device) -> None:
    """Give a GPU's generator a new state after a failed recording (CUDA graph): it waits for the end, and refuses to draw."""
    own = torch.cuda.default_generators[device.index or 0]
    seed = own.initial_seed()
    own.graphsafe_set_state(torch.Generator(device).graphsafe_get_state())
    own.manual_seed(seed)


# Random signs that belong to a sample: drawn from its key, not from its place in the data.
#
# Where every sample gets probes of its own, the noise of an estimate falls with the number of samples, not only with the
# number of probes. Drawn from the sample's key (`sample_keys`: its content and the number of its copy), the probes are
# the same whatever the batch size, the order of the data and the number of processes. The bits are those of splitmix64
# (Steele, Lea & Flood 2014) in counter mode.


GOLDEN = -7046029254386353131
"""2⁶⁴ over the golden ratio, as a signed integer."""


def content_signs(keys: Tensor, seed: int, stream: int, length: int, dtype: torch.dtype) -> Tensor:
    """Independent ±1 of shape (n, length), for n 64-bit keys, a seed and the number of a stream.

    >>> keys = torch.tensor([3, 5, 3])
    >>> signs = content_signs(keys, seed=0, stream=1, length=64, dtype=torch.float32)
    >>> bool(torch.equal(signs[0], signs[2])), bool(torch.equal(signs[0], signs[1])), signs.unique().tolist()
    (True, False, [-1.0, 1.0])
    """
    start = splitmix(torch.tensor([seed, stream], dtype=torch.int64, device=keys.device) * GOLDEN)
    own = splitmix(keys ^ splitmix(start[0] + start[1] * GOLDEN))
    bits = splitmix(own[:, None] + torch.arange(1, length + 1, device=keys.device) * GOLDEN)
    return (bits & 1).to(dtype).mul_(2).sub_(1)


def content_uniform(keys: Tensor, seed: int, *stream: str | int) -> Tensor:
    """Independent uniform numbers in (0, 1) of shape (n,), float64, for n 64-bit keys.

    >>> content_uniform(torch.tensor([3, 5, 3]), 0, "order").unique().shape
    torch.Size([2])
    """
    bits = splitmix(keys ^ splitmix(torch.tensor(stream_seed(seed, *stream), device=keys.device)))
    return (shifted(bits, 11).double() + 0.5) * 2.0**-53


def hashed_signs(length: int, seed: int, *stream: str | int, dtype: torch.dtype, device: torch.device | str) -> Tensor:
    """Independent ±1 of shape (length,), made where they are used and the same on every device.

    One word of splitmix64 gives 64 signs: 11 million take 20 ms on a CPU, and next to nothing on a GPU.

    >>> signs = hashed_signs(1000, 0, "trace", 7, dtype=torch.float32, device="cpu")
    >>> signs.unique().tolist(), bool(signs.mean().abs() < 0.2)
    ([-1.0, 1.0], True)
    """
    words = torch.arange(1, -(-length // 64) + 1, device=device) * GOLDEN + stream_seed(seed, *stream)
    octets = splitmix(words).view(torch.uint8)
    bits = (octets[:, None] >> torch.arange(8, dtype=torch.uint8, device=device)) & 1
    return bits.flatten()[:length].to(dtype).mul_(2).sub_(1)


def splitmix(z: Tensor) -> Tensor:
    """The bits of 64-bit integers mixed by the finaliser of splitmix64, the same on every device."""
    z = (z ^ shifted(z, 30)) * -4658895280553007687
    z = (z ^ shifted(z, 27)) * -7723592293110705685
    return z ^ shifted(z, 31)


def shifted(z: Tensor, bits: int) -> Tensor:
    """To the right, filling with zeros: torch's own shift of a signed integer repeats the sign."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)

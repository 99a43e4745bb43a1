"""One golden file per part: written as one line per value, and compared value by value."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

__all__ = ["FILES", "Values", "describe", "differences", "digest", "made_here", "read", "write"]

FILES = Path(__file__).parent / "files"
Values = dict[str, object]
"""What a part gives: plain values of JSON under names that are read in a diff."""
SHOWN = 100
"""Characters of a value in a diff."""


def write(name: str, values: Mapping[str, object]) -> Path:
    """Keep the values of a part, sorted, a line for each, with what they were made with."""
    lines = ",\n".join(f"  {_text(key)}: {_text(values[key])}" for key in sorted(values))
    made = ",\n".join(f"  {_text(key)}: {_text(value)}" for key, value in made_here().items())
    path = FILES / f"{name}.json"
    FILES.mkdir(exist_ok=True)
    path.write_text(f'{{\n "made with": {{\n{made}\n }},\n "values": {{\n{lines}\n }}\n}}\n', encoding="utf-8")
    return path


def read(name: str) -> tuple[dict[str, str], Values]:
    """What a part was made with, and its values."""
    kept = json.loads((FILES / f"{name}.json").read_text(encoding="utf-8"))
    return kept["made with"], kept["values"]


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True)


def made_here() -> dict[str, str]:
    """The version of torch, and how this machine rounds: where both agree, numbers are expected to the last bit."""
    return {"torch": torch.__version__.partition("+")[0], "arithmetic": _arithmetic()}


def _arithmetic() -> str:
    """A digest of sums, products, convolutions, functions and decompositions, in both precisions."""
    rng = np.random.default_rng(0)
    found = []
    for dtype in (torch.float32, torch.float64):
        a = torch.tensor(rng.standard_normal((67, 131)), dtype=dtype)
        images, kernel = a[:64, :128].reshape(8, 4, 16, 16), a[:8, :36].reshape(8, 4, 3, 3)
        square = a @ a.T
        found += [square, a[:5, :3] @ a[:3, :7], a.sum(), a.var(), functional.conv2d(images, kernel)]
        found += [a.tanh(), a.exp(), a.erf(), a.abs().log(), a.softmax(1), torch.linalg.eigh(square)[0]]
    return digest([tensor.numpy().tobytes().hex() for tensor in found])


def digest(value: object) -> str:
    """The first digits of the SHA-256 of a value's JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def differences(kept: Mapping[str, object], found: Mapping[str, object], rounding: float = 0.0) -> list[str]:
    """Lines that say what differs; numbers may by a share of `rounding`."""
    there, here = (json.loads(_text(dict(values))) for values in (kept, found))
    return list(_between(there, here, "", rounding))


def _between(kept: object, found: object, place: str, rounding: float) -> Iterator[str]:
    if isinstance(kept, dict) and isinstance(found, dict):
        for key in sorted(kept | found):
            inner = f"{place}.{key}" if place else key
            if key not in found:
                yield f"{inner}: {describe(kept[key])} is gone"
            elif key not in kept:
                yield f"{inner}: {describe(found[key])} is new"
            else:
                yield from _between(kept[key], found[key], inner, rounding)
    elif isinstance(kept, list) and isinstance(found, list) and len(kept) == len(found):
        for at, (one, other) in enumerate(zip(kept, found, strict=True)):
            yield from _between(one, other, f"{place}[{at}]", rounding)
    elif isinstance(kept, float) and isinstance(found, float):
        if not math.isclose(kept, found, rel_tol=rounding, abs_tol=rounding * 1e-6):
            share = f" (by {abs(found - kept) / abs(kept):.2g} of it)" if kept else ""
            yield f"{place}: {kept!r} → {found!r}{share}"
    elif type(kept) is not type(found) or kept != found:
        yield f"{place}: {describe(kept)} → {describe(found)}"


def describe(value: object) -> str:
    """A value as it is shown in a diff."""
    text = _text(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"

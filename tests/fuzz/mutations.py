"""Ways to spoil a file: bytes, tokens of a text, values of a JSON document."""

from __future__ import annotations

import json
import random
import re
import struct

__all__ = ["spoil_bytes", "spoil_json", "spoil_text"]

TOKENS = [
    b"NaN", b"-Infinity", b"1e999", b"-1", b"0", b"1" + b"0" * 30, b"9" * 5000, b"0.5", b"null", b"true", b"[]", b"{}", b'""',
    rb'"\ud800"', b'"\xff"', b"'\xc3\xa9'", b"[" * 3000, b'{"a":' * 300, b"&a [*a, *a]", b"*a", b"!!python/object:os.system",
    b"!!binary x", b"2020-01-01", b"0x1F", b"1_000", b"~", b"\t", b"\0", b"\n---\n", b"<<: *a", b"? [a]: b", b"os:system",
]  # fmt: skip
VALUES: list[object] = [
    None, True, 0, -1, 10**30, 10**400, 0.5, -0.0, 1e308, "", "x", "os:system", "\ud800", "é\0", [], [[]], {}, {"a": 1},
    [1, "a", None], ["x"] * 50, {"": {"": {}}},
]  # fmt: skip
WORDS = [0, 1, 2, 127, 128, 255, 2**15 - 1, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1]
FLOATS = [float("nan"), float("inf"), -1.0, 0.0, 1e30, 0.5]


def spoil_bytes(content: bytes, rng: random.Random) -> bytes:
    """One to four changes of bytes anywhere, more often near the beginning, where headers are."""
    data = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        near = min(len(data), rng.choice([16, 400, len(data)]))
        at = rng.randrange(near) if near else 0
        kind = rng.randrange(9)
        if kind == 0:
            data[at : at + 1] = bytes([rng.randrange(256)])
        elif kind == 1 and data:
            data[at % len(data)] ^= 1 << rng.randrange(8)
        elif kind == 2:
            del data[at : at + rng.choice([1, 4, 100])]
        elif kind == 3:
            data[at:at] = rng.randbytes(rng.choice([1, 4, 100]))
        elif kind == 4:
            data[at:at] = data[at : at + rng.choice([1, 8, 200])] * rng.choice([1, 2, 50])
        elif kind == 5:
            del data[rng.choice([at, rng.randrange(len(data) + 1)]) :]
        elif kind == 6:
            form = rng.choice(["<H", ">H", "<I", ">I", "<Q", ">Q"])
            put = struct.pack(form, rng.choice(WORDS) % 256 ** struct.calcsize(form))
            data[at : at + len(put)] = put
        elif kind == 7:
            put = struct.pack(rng.choice(["<f", ">f"]), rng.choice(FLOATS))
            data[at : at + len(put)] = put
        else:
            other = rng.randrange(len(data) + 1)
            data[at:at] = data[other : other + rng.randrange(1, 64)]
    return bytes(data)


def spoil_text(content: bytes, rng: random.Random) -> bytes:
    """Another token in the place of one, a line twice, moved or gone; or other bytes."""
    if rng.random() < 0.3:
        return spoil_bytes(content, rng)
    if rng.random() < 0.4:
        lines = content.split(b"\n")
        at, to = rng.randrange(len(lines)), rng.randrange(len(lines))
        lines[to:to] = [lines[at]] * rng.choice([1, 1, 100])
        if rng.random() < 0.5:
            lines[at] = b" " * rng.randrange(4) + lines[at].strip()
        return b"\n".join(lines)
    tokens = list(re.finditer(rb"[\w.]+|\"[^\"]*\"|[\[\]{}:,=]", content))
    for token in sorted(rng.sample(tokens, min(len(tokens), rng.randint(1, 3))), key=lambda t: -t.start()):
        content = content[: token.start()] + rng.choice(TOKENS) + content[token.end() :]
    return content


def spoil_json(content: bytes, rng: random.Random) -> bytes:
    """Another value in the place of one, a key too many or too few; or another text."""
    if rng.random() < 0.4:
        return spoil_text(content, rng)
    document = json.loads(content)
    for _ in range(rng.randint(1, 3)):
        document = _spoiled(document, rng)
    return json.dumps(document).encode()


def _spoiled(value: object, rng: random.Random) -> object:
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(list(value))
        kind = rng.random()
        if kind < 0.1:
            return {name: item for name, item in value.items() if name != key}
        if kind < 0.2:
            return {**value, rng.choice(["", "x", "é", key.upper()]): value[key]}
        return {**value, key: _spoiled(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.85:
        at = rng.randrange(len(value))
        return [*value[:at], _spoiled(value[at], rng), *value[at + 1 :]]
    return rng.choice(VALUES)

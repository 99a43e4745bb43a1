"""Files of weights that are cut, lie about themselves or are something else: a `CheckpointError` that names the file."""

from __future__ import annotations

import io
import json
import pickle
import struct
import tracemalloc
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from landscope.core.errors import CheckpointError
from landscope.core.weights import read_weights

GOOD = save({"a": torch.arange(4.0), "b": torch.ones(2, 2)})


def headed(header: bytes, data: bytes = b"\0" * 16) -> bytes:
    return struct.pack("<Q", len(header)) + header + data


def tensors(**entries: object) -> bytes:
    return headed(json.dumps(entries).encode())


def entry(start: int, stop: int, shape: object, dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


BAD = {
    **{f"{n} bytes": GOOD[:n] for n in range(10)},
    **{f"{n} zeros": b"\0" * n for n in range(10)},
    **{f"cut at {n}": GOOD[:n] for n in (40, 100, len(GOOD) - 1)},
    "one byte more": GOOD + b"\0",
    "absurd header": struct.pack("<Q", 2**62) + GOOD[8:],
    "largest header": struct.pack("<Q", 2**64 - 1) + GOOD[8:],
    "header beyond the file": struct.pack("<Q", len(GOOD)) + GOOD[8:],
    "no JSON": headed(b"{nope"),
    "no object": headed(b"[1]"),
    "deep header": headed(b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}"),
    "not UTF-8": headed(b'{"\xff": 1}'),
    "half a character": headed(rb'{"\ud800": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}'),
    "overlap": tensors(a=entry(0, 8, [2]), b=entry(4, 12, [2])),
    "gap": tensors(a=entry(0, 4, [1]), b=entry(12, 16, [1])),
    "backwards": tensors(a=entry(16, 0, [4])),
    "negative": tensors(a=entry(-8, 8, [4])),
    "another size": tensors(a=entry(0, 16, [5])),
    "absurd size": tensors(a=entry(0, 16, [2**62, 2**62])),
    "zero and absurd": headed(json.dumps({"a": entry(0, 0, [0, 2**63])}).encode(), b""),
    "negative size": tensors(a=entry(0, 16, [-4])),
    "unknown type": tensors(a=entry(0, 16, [4], "F99")),
}


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ""])
@pytest.mark.parametrize("name", BAD)
def test_safetensors(name: str, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"net{suffix}"
    path.write_bytes(BAD[name])
    with pytest.raises(CheckpointError, match=f"net{suffix}: .+"):
        read_weights(path)


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.9, 0.99])
def test_truncated_files_of_torch(share: float, old: bool, tmp_path: Path) -> None:
    path = tmp_path / "net.pt"
    torch.save({"a": torch.ones(50)}, path, _use_new_zipfile_serialization=not old)
    assert read_weights(path)["a"].sum() == 50
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(CheckpointError, match=r"net\.pt: "):
        read_weights(path)


def test_a_promised_length_takes_no_memory(tmp_path: Path) -> None:
    """Files of torch before 1.6 are pickles one after the other."""
    path = tmp_path / "net.pt"
    torch.save({"a": torch.ones(50)}, path, _use_new_zipfile_serialization=False)
    content = path.read_bytes()
    path.write_bytes(content.replace(b"X\x10\x00\x00\x00protocol", b"X\xff\xff\xff\x7fprotocol", 1))
    assert path.read_bytes() != content
    tracemalloc.start()
    with pytest.raises(CheckpointError, match=r"net\.pt: "):
        read_weights(path)
    assert tracemalloc.get_traced_memory()[1] < 2**24
    tracemalloc.stop()


@pytest.mark.parametrize("old", [False, True])
def test_the_content_decides_not_the_name(old: bool, tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    torch.save({"a": torch.ones(50)}, path, _use_new_zipfile_serialization=not old)
    assert read_weights(path)["a"].sum() == 50


def zipped(content: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("net/data.pkl", content)
        archive.writestr("net/version", "3")
    return out.getvalue()


@pytest.mark.parametrize(
    "content",
    [pickle.dumps({"a": 1}), b"}N\x85\x85.", b"(((((", b"\x80\x02}r\xff\xff\xff\x7f.", b"\x80\x02cos\nsystem\n.", b"."],
)
def test_odd_pickles(content: bytes, tmp_path: Path) -> None:
    for name, whole in {"plain.pt": content.ljust(9, b" "), "zipped.pt": zipped(content)}.items():
        (tmp_path / name).write_bytes(whole)
        with pytest.raises(CheckpointError, match=name):
            read_weights(tmp_path / name)


def test_good_files_are_read(tmp_path: Path) -> None:
    for suffix in (".safetensors", ".pt", ""):
        (tmp_path / f"net{suffix}").write_bytes(GOOD)
        assert list(read_weights(tmp_path / f"net{suffix}")) == ["a", "b"]

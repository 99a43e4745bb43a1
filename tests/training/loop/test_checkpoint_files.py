"""Files of tensors: what is written is read, however long the history is, and damage is noticed."""

from __future__ import annotations

import pytest
import torch

from landscope.core.errors import TrainingError
from landscope.training.loop.folder import read_tensors, write_tensors

TENSORS = {"w": torch.arange(6.0).reshape(2, 3), "n": torch.tensor(3)}
LONGER_THAN_A_HEADER = 101_000_000
"""Safetensors refuses headers of more than 100 MB."""


@pytest.mark.parametrize("length", [0, 10, LONGER_THAN_A_HEADER])
def test_what_is_written_is_read(tmp_path, length):
    plain = {"history": "é" + "x" * length, "epoch": 3}
    write_tensors(tmp_path / "state", TENSORS, plain)
    tensors, read = read_tensors(tmp_path / "state")
    assert read == plain
    assert tensors.keys() == TENSORS.keys()
    assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)


@pytest.mark.parametrize("length", [10, LONGER_THAN_A_HEADER])
def test_one_changed_byte_is_noticed(tmp_path, length):
    path = tmp_path / "state"
    write_tensors(path, TENSORS, {"history": "x" * length})
    with open(path, "r+b") as file:
        file.seek(-1, 2)
        last = file.read(1)
        file.seek(-1, 2)
        file.write(bytes([last[0] ^ 1]))
    with pytest.raises(TrainingError, match="checksum"):
        read_tensors(path)

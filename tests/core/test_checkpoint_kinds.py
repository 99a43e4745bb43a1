"""Weights of another kind than the model's: what would lose its meaning on the way is refused, by name."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from landscope.core.errors import CheckpointError
from landscope.core.weights import load_weights, read_weights


def loaded(path: Path, model: nn.Module) -> nn.Module:
    load_weights(model, read_weights(path), remedy="Look at --model")
    return model


def saved(path: Path, **weights: Tensor) -> Path:
    torch.save(weights, path)
    return path


@pytest.mark.parametrize(
    "dtype", [torch.complex64, torch.complex128, torch.int8, torch.uint8, torch.int64, torch.bool], ids=str
)
def test_types_that_lose_their_meaning(tmp_path: Path, dtype: torch.dtype) -> None:
    path = saved(tmp_path / "net.pt", weight=torch.ones(1, 2).to(dtype), bias=torch.zeros(1))
    name = str(dtype).removeprefix("torch.")
    with pytest.raises(
        CheckpointError, match=rf"other types: weight \({name} in the checkpoint, float32 in the model\)"
    ):
        loaded(path, nn.Linear(2, 1))


def test_complex_statistics(tmp_path: Path) -> None:
    weights = {**nn.BatchNorm1d(2).state_dict(), "running_mean": torch.ones(2, dtype=torch.complex64)}
    with pytest.raises(CheckpointError, match="other types: running_mean"):
        loaded(saved(tmp_path / "net.pt", **weights), nn.BatchNorm1d(2))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_other_precisions_are_taken(tmp_path: Path, dtype: torch.dtype) -> None:
    path = saved(tmp_path / "net.pt", **{n: v.to(dtype) for n, v in nn.BatchNorm1d(2).state_dict().items()})
    assert torch.equal(loaded(path, nn.BatchNorm1d(2)).weight, torch.ones(2))


def test_a_complex_model_takes_complex_and_real_weights(tmp_path: Path) -> None:
    path = saved(tmp_path / "net.pt", weight=torch.full((1, 2), 1j), bias=torch.ones(1))
    assert loaded(path, nn.Linear(2, 1, dtype=torch.complex64)).weight[0, 0].imag == 1


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (torch.ones(1, 2, device="meta"), "on the meta device"),
        (torch.ones(1, 2).to_sparse(), "sparse_coo"),
        (torch.ones(1, 2).to_sparse_csr(), "sparse_csr"),
        (torch.quantize_per_tensor(torch.ones(1, 2), 0.1, 0, torch.qint8), "quantised"),
    ],
    ids=["meta", "coo", "csr", "quantised"],
)
def test_tensors_without_plain_values(tmp_path: Path, weight: Tensor, message: str) -> None:
    path = saved(tmp_path / "net.pt", weight=weight, bias=torch.zeros(1))
    with pytest.raises(CheckpointError, match=rf"net\.pt: .*weight \({message}"):
        loaded(path, nn.Linear(2, 1))


def packed(size: int, path: Path) -> Path:
    """What torch saves, with compressed entries."""
    content = io.BytesIO()
    torch.save({"weight": torch.zeros(size // 4)}, content)
    with zipfile.ZipFile(content) as stored, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for entry in stored.infolist():
            archive.writestr(entry.filename, stored.read(entry))
    return path


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_an_archive_that_holds_far_more_than_its_size(tmp_path: Path, suffix: str) -> None:
    with pytest.raises(CheckpointError, match="has 0.1 MiB and unpacks to 80 MiB; expected at most 4 times"):
        read_weights(packed(80 * 2**20, tmp_path / f"net{suffix}"))


def test_a_small_archive_may_be_packed_well(tmp_path: Path) -> None:
    assert read_weights(packed(2**20, tmp_path / "net.pt"))["weight"].numel() == 2**18

"""Where files are looked for, and what is said about them."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from landscope.core.errors import DamagedFileError, DataFileError, MissingFileError, UnknownNameError
from landscope.data import DATASETS, list_status, load, status
from landscope.data.files import read, search_folders, target_folder


def test_order_of_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("LANDSCOPE_DATA", raising=False)
    assert search_folders() == (tmp_path / "cache" / "landscope",)
    monkeypatch.setenv("LANDSCOPE_DATA", str(tmp_path / "data"))
    assert search_folders() == (tmp_path / "data", tmp_path / "cache" / "landscope")
    assert target_folder() == tmp_path / "data"
    assert search_folders(tmp_path / "given") == (tmp_path / "given",)
    monkeypatch.delenv("LANDSCOPE_DATA")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert search_folders() == (tmp_path / ".cache" / "landscope",)


def test_the_cache_is_searched_after_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sample_roots: dict[str, Path]
) -> None:
    monkeypatch.setenv("LANDSCOPE_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shutil.copytree(sample_roots["mnist"], tmp_path / "cache" / "landscope")
    assert load("mnist", verify=False).card.counts["train"] == 60


def test_torchvision_folders_are_found(tmp_path: Path, sample_roots: dict[str, Path]) -> None:
    shutil.copytree(sample_roots["mnist"] / "mnist", tmp_path / "MNIST" / "raw")
    assert load("mnist", root=tmp_path, verify=False).card.counts["train"] == 60


def test_missing_files_are_named_with_place_and_checksum(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError) as caught:
        load("cifar10", root=tmp_path)
    text = str(caught.value)
    assert str(tmp_path / "cifar-10-batches-bin" / "test_batch.bin") in text
    assert "md5:803d5f7f4d78ea53de84dbe85f74fb6d" in text
    assert "landscope data get cifar10" in text
    assert isinstance(caught.value, FileNotFoundError)


def test_version_can_be_chosen(sample_roots: dict[str, Path], tmp_path: Path) -> None:
    for case in ("cifar10", "cifar10/python"):
        shutil.copytree(sample_roots[case], tmp_path, dirs_exist_ok=True)
    assert load("cifar10", root=tmp_path, verify=False).card.version == "binary"
    assert load("cifar10", root=tmp_path, verify=False, version="python").card.version == "python"
    with pytest.raises(UnknownNameError, match="python"):
        load("cifar10", root=tmp_path, version="pyton")


def test_status(tmp_path: Path, sample_roots: dict[str, Path]) -> None:
    assert status("mnist", root=tmp_path).state == "missing"
    assert status("mnist", root=tmp_path).hint == "landscope data get mnist"
    for name, file, folder in (
        ("skulls", "ch2.nii", "head"),
        ("tinyimagenet100_32", "classes.txt", "tinyimagenet100_32"),
    ):
        hint = status(name, root=tmp_path).hint  # neither can be downloaded
        assert f"{file} into {tmp_path / folder} (LANDSCOPE_DATA names another place" in hint
    state = status("mnist", root=sample_roots["mnist"])
    assert state.state == "damaged"
    assert len(state.problems) == 4
    assert status("mnist", root=sample_roots["mnist"], verify=False).state == "present"
    shutil.copytree(sample_roots["mnist"], tmp_path, dirs_exist_ok=True)
    (tmp_path / "mnist" / "train-labels-idx1-ubyte").unlink()
    incomplete = status("mnist", root=tmp_path, verify=False)
    assert incomplete.state == "damaged"
    assert "train-labels-idx1-ubyte: missing" in incomplete.problems[0]


def test_list_status_covers_every_set(tmp_path: Path) -> None:
    states = {s.name: s.state for s in list_status(root=tmp_path)}
    assert set(states) == set(DATASETS)
    assert {n for n, s in states.items() if s == "present"} == {
        "abalone",
        "circles",
        "cora",
        "digits",
        "functions",
        "shells",
    }


def test_shipped_files_are_the_published_ones() -> None:
    for name in ("abalone", "cora"):
        assert status(name, root="/nonexistent").state == "present"


def test_a_user_file_comes_before_the_shipped_one(tmp_path: Path) -> None:
    (tmp_path / "abalone").mkdir()
    (tmp_path / "abalone" / "abalone.data").write_text("M,1,2,3,4,5,6,7,8\n")
    with pytest.raises(DamagedFileError, match=r"abalone\.data: expected the published checksum"):
        load("abalone", root=tmp_path)


def test_read_compares_checksums(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"content")
    right = "sha256:" + hashlib.sha256(b"content").hexdigest()
    assert read(file, right) == b"content"
    with pytest.raises(DamagedFileError, match="file: expected the published checksum"):
        read(file, right[:-1] + ("0" if right[-1] != "0" else "1"))
    file.write_bytes(b"\x1f\x8b broken gzip")
    with pytest.raises(DamagedFileError, match="file: cannot be unzipped"):
        read(file)


def test_a_zip_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import gzip

    monkeypatch.setattr("landscope.data.files.LARGEST", 1000)
    (tmp_path / "file.gz").write_bytes(gzip.compress(b"\0" * 100_000))
    with pytest.raises(DataFileError, match="unzips to more"):
        read(tmp_path / "file.gz")

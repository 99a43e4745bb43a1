"""Canonical formats: what is read is what was written, and every kind of bad file is refused by name."""

from __future__ import annotations

import gzip
import io
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import torch
from data_samples import SAMPLES, idx_bytes, nifti_bytes, planetoid_parts

from landscope.core.errors import DamagedFileError, DataFileError, MissingFileError
from landscope.data import load
from landscope.data.formats import (
    parse_binary,
    parse_idx,
    parse_npy,
    parse_npz,
    parse_planetoid,
    parse_python,
    parse_rows,
    parse_tsv,
)
from landscope.data.sets.skull_volumes import parse_nifti
from landscope.data.sets.svhn import parse_svhn

FILE = Path("folder") / "file"


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_idx_round_trip(rng: np.random.Generator) -> None:
    images = rng.integers(0, 256, (5, 28, 28)).astype(np.uint8)
    assert np.array_equal(parse_idx(idx_bytes(images), FILE, 3), images)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda b: b[:-1], "truncated"),
        (lambda b: b + b"\0", "too long"),
        (lambda b: b"\0\0\x09" + b[3:], "begins with"),
        (lambda b: b[:10], "too few"),
        (lambda b: b"", "too few"),
    ],
)
def test_bad_idx(damage: Callable[[bytes], bytes], words: str) -> None:
    with pytest.raises(DamagedFileError, match=rf"folder.file: .*{words}"):
        parse_idx(damage(idx_bytes(np.zeros((2, 3, 3)))), FILE, 3)


def test_cifar_binary_and_python_agree(rng: np.random.Generator) -> None:
    data, labels = rng.integers(0, 256, (7, 3072), dtype=np.uint8), rng.integers(0, 10, 7)
    binary = np.concatenate([labels[:, None], data], 1).astype(np.uint8).tobytes()
    for protocol in range(6):
        python = pickle.dumps({"data": data, "labels": labels.tolist()}, protocol=protocol)
        for ours, theirs in zip(
            parse_binary(binary, FILE, "labels", 10), parse_python(python, FILE, "labels", 10), strict=True
        ):
            assert np.array_equal(ours, theirs)
    images, _ = parse_binary(binary, FILE, "labels", 10)
    assert images[3, 1, 0, 5] == data[3, 1024 + 5]


def test_cifar100_reads_the_fine_label(rng: np.random.Generator) -> None:
    record = np.concatenate([[3, 77], rng.integers(0, 256, 3072)]).astype(np.uint8).tobytes()
    assert parse_binary(record, FILE, "fine_labels", 100)[1].tolist() == [77]
    assert parse_binary(record, FILE, "coarse_labels", 20)[1].tolist() == [3]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\0" * 3072, "whole number of records"),
        (b"", "whole number of records"),
        (b"\x0a" + b"\0" * 3072, "outside 0 … 9"),
    ],
)
def test_bad_cifar_binary(content: bytes, words: str) -> None:
    with pytest.raises(DamagedFileError, match=rf"folder.file: .*{words}"):
        parse_binary(content, FILE, "labels", 10)


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ([1, 2], "dictionary"),
        ({"labels": [1]}, "'data' is not an array"),
        ({"data": np.zeros((1, 3071), np.uint8), "labels": [1]}, "'data' is not an array"),
        ({"data": np.zeros((1, 3072), np.float32), "labels": [1]}, "'data' is not an array"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": [1, 2]}, "list of 1 whole"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": ["1"]}, "list of 1 whole"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": [10]}, "outside 0 … 9"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": [-1]}, "outside 0 … 9"),
    ],
)
def test_bad_cifar_python(batch: object, words: str) -> None:
    with pytest.raises(DamagedFileError, match=words):
        parse_python(pickle.dumps(batch, protocol=2), FILE, "labels", 10)


def mat(**variables: object) -> bytes:
    buffer = io.BytesIO()
    scipy.io.savemat(buffer, variables)
    return buffer.getvalue()


def test_svhn(rng: np.random.Generator) -> None:
    images = rng.integers(0, 256, (32, 32, 3, 4), dtype=np.uint8)
    x, y = parse_svhn(mat(X=images, y=np.array([[1], [10], [9], [2]])), FILE)
    assert y.tolist() == [1, 0, 9, 2]
    assert x[2, 1, 5, 6] == images[5, 6, 1, 2]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"nothing of the kind" * 20, "not a readable MATLAB file"),
        (mat(X=np.zeros((32, 32, 3, 2), np.uint8), y=[[1], [11]]), "outside 1 … 10"),
        (mat(X=np.zeros((32, 32, 3, 2), np.uint8), y=[[1]]), "one label for each"),
        (mat(X=np.zeros((32, 31, 3, 2), np.uint8), y=[[1], [1]]), "'X' is not an array"),
        (mat(X=np.zeros((32, 32, 3, 2), np.uint8), y=[[1], [1]])[:200], "not a readable MATLAB file"),
    ],
)
def test_bad_mat(content: bytes, words: str) -> None:
    with pytest.raises(DamagedFileError, match=words):
        parse_svhn(content, FILE)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32"])
def test_nifti(order: str, dtype: str, rng: np.random.Generator) -> None:
    voxels = rng.integers(0, 100, (3, 4, 5)).astype(dtype)
    volume = parse_nifti(nifti_bytes(voxels, order, slope=2.0, intercept=1.0), FILE)
    assert np.array_equal(volume.voxels, 2.0 * voxels + 1.0)
    assert volume.spacing == (4.0, 3.0, 2.0)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda b: b[:-1], "truncated"),
        (lambda b: b[:300], "too few"),
        (lambda b: b"\1" + b[1:], "not a single-file NIfTI"),
        (lambda b: b[:344] + b"ni1\0" + b[348:], "not a single-file NIfTI"),
        (lambda b: b[:70] + b"\x80\0" + b[72:], "voxel type 128"),
        (lambda b: b[:42] + b"\0\0" + b[44:], "dimensions"),
    ],
)
def test_bad_nifti(damage: Callable[[bytes], bytes], words: str) -> None:
    with pytest.raises(DamagedFileError, match=rf"folder.file: .*{words}"):
        parse_nifti(damage(nifti_bytes(np.zeros((3, 4, 5), np.uint8))), FILE)


def read_parts(parts: dict[str, object]) -> Callable[[str], bytes]:
    def read(part: str) -> bytes:
        value = parts[part]
        return value if isinstance(value, bytes) else pickle.dumps(value, protocol=2)

    return read


def test_planetoid_puts_test_nodes_back_in_place(rng: np.random.Generator) -> None:
    parts = planetoid_parts(rng)
    graph = parse_planetoid(read_parts(parts), Path, n_validation=100)
    order = [int(i) for i in parts["test.index"].split()]
    for row, node in enumerate(order):
        assert np.array_equal(graph.features[node], parts["tx"].toarray()[row])
        assert graph.labels[node] == parts["ty"][row].argmax()
    assert np.array_equal(graph.features[:520], parts["allx"].toarray())
    assert (graph.edges[0] != graph.edges[1]).all()
    forward = set(map(tuple, graph.edges.T))
    assert len(forward) == graph.edges.shape[1]
    assert forward == {(b, a) for a, b in forward}


@pytest.mark.parametrize(
    ("part", "value", "words"),
    [
        ("test.index", b"520\n", "test.index: .*permutation of the 10 test nodes"),
        ("test.index", b"520\nx\n", "test.index: .*not a node number"),
        ("y", np.zeros((6, 3), np.int32), "y: .*one-hot"),
        ("ally", np.zeros((519, 3), np.int32), "ally: .*one-hot"),
        ("graph", {0: [9999]}, "graph: .*outside 0"),
        ("graph", [1], "graph: .*dictionary"),
        ("tx", np.zeros((10, 5)), "tx: .*sparse"),
    ],
)
def test_bad_planetoid(part: str, value: object, words: str, rng: np.random.Generator) -> None:
    with pytest.raises(DamagedFileError, match=words):
        parse_planetoid(read_parts({**planetoid_parts(rng), part: value}), Path, n_validation=100)


def test_tables_ignore_quotes() -> None:
    header = b"index\tsentence1\tsentence2\tlabel\n"
    rows = parse_tsv(header + b'0\tHe said "a\tb\tentailment\r\n', FILE, header.decode().split())
    assert rows == [["0", 'He said "a', "b", "entailment"]]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a\tb\n1\n", "line 2 has 1 columns"),
        (b"a\tc\n", "expected the columns"),
        (b"", "empty"),
        (b"\xff\tb\n", "UTF-8"),
    ],
)
def test_bad_tables(content: bytes, words: str) -> None:
    with pytest.raises(DamagedFileError, match=rf"folder.file: .*{words}"):
        parse_tsv(content, FILE, ("a", "b"))
    assert parse_rows(b"1,2", FILE, ",", 2) == [["1", "2"]]


def test_npy_never_unpickles(tmp_path: Path) -> None:
    np.save(tmp_path / "objects.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "objects.npz", volume=np.array([{"a": 1}], dtype=object))
    with pytest.raises(DamagedFileError, match=r"objects\.npy"):
        parse_npy((tmp_path / "objects.npy").read_bytes(), tmp_path / "objects.npy")
    with pytest.raises(DamagedFileError, match=r"objects\.npz"):
        parse_npz((tmp_path / "objects.npz").read_bytes(), tmp_path / "objects.npz", "volume")
    np.savez(tmp_path / "other.npz", other=np.zeros(2))
    with pytest.raises(DamagedFileError, match="no array named 'volume'"):
        parse_npz((tmp_path / "other.npz").read_bytes(), tmp_path / "other.npz", "volume")
    with pytest.raises(DamagedFileError, match="not a readable"):
        parse_npz(b"PK\3\4 broken", FILE, "volume")


@pytest.mark.parametrize("case", sorted(SAMPLES))
def test_a_truncated_file_is_refused_by_name(case: str, sample_roots: dict[str, Path], tmp_path: Path) -> None:
    """Whatever the set: cut its largest file in half, and loading fails with that file's name."""
    shutil.copytree(sample_roots[case], tmp_path, dirs_exist_ok=True)
    files = [p for p in tmp_path.rglob("*") if p.is_file()]
    victim = max(files, key=lambda p: p.stat().st_size)
    content = victim.read_bytes()
    # Text is cut before a separator, so that its last line is short; half a file less one byte is not a whole record.
    separator = {"abalone": b",", "rte": b"\t"}.get(case)
    half = len(content) // 2 - 1
    victim.write_bytes(content[: content.rfind(separator, 0, half) if separator else half])
    with pytest.raises(DataFileError, match=victim.name.split(".")[0]):
        load(case.partition("/")[0], root=tmp_path, verify=False, **SAMPLES[case][1])


@pytest.mark.parametrize("case", sorted(set(SAMPLES) - {"rte", "tinyimagenet"}))
def test_a_sample_is_not_taken_for_the_published_file(case: str, sample_roots: dict[str, Path]) -> None:
    if case == "cifar100":
        pytest.skip("no checksum of the single files is published for the binary version")
    with pytest.raises(DamagedFileError, match="published checksum"):
        load(case.partition("/")[0], root=sample_roots[case], **SAMPLES[case][1])


@pytest.mark.parametrize("case", ["rte", "tinyimagenet"])
def test_counts_stand_in_for_checksums(case: str, sample_roots: dict[str, Path]) -> None:
    with pytest.raises(DataFileError, match="published"):
        load(case, root=sample_roots[case], **SAMPLES[case][1])


def test_zipped_and_plain_idx_are_the_same(sample_roots: dict[str, Path], tmp_path: Path) -> None:
    source = sample_roots["mnist"] / "mnist"
    (tmp_path / "mnist").mkdir()
    for file in source.iterdir():
        (tmp_path / "mnist" / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
    plain = load("mnist", root=sample_roots["mnist"], verify=False)
    zipped = load("mnist", root=tmp_path, verify=False)
    assert torch.equal(plain.train.x, zipped.train.x)
    assert torch.equal(plain.test.y, zipped.test.y)


def test_pixels(sample_roots: dict[str, Path]) -> None:
    root = sample_roots["cifar10"]
    raw = load("cifar10", root=root, verify=False, pixels="raw").train.x
    unit = load("cifar10", root=root, verify=False).train.x
    standard = load("cifar10", root=root, verify=False, pixels="standard")
    symmetric = load("cifar10", root=root, verify=False, pixels="symmetric").train.x
    assert raw.dtype == torch.uint8
    assert torch.equal((unit * 255).round().byte(), raw)
    assert float((symmetric - (2 * unit - 1)).abs().max()) < 1e-6
    assert float(standard.train.x.mean((0, 2, 3)).abs().max()) < 1e-5
    assert float((standard.train.x.std((0, 2, 3), correction=0) - 1).abs().max()) < 1e-5
    mean, std = unit.double().mean((0, 2, 3)), unit.double().std((0, 2, 3), correction=0)
    assert standard.card.mean == pytest.approx(mean.tolist(), abs=1e-7)
    assert standard.card.std == pytest.approx(std.tolist(), abs=1e-7)


def test_validation_is_the_first_half_of_the_evaluation_images(sample_roots: dict[str, Path]) -> None:
    root = sample_roots["cifar10"]
    split = load("cifar10", root=root, verify=False)
    whole = load("cifar10", root=root, verify=False, validation=0)
    assert torch.equal(torch.cat([split.validation.x, split.test.x]), whole.test.x)
    assert split.indices["test"].tolist() == list(range(220, 240))


def test_human_counts_follow_their_images(sample_roots: dict[str, Path]) -> None:
    data = load("cifar10h", root=sample_roots["cifar10h"], verify=False)
    counts = torch.from_numpy(np.load(sample_roots["cifar10h"] / "cifar10h" / "cifar10h-counts.npy"))
    assert torch.equal(data.extra["validation_counts"], counts[:20])
    assert torch.equal(data.extra["test_counts"], counts[20:])


def test_texts_follow_their_rows(sample_roots: dict[str, Path]) -> None:
    data = load("rte", root=sample_roots["rte"], verify=False, length=40)
    first, second = data.texts["test"][1]
    assert first.startswith('He said "yes')
    tokens = data.test.x[1]
    decoded = bytes(int(t) - 3 for t in tokens if t >= 3).decode()
    assert decoded == first + second
    lengths = load(
        "rte", root=sample_roots["rte"], verify=False, tokenizer=lambda a, b: torch.tensor([[len(s)] for s in a])
    )
    assert lengths.train.x[0].tolist() == [len(lengths.texts["train"][0][0])]


def test_a_missing_jpeg_is_named(sample_roots: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(sample_roots["tinyimagenet"], tmp_path, dirs_exist_ok=True)
    (tmp_path / "tiny-imagenet-200" / "val" / "images" / "val_3.JPEG").unlink()
    with pytest.raises(DataFileError, match=r"val_3\.JPEG"):
        load("tinyimagenet", root=tmp_path, verify=False)
    shutil.rmtree(tmp_path / "tiny-imagenet-200" / "train")
    with pytest.raises(MissingFileError, match="train"):
        load("tinyimagenet", root=tmp_path, verify=False)

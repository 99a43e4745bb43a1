"""Small samples of every data set in its canonical format."""

from __future__ import annotations

import gzip
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import scipy.sparse

from landscope.data import DATASETS

Rng = np.random.Generator


def idx_bytes(array: np.ndarray) -> bytes:
    return (
        bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.astype(np.uint8).tobytes()
    )


def nifti_bytes(voxels: np.ndarray, order: str = "<", slope: float = 1.0, intercept: float = 0.0) -> bytes:
    """`voxels` is (z, y, x)."""
    codes = {"uint8": 2, "int16": 4, "float32": 16}
    header = bytearray(352)
    struct.pack_into(f"{order}i", header, 0, 348)
    struct.pack_into(f"{order}8h", header, 40, 3, *voxels.shape[::-1], 1, 1, 1, 1)
    struct.pack_into(f"{order}hh", header, 70, codes[voxels.dtype.name], voxels.dtype.itemsize * 8)
    struct.pack_into(f"{order}8f", header, 76, 1, 2.0, 3.0, 4.0, 0, 0, 0, 0)
    struct.pack_into(f"{order}3f", header, 108, 352, slope, intercept)
    header[344:348] = b"n+1\0"
    return bytes(header) + voxels.astype(voxels.dtype.newbyteorder(order)).tobytes()


def phantom_head() -> np.ndarray:
    """A head of concentric ellipsoids in millimetres/4: bright scalp, dark bone, grey brain, as an MRI has them."""
    z, y, x = np.meshgrid(*[np.linspace(-1, 1, n) for n in (45, 54, 45)], indexing="ij")
    r = np.sqrt((z / 0.85) ** 2 + (y / 0.9) ** 2 + (x / 0.8) ** 2)
    return np.select([r < 0.72, r < 0.9, r < 1.0], [100, 10, 160], 0).astype(np.uint8)


def _cifar(root: Path, rng: Rng, n_classes: int, python: bool) -> None:
    fine = n_classes == 100
    if fine:
        folder, names = root / ("cifar-100-python" if python else "cifar-100-binary"), ["train", "test"]
    else:
        folder = root / ("cifar-10-batches-py" if python else "cifar-10-batches-bin")
        names = [f"data_batch_{k}" for k in range(1, 6)] + ["test_batch"]
    folder.mkdir(parents=True)
    for name in names:
        n = 40
        data, labels = rng.integers(0, 256, (n, 3072), dtype=np.uint8), rng.integers(0, n_classes, n)
        coarse = labels // 5
        if python:
            batch = {"data": data, "filenames": [f"{i}.png" for i in range(n)], "batch_label": name}
            batch |= (
                {"fine_labels": labels.tolist(), "coarse_labels": coarse.tolist()}
                if fine
                else {"labels": labels.tolist()}
            )
            (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
        else:
            columns = [coarse[:, None], labels[:, None], data] if fine else [labels[:, None], data]
            (folder / f"{name}.bin").write_bytes(np.concatenate(columns, 1).astype(np.uint8).tobytes())


def _idx(root: Path, rng: Rng, name: str, zipped: bool) -> None:
    folder = root / name
    folder.mkdir(parents=True)
    for prefix, n in (("train", 60), ("t10k", 20)):
        for kind, array in (
            ("images-idx3", rng.integers(0, 256, (n, 28, 28))),
            ("labels-idx1", rng.permutation(np.arange(n) % 10)),
        ):
            content = idx_bytes(array)
            file = folder / f"{prefix}-{kind}-ubyte"
            if zipped:
                file.with_name(file.name + ".gz").write_bytes(gzip.compress(content))
            else:
                file.write_bytes(content)


def _svhn(root: Path, rng: Rng) -> None:
    (root / "svhn").mkdir(parents=True)
    for name, n in (("train", 30), ("test", 20)):
        images, labels = rng.integers(0, 256, (32, 32, 3, n), dtype=np.uint8), 1 + np.arange(n)[:, None] % 10
        scipy.io.savemat(root / "svhn" / f"{name}_32x32.mat", {"X": images, "y": labels.astype(np.uint8)})


def _tinyimagenet(root: Path, rng: Rng) -> None:
    Image = pytest.importorskip("PIL.Image")
    folder = root / "tiny-imagenet-200"
    (folder / "val" / "images").mkdir(parents=True)
    wnids = ["n02", "n01"]
    (folder / "wnids.txt").write_text("\n".join(wnids))
    (folder / "words.txt").write_text("n01\tgoldfish, Carassius\nn02\tnewt\n")

    def save(path: Path, grey: bool) -> None:
        pixels = rng.integers(0, 256, (64, 64) if grey else (64, 64, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path, quality=90)

    for wnid in wnids:
        (folder / "train" / wnid / "images").mkdir(parents=True)
        for i in range(6):
            save(folder / "train" / wnid / "images" / f"{wnid}_{i}.JPEG", grey=i == 0)
    lines = []
    for i in range(8):
        save(folder / "val" / "images" / f"val_{i}.JPEG", grey=False)
        lines.append(f"val_{i}.JPEG\t{wnids[i % 2]}\t0\t0\t62\t62\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))


def _arrays(root: Path, rng: Rng) -> None:
    folder = root / "tinyimagenet100_32"
    for name, n in (("train", 40), ("test", 20)):
        (folder / name).mkdir(parents=True)
        np.save(folder / name / "images.npy", rng.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8))
        np.save(folder / name / "labels.npy", (np.arange(n) % 4).astype(np.uint8))
    (folder / "classes.txt").write_text("".join(f"n{k}\tclass {k}\n" for k in range(4)))


def planetoid_parts(rng: Rng) -> dict[str, object]:
    n_train, n_rest, n_test, d, classes = 6, 520, 10, 5, 3
    one_hot = np.eye(classes, dtype=np.int32)[rng.integers(0, classes, n_rest + n_test)]
    features = scipy.sparse.csr_matrix((rng.random((n_rest + n_test, d)) < 0.4).astype(np.float32))
    order = rng.permutation(np.arange(n_rest, n_rest + n_test))
    nodes = n_rest + n_test
    return {
        "x": features[:n_train], "y": one_hot[:n_train], "allx": features[:n_rest], "ally": one_hot[:n_rest],
        "tx": features[n_rest:], "ty": one_hot[n_rest:],
        "graph": {i: [(i + 1) % nodes, i, (i + 7) % nodes] for i in range(nodes)},
        "test.index": "".join(f"{i}\n" for i in order).encode(),
    }  # fmt: skip


def _cora(root: Path, rng: Rng) -> None:
    (root / "cora").mkdir(parents=True)
    for part, value in planetoid_parts(rng).items():
        content = value if isinstance(value, bytes) else pickle.dumps(value, protocol=2)
        (root / "cora" / f"ind.cora.{part}").write_bytes(content)


def _rte(root: Path, rng: Rng) -> None:
    (root / "rte").mkdir(parents=True)
    for name, n in (("train", 12), ("dev", 6)):
        rows = [f"{i}\tHe said \"yes {i}.\tIt's été {i}.\t{('entailment', 'not_entailment')[i % 2]}" for i in range(n)]
        (root / "rte" / f"{name}.tsv").write_text("\n".join(["index\tsentence1\tsentence2\tlabel", *rows]) + "\n")


def _cifar10h(root: Path, rng: Rng) -> None:
    _cifar(root, rng, 10, python=False)
    (root / "cifar10h").mkdir()
    np.save(root / "cifar10h" / "cifar10h-counts.npy", rng.multinomial(50, np.ones(10) / 10, 40))


def _abalone(root: Path, rng: Rng) -> None:
    (root / "abalone").mkdir(parents=True)
    rows = [
        ",".join([rng.choice(list("MFI")), *(f"{v:.3f}" for v in rng.random(7)), str(rng.integers(1, 30))])
        for _ in range(50)
    ]
    (root / "abalone" / "abalone.data").write_text("\n".join(rows) + "\n")


def _head(root: Path, rng: Rng) -> None:
    (root / "head").mkdir(parents=True)
    voxels = phantom_head()
    content = bytearray(nifti_bytes(voxels))
    struct.pack_into("<8f", content, 76, 1, 4.0, 4.0, 4.0, 0, 0, 0, 0)
    (root / "head" / "ch2.nii.gz").write_bytes(gzip.compress(bytes(content)))


def _ct(root: Path, rng: Rng) -> None:
    (root / "head").mkdir(parents=True)
    shell = np.where(phantom_head() == 10, 2000, 100).astype(np.uint16)
    np.savez(root / "head" / "headsq.npz", volume=shell)


SAMPLES: dict[str, tuple[Callable[[Path, Rng], None], dict[str, object]]] = {
    "abalone": (_abalone, {}),
    "cifar10": (lambda root, rng: _cifar(root, rng, 10, python=False), {}),
    "cifar10/python": (lambda root, rng: _cifar(root, rng, 10, python=True), {}),
    "cifar100": (lambda root, rng: _cifar(root, rng, 100, python=False), {}),
    "cifar100/python": (lambda root, rng: _cifar(root, rng, 100, python=True), {}),
    "cifar10h": (_cifar10h, {}),
    "cora": (_cora, {}),
    "fashion_mnist": (lambda root, rng: _idx(root, rng, "fashion_mnist", zipped=True), {}),
    "mnist": (lambda root, rng: _idx(root, rng, "mnist", zipped=False), {}),
    "rte": (_rte, {"length": 40}),
    "skulls": (_head, {"n_train": 3, "n_validation": 2, "n_test": 3, "size": 32}),
    "skulls/ct": (_ct, {"n_train": 3, "n_validation": 1, "n_test": 2, "size": 32}),
    "svhn": (_svhn, {}),
    "tinyimagenet": (_tinyimagenet, {}),
    "tinyimagenet100_32": (_arrays, {}),
}
COMPUTED: dict[str, dict[str, object]] = {
    **{name: {} for name in DATASETS if not DATASETS[name].versions},
    "functions": {"n": 200},
    "shells": {"n_train": 3, "n_validation": 2, "n_test": 3, "size": 24},
}
"""Those that need no files, small enough for a test."""

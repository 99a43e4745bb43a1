"""Readers of canonical file formats: bytes in, arrays out, anything odd refused with the file's name."""

from __future__ import annotations

import io
import math
import struct
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import scipy

from landscope.core.errors import DamagedFileError
from landscope.data.files import LARGEST
from landscope.data.safe_pickle import loads

# CIFAR's two published forms: fixed-length binary records, and pickled dictionaries from Python 2.
#
# A binary record is one label byte (CIFAR-100: coarse, then fine) and 3,072 bytes of red, green and blue planes. A
# pickled batch is `{"data": uint8 (n, 3072), "labels" | "fine_labels": [...]}`.


Labels = Literal["labels", "coarse_labels", "fine_labels"]
_PIXELS = 3 * 32 * 32


def _checked_labels(labels: Sequence[int], n_classes: int, path: Path) -> npt.NDArray[np.int64]:
    if wrong := sum(not 0 <= label < n_classes for label in labels):
        raise DamagedFileError(
            f"{path}: {wrong:,} of {len(labels):,} labels are outside 0 … {n_classes - 1}; the file is damaged or of another set"
        )
    return np.asarray(labels, np.int64)


def parse_binary(
    content: bytes, path: Path, kind: Labels, n_classes: int
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Images (n, 3, 32, 32) and labels of the binary batch `content`, which was read from `path`."""
    header = 1 if kind == "labels" else 2
    if not content or len(content) % (header + _PIXELS):
        raise DamagedFileError(
            f"{path}: {len(content):,} bytes are not a whole number of records of {header + _PIXELS:,} bytes; the file is "
            "truncated or of another set"
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, header + _PIXELS)
    labels = records[:, 1 if kind == "fine_labels" else 0].tolist()
    return records[:, header:].reshape(-1, 3, 32, 32), _checked_labels(labels, n_classes, path)


def parse_python(
    content: bytes, path: Path, kind: Labels, n_classes: int
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Images (n, 3, 32, 32) and labels of the pickled batch `content`, which was read from `path`."""
    batch = loads(content, path)
    if not isinstance(batch, dict):
        raise DamagedFileError(f"{path}: holds a {type(batch).__name__} where a batch is a dictionary")
    data, labels = batch.get("data"), batch.get(kind)
    if not (isinstance(data, np.ndarray) and data.dtype == np.uint8 and data.ndim == 2 and data.shape[1] == _PIXELS):
        raise DamagedFileError(f"{path}: 'data' is not an array of bytes of shape (n, {_PIXELS})")
    if not (isinstance(labels, list) and len(labels) == len(data) and all(type(label) is int for label in labels)):
        raise DamagedFileError(f"{path}: {kind!r} is not a list of {len(data)} whole numbers")
    return data.reshape(-1, 3, 32, 32), _checked_labels(labels, n_classes, path)


# The idx format of MNIST: two zero bytes, a type code, the number of dimensions, the sizes, the numbers.
#
# All big-endian. Only unsigned bytes (type 0x08) occur in the sets read here.


def parse_idx(content: bytes, path: Path, ndim: int) -> npt.NDArray[np.uint8]:
    """Array of `ndim` dimensions in the idx file `content`, which was read from `path`.

    >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9]), Path("labels"), 1)
    array([7, 9], dtype=uint8)
    """
    if len(content) < 4 + 4 * ndim:
        raise DamagedFileError(f"{path}: {len(content)} bytes are too few for an idx header of {ndim} dimensions")
    if content[:4] != bytes([0, 0, 8, ndim]):
        raise DamagedFileError(
            f"{path}: begins with {content[:4].hex(' ')} where an idx file of {ndim}-dimensional bytes begins with "
            f"00 00 08 {ndim:02x}"
        )
    shape = struct.unpack(f">{ndim}I", content[4 : 4 + 4 * ndim])
    expected, found = math.prod(shape), len(content) - 4 - 4 * ndim
    if found != expected:
        raise DamagedFileError(
            f"{path}: its header promises {'×'.join(map(str, shape))} = {expected:,} bytes, {found:,} follow; it is "
            + ("truncated" if found < expected else "too long")
        )
    return np.frombuffer(content, np.uint8, offset=4 + 4 * ndim).reshape(shape)


# numpy's own files, of plain numbers: the header is compared with what follows it before any memory is taken.


def parse_npy(content: bytes, path: Path) -> npt.NDArray[np.generic]:
    """Array in the `.npy` file `content`, which was read from `path`."""
    if zipfile.is_zipfile(io.BytesIO(content)) and content[:2] == b"PK":
        raise DamagedFileError(f"{path}: expected a .npy file, got a .npz archive")
    try:
        shape, fortran, dtype, start = _header(content)
    except Exception as error:  # the header is a Python literal, and numpy may raise any error on a broken one
        raise DamagedFileError(f"{path}: is not a readable .npy file ({type(error).__name__}: {error})") from error
    if dtype.kind not in "biufc":
        raise DamagedFileError(f"{path}: holds an array of {dtype}; only plain numbers are read")
    needed, there = math.prod(shape) * dtype.itemsize, len(content) - start
    if min(shape, default=0) < 0 or max(shape, default=0) > LARGEST or len(shape) > 32 or there < needed:
        raise DamagedFileError(
            f"{path}: its header promises an array of shape {_short(shape)} in {needed:,} bytes, {there:,} follow; "
            "it is truncated or damaged"
        )
    flat = np.frombuffer(content[start : start + needed], dtype)
    return flat.reshape(shape, order="F" if fortran else "C").copy(order="K")


def _header(content: bytes) -> tuple[tuple[int, ...], bool, np.dtype[np.generic], int]:
    """Shape, whether the first index runs fastest, type, and where the numbers begin."""
    stream = io.BytesIO(content)
    version = np.lib.format.read_magic(stream)
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise ValueError(f"version {version} of the format is not known")
    # Version 3 is version 2 with names of fields in UTF-8, which plain numbers do not have.
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(stream)
    return shape, fortran, dtype, stream.tell()


def _short(shape: tuple[int, ...]) -> str:
    text = repr(shape)
    return text if len(text) < 80 else f"{text[:80]}…"


def parse_npz(content: bytes, path: Path, key: str) -> npt.NDArray[np.generic]:
    """Array named `key` in the `.npz` file `content`, which was read from `path`."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            name = next((name for name in (f"{key}.npy", key) if name in archive.namelist()), None)
            size = archive.getinfo(name).file_size if name is not None else 0
            member = archive.read(name) if name is not None and size <= LARGEST else b""
    except Exception as error:  # zipfile may raise any error on a broken archive
        raise DamagedFileError(f"{path}: is not a readable .npz file ({type(error).__name__}: {error})") from error
    if name is None:
        raise DamagedFileError(f"{path}: holds no array named {key!r}")
    if size > LARGEST:
        raise DamagedFileError(f"{path}: {name} unpacks to {size:,} bytes, more than the {LARGEST:,} that are read")
    return parse_npy(member, path)


# Planetoid's citation graphs (Yang et al. 2016): eight files `ind.NAME.*`, seven of them pickles.
#
# `x`, `y` are the labelled training nodes, `allx`, `ally` all nodes that are not test nodes (the training nodes first),
# `tx`, `ty` the test nodes in the order of `test.index`, `graph` the neighbours of each node.


_ENTRIES = 2**28
"""Of a matrix that is written out in full; Cora's has four million."""
PARTS = ("x", "y", "allx", "ally", "tx", "ty", "graph", "test.index")


@dataclass(frozen=True)
class CitationGraph:
    """Node features (n, d), labels (n,), directed edges (2, m) both ways without loops, and the published split."""

    features: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]
    edges: npt.NDArray[np.int64]
    n_classes: int
    train: npt.NDArray[np.int64]
    validation: npt.NDArray[np.int64]
    test: npt.NDArray[np.int64]


def _rows(item: object, path: Path) -> npt.NDArray[np.float32]:
    if not isinstance(item, scipy.sparse.csr_matrix):
        raise DamagedFileError(f"{path}: expected a sparse matrix, got a {type(item).__name__}")
    if math.prod(item.shape) > _ENTRIES:
        raise DamagedFileError(
            f"{path}: a matrix of {item.shape[0]:,}×{item.shape[1]:,} is not one of a citation graph"
        )
    return np.asarray(item.toarray(), np.float32)


def _one_hot(item: object, path: Path, n: int) -> npt.NDArray[np.int64]:
    if not (
        isinstance(item, np.ndarray)
        and item.ndim == 2
        and len(item) == n
        and ((item == 0) | (item == 1)).all()
        and (item.sum(1) == 1).all()
    ):
        raise DamagedFileError(f"{path}: is not a one-hot table of {n} labels")
    return np.asarray(item, np.int64)


def _edges(item: object, path: Path, n: int) -> npt.NDArray[np.int64]:
    if not (isinstance(item, dict) and all(isinstance(neighbours, list) for neighbours in item.values())):
        raise DamagedFileError(f"{path}: is not a dictionary of lists of neighbours")
    named = [(a, b) for a, neighbours in item.items() for b in neighbours]
    if not named or not all(type(node) is int and 0 <= node < n for pair in named for node in pair):
        raise DamagedFileError(f"{path}: names nodes outside 0 … {n - 1}")
    pairs = np.array([(a, b) for a, b in named if a != b], np.int64).reshape(-1, 2)
    return np.ascontiguousarray(np.unique(np.concatenate([pairs, pairs[:, ::-1]]), axis=0).T)


def parse_planetoid(
    read: Callable[[str], bytes], path: Callable[[str], Path], n_validation: int = 500
) -> CitationGraph:
    """Graph from the files that `read(part)` gives the content of and `path(part)` the name, for parts in `PARTS`.

    Validation nodes are the `n_validation` nodes after the training nodes, as everyone who uses this split has it.
    """

    def part(name: str) -> object:
        return loads(read(name), path(name))

    rest, tested = _rows(part("allx"), path("allx")), _rows(part("tx"), path("tx"))
    n_train, n = len(_rows(part("x"), path("x"))), len(rest) + len(tested)
    try:
        test = np.array([int(line) for line in read("test.index").split()], np.int64)
    except (ValueError, OverflowError) as error:
        raise DamagedFileError(f"{path('test.index')}: a line is not a node number ({error})") from error
    if len(tested) != len(test) or not np.array_equal(np.sort(test), np.arange(len(rest), n)):
        raise DamagedFileError(
            f"{path('test.index')}: is not a permutation of the {len(tested)} test nodes {len(rest)} … {n - 1}"
        )
    if rest.shape[1] != tested.shape[1] or n_train + n_validation > len(rest):
        raise DamagedFileError(f"{path('allx')}: its shape {rest.shape} does not fit the other files")
    one_hot = np.concatenate([
        _one_hot(part("ally"), path("ally"), len(rest)), _one_hot(part("ty"), path("ty"), len(tested))
    ])  # fmt: skip
    if not np.array_equal(_one_hot(part("y"), path("y"), n_train), one_hot[:n_train]):
        raise DamagedFileError(f"{path('y')}: the training labels differ from the first labels of 'ally'")
    features, labels = np.concatenate([rest, tested]), one_hot.argmax(1)
    features[test], labels[test] = tested, one_hot[len(rest) :].argmax(1)
    return CitationGraph(
        features=features,
        labels=labels,
        edges=_edges(part("graph"), path("graph"), n),
        n_classes=one_hot.shape[1],
        train=np.arange(n_train),
        validation=np.arange(n_train, n_train + n_validation),
        test=np.sort(test),
    )


# Tables in text: comma-separated without a header (Abalone), tab-separated with one and no quoting (GLUE).


def parse_rows(content: bytes, path: Path, separator: str, n_columns: int) -> list[list[str]]:
    r"""Cells of every line, each line with `n_columns` of them.

    Quotes mean nothing: GLUE's sentences contain single ones.

    >>> parse_rows(b'M,0.4\nF,"0.5\n', Path("table"), ",", 2)
    [['M', '0.4'], ['F', '"0.5']]
    """
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DamagedFileError(f"{path}: is not text in UTF-8 ({error})") from error
    rows = [line.rstrip("\r").split(separator) for line in text.split("\n") if line.strip()]
    for number, row in enumerate(rows, 1):
        if len(row) != n_columns:
            raise DamagedFileError(f"{path}: line {number} has {len(row)} columns, expected {n_columns}")
    if not rows:
        raise DamagedFileError(f"{path}: is empty")
    return rows


def parse_tsv(content: bytes, path: Path, columns: Sequence[str]) -> list[list[str]]:
    """Rows under the header `columns`."""
    header, *rows = parse_rows(content, path, "\t", len(columns))
    if header != list(columns):
        raise DamagedFileError(f"{path}: expected the columns {list(columns)}, got {header}")
    return rows

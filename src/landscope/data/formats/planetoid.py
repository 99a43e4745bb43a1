"""Planetoid's citation graphs (Yang et al. 2016): eight files `ind.NAME.*`, seven of them pickles.

`x`, `y` are the labelled training nodes, `allx`, `ally` all nodes that are no test nodes (the training nodes first),
`tx`, `ty` the test nodes in the order of `test.index`, `graph` the neighbours of each node.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import scipy.sparse

from landscope.core.errors import DamagedFileError
from landscope.data.safe_pickle import loads

__all__ = ["PARTS", "CitationGraph", "parse_planetoid"]

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
        raise DamagedFileError(f"{path}: holds a {type(item).__name__} where a sparse matrix was expected")
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
        raise DamagedFileError(f"{path}: is no one-hot table of {n} labels")
    return np.asarray(item, np.int64)


def _edges(item: object, path: Path, n: int) -> npt.NDArray[np.int64]:
    if not (isinstance(item, dict) and all(isinstance(neighbours, list) for neighbours in item.values())):
        raise DamagedFileError(f"{path}: is no dictionary of lists of neighbours")
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
        raise DamagedFileError(f"{path('test.index')}: a line is no node number ({error})") from error
    if len(tested) != len(test) or not np.array_equal(np.sort(test), np.arange(len(rest), n)):
        raise DamagedFileError(
            f"{path('test.index')}: is no order of the {len(tested)} test nodes {len(rest)} … {n - 1}"
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

"""Recognising Textual Entailment from GLUE (Wang et al. 2019): 2,490 + 277 sentence pairs; does one follow?

The sentences are in `splits.texts`. Models want numbers: `tokenizer` is any function from two lists of sentences to a
tensor with one row per pair (a Hugging Face tokenizer wrapped in a line). Without one, a pair is its UTF-8 bytes:
`[1] first [2] second [2] 0 0 …`, bytes shifted by 3, `length` in all, the longer sentence cut. GLUE's test file has no
labels, so the development file is the evaluation set.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from landscope.core.errors import DamagedFileError, OperandError
from landscope.data.dataset import DataSet, Raw, Split
from landscope.data.files import Download, Files, Version
from landscope.data.formats import parse_tsv

PairTokenizer = Callable[[list[str], list[str]], Tensor]

_CLASSES = ("entailment", "not_entailment")
_ROWS = {"train.tsv": 2490, "dev.tsv": 277}


def byte_tokens(first: Sequence[str], second: Sequence[str], length: int = 256) -> Tensor:
    """Byte tokens (n, length) of sentence pairs; ids 0 … 258, 0 is padding.

    >>> byte_tokens(["ab"], ["c"], length=8)
    tensor([[  1, 100, 101,   2, 102,   2,   0,   0]])
    """
    if length < 5:
        raise OperandError(f"a pair needs at least 5 tokens, got length={length}")
    out = torch.zeros(len(first), length, dtype=torch.int64)
    for row, pair in enumerate(zip(first, second, strict=True)):
        a, b = (text.encode() for text in pair)
        room = length - 3
        keep_b = min(len(b), max(room // 2, room - len(a)))
        a, b = a[: room - keep_b], b[:keep_b]
        tokens = [1, *(byte + 3 for byte in a), 2, *(byte + 3 for byte in b), 2]
        out[row, : len(tokens)] = torch.tensor(tokens)
    return out


def _rows(files: Files, name: str) -> tuple[list[tuple[str, str]], list[int]]:
    path = files.path(name)
    rows = parse_tsv(files.read(name), path, ("index", "sentence1", "sentence2", "label"))
    if unknown := {row[3] for row in rows} - set(_CLASSES):
        raise DamagedFileError(f"{path}: labels {sorted(unknown)} are none of {_CLASSES}")
    if files.verify and len(rows) != _ROWS[name]:
        raise DamagedFileError(f"{path}: {len(rows):,} pairs where {_ROWS[name]:,} are published")
    return [(row[1], row[2]) for row in rows], [_CLASSES.index(row[3]) for row in rows]


def _read(files: Files, *, tokenizer: PairTokenizer | None = None, length: int = 256) -> Raw:

    def split(pairs: list[tuple[str, str]], labels: list[int]) -> Split:
        first, second = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        tokens = byte_tokens(first, second, length) if tokenizer is None else tokenizer(first, second)
        if len(tokens) != len(pairs):
            raise OperandError(f"the tokenizer gave {len(tokens)} rows for {len(pairs)} pairs")
        return Split(tokens, torch.tensor(labels))

    train, dev = _rows(files, "train.tsv"), _rows(files, "dev.tsv")
    return Raw(train=split(*train), evaluation=split(*dev), classes=_CLASSES, texts=(*train[0], *dev[0]))


RTE = DataSet(
    name="rte",
    title="RTE (GLUE)",
    task="text classification",
    read=_read,
    licence="none stated",
    citation="A. Wang, A. Singh, J. Michael, F. Hill, O. Levy, S. Bowman. GLUE: A Multi-Task Benchmark and "
    "Analysis Platform for Natural Language Understanding. ICLR 2019.",
    source="https://gluebenchmark.com/tasks",
    versions=(
        Version(
            name="tsv",
            folders=("rte", "RTE"),
            files={"train.tsv": None, "dev.tsv": None},
            downloads=(
                Download(
                    "https://dl.fbaipublicfiles.com/glue/data/RTE.zip",
                    "RTE.zip",
                    "md5:bef554d0cafd4ab6743488101c638539",
                    unpacks_to="RTE",
                ),
            ),
        ),
    ),
)

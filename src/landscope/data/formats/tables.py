"""Tables in text: comma-separated without a header (Abalone), tab-separated with one and no quoting (GLUE)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from landscope.core.errors import DamagedFileError

__all__ = ["parse_rows", "parse_tsv"]


def parse_rows(content: bytes, path: Path, separator: str, n_columns: int) -> list[list[str]]:
    r"""Cells of every line, each line with `n_columns` of them.

    Quotes mean nothing: GLUE's sentences contain single ones.

    >>> parse_rows(b'M,0.4\nF,"0.5\n', Path("table"), ",", 2)
    [['M', '0.4'], ['F', '"0.5']]
    """
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DamagedFileError(f"{path}: is no UTF-8 text ({error})") from error
    rows = [line.rstrip("\r").split(separator) for line in text.split("\n") if line.strip()]
    for number, row in enumerate(rows, 1):
        if len(row) != n_columns:
            raise DamagedFileError(f"{path}: line {number} has {len(row)} columns, {n_columns} were expected")
    if not rows:
        raise DamagedFileError(f"{path}: is empty")
    return rows


def parse_tsv(content: bytes, path: Path, columns: Sequence[str]) -> list[list[str]]:
    """Rows under the header `columns`."""
    header, *rows = parse_rows(content, path, "\t", len(columns))
    if header != list(columns):
        raise DamagedFileError(f"{path}: its columns are {header}, {list(columns)} were expected")
    return rows

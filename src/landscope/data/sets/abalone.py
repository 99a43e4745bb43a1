"""Abalone (Nash et al. 1994): 4,177 snails, ten inputs (sex as one of three, seven measures), age as rings.

Shipped with the package. The fifth paper trains on 80 % and tests on 20 %; here that fifth is halved into validation
and test unless `validation` says otherwise.
"""

from __future__ import annotations

import torch

from landscope.core.errors import DamagedFileError
from landscope.data.dataset import DataSet, Raw, Split
from landscope.data.files import Download, Files, Version
from landscope.data.formats import parse_rows

_HOME = "https://archive.ics.uci.edu"
_CHECKSUM = "sha256:de37cdcdcaaa50c309d514f248f7c2302a5f1f88c168905eba23fe2fbc78449f"
_COLUMNS = "M F I length diameter height whole_weight shucked_weight viscera_weight shell_weight"


def _read(files: Files, *, standard_targets: bool = False) -> Raw:
    """`standard_targets` gives the rings mean 0 and deviation 1 over all rows, as the fifth paper's notebook does."""
    path = files.path("abalone.data")
    rows = parse_rows(files.read("abalone.data"), path, ",", 9)
    try:
        inputs = [[float(row[0] == sex) for sex in "MFI"] + [float(cell) for cell in row[1:8]] for row in rows]
        rings = [[float(row[8])] for row in rows]
    except ValueError as error:
        raise DamagedFileError(f"{path}: a cell is not a number ({error})") from error
    if not all(sum(row[:3]) == 1 for row in inputs):
        raise DamagedFileError(f"{path}: the first column must be M, F or I in every row")
    target = torch.tensor(rings)
    if standard_targets:
        target = (target - target.mean()) / target.std(correction=0)
    unit = "rings, standardised" if standard_targets else "rings"
    return Raw(train=Split(torch.tensor(inputs), target), notes=f"columns: {_COLUMNS}; target: {unit}")


ABALONE = DataSet(
    name="abalone",
    title="Abalone",
    task="regression",
    read=_read,
    licence="CC BY 4.0",
    citation="W. Nash, T. Sellers, S. Talbot, A. Cawthorn, W. Ford. Abalone. UCI Machine Learning Repository, "
    "1994. doi:10.24432/C55C7W",
    source=f"{_HOME}/dataset/1/abalone",
    versions=(
        Version(
            name="csv",
            folders=("abalone",),
            files={"abalone.data": _CHECKSUM},
            downloads=(
                Download(
                    f"{_HOME}/ml/machine-learning-databases/abalone/abalone.data", "abalone/abalone.data", _CHECKSUM
                ),
            ),
            bundled="abalone",
        ),
    ),
)

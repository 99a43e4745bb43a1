"""The digits that scikit-learn carries (Alpaydin and Kaynak 1998): 1,797 grey images of 8×8, the default set.

A third is held out, drawn in proportion to the classes, and halved into validation and test.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from landscope.core.errors import MissingExtraError
from landscope.data.dataset import DataSet, Raw, Split


def _read() -> Raw:
    package = find_spec(
        "sklearn"
    )  # its file is read without it: importing it takes longer than a small study's first epoch
    if package is None or package.origin is None:
        raise MissingExtraError.of("scikit-learn", "digits", "the data set 'digits'")
    rows = np.loadtxt(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    images = torch.tensor(rows[:, :-1].reshape(-1, 1, 8, 8) / 16.0, dtype=torch.float32)
    labels = torch.tensor(rows[:, -1], dtype=torch.int64)
    return Raw(train=Split(images, labels), classes=tuple("0123456789"), notes="16 grey levels, scaled to [0, 1]")


DIGITS = DataSet(
    name="digits",
    title="Digits (scikit-learn)",
    task="classification",
    read=_read,
    licence="CC BY 4.0",
    citation="E. Alpaydin, C. Kaynak. Optical Recognition of Handwritten Digits. UCI Machine Learning Repository, "
    "1998. doi:10.24432/C50P49",
    source="https://scikit-learn.org/stable/modules/generated/sklearn.datasets.load_digits.html",
    held_out=1 / 3,
    requires=("sklearn", "digits"),
)

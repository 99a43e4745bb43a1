"""CIFAR-10H (Peterson et al. 2019): how some fifty people each labelled every CIFAR-10 test image.

Images and labels are CIFAR-10's; the counts (n, 10) of the evaluation images stand beside the splits as
`extra["validation_counts"]` and `extra["test_counts"]`.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from landscope.core.errors import DamagedFileError
from landscope.data.dataset import DataSet, Raw, register
from landscope.data.formats.npy import parse_npy
from landscope.data.sets.cifar import CIFAR10_VERSIONS, read_cifar10
from landscope.data.source import Download, Files, Version, locate

__all__: list[str] = []

_HOME = "https://github.com/jcpeterson/cifar-10h/raw/master/data/"
_OFFICIAL = "sha256:9b36b4550349af56c79083356312eb4af856cc5fd3caf1f669d40b9d0bbb69ff"


def _read(files: Files, *, seed: int) -> Raw:
    (name,) = files.version.files
    counts = parse_npy(files.read(name), files.path(name))
    if counts.ndim != 2 or counts.shape[1] != 10 or counts.dtype.kind not in "iu":
        raise DamagedFileError(f"{files.path(name)}: {counts.dtype} {counts.shape} where whole numbers (n, 10) belong")
    images = locate("cifar10", CIFAR10_VERSIONS, root=files.root, verify=files.verify)
    raw = read_cifar10(images, seed=seed)
    if raw.evaluation is None or len(counts) != len(raw.evaluation.y):
        raise DamagedFileError(
            f"{files.path(name)}: {len(counts):,} rows of counts do not match CIFAR-10's test images"
        )
    return dataclasses.replace(raw, beside={"counts": torch.from_numpy(counts.astype(np.int64))})


register(
    DataSet(
        name="cifar10h",
        title="CIFAR-10H (human label counts)",
        task="classification",
        read=_read,
        licence="CC BY-NC-SA 4.0 (counts); CIFAR-10: none stated",
        citation="J. Peterson, R. Battleday, T. Griffiths, O. Russakovsky. Human uncertainty makes classification more "
        "robust. ICCV 2019.",
        source="https://github.com/jcpeterson/cifar-10h",
        versions=(
            Version(
                name="official",
                folders=("cifar10h",),
                files={"cifar10h-counts.npy": _OFFICIAL},
                downloads=(
                    Download(
                        urls=(_HOME + "cifar10h-counts.npy",), path="cifar10h/cifar10h-counts.npy", checksum=_OFFICIAL
                    ),
                ),
            ),
            Version(
                name="bytes",
                folders=("cifar10h",),
                files={"counts.npy": "sha256:1428924725020a238b51763eaf54396e639f4bcd9f50567d0eab63ab822cfb25"},
                by_hand="The official counts saved as bytes.",
            ),
        ),
    )
)

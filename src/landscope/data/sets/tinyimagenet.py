"""TinyImageNet-200 as its folder of JPEGs, and `tinyimagenet100_32`, a stand-in for CIFAR-100 made from it.

The stand-in takes every other class, box-resized to 32×32: 500 training and 50 test images for each of 100 classes,
the shape of CIFAR-100's training set. TinyImageNet's test images have no labels, so its validation folder is the
evaluation set.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from landscope.core.errors import DamagedFileError, MissingFileError
from landscope.data.dataset import DataSet, Raw, Split
from landscope.data.files import Download, Files, Version
from landscope.data.formats import parse_npy, parse_rows

_ARCHIVE = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
_CITATION = "Y. Le, X. Yang. Tiny ImageNet Visual Recognition Challenge. Stanford CS231N, 2015."


def _decoded(paths: Sequence[Path]) -> Tensor:
    """Images (n, 3, 64, 64) as bytes; grey ones become colour."""
    from PIL import Image, UnidentifiedImageError  # matplotlib brings it

    def decode(path: Path) -> npt.NDArray[np.uint8]:
        try:
            with Image.open(path, formats=("JPEG",)) as image:
                pixels = np.asarray(image.convert("RGB"))
        except (UnidentifiedImageError, OSError) as error:
            raise DamagedFileError(f"{path}: is not a readable JPEG ({error})") from error
        if pixels.shape != (64, 64, 3):
            raise DamagedFileError(f"{path}: expected 64×64 pixels, got {pixels.shape[0]}×{pixels.shape[1]}")
        return pixels

    out = torch.empty(len(paths), 3, 64, 64, dtype=torch.uint8)
    with ThreadPoolExecutor() as pool:
        for row, pixels in enumerate(pool.map(decode, paths, chunksize=64)):
            out[row] = torch.from_numpy(pixels.copy()).permute(2, 0, 1)
    return out


def _read_folder(files: Files) -> Raw:
    wnids = sorted(files.read("wnids.txt").decode().split())
    words = dict(line.split("\t", 1) for line in files.read("words.txt").decode().splitlines() if "\t" in line)
    annotations = parse_rows(files.read("val/val_annotations.txt"), files.path("val/val_annotations.txt"), "\t", 6)
    train = [(path, label) for label, wnid in enumerate(wnids)
             for path in sorted((files.folder / "train" / wnid / "images").glob("*.JPEG"))]  # fmt: skip
    if unknown := {row[1] for row in annotations} - set(wnids):
        raise DamagedFileError(f"{files.path('val/val_annotations.txt')}: unknown classes {sorted(unknown)[:3]}")
    evaluation = [(files.folder / "val" / "images" / row[0], wnids.index(row[1])) for row in annotations]
    for folder, found, published in (("train", train, 100_000), ("val", evaluation, 10_000)):
        if not found or (files.verify and len(found) != published):
            raise MissingFileError(f"{files.folder / folder}: {len(found):,} images where {published:,} are published")

    def split(rows: list[tuple[Path, int]]) -> Split:
        return Split(_decoded([path for path, _ in rows]), torch.tensor([label for _, label in rows]))

    classes = tuple(words.get(wnid, wnid).split(",")[0] for wnid in wnids)
    return Raw(train=split(train), evaluation=split(evaluation), classes=classes)


def _read_arrays(files: Files) -> Raw:
    names = parse_rows(files.read("classes.txt"), files.path("classes.txt"), "\t", 2)

    def split(name: str) -> Split:
        x = parse_npy(files.read(f"{name}/images.npy"), files.path(f"{name}/images.npy"))
        y = parse_npy(files.read(f"{name}/labels.npy"), files.path(f"{name}/labels.npy"))
        if x.dtype != np.uint8 or x.shape != (len(y), 32, 32, 3):
            raise DamagedFileError(f"{files.folder / name}: images {x.shape} {x.dtype} for {len(y):,} labels")
        if y.dtype != np.uint8 or y.ndim != 1 or (len(y) and y.max() >= len(names)):
            raise DamagedFileError(f"{files.folder / name}: labels outside 0 … {len(names) - 1}")
        return Split(torch.tensor(x).permute(0, 3, 1, 2).contiguous(), torch.tensor(y, dtype=torch.int64))

    return Raw(train=split("train"), evaluation=split("test"), classes=tuple(row[1] for row in names))


TINYIMAGENET = DataSet(
    name="tinyimagenet",
    title="TinyImageNet-200",
    task="classification",
    read=_read_folder,
    licence="research use",
    citation=_CITATION,
    source=_ARCHIVE,
    versions=(
        Version(
            name="jpeg",
            folders=("tiny-imagenet-200",),
            files={"wnids.txt": None, "words.txt": None, "val/val_annotations.txt": None},
            downloads=(
                Download(
                    _ARCHIVE, "tiny-imagenet-200.zip", "md5:90528d7ca1a48142e341f4ef8d21d0de", "tiny-imagenet-200"
                ),
            ),
        ),
    ),
    requires=("PIL", "images"),
)
TINYIMAGENET100_32 = DataSet(
    name="tinyimagenet100_32",
    title="TinyImageNet, 100 classes at 32×32",
    task="classification",
    read=_read_arrays,
    licence="research use",
    citation=_CITATION,
    source=f"derived from {_ARCHIVE}",
    versions=(
        Version(
            name="arrays",
            folders=("tinyimagenet100_32",),
            files={
                "train/images.npy": "sha256:8ad7b4ee442f15e6d8e16dac5cf56f597661410df72831d8ea0c41cf45c54a0a",
                "train/labels.npy": "sha256:fadf02cd4adb8b4b11f23b271d0dcf19923c9a8f19fe748576e3206d9a56e737",
                "test/images.npy": "sha256:81d514894df7c3126d69d9b2338290d24f46a10c577aa3397dc164b6789f9f78",
                "test/labels.npy": "sha256:4076c4191f4b4590e94d76dc9690c564f56d97dc67bc5225c536c07910f710ff",
                "classes.txt": "sha256:c1879fd5adae888f3a3bc4d0ac6e31d6c948d74a1b53ca651d36ef1fa739ecc6",
            },
            by_hand="It is derived from TinyImageNet (every other class, box-resized to 32×32) and has no home.",
        ),
    ),
)

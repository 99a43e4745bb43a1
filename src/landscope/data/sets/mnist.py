"""MNIST (LeCun et al. 1998) and FashionMNIST (Xiao et al. 2017): 60,000 + 10,000 grey images of 28×28 in idx files."""

from __future__ import annotations

import torch

from landscope.core.errors import DamagedFileError
from landscope.data.dataset import DataSet, Raw, Split
from landscope.data.files import Download, Files, Version
from landscope.data.formats import parse_idx

_NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def _version(
    folders: tuple[str, ...], homes: tuple[str, ...], sha256: tuple[str, ...], md5: tuple[str, ...]
) -> Version:
    """Files by the checksum of their content, downloads by the published checksum of the zipped file."""
    return Version(
        name="idx",
        folders=folders,
        files={name: f"sha256:{checksum}" for name, checksum in zip(_NAMES, sha256, strict=True)},
        downloads=tuple(
            Download(tuple(f"{home}{name}.gz" for home in homes), f"{folders[0]}/{name}.gz", f"md5:{checksum}")
            for name, checksum in zip(_NAMES, md5, strict=True)
        ),
    )


def _split(files: Files, images: str, labels: str) -> Split:
    x, y = parse_idx(files.read(images), files.path(images), 3), parse_idx(files.read(labels), files.path(labels), 1)
    if len(x) != len(y):
        raise DamagedFileError(f"{files.path(labels)}: {len(y):,} labels for the {len(x):,} images of {images}")
    if x.shape[1:] != (28, 28):
        raise DamagedFileError(f"{files.path(images)}: expected images of 28×28, got {x.shape[1]}×{x.shape[2]}")
    if len(y) and y.max() > 9:
        raise DamagedFileError(f"{files.path(labels)}: label {y.max()} outside 0 … 9")
    return Split(torch.tensor(x).unsqueeze(1), torch.tensor(y, dtype=torch.int64))


def _read(files: Files, classes: tuple[str, ...]) -> Raw:
    return Raw(train=_split(files, *_NAMES[:2]), evaluation=_split(files, *_NAMES[2:]), classes=classes)


_FASHION = ("T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")


MNIST = DataSet(
    name="mnist",
    title="MNIST",
    task="classification",
    read=lambda files: _read(files, tuple("0123456789")),
    licence="none stated",
    citation="Y. LeCun, L. Bottou, Y. Bengio, P. Haffner. Gradient-based learning applied to document recognition. "
    "Proceedings of the IEEE 86(11), 1998.",
    source="http://yann.lecun.com/exdb/mnist/",
    versions=(
        _version(
            ("mnist", "MNIST/raw"),
            ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/"),
            (
                "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
                "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
                "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
                "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            ),
            (
                "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "d53e105ee54ea40749a09fcbcd1e9432",
                "9fb629c4189551a2d022fa330f9573f3",
                "ec29112dd5afa0611ce80d1b7f02629c",
            ),
        ),
    ),
)
FASHION_MNIST = DataSet(
    name="fashion_mnist",
    title="FashionMNIST",
    task="classification",
    read=lambda files: _read(files, _FASHION),
    licence="MIT",
    citation="H. Xiao, K. Rasul, R. Vollgraf. Fashion-MNIST: a novel image dataset for benchmarking machine "
    "learning algorithms. arXiv:1708.07747, 2017.",
    source="https://github.com/zalandoresearch/fashion-mnist",
    versions=(
        _version(
            ("fashion_mnist", "FashionMNIST/raw"),
            ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
            (
                "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
                "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
                "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
                "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            ),
            (
                "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "25c81989df183df01b3e8a0aad5dffbe",
                "bef4ecab320f06d8554ea6380940ec79",
                "bb300cfdad3c16e7a12a480ee83cd310",
            ),
        ),
    ),
)

"""CIFAR-10 and CIFAR-100, and CIFAR-10H, how people labelled its test images."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from landscope.core.errors import DamagedFileError
from landscope.data.dataset import DataSet, Raw, Split
from landscope.data.files import Download, Files, Version, locate
from landscope.data.formats import Labels, parse_binary, parse_npy, parse_python

# CIFAR-10 and CIFAR-100 (Krizhevsky 2009): 50,000 + 10,000 colour images of 32×32, binary or python version.


_HOME = "https://www.cs.toronto.edu/~kriz/"
_CITATION = "A. Krizhevsky. Learning Multiple Layers of Features from Tiny Images. Technical report, 2009."

_CIFAR10 = "airplane automobile bird cat deer dog frog horse ship truck"
_CIFAR100 = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale willow_tree
wolf woman worm
"""


def _version(name: str, folder: str, archive: str, md5: str, files: dict[str, str | None]) -> Version:
    home = Download(_HOME + archive, archive, f"md5:{md5}", unpacks_to=folder)
    return Version(name=name, folders=(folder,), files=files, downloads=(home,))


_CIFAR10_VERSIONS = (
    _version(
        "binary",
        "cifar-10-batches-bin",
        "cifar-10-binary.tar.gz",
        "c32a1d4ab5d03f1284b67883e8d87530",
        {
            "data_batch_1.bin": "md5:5dd7e06a14cb22eb9f671a540d1b7c25",
            "data_batch_2.bin": "md5:5ea93a67294ea407fff1d09f752e9692",
            "data_batch_3.bin": "md5:942cd6a4bcdd0dd3c604fbe906cb4421",
            "data_batch_4.bin": "md5:ae636b3ba5c66a11e91e8cb52e771fcb",
            "data_batch_5.bin": "md5:53f37980c15c3d472c316c40844f3f0d",
            "test_batch.bin": "md5:803d5f7f4d78ea53de84dbe85f74fb6d",
        },
    ),
    _version(
        "python",
        "cifar-10-batches-py",
        "cifar-10-python.tar.gz",
        "c58f30108f718f92721af3b95e74349a",
        {
            "data_batch_1": "md5:c99cafc152244af753f735de768cd75f",
            "data_batch_2": "md5:d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "md5:54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "md5:634d18415352ddfa80567beed471001a",
            "data_batch_5": "md5:482c414d41f54cd18b22e5b47cb7c3cb",
            "test_batch": "md5:40351d587109b95175f43aff81a1287e",
        },
    ),
)
_CIFAR100_VERSIONS = (
    _version(
        "binary",
        "cifar-100-binary",
        "cifar-100-binary.tar.gz",
        "03b5dce01913d631647c71ecec9e9cb8",
        {"train.bin": None, "test.bin": None},
    ),
    _version(
        "python",
        "cifar-100-python",
        "cifar-100-python.tar.gz",
        "eb9058c3a382ffc7106e4002c42a8d85",
        {"train": "md5:16019d7e3df5f24257cddd939b257f8d", "test": "md5:f0ef6b0ae62326f3e7ffdfab6717acfc"},
    ),
)


def _read(files: Files, kind: Labels, classes: tuple[str, ...]) -> Raw:
    parse = parse_binary if files.version.name == "binary" else parse_python

    def split(names: list[str]) -> Split:
        parts = [parse(files.read(name), files.path(name), kind, len(classes)) for name in names]
        images, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        return Split(torch.from_numpy(images), torch.from_numpy(labels))

    names = list(files.version.files)
    return Raw(train=split(names[:-1]), evaluation=split(names[-1:]), classes=classes)


def _read_cifar10(files: Files) -> Raw:
    return _read(files, "labels", tuple(_CIFAR10.split()))


CIFAR10 = DataSet(
    name="cifar10",
    title="CIFAR-10",
    task="classification",
    read=_read_cifar10,
    licence="none stated",
    citation=_CITATION,
    source=_HOME + "cifar.html",
    versions=_CIFAR10_VERSIONS,
)
CIFAR100 = DataSet(
    name="cifar100",
    title="CIFAR-100",
    task="classification",
    read=lambda files: _read(files, "fine_labels", tuple(_CIFAR100.split())),
    licence="none stated",
    citation=_CITATION,
    source=_HOME + "cifar.html",
    versions=_CIFAR100_VERSIONS,
)


# CIFAR-10H (Peterson et al. 2019): how some fifty people each labelled every CIFAR-10 test image.
#
# Images and labels are CIFAR-10's; the counts (n, 10) of the evaluation images stand beside the splits as
# `extra["validation_counts"]` and `extra["test_counts"]`.


_HUMAN = "https://github.com/jcpeterson/cifar-10h"
_COUNTS = "cifar10h-counts.npy"
_OFFICIAL = "sha256:9b36b4550349af56c79083356312eb4af856cc5fd3caf1f669d40b9d0bbb69ff"


def _read_human(files: Files) -> Raw:
    (name,) = files.version.files
    counts = parse_npy(files.read(name), files.path(name))
    if counts.ndim != 2 or counts.shape[1] != 10 or counts.dtype.kind not in "iu":
        raise DamagedFileError(f"{files.path(name)}: {counts.dtype} {counts.shape} where whole numbers (n, 10) belong")
    raw = _read_cifar10(locate("cifar10", _CIFAR10_VERSIONS, root=files.root, verify=files.verify))
    if raw.evaluation is None or len(counts) != len(raw.evaluation.y):
        raise DamagedFileError(
            f"{files.path(name)}: {len(counts):,} rows of counts do not match CIFAR-10's test images"
        )
    return dataclasses.replace(raw, beside={"counts": torch.from_numpy(counts.astype(np.int64))})


CIFAR10H = DataSet(
    name="cifar10h",
    title="CIFAR-10H (human label counts)",
    task="classification",
    read=_read_human,
    licence="CC BY-NC-SA 4.0 (counts); CIFAR-10: none stated",
    citation="J. Peterson, R. Battleday, T. Griffiths, O. Russakovsky. Human uncertainty makes classification more "
    "robust. ICCV 2019.",
    source=_HUMAN,
    versions=(
        Version(
            name="official",
            folders=("cifar10h",),
            files={_COUNTS: _OFFICIAL},
            downloads=(Download(_HUMAN + "/raw/master/data/" + _COUNTS, f"cifar10h/{_COUNTS}", _OFFICIAL),),
        ),
        Version(
            name="bytes",
            folders=("cifar10h",),
            files={"counts.npy": "sha256:1428924725020a238b51763eaf54396e639f4bcd9f50567d0eab63ab822cfb25"},
            by_hand="The official counts saved as bytes.",
        ),
    ),
)

"""Street View House Numbers (Netzer et al. 2011), the cropped digits: 73,257 + 26,032 colour images of 32×32."""

from __future__ import annotations

import torch

from landscope.data.dataset import DataSet, Raw, Split, register
from landscope.data.files import Download, Files, Version
from landscope.data.matlab import parse_svhn

__all__: list[str] = []

_HOME = "http://ufldl.stanford.edu/housenumbers/"
_FILES = {
    "train_32x32.mat": "md5:e26dedcc434d2e4c54c9b2d4a06d8373",
    "test_32x32.mat": "md5:eb5a983be6a315427106f1b164d9cef3",
}


def _read(files: Files, *, seed: int) -> Raw:
    del seed  # nothing is drawn

    def split(name: str) -> Split:
        images, labels = parse_svhn(files.read(name), files.path(name))
        return Split(torch.from_numpy(images), torch.from_numpy(labels))

    return Raw(train=split("train_32x32.mat"), evaluation=split("test_32x32.mat"), classes=tuple("0123456789"))


register(
    DataSet(
        name="svhn",
        title="SVHN (cropped digits)",
        task="classification",
        read=_read,
        licence="non-commercial use",
        citation="Y. Netzer, T. Wang, A. Coates, A. Bissacco, B. Wu, A. Y. Ng. Reading Digits in Natural Images with "
        "Unsupervised Feature Learning. NIPS Workshop on Deep Learning and Unsupervised Feature Learning, 2011.",
        source=_HOME,
        versions=(
            Version(
                name="mat",
                folders=("svhn", "SVHN", ""),
                files=dict(_FILES),
                downloads=tuple(
                    Download(urls=(_HOME + name,), path=f"svhn/{name}", checksum=checksum)
                    for name, checksum in _FILES.items()
                ),
            ),
        ),
    )
)

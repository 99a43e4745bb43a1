"""The real files: counts, checksums, constants that everyone knows. Skipped where the files are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from landscope.core.errors import DamagedFileError
from landscope.data import DATASETS, corrupt, load, status
from landscope.data.files import locate
from landscope.data.sets.skull_volumes import HEADS, head_volume

pytestmark = pytest.mark.real_data
Need = Callable[[str], None]

# counts, mean and deviation per channel as published over and over
KNOWN = {
    "mnist": ((60_000, 5_000, 5_000), (0.1307,), (0.3081,)),
    "fashion_mnist": ((60_000, 5_000, 5_000), (0.2860,), (0.3530,)),
    "cifar10": ((50_000, 5_000, 5_000), (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((50_000, 5_000, 5_000), (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "svhn": ((73_257, 13_016, 13_016), (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)),
    "tinyimagenet100_32": ((50_000, 2_500, 2_500), (0.4793, 0.4472, 0.3998), (0.2650, 0.2561, 0.2696)),
}


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_images(name: str, real: Need) -> None:
    real(name)
    counts, mean, std = KNOWN[name]
    data = load(name, pixels="raw")
    assert tuple(data.card.counts.values()) == counts
    assert data.card.mean == pytest.approx(mean, abs=6e-5)
    assert data.card.std == pytest.approx(std, abs=6e-5)
    assert status(name).state == "present"
    everything = torch.cat(list(data.indices.values()))
    assert len(everything.unique()) == len(everything) == sum(counts)


def test_balanced_classes(real: Need) -> None:
    for name, per_class in (("cifar10", 5_000), ("fashion_mnist", 6_000), ("tinyimagenet100_32", 500)):
        real(name)
        assert set(torch.bincount(load(name, pixels="raw").train.y).tolist()) == {per_class}


def test_first_paper_split(real: Need) -> None:
    real("cifar10")
    data = load("cifar10", pixels="raw")
    whole = load("cifar10", pixels="raw", validation=0)
    assert torch.equal(data.validation.x, whole.test.x[:5_000])
    assert torch.equal(data.test.x, whole.test.x[5_000:])
    assert whole.test.y[:10].tolist() == [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]


def test_cifar_python_version_of_the_same_images(real: Need, tmp_path: Path) -> None:
    """The real images, written as the pickles of the python version, come back the same."""
    import pickle

    real("cifar10")
    binary = load("cifar10", pixels="raw", validation=0)
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for k in range(6):
        x, y = binary.train if k < 5 else binary.test
        rows = slice(10_000 * k, 10_000 * (k + 1)) if k < 5 else slice(None)
        batch = {"data": x[rows].reshape(-1, 3072).numpy(), "labels": y[rows].tolist()}
        (folder / (f"data_batch_{k + 1}" if k < 5 else "test_batch")).write_bytes(pickle.dumps(batch, protocol=2))
    python = load("cifar10", root=tmp_path, pixels="raw", validation=0, verify=False)
    assert python.card.version == "python"
    assert torch.equal(python.train.x, binary.train.x)
    assert torch.equal(python.test.y, binary.test.y)


def test_a_flipped_bit_is_noticed(real: Need, tmp_path: Path) -> None:
    real("mnist")
    source = locate("mnist", DATASETS["mnist"].versions).folder
    (tmp_path / "mnist").mkdir()
    for file in source.iterdir():
        content = bytearray(file.read_bytes())
        if file.name.startswith("t10k-images"):
            content[5_000] ^= 1
        (tmp_path / "mnist" / file.name).write_bytes(content)
    with pytest.raises(DamagedFileError, match="t10k-images"):
        load("mnist", root=tmp_path)
    assert load("mnist", root=tmp_path, verify=False, pixels="raw").card.counts["train"] == 60_000


def test_human_counts(real: Need) -> None:
    real("cifar10h")
    real("cifar10")
    data = load("cifar10h", pixels="raw")
    counts = torch.cat([data.extra["validation_counts"], data.extra["test_counts"]])
    labels = torch.cat([data.validation.y, data.test.y])
    assert counts.shape == (10_000, 10)
    assert 47 <= int(counts.sum(1).min()) <= int(counts.sum(1).max()) <= 63
    assert float((counts.argmax(1) == labels).float().mean()) > 0.99


def test_rte(real: Need) -> None:
    real("rte")
    data = load("rte")
    assert data.card.counts == {"train": 2_490, "validation": 138, "test": 139}
    assert torch.bincount(data.train.y).tolist() == [1_249, 1_241]
    assert data.texts["train"][0][1] == "Weapons of Mass Destruction Found in Iraq."
    assert data.train.y[0] == 1


def test_head_volumes(real: Need) -> None:
    real("skulls")
    mri = head_volume(locate("skulls", HEADS, version="mri"))
    assert mri.voxels.shape == (181, 217, 181)
    assert mri.spacing == (1.0, 1.0, 1.0)
    assert (mri.voxels.min(), mri.voxels.max()) == (0.0, mri.voxels.max())
    ct = head_volume(locate("skulls", HEADS, version="ct"))
    assert ct.voxels.shape == (93, 64, 64)
    assert ct.voxels.max() == 3926


def test_skulls(real: Need) -> None:
    """Closed vaults with a hole each, differing from one another, of the paper's numbers and size."""
    real("skulls")
    data = load("skulls")
    assert data.card.counts == {"train": 100, "validation": 20, "test": 100}
    assert data.train.x.shape == (100, 1, 64, 64, 64)
    voxels = data.train.y.sum((1, 2, 3, 4))
    for inputs, targets in (
        (data.train.x, data.train.y),
        (data.test.x, data.test.y),
        (data.extra["test_shifted"], data.test.y),
    ):
        removed = (targets - inputs).sum((1, 2, 3, 4))
        assert bool((inputs <= targets).all())
        assert 100 < float(removed.min()) <= float(removed.max()) < 1_500
    assert 4_000 < float(voxels.min()) <= float(voxels.max()) < 25_000
    # Nothing touches the sides of the cube, and two skulls overlap only in part.
    assert float(data.train.y[..., 0].sum() + data.train.y[..., -1].sum()) == 0
    a, b = data.train.y[0], data.train.y[1]
    assert float(2 * (a * b).sum() / (a.sum() + b.sum())) < 0.8


def test_corruptions_of_real_images(real: Need) -> None:
    real("cifar10")
    x = load("cifar10", validation=0).test.x[:100]
    grey = (
        load("mnist", validation=0).test.x[:100]
        if status("mnist", verify=False).state == "present"
        else x.mean(1, True)
    )
    for images in (x, grey):
        for name in ("snow", "jpeg_compression", "spatter", "frost"):
            out = corrupt(images, name, 5)
            assert out.shape == images.shape
            assert 0.005 < float((out - images).abs().mean()) < 0.5


def test_noisy_human_labels_agree_with_the_files(real: Need) -> None:
    """CIFAR-10N carries the clean labels of CIFAR-10: the order of our rows is the official one."""
    real("cifar10")
    folder = locate("cifar10", DATASETS["cifar10"].versions).folder
    path = folder.parent / "cifar10n" / "cifar10n_labels.npz"
    if not path.is_file():
        pytest.skip("cifar10n is not in $LANDSCOPE_DATA")
    clean = np.load(path)["clean_label"]
    assert load("cifar10", pixels="raw").train.y.tolist() == clean.tolist()

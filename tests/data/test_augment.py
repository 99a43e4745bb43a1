"""Augmentation of batches."""

from __future__ import annotations

import pytest
import torch

from landscope.core.errors import OperandError
from landscope.data import Augmentation
from landscope.data.augment import cutout, random_crop, random_flip


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def images() -> torch.Tensor:
    return torch.rand(64, 3, 12, 10, generator=rng(1)) + 0.1


def test_flips_are_mirrors_for_about_half(images: torch.Tensor) -> None:
    out = random_flip(images, rng())
    kept = (out == images).flatten(1).all(1)
    mirrored = (out == images.flip(3)).flatten(1).all(1)
    assert bool((kept ^ mirrored).all())
    assert 16 < int(kept.sum()) < 48


def test_crops_are_shifts_with_zeros(images: torch.Tensor) -> None:
    out = random_crop(images, rng(), padding=2)
    padded = torch.nn.functional.pad(images, (2, 2, 2, 2))
    seen = set()
    for before, after in zip(padded, out, strict=True):
        matches = [(i, j) for i in range(5) for j in range(5) if torch.equal(before[:, i : i + 12, j : j + 10], after)]
        assert len(matches) == 1
        seen.add(matches[0])
    assert len(seen) > 15
    assert torch.equal(random_crop(images, rng(), padding=0), images)


def test_cutout_is_one_square(images: torch.Tensor) -> None:
    out = cutout(images, rng(), size=4)
    holes = (out == 0).all(1)
    assert torch.equal(torch.where(holes[:, None], images, out), images)
    for hole in holes:
        rows, columns = hole.any(1).nonzero(), hole.any(0).nonzero()
        height, width = len(rows), len(columns)
        assert 2 <= height <= 4
        assert 2 <= width <= 4
        assert int(hole.sum()) == height * width
        assert int(rows.max() - rows.min()) == height - 1
    assert int(holes.flatten(1).sum(1).max()) == 16


def test_what_comes_in_has_the_colour_of_each_channel(images: torch.Tensor) -> None:
    colours = (-1.0, -2.0, 0.0)
    painted = torch.tensor(colours)[:, None, None]
    for plain, coloured in (
        (random_crop(images, rng(), 2), random_crop(images, rng(), 2, colours)),
        (cutout(images, rng(), 4), cutout(images, rng(), 4, colours)),
        (Augmentation(cutout=4)(images, rng()), Augmentation(cutout=4, fill=colours)(images, rng())),
    ):
        assert torch.equal(coloured, torch.where(plain == 0, painted, plain)), "images have no 0 of their own"
    black = Augmentation(crop=3, flip=False, fill=-1.0)(images, rng())
    assert torch.equal(black, torch.where(random_crop(images, rng(), 3) == 0, -1.0, random_crop(images, rng(), 3)))
    with pytest.raises(OperandError, match="2 numbers for images of 3 channels"):
        Augmentation(fill=(0.0, 1.0))(images, rng())


def test_the_whole_is_seeded_and_leaves_the_batch_alone(images: torch.Tensor) -> None:
    before = images.clone()
    augment = Augmentation(crop=2, cutout=4)
    assert torch.equal(augment(images, rng(5)), augment(images, rng(5)))
    assert not torch.equal(augment(images, rng(5)), augment(images, rng(6)))
    assert torch.equal(images, before)
    assert torch.equal(Augmentation(crop=0, flip=False)(images, rng()), images)


def test_global_randomness_is_untouched(images: torch.Tensor) -> None:
    torch.manual_seed(0)
    state = torch.get_rng_state()
    Augmentation(cutout=4)(images, rng())
    assert torch.equal(torch.get_rng_state(), state)


def test_bad_shapes(images: torch.Tensor) -> None:
    with pytest.raises(OperandError, match="images"):
        Augmentation()(images[0], rng())
    with pytest.raises(OperandError, match="padding"):
        random_crop(images, rng(), padding=-1)

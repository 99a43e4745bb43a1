"""Data that only paper 2 uses: its circles, images some of whose labels are drawn, and names of fifteen made-up languages."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from landscope.core.seeding import generator
from landscope.data import load
from landscope.data.dataset import Split

__all__ = ["circles_of_the_paper", "made_up_names", "partly_random_labels"]

POINTS, CIRCLES = 100, 2


def circles_of_the_paper(*, share: float = 0.0, factor: float = 0.5) -> dict[str, Split]:
    """Its 50 training and 50 test points: no noise, one shuffle for all networks; a share of the training labels is drawn.

    The rows of a smaller share are among those of a larger one. About half of the labels that are drawn come out as they were.

    >>> none, half, all_ = (circles_of_the_paper(share=share)["train"].y for share in (0.0, 0.5, 1.0))
    >>> len(none), int((none != half).sum()), int((none != all_).sum())
    (50, 13, 23)
    """
    each = POINTS // CIRCLES
    angle = np.linspace(0, 2 * math.pi, each, endpoint=False)
    circle = np.stack([np.cos(angle), np.sin(angle)], 1)
    x, y = np.concatenate([circle, factor * circle]), np.repeat(np.arange(CIRCLES), each)
    order = np.arange(POINTS)
    np.random.RandomState(0).shuffle(order)
    x, y = x[order], y[order]
    rng = np.random.default_rng(0)
    labels, half = y.copy(), POINTS // 2
    drawn = np.flatnonzero(rng.uniform(0, 1, size=half) <= share)
    labels[drawn] = rng.choice(CIRCLES, len(drawn))
    inputs, targets = torch.from_numpy(x).float(), torch.from_numpy(labels)
    return {"train": Split(inputs[:half], targets[:half]), "test": Split(inputs[half:], targets[half:])}


def partly_random_labels(
    *, of: str = "cifar10", share: float = 0.0, pixels: str = "symmetric", train_size: int | None = None
) -> dict[str, Split]:
    """Images with a share of the training labels drawn among all classes; the `validation` rows are the same with true labels.

    The paper measures sharpness with those. Which labels are drawn is the same for every network.

    >>> rows = partly_random_labels(of="digits", share=0.5, train_size=200)
    >>> changed = float((rows["train"].y != rows["validation"].y).double().mean())
    >>> 0.35 < changed < 0.55, torch.equal(rows["train"].x, rows["validation"].x)
    (True, True)
    """
    whole = load(of, pixels=pixels, validation=0, train_size=train_size)  # type: ignore[arg-type]
    (x, y), classes = whole.train, whole.card.n_classes
    drawn = torch.rand(len(y), generator=generator(0, "which labels are random")) < share
    others = torch.randint(classes, y.shape, generator=generator(0, "random labels"))
    return {"train": Split(x, torch.where(drawn, others, y)), "validation": Split(x, y), "test": whole.test}


LANGUAGES, LETTERS, LONGEST = 15, 26, 25
PADDING, FIRST = 0, 2
"""Tokens: padding, an unknown character, then letters."""
SHARPER = 1.6
"""How unlike the languages are: the deviation of the logarithms of their letters' chances."""


def made_up_names(*, train: int = 15_000, test: int = 3_000, seed: int = 0) -> dict[str, Split]:
    """Names of 3 to 12 letters in fifteen made-up languages, and which language each is of; for the names of the paper.

    Each language is a chain in which a letter's chances depend on the one before. Tokens are padded on the left to 25, as there.

    >>> rows = made_up_names(train=30, test=15)
    >>> rows["train"].x.shape, sorted(set(rows["test"].y.tolist())) == list(range(15))
    (torch.Size([30, 25]), True)
    """
    chances = torch.randn((LANGUAGES, LETTERS + 1, LETTERS), generator=generator(seed, "languages")).mul(SHARPER)
    chances = chances.softmax(-1)
    return {name: _names(chances, count, seed, name) for name, count in (("train", train), ("test", test))}


def _names(chances: Tensor, count: int, seed: int, stream: str) -> Split:
    rng = generator(seed, "names", stream)
    language = torch.arange(count) % LANGUAGES
    lengths = torch.randint(3, 13, (count,), generator=rng)
    tokens = torch.full((count, LONGEST), PADDING)
    last = torch.full((count,), LETTERS)  # the beginning of a name
    for place in range(int(lengths.max())):
        last = torch.multinomial(chances[language, last], 1, generator=rng)[:, 0]
        inside = place < lengths
        tokens[inside, LONGEST - lengths[inside] + place] = FIRST + last[inside]
    return Split(tokens, language)

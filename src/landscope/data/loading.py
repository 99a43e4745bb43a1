"""`load`: any data set by name, split, seeded, scaled, with its card."""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from landscope.core.errors import NotApplicableError, OperandError, UnknownNameError
from landscope.core.seeding import generator
from landscope.data.dataset import DATASETS, DataCard, DataSet, DataSplits, Raw, Split
from landscope.data.files import Files, locate

# From bytes to the numbers a network sees: [0, 1], [−1, 1], or mean 0 and deviation 1 per channel.


Pixels = Literal["unit", "raw", "standard", "symmetric"]


def scaled(x: Tensor, pixels: Pixels, mean: Tensor | Sequence[float], std: Tensor | Sequence[float]) -> Tensor:
    """Inputs on a scale; bytes are divided by 255 first, row numbers and token ids stay as they are.

    >>> scaled(torch.tensor([[[[0, 255]]]], dtype=torch.uint8), "symmetric", (), ())
    tensor([[[[-1.,  1.]]]])
    """
    if pixels == "raw" or not (x.dtype == torch.uint8 or x.is_floating_point()):
        return x
    unit = x.float().div_(255) if x.dtype == torch.uint8 else x
    if pixels == "symmetric":
        if x.ndim != 4:
            raise NotApplicableError(f'pixels="symmetric" is for images; these inputs have shape {tuple(x.shape[1:])}')
        return unit * 2 - 1
    if pixels == "standard":
        shape = (1, -1) + (1,) * (x.ndim - 2)
        centre, width = (torch.as_tensor(m, dtype=torch.float32, device=x.device).reshape(shape) for m in (mean, std))
        # A channel or column that never changes is left at 0 instead of being divided by 0.
        return (unit - centre) / torch.where(width > 0, width, torch.ones_like(width))
    return unit


# Labels made worse on purpose: symmetric noise, and labels that mean nothing.
#
# Only training labels are ever changed. Zhang et al. (2017) fit random labels to show that capacity alone does not
# explain generalisation; the second paper uses them on circles.


def noisy_labels(labels: Tensor, fraction: float, n_classes: int, seed: int) -> Tensor:
    """Copy in which exactly round(fraction·n) labels are replaced by another class, each other class equally likely.

    >>> noisy = noisy_labels(torch.zeros(10, dtype=torch.int64), 0.3, n_classes=4, seed=0)
    >>> int((noisy != 0).sum())
    3
    """
    if not 0 <= fraction <= 1 or n_classes < 2:
        raise OperandError(f"label noise needs a fraction in [0, 1] and two classes, got {fraction} and {n_classes}")
    rng = generator(seed, "label noise")
    hit = torch.randperm(len(labels), generator=rng)[: round(fraction * len(labels))]
    shift = torch.randint(1, n_classes, (len(hit),), generator=rng)
    noisy = labels.clone()
    noisy[hit] = (labels[hit] + shift) % n_classes
    return noisy


def uniform_labels(labels: Tensor, n_classes: int, seed: int) -> Tensor:
    """Independent uniform labels in place of `labels`, whatever the inputs are.

    >>> uniform_labels(torch.zeros(4, dtype=torch.int64), n_classes=2, seed=0).shape
    torch.Size([4])
    """
    return torch.randint(0, n_classes, labels.shape, generator=generator(seed, "random labels"))


# Which rows go where: stratified draws that depend on a seed and nothing else.


def draw(labels: Tensor, n: int, seed: int, stream: str) -> tuple[Tensor, Tensor]:
    """Two sorted sets of row numbers: `n` drawn ones, and the rest.

    Whole-number labels are drawn in proportion, by Webster's rule: the same share of each class, rounded to whole rows, the
    share being the one that adds up to `n`. A smaller draw is part of a larger one. Real targets are drawn at random.

    >>> drawn, rest = draw(torch.tensor([0, 0, 0, 0, 1, 1]), 3, seed=0, stream="test")
    >>> len(drawn), len(rest), int((drawn >= 4).sum())
    (3, 3, 1)
    """
    total = len(labels)
    if not 0 <= n <= total:
        raise OperandError(f"{n:,} rows cannot be drawn from {total:,}")
    order = torch.randperm(total, generator=generator(seed, "split", stream))
    if not labels.is_floating_point() and labels.ndim == 1:
        # A row's rank within its class, over the size of the class: sorting by it takes the same share of each.
        by_class = order[torch.argsort(labels[order], stable=True)]
        sizes = torch.bincount(labels)
        starts = torch.cumsum(sizes, 0) - sizes
        rank = torch.arange(total) - starts[labels[by_class]]
        share = (rank + 0.5) / sizes[labels[by_class]]
        order = by_class[torch.argsort(share, stable=True)]
    return order[:n].sort().values, order[n:].sort().values


def load(
    name: str = "digits",
    *,
    root: str | os.PathLike[str] | None = None,
    version: str | None = None,
    verify: bool = True,
    validation: Literal["half"] | int | None = None,
    train_size: int | None = None,
    seed: int = 0,
    label_noise: float = 0.0,
    random_labels: bool = False,
    pixels: Pixels = "unit",
    **options: object,
) -> DataSplits:
    """Load the data set `name` as disjoint training, validation and test tensors with a card.

    The validation rows come from the evaluation data: its first half (rounded down), the rest being test. For the
    CIFARs this is the first paper's rule, 5,000 and 5,000 of the 10,000 evaluation images. `validation=n` takes `n`
    rows from the training data instead, stratified by class, and leaves the whole evaluation set as test;
    `validation=0` makes none. Sets with validation rows of their own (Cora, those that are computed) keep them.

    `train_size` keeps a stratified part of the training rows. `label_noise` replaces that share of the training labels
    by other classes, `random_labels` all of them by random ones. Images are float32 in [0, 1] (`pixels="unit"`), bytes
    (`"raw"`), in [−1, 1] (`"symmetric"`) or with the training set's mean 0 and deviation 1 per channel (`"standard"`).
    Inputs that the files hold as real numbers (tables, digits) come as they are, or standardised per column.
    Every draw depends on `seed` alone. `verify=False` reads files whose checksum is not the published one.

    Files are looked for in `root`, or `$LANDSCOPE_DATA` and the user's cache. Further options belong to the set.

    >>> splits = load("digits", label_noise=0.1)
    >>> splits.train.x.shape, splits.card.counts
    (torch.Size([1198, 1, 8, 8]), {'train': 1198, 'validation': 299, 'test': 300})
    """
    dataset = DATASETS[name]
    takes = inspect.signature(dataset.read).parameters
    own = [key for key, one in takes.items() if one.kind is one.KEYWORD_ONLY and key != "seed"]
    for key in options:
        if key not in own:
            raise UnknownNameError.among(f"option of {name}", key, own)
    if pixels not in get_args(Pixels):
        raise UnknownNameError.among("scale of pixels", str(pixels), get_args(Pixels))
    files = locate(name, dataset.versions, root=root, version=version, verify=verify) if dataset.versions else None
    draws = {"seed": seed} if "seed" in takes else {}
    raw: Raw = dataset.read(*([files] if files else []), **draws, **options)

    rows, targets = _joined(raw)
    train, evaluation = _halves(dataset, raw, seed)
    moments = _moments(raw.train.x if raw.evaluation is not None else rows[train])
    indices = _indices(dataset, raw, train, evaluation, validation, seed)
    if train_size is not None:
        kept, _ = draw(targets[indices["train"]], train_size, seed, "train size")
        indices["train"] = indices["train"][kept]
    splits = {key: Split(scaled(rows[index], pixels, *moments), targets[index]) for key, index in indices.items()}
    splits["train"] = splits["train"]._replace(y=_worse(splits["train"].y, raw, label_noise, random_labels, seed))

    settings: dict[str, str | int | float | bool] = {
        "seed": seed,
        "validation": "own" if raw.validation else "half" if validation is None else validation,
        "pixels": pixels,
        "label_noise": label_noise,
        "random_labels": random_labels,
    }
    settings |= {k: v if isinstance(v, str | int | float | bool) else repr(v) for k, v in options.items()}
    texts = {k: tuple(raw.texts[i] for i in index.tolist()) for k, index in indices.items()} if raw.texts else {}
    return DataSplits(
        train=splits["train"],
        validation=splits["validation"],
        test=splits["test"],
        card=_card(dataset, raw, files, splits, moments, settings),
        indices=indices,
        extra={**raw.extra, **_beside(raw, indices)},
        texts=texts,
    )


def _joined(raw: Raw) -> Split:
    """All rows, in the order that gives them their numbers."""
    parts = [part for part in (raw.train, raw.evaluation, raw.validation) if part is not None]
    return parts[0] if len(parts) == 1 else Split(torch.cat([p.x for p in parts]), torch.cat([p.y for p in parts]))


def _halves(dataset: DataSet, raw: Raw, seed: int) -> tuple[Tensor, Tensor]:
    """Training and evaluation rows: as published, or drawn where nothing is published."""
    n = len(raw.train.y)
    if raw.evaluation is not None:
        return torch.arange(n), n + torch.arange(len(raw.evaluation.y))
    drawn, rest = draw(raw.train.y, round(dataset.held_out * n), seed, "evaluation")
    return rest, drawn


def _indices(
    dataset: DataSet, raw: Raw, train: Tensor, evaluation: Tensor, validation: Literal["half"] | int | None, seed: int
) -> dict[str, Tensor]:
    """Row numbers of each split."""
    if raw.validation is not None:
        if validation is not None:
            raise NotApplicableError(f"{dataset.name} already has validation rows: leave `validation` at None")
        first = len(train) + len(evaluation)
        return {"train": train, "validation": first + torch.arange(len(raw.validation.y)), "test": evaluation}
    if validation is None or validation == "half":
        n = len(evaluation) // 2
        published = torch.arange(n), torch.arange(n, len(evaluation))
        first_half, rest = published if raw.evaluation else draw(raw.train.y[evaluation], n, seed, "half")
        return {"train": train, "validation": evaluation[first_half], "test": evaluation[rest]}
    if isinstance(validation, bool) or not isinstance(validation, int):
        raise OperandError(f"validation: expected 'half' or a number of training samples, got {validation!r}")
    held, kept = draw(raw.train.y[train], validation, seed, "validation")
    return {"train": train[kept], "validation": train[held], "test": evaluation}


def _moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation per channel or column, in units where white is 1; empty for row numbers and token ids."""
    if x.dtype == torch.uint8:
        # Bytes take 256 values: counting them is exact and needs no copy in floating point.
        counts = torch.stack([torch.bincount(x[:, c].reshape(-1), minlength=256) for c in range(x.shape[1])]).double()
        levels = torch.arange(256, dtype=torch.float64) / 255
        mean = (counts * levels).sum(1) / counts.sum(1)
        return mean, ((counts * (levels - mean[:, None]).square()).sum(1) / counts.sum(1)).sqrt()
    if not x.is_floating_point():
        return torch.empty(0), torch.empty(0)
    flat = x.double().transpose(0, 1).reshape(x.shape[1], -1)
    return flat.mean(1), flat.std(1, correction=0)


def _worse(labels: Tensor, raw: Raw, noise: float, random: bool, seed: int) -> Tensor:
    if not noise and not random:
        return labels
    if not raw.classes:
        raise NotApplicableError("label noise and random labels are for classes; these targets are not")
    labels = uniform_labels(labels, len(raw.classes), seed) if random else labels
    return noisy_labels(labels, noise, len(raw.classes), seed) if noise else labels


def _beside(raw: Raw, indices: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors aligned with evaluation rows, cut as the splits are."""
    first = len(raw.train.y)
    last = first + (len(raw.evaluation.y) if raw.evaluation else 0)
    return {
        f"{split}_{key}": tensor[index - first]
        for key, tensor in raw.beside.items()
        for split, index in indices.items()
        if len(index) and first <= int(index.min()) and int(index.max()) < last
    }


def _card(
    dataset: DataSet,
    raw: Raw,
    files: Files | None,
    splits: dict[str, Split],
    moments: tuple[Tensor, Tensor],
    settings: dict[str, str | int | float | bool],
) -> DataCard:
    return DataCard(
        name=dataset.name,
        title=dataset.title,
        task=dataset.task,
        input_shape=tuple(splits["train"].x.shape[1:]),
        target_shape=tuple(splits["train"].y.shape[1:]),
        classes=raw.classes,
        counts={key: len(split.y) for key, split in splits.items()},
        mean=tuple(moments[0].tolist()),
        std=tuple(moments[1].tolist()),
        licence=dataset.licence,
        citation=dataset.citation,
        source=dataset.source,
        version=files.version.name if files else "computed",
        checksums=files.checksums() if files else {},
        settings=settings,
        notes=raw.notes,
    )

"""Two circles, one inside the other, the second paper's toy problem: 100 points with Gaussian noise.

Half of the points lie evenly on the unit circle (class 0), half on a circle of radius `factor` (class 1), as
scikit-learn's `make_circles` has them; each split has its own noise. `load("circles", random_labels=True)` is the
variant with labels that mean nothing.
"""

from __future__ import annotations

import math

import torch

from landscope.core.seeding import generator
from landscope.data.dataset import DataSet, Raw, Split


def circles(n: int, noise: float, factor: float, seed: int, stream: str) -> Split:
    """Points (n, 2) and their classes, the outer circle first.

    >>> points, labels = circles(4, noise=0.0, factor=0.5, seed=0, stream="train")
    >>> points.norm(dim=1), labels
    (tensor([1.0000, 1.0000, 0.5000, 0.5000]), tensor([0, 0, 1, 1]))
    """
    outer, inner = n // 2, n - n // 2
    angles = torch.cat([torch.arange(k, dtype=torch.float64) * (2 * math.pi / k) for k in (outer, inner) if k])
    labels = torch.cat([torch.zeros(outer, dtype=torch.int64), torch.ones(inner, dtype=torch.int64)])
    radius = torch.where(labels == 0, 1.0, factor).double()
    points = torch.stack([angles.cos(), angles.sin()], 1) * radius[:, None]
    points += noise * torch.randn(points.shape, generator=generator(seed, "circles", stream), dtype=torch.float64)
    return Split(points.float(), labels)


def _read(*, seed: int, n: int = 100, noise: float = 0.1, factor: float = 0.5) -> Raw:
    train, validation, test = (circles(n, noise, factor, seed, stream) for stream in ("train", "validation", "test"))
    return Raw(train=train, validation=validation, evaluation=test, classes=("outer", "inner"))


CIRCLES = DataSet(
    name="circles",
    title="Two circles",
    task="classification",
    read=_read,
    licence="none needed: computed",
    citation="F. Pedregosa et al. Scikit-learn: Machine Learning in Python. JMLR 12, 2011 (make_circles).",
    source="computed",
)

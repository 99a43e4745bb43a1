"""How well reconstructed shapes fit the true ones: Dice score, Hausdorff distance, its 95 % form, and how much they vary.

    DSC  = 2|A∩B| / (|A| + |B|)
    HD   = max of d(a, ∂B) over a ∈ ∂A and of d(b, ∂A) over b ∈ ∂B
    HD95 = the 95 % quantile of the same distances, both directions together

Surfaces ∂A are the voxels of A that touch its outside by a face; the edge of the volume counts as outside. Distances are
between voxel centres, in voxels. Where one of the shapes is empty there is no distance: it is infinite. `variety` is
1 − the mean Dice score of all pairs of reconstructions: 0 for a network that returns one shape whatever its input, which scores
well where all true shapes are alike.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from landscope.core.errors import OperandError
from landscope.core.estimate import Estimate
from landscope.measures.facts import SCORES, Score

QUANTILE = 0.95

SCORES.register("dsc")(Score(title="Dice score", better="higher"))
SCORES.register("hd")(Score(title="Hausdorff distance", better="lower", unit="voxels"))
SCORES.register("hd95")(Score(title="Hausdorff distance at 95 %", better="lower", unit="voxels"))
SCORES.register("variety")(Score(title="variety of shapes", better=None))


def _checked(shapes: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    for name, given in (("shapes", shapes), ("truth", truth)):
        if given.dtype != torch.bool:
            raise OperandError(
                f"{name} must be bool, true where a voxel is filled, got {given.dtype}; threshold with `> 0.5`"
            )
    if shapes.shape != truth.shape or shapes.dim() < 2:
        raise OperandError(
            f"shapes and truth must have the same shape (n, …), got {tuple(shapes.shape)} and {tuple(truth.shape)}"
        )
    return shapes, truth


def dice_score(shapes: Tensor, truth: Tensor) -> Tensor:
    """2|A∩B| / (|A| + |B|) of each pair of rows, float64; two empty shapes agree.

    >>> dice_score(torch.tensor([[True, True, False]]), torch.tensor([[False, True, False]]))
    tensor([0.6667], dtype=torch.float64)
    """
    a, b = (part.flatten(1) for part in _checked(shapes, truth))
    both, all_ = (a & b).sum(1).double(), (a.sum(1) + b.sum(1)).double()
    return torch.where(all_ > 0, 2 * both / all_.clamp(min=1), torch.ones_like(all_))


def _surface(shape: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Places (k, dimensions) of the voxels that touch the outside."""
    from scipy import ndimage

    return np.argwhere(shape & ~ndimage.binary_erosion(shape))


def surface_distances(shape: Tensor, truth: Tensor) -> Tensor:
    """Distances between the surfaces of two shapes, from each voxel of one to the nearest of the other, both ways.

    Two empty shapes have none; [inf] where only one is empty. Channels of size 1 in front do not matter.

    >>> line = torch.zeros(2, 5, dtype=torch.bool)
    >>> line[0, :2] = line[1, 0] = True
    >>> surface_distances(line[0], line[1])
    tensor([0., 1., 0.], dtype=torch.float64)
    """
    from scipy.spatial import cKDTree

    a, b = (_surface(part.cpu().numpy()) for part in (shape, truth))
    if not len(a) or not len(b):
        return torch.full((int(len(a) != len(b)),), math.inf, dtype=torch.float64)
    there, back = cKDTree(b).query(a)[0], cKDTree(a).query(b)[0]
    return torch.from_numpy(np.concatenate([there, back]))


def _distances(shapes: Tensor, truth: Tensor) -> list[Tensor]:
    return [surface_distances(a, b) for a, b in zip(*_checked(shapes, truth), strict=True)]


def _largest(distances: Tensor) -> float:
    return float(distances.max()) if len(distances) else 0.0


def _quantile(distances: Tensor) -> float:
    if not len(distances) or not bool(distances.isfinite().all()):
        return _largest(distances)
    return float(torch.quantile(distances, QUANTILE))


def hausdorff(shapes: Tensor, truth: Tensor) -> Tensor:
    """Hausdorff distance of the surfaces of each pair of rows, in voxels.

    >>> points = torch.eye(6, dtype=torch.bool)
    >>> hausdorff(points[:1], points[4:5])
    tensor([4.], dtype=torch.float64)
    """
    return torch.tensor([_largest(found) for found in _distances(shapes, truth)], dtype=torch.float64)


def hd95(shapes: Tensor, truth: Tensor) -> Tensor:
    """The 95 % quantile of the distances between the surfaces of each pair of rows, in voxels.

    >>> points = torch.eye(6, dtype=torch.bool)
    >>> hd95(points[:1], points[4:5])
    tensor([4.], dtype=torch.float64)
    """
    return torch.tensor([_quantile(found) for found in _distances(shapes, truth)], dtype=torch.float64)


def variety(shapes: Tensor) -> float:
    """1 − the mean Dice score of all pairs of rows; 0 where all are the same.

    >>> variety(torch.tensor([[True, False], [False, True]])), variety(torch.ones(3, 2, dtype=torch.bool))
    (1.0, 0.0)
    """
    n = len(_checked(shapes, shapes)[0])
    if n < 2:
        raise OperandError(f"variety compares shapes with each other: expected at least 2, got {n}")
    filled = shapes.flatten(1).float()
    sizes = filled.sum(1).double()
    both, all_ = (filled @ filled.T).double(), sizes[:, None] + sizes[None, :]
    scores = torch.where(all_ > 0, 2 * both / all_.clamp(min=1), torch.ones_like(all_))
    return 1 - float((scores.sum() - scores.diagonal().sum()) / (n * (n - 1)))


def shape_scores(shapes: Tensor, truth: Tensor) -> dict[str, Estimate]:
    """`dsc`, `hd`, `hd95` (means over the rows, with their sampling error) and `variety`, for a report.

    >>> solid = torch.ones(2, 1, 4, 4, 4, dtype=torch.bool)
    >>> {name: float(score) for name, score in shape_scores(solid, solid).items()}
    {'dsc': 1.0, 'hd': 0.0, 'hd95': 0.0, 'variety': 0.0}
    """
    distances = _distances(shapes, truth)
    rows = {
        "dsc": dice_score(shapes, truth),
        "hd": torch.tensor([_largest(found) for found in distances], dtype=torch.float64),
        "hd95": torch.tensor([_quantile(found) for found in distances], dtype=torch.float64),
    }
    scores = {name: _mean(values) for name, values in rows.items()}
    if len(shapes) < 2:
        return scores | {"variety": Estimate.not_applicable("variety needs at least two shapes")}
    return scores | {"variety": Estimate(variety(shapes))}


def _mean(values: Tensor) -> Estimate:
    if not len(values):
        return Estimate.not_applicable("there are no shapes")
    if infinite := int(values.isinf().sum()):
        return Estimate.not_applicable(f"{infinite} of {len(values)} pairs have an empty shape, which has no distance")
    error = float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else None
    return Estimate(float(values.mean()), data_stderr=error, details={"shapes": len(values), "each": values.tolist()})

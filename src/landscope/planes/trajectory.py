"""The plane of a training trajectory: principal directions of the checkpoints (Li et al. 2018, §7).

    D = [θ_0 − θ; …; θ_{k−1} − θ],    D = U S Vᵀ,    d_j = v_j,    coordinates of checkpoint i: ⟨θ_i − θ, v_j⟩ = U_ij S_j

θ is the probe's point, usually the last checkpoint: among all planes through it, this one lies closest to the
trajectory, and S_j²/ΣS² is the share of the squared distances that it shows. With `about="mean"` the rows are centred
first, as a PCA usually does: the plane through θ that is parallel to the best one through the mean.

The directions have length 1, so coordinates are Euclidean distances. Random walks too look tidy in their first principal
directions (Antognini & Sohl-Dickstein 2018): the distance of every checkpoint from the plane is recorded along with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from landscope.core.errors import OperandError, UnknownNameError
from landscope.core.probe import Probe
from landscope.measures.sharpness.perturbation import Include, included
from landscope.planes.slices import ORDINALS, Slice
from landscope.planes.states import State, read_state

__all__ = ["About", "principal", "trajectory_slice"]

About = Literal["final", "mean"]

CHUNK = 2**22
"""Parameters of all checkpoints together that are held in float64 at once."""
SMALLEST_SHARE = 1e-12
"""Share of the squared distances below which a principal direction is rounding."""


def principal(gram: Tensor, dimensions: int = 2, about: About = "final") -> tuple[Tensor, Tensor, Tensor]:
    """(weights (k, 2), coordinates (k, 2), explained shares (2,)) from D Dᵀ: the directions are Dᵀ · weights.

    >>> rows = torch.tensor([[3.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    >>> weights, coordinates, shares = principal(rows @ rows.T)
    >>> coordinates.tolist(), [round(share, 6) for share in shares.tolist()]
    ([[3.0, 0.0], [0.0, 1.0], [0.0, 0.0]], [0.9, 0.1])
    """
    k = len(gram)
    centring = torch.eye(k, dtype=gram.dtype) - (1 / k if about == "mean" else 0.0)
    values, vectors = torch.linalg.eigh(centring @ gram @ centring)
    values, vectors = values.flip(0)[:dimensions].clamp(min=0), vectors.flip(1)[:, :dimensions]
    total = float((centring @ gram @ centring).trace())
    if len(values) < dimensions or not float(values[-1]) > SMALLEST_SHARE * total:
        raise OperandError(
            f"{k} checkpoints span fewer than {dimensions} directions from the probe's point. Give more of them, or use "
            f"between(probe, checkpoint) for the line to a single one."
        )
    weights = centring @ vectors / values.sqrt()
    coordinates = gram @ weights
    largest = coordinates.gather(0, coordinates.abs().argmax(0, keepdim=True))
    signs = torch.sign(largest)  # without that the signs would be a matter of chance
    return weights * signs, coordinates * signs, values / total


def trajectory_slice(
    probe: Probe,
    checkpoints: Sequence[State],
    dimensions: int = 2,
    *,
    about: About = "final",
    include: Include = "all",
) -> Slice:
    """The plane through the probe's point along the principal directions of checkpoints, with their coordinates in it.

    Only parameters move: in eval mode BatchNorm has the probe's statistics everywhere, whatever a checkpoint had.

    >>> net = torch.nn.Linear(2, 2, bias=False)
    >>> probe = Probe(net, (torch.randn(4, 2), torch.tensor([0, 1, 0, 1])))
    >>> path = [{"weight": net.weight + step} for step in (3 * torch.eye(2), torch.ones(2, 2), torch.zeros(2, 2))]
    >>> plane = trajectory_slice(probe, path)
    >>> len(plane.details["checkpoints"]), round(sum(plane.details["explained"]), 6)
    (3, 1.0)
    """
    if about not in ("final", "mean"):
        raise UnknownNameError.among("centre of a trajectory", str(about), ("final", "mean"))
    moved = included(probe, include)
    states = [read_state(probe, state, f"checkpoint {index}") for index, state in enumerate(checkpoints)]
    if not states:
        raise OperandError("a trajectory needs checkpoints: landscape(probe, plane='trajectory', checkpoints=[…])")

    def differences(name: str, part: slice) -> Tensor:
        here = moved.params[name].reshape(-1)[part].double().cpu()
        return torch.stack([state[name].reshape(-1)[part].double().cpu() - here for state in states])

    size = max(1, CHUNK // len(states))
    parts = {
        name: [slice(start, start + size) for start in range(0, p.numel(), size)] for name, p in moved.params.items()
    }
    gram = torch.zeros(len(states), len(states), dtype=torch.float64)
    for name, pieces in parts.items():
        for part in pieces:
            rows = differences(name, part)
            gram += rows @ rows.T
    weights, coordinates, explained = principal(gram, dimensions, about)
    axes: list[dict[str, Tensor]] = [{} for _ in range(dimensions)]
    for name, pieces in parts.items():
        flat = torch.cat([weights.T @ differences(name, part) for part in pieces], dim=1)
        for axis, values in zip(axes, flat, strict=True):
            axis[name] = values.reshape(moved.params[name].shape).to(probe.device, probe.dtype)
    away = (gram.diagonal() - coordinates.square().sum(1)).clamp(min=0).sqrt()
    return Slice(
        kind="trajectory",
        origin=moved.params,
        directions=tuple(axes),
        labels=tuple(
            f"{ORDINALS[index]} principal direction ({100 * share:.3g} %), Euclidean distance"
            for index, share in enumerate(explained.tolist())
        ),
        details={
            "normalisation": "none",
            "include": include if isinstance(include, str) else list(include),
            "about": about,
            "explained": explained.tolist(),
            "checkpoints": coordinates.tolist(),
            "distances_from_plane": away.tolist(),
        },
    )

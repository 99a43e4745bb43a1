"""The directions of a slice: random, of eigenvectors, along a trajectory, or given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from landscope.core.errors import OperandError, UnknownNameError
from landscope.measures.sharpness.matrices import matrix
from landscope.planes.slices import (
    NORMALISATIONS,
    ORDINALS,
    UNITS,
    Direction,
    Slice,
    State,
    check_same_point,
    given_slice,
    normalised,
    random_slice,
    read_state,
)
from landscope.probe.perturbed import Include, included
from landscope.probe.probe import Probe
from landscope.spectra import eigsh

# The plane of the sharpest directions: the top eigenvectors of the Hessian.
#
#     L(θ + a v₁ + b v₂) = L(θ) + a g·v₁ + b g·v₂ + (λ₁ a² + λ₂ b²)/2 + …
#
# They are orthonormal, so a and b are Euclidean distances, and the curvatures along the axes are the eigenvalues. The
# largest entry of each vector is positive: without that its sign would be a matter of chance.


TOL = 1e-3
"""Relative accuracy of the eigenvalues: that of `eigsh`."""


def eigenvector_slice(
    probe: Probe, dimensions: int = 2, *, seed: int = 0, normalisation: str = "none", include: Include = "all"
) -> Slice:
    """The slice along the eigenvectors of the largest eigenvalues, in the parameters that are included.

    About 30 Hessian products. With a
    normalisation other than `"none"` the vectors are not orthonormal, nor the eigenvalues the curvatures along the axes.

    >>> net = torch.nn.Linear(2, 1, bias=False)
    >>> probe = Probe(net, (torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.zeros(2, 1)), "mse")   # L = 2 w₁² + w₂²/2
    >>> [round(value, 5) for value in eigenvector_slice(probe).details["eigenvalues"]]
    [4.0, 1.0]
    """
    moved = included(probe, include)
    pairs = eigsh(matrix(moved, "hessian"), dimensions, "LA", TOL, seed=seed)
    values = pairs.values.tolist()
    directions = []
    for vector in pairs.vectors.T:
        upright = vector * torch.sign(vector[vector.abs().argmax()])
        directions.append(normalised(moved, moved.space.unflatten(upright), normalisation))
    unit = "Euclidean distance" if normalisation == "none" else UNITS[normalisation]
    return Slice(
        kind="eigenvectors",
        origin=moved.params,
        directions=tuple(directions),
        labels=tuple(f"{ORDINALS[k]} eigenvector (λ = {value:.3g}), {unit}" for k, value in enumerate(values)),
        details={
            "normalisation": normalisation,
            "include": include if isinstance(include, str) else list(include),
            "seed": seed,
            "eigenvalues": values,
            "residuals": pairs.residuals.tolist(),
            "converged": pairs.converged,
        },
    )


# The plane of a training trajectory: principal directions of the checkpoints (Li et al. 2018, §7).
#
#     D = [θ_0 − θ; …; θ_{k−1} − θ],    D = U S Vᵀ,    d_j = v_j,    coordinates of checkpoint i: ⟨θ_i − θ, v_j⟩ = U_ij S_j
#
# θ is the probe's point, usually the last checkpoint: among all planes through it, this one lies closest to the
# trajectory, and S_j²/ΣS² is the share of the squared distances that it shows. With `about="mean"` the rows are centred
# first, as a PCA usually does: the plane through θ that is parallel to the best one through the mean.
#
# The directions have length 1, so coordinates are Euclidean distances. Random walks too look tidy in their first principal
# directions (Antognini & Sohl-Dickstein 2018): the distance of every checkpoint from the plane is recorded along with them.


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


# Which slice a name, a `Slice` or directions of one's own stand for, and the defaults of each kind.


KINDS = ("eigenvectors", "random", "trajectory")


def chosen_slice(
    probe: Probe,
    wish: str | Slice | Sequence[Direction],
    dimensions: int,
    normalisation: str | None = None,
    include: Include | None = None,
    seed: int = 0,
    checkpoints: Sequence[State] | None = None,
) -> Slice:
    """Make the slice, or check one made before.

    By default random directions are normalised by filter and move weights only; others are taken as they are and move everything.

    >>> import torch
    >>> probe = Probe(torch.nn.Linear(2, 3), (torch.randn(6, 2), torch.arange(6) % 3))
    >>> chosen_slice(probe, "random", 2).details["include"], chosen_slice(probe, "eigenvectors", 2).details["include"]
    ('weights', 'all')
    >>> chosen_slice(probe, "randon", 2)
    Traceback (most recent call last):
    landscope.core.errors.UnknownNameError: unknown plane 'randon'; did you mean 'random'? Choices: ...
    """
    if checkpoints is not None and not (isinstance(wish, str) and wish == "trajectory"):
        raise OperandError("checkpoints are for plane='trajectory'; leave them out here")
    if normalisation is not None and normalisation not in NORMALISATIONS:
        raise UnknownNameError.among("normalisation", normalisation, NORMALISATIONS)
    if isinstance(wish, Slice):
        return _made_before(probe, wish, dimensions, normalisation, include)
    if isinstance(wish, str):
        return _by_name(probe, wish, dimensions, normalisation, include, seed, checkpoints or ())
    directions = list(wish)
    if len(directions) != dimensions:
        raise OperandError(
            f"expected a name ({', '.join(KINDS)}), a Slice, or {dimensions} direction(s), vectors (P,) or tensors by "
            f"parameter name; got {len(directions)} of them in a {type(wish).__name__}"
        )
    return given_slice(probe, directions, normalisation=normalisation or "none", include=include or "all")


def _by_name(
    probe: Probe,
    name: str,
    dimensions: int,
    normalisation: str | None,
    include: Include | None,
    seed: int,
    checkpoints: Sequence[State],
) -> Slice:
    if name == "random":
        how, moved = normalisation or "filter", include or "weights"
        return random_slice(probe, dimensions, seed=seed, normalisation=how, include=moved)
    how, moved = normalisation or "none", include or "all"
    if name == "eigenvectors":
        return eigenvector_slice(probe, dimensions, seed=seed, normalisation=how, include=moved)
    if name == "trajectory":
        if how != "none":
            raise OperandError("checkpoints have coordinates along directions of length 1 only: normalisation='none'")
        return trajectory_slice(probe, checkpoints, dimensions, include=moved)
    raise UnknownNameError.among("plane", name, KINDS)


def _made_before(
    probe: Probe, cut: Slice, dimensions: int, normalisation: str | None, include: Include | None
) -> Slice:
    if normalisation is not None or include is not None:
        raise OperandError("a Slice has its directions already: leave normalisation and include out")
    if len(cut.directions) != dimensions:
        raise OperandError(f"a Slice with {dimensions} direction(s) is needed, got one with {len(cut.directions)}")
    check_same_point(cut.origin, probe, "the probe")
    return cut

"""Which slice a name, a `Slice` or directions of one's own stand for, and the defaults of each kind."""

from __future__ import annotations

from collections.abc import Sequence

from landscope.core.errors import OperandError, UnknownNameError
from landscope.core.probe import Probe
from landscope.measures.sharpness.perturbation import Include
from landscope.planes.eigenvectors import eigenvector_slice
from landscope.planes.normalisation import NORMALISATIONS
from landscope.planes.slices import Direction, Slice, given_slice, random_slice
from landscope.planes.states import State, check_same_point
from landscope.planes.trajectory import trajectory_slice

__all__ = ["chosen_slice"]

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
    """Make the slice, or check the one that was made before.

    Random directions are normalised by filter and move weights only; all others are as they are and move everything.

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

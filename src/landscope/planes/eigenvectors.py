"""The plane of the sharpest directions: the top eigenvectors of the Hessian.

    L(θ + a v₁ + b v₂) = L(θ) + a g·v₁ + b g·v₂ + (λ₁ a² + λ₂ b²)/2 + …

They are orthonormal, so a and b are Euclidean distances, and the curvatures along the axes are the eigenvalues. The
largest entry of each vector is positive: without that its sign would be a matter of chance.
"""

from __future__ import annotations

import torch

from landscope.core.probe import Probe
from landscope.measures.sharpness.matrices import eigenpairs
from landscope.measures.sharpness.perturbation import Include, included
from landscope.planes.normalisation import UNITS, normalised
from landscope.planes.slices import ORDINALS, Slice

__all__ = ["eigenvector_slice"]

TOL = 1e-3
"""Relative accuracy of the eigenvalues: that of `eigsh`."""


def eigenvector_slice(
    probe: Probe, dimensions: int = 2, *, seed: int = 0, normalisation: str = "none", include: Include = "all"
) -> Slice:
    """The slice along the eigenvectors of the largest eigenvalues, in the parameters that are included.

    About 30 Hessian products, shared with the measures of the probe that ask for the same eigenpairs. With a
    normalisation other than `"none"` the vectors are not orthonormal, nor the eigenvalues the curvatures along the axes.

    >>> net = torch.nn.Linear(2, 1, bias=False)
    >>> probe = Probe(net, (torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.zeros(2, 1)), "mse")   # L = 2 w₁² + w₂²/2
    >>> [round(value, 5) for value in eigenvector_slice(probe).details["eigenvalues"]]
    [4.0, 1.0]
    """
    moved = included(probe, include)
    pairs = eigenpairs(moved, "hessian", dimensions, "LA", TOL, None, seed)
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

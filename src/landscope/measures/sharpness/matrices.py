"""The curvature matrices that the spectral measures look at, and the spectrum that they share."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from landscope.core.errors import NotApplicableError
from landscope.core.probe import Probe
from landscope.curvature import GGN, Fisher, Hessian
from landscope.curvature.operator import CurvatureOperator
from landscope.measures.shared import once_per_probe
from landscope.measures.sharpness.soft_targets import targets_add_up_to_one
from landscope.spectra import Eigenpairs, Spectrum, eigsh, spectrum

__all__ = [
    "MATRICES",
    "eigenpairs",
    "eigenpairs_known",
    "extreme_ritz_value",
    "is_fisher",
    "known_spectrum",
    "matrix",
    "shared_spectrum",
]

MATRICES: Mapping[str, type[CurvatureOperator]] = {"hessian": Hessian, "ggn": GGN, "fisher": Fisher}


def is_fisher(probe: Probe, name: str) -> bool:
    """Whether the named matrix is the Fisher matrix: so is the Gauss–Newton matrix of a named loss (natural parameters).

    Unless its targets are weights on the classes that do not add up to one: those weigh the samples.
    """
    if probe.loss.likelihood is None or name not in ("fisher", "ggn"):
        return False
    if name == "fisher":
        return True
    return bool(probe.loss.known) and (probe.loss.likelihood != "categorical" or targets_add_up_to_one(probe))


def _canonical(probe: Probe, name: str) -> str:
    """One name for what is one matrix, so that it is computed once."""
    return "fisher" if is_fisher(probe, name) else name


@once_per_probe
def _matrix(probe: Probe, name: str) -> CurvatureOperator:
    return MATRICES[name](probe)


def matrix(probe: Probe, name: str) -> CurvatureOperator:
    """The named matrix at a probe: one object, so that what it learns (methods, compilation) is kept."""
    return _matrix(probe, _canonical(probe, name))


@once_per_probe
def _spectra(_: Probe, __: str) -> dict[tuple[int, int, int], Spectrum]:
    """What has been computed so far for a probe and a matrix, by (steps, probes, seed)."""
    return {}


def shared_spectrum(probe: Probe, name: str, steps: int, probes: int, seed: int) -> Spectrum:
    """The spectrum of the named matrix, computed once; every other spectral measure may read it afterwards."""
    known = _spectra(probe, _canonical(probe, name))
    if (steps, probes, seed) not in known:
        known[steps, probes, seed] = spectrum(matrix(probe, name), steps=steps, probes=probes, seed=seed)
    return known[steps, probes, seed]


def known_spectrum(probe: Probe, name: str) -> Spectrum | None:
    """The largest spectrum that was computed at this probe already, if any."""
    return max(_spectra(probe, _canonical(probe, name)).values(), key=lambda s: s.matvecs, default=None)


@once_per_probe
def _pairs(_: Probe, __: str) -> dict[tuple[int, str, float, int], tuple[int | None, Eigenpairs]]:
    """What has been computed so far for a probe and a matrix, by (k, which, tol, seed), and the budget it had."""
    return {}


def eigenpairs(
    probe: Probe, name: str, k: int, which: str, tol: float, max_matvecs: int | None, seed: int
) -> Eigenpairs:
    """Extreme eigenpairs of the named matrix; what has converged, or had as large a budget, is not computed again."""
    known = _pairs(probe, _canonical(probe, name))
    budget, pairs = known.get((k, which, tol, seed), (0, None))
    enough = pairs is not None and (pairs.converged or budget == max_matvecs)
    if pairs is None or not enough:
        op = matrix(probe, name)
        if k > op.shape[0]:
            raise NotApplicableError(f"k = {k} eigenvalues were asked for; the matrix has {op.shape[0]}")
        pairs = eigsh(op, k=k, which=which, tol=tol, max_matvecs=max_matvecs, seed=seed)
        known[k, which, tol, seed] = (max_matvecs, pairs)
    return pairs


def eigenpairs_known(probe: Probe, name: str, k: int, which: str, tol: float, seed: int) -> bool:
    """Whether converged pairs are there already."""
    _, pairs = _pairs(probe, _canonical(probe, name)).get((k, which, tol, seed), (0, None))
    return pairs is not None and pairs.converged


def extreme_ritz_value(found: Spectrum, largest: bool) -> tuple[float, float]:
    """The extreme Ritz value of a spectrum, and how far the extreme eigenvalue may be from it.

    The residual β |s_m| bounds the distance to *an* eigenvalue; what the last quarter of the steps still changed is added,
    because a young Krylov space may be close to an inner one.
    """
    end = -1 if largest else 0
    extremes = []
    for diagonal, off, left in zip(found.diagonal, found.offdiagonal, found.remainder, strict=True):
        values, vectors = np.linalg.eigh(np.diag(diagonal) + np.diag(off, 1) + np.diag(off, -1))
        fewer = max(1, 3 * len(diagonal) // 4)
        young = np.linalg.eigvalsh(
            np.diag(diagonal[:fewer]) + np.diag(off[: fewer - 1], 1) + np.diag(off[: fewer - 1], -1)
        )
        moved = abs(values[end] - young[end]) if left > 0 else 0.0
        extremes.append((float(values[end]), float(left * abs(vectors[-1, end]) + moved)))
    value, bound = max(extremes) if largest else min(extremes)
    return value, bound + found.rounding * float(np.abs(found.nodes).max())

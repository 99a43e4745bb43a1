"""The curvature matrices that the spectral measures look at, and the spectrum that they share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from landscope.core.distributed import sum_over_processes
from landscope.core.seeding import hashed_signs
from landscope.curvature import GGN, Fisher, Hessian
from landscope.curvature.gram import gram
from landscope.curvature.operator import CurvatureOperator
from landscope.measures.base import Measure, register
from landscope.measures.facts import Family
from landscope.probe.probe import Probe
from landscope.probe.rows.last_layer import LayerBounds, layer_bounds
from landscope.probe.rows.outputs import uniform_order
from landscope.probe.rows.samples import m_batches
from landscope.probe.shared import once_per_probe, shared_stream
from landscope.probe.totals import FORWARD
from landscope.spectra import Spectrum
from landscope.spectra.quadrature import spectrum_steps

# Targets that are probabilities: whether those of each prediction add up to one.
#
# With weights y_c on the classes, cross-entropy curves as (Σ_c y_c) (diag(p) − p pᵀ) in the logits: what holds for labels (the
# closed form of a softmax head, the Gauss–Newton matrix being the Fisher matrix) holds for weights that add up to one.


ROUNDING = 1e-5
"""How far the sum of float32 probabilities may be from one."""


@once_per_probe
def targets_add_up_to_one(probe: Probe) -> bool:
    """Whether all targets are class labels, or weights on the classes (dimension 1) that add up to one.

    >>> soft = torch.tensor([[0.5, 0.5], [1.0, 1.0]])
    >>> net, loss = torch.nn.Linear(2, 2), torch.nn.CrossEntropyLoss()
    >>> [targets_add_up_to_one(Probe(net, (torch.eye(2), y), loss)) for y in (soft, soft[:1].repeat(2, 1))]
    [False, True]
    """
    first = probe.targets(next(probe.batches()))
    if not (isinstance(first, Tensor) and first.is_floating_point()):
        return isinstance(first, Tensor)
    off = torch.zeros((), dtype=torch.float64, device=probe.device)
    for batch in probe.batches():
        targets = probe.targets(batch)
        assert isinstance(targets, Tensor), "of one kind in all batches"
        if targets.dim() < 2:
            return False
        off += float(((targets.double().sum(1) - 1).abs() > ROUNDING).sum())
    return float(sum_over_processes(off)) == 0


TF32_ROUNDING = 2e-3
"""Relative error of a TF32 product: 1.9e-3 for ResNet-18 and 6e-4 for GPT-2 on an H200, along random vectors."""
ROUNDING_ROWS = 256
COARSEST = 5e-3
"""Rounding up to which TF32 products are taken where they are not certified."""

MATRICES: Mapping[str, type[CurvatureOperator]] = {"hessian": Hessian, "ggn": GGN, "fisher": Fisher}


class OfMatrix(Measure):
    """Base of what is measured of a curvature matrix."""

    family = Family.CURVATURE
    unit = "loss per parameter²"
    better = None
    turn = 3
    on_shards = True
    invariant_to: ClassVar[frozenset[str]] = frozenset({"permutation", "logit_shift"})
    matrix: ClassVar[str]

    def _block(self, probe: Probe) -> LayerBounds | None:
        """What a block of the matrix says, the mean of ∂²ℓ/∂z²: not for Fisher matrices that the loss does not curve as."""
        return layer_bounds(probe) if self.matrix != "fisher" or is_fisher(probe, "ggn") else None

    def _possible(self, eigenvalue: float) -> float:
        """A lower bound of an eigenvalue: only the Hessian's can be negative."""
        return eigenvalue if self.matrix == "hessian" else max(eigenvalue, 0.0)


M = TypeVar("M", bound=type[OfMatrix])


def for_each_matrix(key: str, title: str, **facts: Mapping[str, object]) -> Callable[[M], M]:
    """Class decorator: a measure of each matrix, with what `facts` say of that one.

    `_Trace` becomes `HessianTrace`, registered under `key` with "hessian" in it, `GGNTrace` and `FisherTrace`.
    """

    def register_all(base: M) -> M:
        for name, operator in MATRICES.items():
            stated = {"matrix": name, "title": title.format(operator.__name__), "__module__": base.__module__}
            stated |= {"unit": "nats per parameter²"} if name == "fisher" else {}
            kind = type(operator.__name__ + base.__name__.strip("_"), (base,), {**stated, **facts[name]})
            register(key.format(name))(dataclass(frozen=True, kw_only=True)(kind))
            setattr(sys.modules[base.__module__], kind.__name__, kind)  # where pickles and specs look for it
        return base

    return register_all


def is_fisher(probe: Probe, name: str) -> bool:
    """Whether the named matrix is the Fisher matrix: so is the Gauss–Newton matrix of a named loss (natural parameters).

    Unless its targets are weights on the classes that do not add up to one: those weigh the samples.
    """
    if probe.loss.likelihood is None or name not in ("fisher", "ggn"):
        return False
    if name == "fisher":
        return True
    return bool(probe.loss.known) and (probe.loss.likelihood != "categorical" or targets_add_up_to_one(probe))


def canonical(probe: Probe, name: str) -> str:
    """One name for what is one matrix, so that it is computed once."""
    return "fisher" if is_fisher(probe, name) else name


@once_per_probe
def _matrix(probe: Probe, name: str) -> CurvatureOperator:
    return MATRICES[name](probe)


@once_per_probe
def cheap_matrix(probe: Probe, name: str) -> CurvatureOperator | None:
    """The named matrix through TF32 products, where a GPU has them and the probe allows it.

    Their rounding is not measured: whatever is found with them is to be certified by products in full precision.
    """
    if (
        probe.sharding is not None
        or probe.narrow
        or probe.device.type != "cuda"
        or probe.dtype != torch.float32
        or probe.precision == "highest"
    ):
        return None
    found = MATRICES[canonical(probe, name)](probe, precision="tf32")
    found._rounding = TF32_ROUNDING
    return found


@once_per_probe
def fastest_matrix(probe: Probe, name: str, of: Literal["products", "lengths"]) -> CurvatureOperator:
    """The named matrix for what needs two digits: through TF32 products where their rounding, measured on some rows, is small.

    Estimates include an operator's `rounding` in their bars: of products as a part of ‖A‖, of their lengths as a part of each.
    Both are taken along a random vector and along its product, which leans towards the largest eigenvalues. Of some rows rounding
    is a larger part than of all, because what is random of it averages out.
    """
    cheap, order = cheap_matrix(probe, name), uniform_order(probe)
    if cheap is None or order is None:
        return matrix(probe, name)
    rows = order.rows[:ROUNDING_ROWS]
    part = probe.on_rows(rows, torch.full((len(rows),), probe.n_samples / len(rows)))
    v = hashed_signs(probe.n_params, 0, "rounding", dtype=probe.dtype, device=probe.device)
    away, lengths, relative = 0.0, 0.0, 0.0
    for _ in range(2):
        v = v / v.norm().clamp(min=torch.finfo(probe.dtype).tiny)
        exact, coarse = (type(cheap)(part, compile=False, precision=kind) @ v for kind in ("highest", "tf32"))
        length, rounded = float(exact.norm()), float(coarse.norm())
        away, lengths = max(away, float((coarse - exact).norm())), max(lengths, length)
        relative = max(relative, abs(rounded - length) / max(length, torch.finfo(probe.dtype).tiny))
        v = exact
    rounding = 2 * (relative if of == "lengths" else away / max(lengths, torch.finfo(probe.dtype).tiny))
    if not rounding < COARSEST:
        return matrix(probe, name)
    found = MATRICES[canonical(probe, name)](probe, precision="tf32")
    found._rounding = rounding
    return found


def matrix(probe: Probe, name: str) -> CurvatureOperator:
    """The named matrix at a probe: one object, so that what it learns (methods, compilation) is kept."""
    return _matrix(probe, canonical(probe, name))


def shared_spectrum(probe: Probe, name: str, steps: int, probes: int, seed: int) -> Iterator[float | Spectrum]:
    """The spectrum of the named matrix, computed once for the same settings, step by step (`spectrum_steps`)."""
    return _spectrum(probe, canonical(probe, name), steps, probes, seed)


@shared_stream
def _spectrum(probe: Probe, name: str, steps: int, probes: int, seed: int) -> Iterator[float | Spectrum]:
    yield from spectrum_steps(fastest_matrix(probe, name, "products"), steps=steps, probes=probes, seed=seed)


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


# Every eigenvalue of the Fisher matrix of a few samples, exactly.
#
# F = GᵀG and K = GGᵀ (nC × nC) have the same non-zero eigenvalues, so that n samples with C outputs have at most nC of them,
# however many parameters there are: trace, Frobenius norm and extreme eigenvalues of the Fisher matrix, and of the Gauss–Newton
# matrix where it is the same, cost one Gram matrix (`landscope.curvature.gram`) instead of hundreds of products.


LARGEST = 1024
"""Rows of the Gram matrix up to which it is the way to go; its eigenvalues then take a second at most."""


@once_per_probe
def outputs_per_sample(probe: Probe) -> int:
    """C, from one sample; 1 where the model returns something else than a tensor."""
    z, size = _first_outputs(probe), next(next(probe.batches()).pieces(1)).size
    return max(1, z.numel() // size) if isinstance(z, Tensor) else 1


@once_per_probe
def predicts_once(probe: Probe) -> bool:
    """Whether the outputs are one prediction per sample: (samples, classes)."""
    z = _first_outputs(probe)
    return isinstance(z, Tensor) and z.dim() == 2


@once_per_probe
def _first_outputs(probe: Probe) -> object:
    sample = next(next(probe.batches()).pieces(1))
    with probe.measuring(), torch.no_grad():
        return probe.outputs(probe.params, sample.prepared(probe.ready))


@once_per_probe
def _applies(probe: Probe) -> bool:
    if probe.loss.likelihood not in ("categorical", "bernoulli") or probe.mode != "eval":
        return False
    if probe.sharding is not None or probe.narrow:
        return False
    first = next(probe.batches())
    z = _first_outputs(probe)
    rows = isinstance(z, Tensor) and (z.dim() == 2 or probe.loss.likelihood == "bernoulli")
    return first.divisible and rows and probe.n_samples * outputs_per_sample(probe) <= LARGEST


def small_fisher(probe: Probe) -> Tensor | None:
    """The eigenvalues of F that are not zero (float64, largest first); `None` where products are the better way.

    >>> probe = Probe(torch.nn.Linear(2, 3), (torch.eye(2), torch.tensor([0, 2])))
    >>> small_fisher(probe).shape
    torch.Size([4])
    """
    return _eigenvalues(probe) if _applies(probe) else None


@once_per_probe
def _eigenvalues(probe: Probe) -> Tensor:
    rows = probe.n_samples * outputs_per_sample(probe)
    padded = torch.zeros(rows, dtype=torch.float64, device=probe.device)
    for batch in m_batches(probe, probe.n_samples):  # one, on one of the processes
        with probe.ledger.timed(probe.device):
            found = gram(probe, batch).eigenvalues()
        padded[: len(found)] = found
    probe.ledger.add((outputs_per_sample(probe) + 4) * FORWARD)
    values = sum_over_processes(padded)[: probe.n_params]
    return values[values > 0]

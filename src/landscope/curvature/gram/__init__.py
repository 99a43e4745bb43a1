"""The Gram matrix of a batch: the Fisher matrix and the sample gradients, seen from the outputs instead of the parameters.

With z_i ∈ R^C the outputs of sample i, J_i = ∂z_i/∂θ, r_i = ∂ℓ_i/∂z_i and S_i S_iᵀ = Λ_i the Fisher matrix at the outputs
(softmax: Λ = diag(p) − p pᵀ, S = diag(√p) − p √pᵀ; yes/no outputs: S = diag √(p(1 − p)/C)), a batch of n samples has

    Θ = J Jᵀ                       nC×nC, all outputs of all samples (the empirical neural tangent kernel)
    F = GᵀG,  G = [S_iᵀ J_i]/√n    the Fisher matrix, P×P
    K = GGᵀ = Sᵀ Θ S / n           nC×nC, with the same non-zero eigenvalues; G g_i = Sᵀ Θ r_i / √n for g_i = J_iᵀ r_i

Θ is assembled layer by layer from activations and C backward passes to the layers' outputs; nothing of size nC×P is held.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from landscope.core.errors import NotApplicableError, OutOfMemoryError
from landscope.core.memory import available_bytes, is_out_of_memory
from landscope.curvature.gram.assembly import jacobian_gram
from landscope.probe.batches import Batch
from landscope.probe.probe import Probe

__all__ = ["GramMatrix", "gram", "gram_alike"]

ROUNDING_UNITS = 32
"""Relative rounding error of a Jacobian in units of the machine epsilon, as of the curvature products."""
SMALLEST_ROOM = 2**20
"""Bytes below which trying again with less room is pointless."""


@dataclass(frozen=True)
class GramMatrix:
    """Θ of a batch with what turns it into the Fisher matrix, all in float64.

    `jacobian_gram` (nC, nC) has its rows in the order (sample, output); `roots` (n, C, C) are the S_i, `residuals` (n, C) the
    r_i, and `scores` (n, C) solve S_i w_i = r_i with the least norm. `rounding` is the relative error of the Jacobian.
    """

    jacobian_gram: Tensor
    roots: Tensor
    residuals: Tensor
    scores: Tensor
    rounding: float

    def matrix(self) -> Tensor:
        """K = Sᵀ Θ S / n (nC, nC)."""
        n, size = self.residuals.shape
        left = self.roots.mT @ self.jacobian_gram.view(n, size, -1)
        both = self.roots.mT @ left.view(-1, n * size).T.reshape(n, size, -1)
        k = both.view(n * size, -1) / n
        return (k + k.T) / 2

    def gradients(self) -> Tensor:
        """G g_i for every sample, as columns (nC, n)."""
        n, size = self.residuals.shape
        pulled = torch.einsum("anc,nc->an", self.jacobian_gram.view(-1, n, size), self.residuals)
        return (self.roots.mT @ pulled.view(n, size, n)).flatten(0, 1) / n**0.5

    def fisher(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues of the Fisher matrix that rounding has not swallowed, largest first, and eigenvectors of K (nC, k)."""
        values, vectors = torch.linalg.eigh(self.matrix())
        values, vectors = values.flip(0), vectors.flip(1)
        lost = max(len(values) * torch.finfo(values.dtype).eps, self.rounding**2)
        rank = int((values > lost * values[0].clamp(min=0)).sum())
        return values[:rank], vectors[:, :rank]

    def eigenvalues(self) -> Tensor:
        """The eigenvalues of the Fisher matrix that rounding has not swallowed, largest first."""
        return self.fisher()[0]


def gram(probe: Probe, batch: Batch, *, room: int | None = None) -> GramMatrix:
    """The Gram matrix of the samples of one batch (on the probe's device), for losses that are likelihoods of classes.

    About (C + 4)/3 gradients of the batch where layers have rules, and (nC)² numbers. `room` is the bytes that may be used
    beside them: by default half of what is free, a quarter on a CPU.

    >>> probe = Probe(torch.nn.Linear(2, 3), (torch.eye(2), torch.tensor([0, 2])))
    >>> gram(probe, next(probe.batches())).eigenvalues().shape
    torch.Size([4])
    """
    if probe.loss.likelihood not in ("categorical", "bernoulli"):
        raise NotApplicableError(
            f"the Gram matrix of the Fisher matrix needs class probabilities (cross_entropy or binary_cross_entropy); the "
            f"loss here is {probe.loss.name!r}"
        )
    batch = _as_one(probe, batch)
    if room is None:
        room = available_bytes(probe.device) // (4 if probe.device.type == "cpu" else 2)
    while True:
        matrix = _attempt(probe, batch, room)
        if matrix is not None:
            return matrix
        room //= 4
        if room < SMALLEST_ROOM:
            raise OutOfMemoryError(
                f"the Gram matrix of {batch.size} samples does not fit into the memory of {probe.device}. Use smaller batches "
                f"(batch_size=…), fewer parameters (params=…), or a device with more memory."
            )
        if probe.device.type == "cuda":
            torch.cuda.empty_cache()


def gram_alike(matrix: GramMatrix, probe: Probe, twin: Probe, batch: Batch) -> GramMatrix:
    """The Gram matrix at a probe that differs in temperature only, from that of `probe`: J, and so Θ, is only scaled.

    >>> probe = Probe(torch.nn.Linear(2, 3), (torch.eye(2), torch.tensor([0, 2])))
    >>> twin, batch = probe.at_temperature(2.0), next(probe.batches())
    >>> scaled = gram_alike(gram(probe, batch), probe, twin, batch)
    >>> torch.allclose(scaled.matrix(), gram(twin, batch).matrix())
    True
    """
    with twin.measuring():
        roots, residuals, scores = _at_outputs(twin, _as_one(twin, batch))
    theta = matrix.jacobian_gram * (probe.temperature / twin.temperature) ** 2
    return GramMatrix(theta, roots, residuals, scores, matrix.rounding)


def _as_one(probe: Probe, batch: Batch) -> Batch:
    """A batch that is not to be cut, where its samples depend on each other."""
    return Batch(batch.raw, batch.size, False) if probe.mode == "batch_statistics" else batch


def _attempt(probe: Probe, batch: Batch, room: int) -> GramMatrix | None:
    """The matrix, or `None` where memory ran out; the failed frames are released before it returns."""

    def outputs(params: Mapping[str, Tensor], piece: Batch) -> Tensor:
        return _class_outputs(probe, params, piece)

    try:
        with probe.measuring():
            roots, residuals, scores = _at_outputs(probe, batch)
            theta = jacobian_gram(probe, batch, outputs, residuals.shape[1], room)
            return GramMatrix(theta, roots, residuals, scores, ROUNDING_UNITS * torch.finfo(probe.dtype).eps)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return None


def _class_outputs(probe: Probe, params: Mapping[str, Tensor], batch: Batch) -> Tensor:
    z = probe.outputs(params, batch)
    if not isinstance(z, Tensor) or z.shape[:1] != (batch.size,):
        raise NotApplicableError("the Gram matrix needs a model that returns one tensor (samples, classes)")
    if probe.loss.likelihood == "categorical" and z.dim() != 2:
        raise NotApplicableError(
            f"the Gram matrix needs one prediction per sample, outputs (samples, classes); got shape {tuple(z.shape)}"
        )
    return z


def _at_outputs(probe: Probe, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """S_i, r_i and w_i."""
    with torch.no_grad():
        z = torch.cat([_class_outputs(probe, probe.params, piece) for piece in batch.pieces(32)])
    z = z.double().requires_grad_()
    (slope,) = torch.autograd.grad(probe.loss_of(z, batch), z)
    r, free = slope.reshape(len(z), -1), z.detach().reshape(len(z), -1)
    if probe.loss.likelihood == "categorical":
        p = free.softmax(1)
        root = p.sqrt()
        roots = torch.diag_embed(root) - p[:, :, None] * root[:, None, :]
    else:
        p = free.sigmoid()
        root = (p * (1 - p) / p.shape[1]).sqrt()
        roots = torch.diag_embed(root)
    weights = probe.loss.sample_weights(z.detach(), probe.targets(batch))
    if weights is not None:
        root, roots = root * weights.to(root).sqrt()[:, None], roots * weights.to(root).sqrt()[:, None, None]
    return roots, r, r / root.clamp(min=torch.finfo(r.dtype).tiny)

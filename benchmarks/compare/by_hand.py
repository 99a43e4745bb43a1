"""What a script with torch alone would do: the plain way, and in float64 the truth of what has a closed form.

Nothing here uses Landscope's own mathematics.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, jvp, vjp

from .answers import Answer, Work
from .networks import Subject

RATE = 0.01
"""Learning rate of all steps."""


def flat(model: nn.Module) -> Tensor:
    """All weights as one vector."""
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def fresh(subject: Subject) -> nn.Module:
    """A copy of the model that may be changed."""
    return copy.deepcopy(subject.model)


def split(subject: Subject, vector: Tensor) -> tuple[Tensor, ...]:
    """A vector as tensors of the parameters' shapes."""
    parts = vector.split([p.numel() for p in subject.parameters])
    return tuple(part.view_as(p) for part, p in zip(parts, subject.parameters, strict=True))


def gradient(subject: Subject) -> Work:
    """One gradient over all samples: the unit of everything else."""

    def work() -> Answer:
        total = torch.zeros(subject.size, device=subject.device, dtype=subject.parameters[0].dtype)
        for x, y in subject.batches:
            loss = F.cross_entropy(subject.model(x), y, reduction="sum")
            total += torch.cat([g.flatten() for g in torch.autograd.grad(loss, subject.parameters)])
        return Answer(total / len(subject.y))

    return work


def hessian_times(subject: Subject, vectors: Tensor) -> Tensor:
    """H V by double backward, a column at a time; vectors are (P, k)."""
    total = torch.zeros_like(vectors)
    for x, y in subject.batches:
        loss = F.cross_entropy(subject.model(x), y, reduction="sum")
        slopes = torch.autograd.grad(loss, subject.parameters, create_graph=True)
        for column in range(vectors.shape[1]):
            parts = torch.autograd.grad(
                slopes, subject.parameters, split(subject, vectors[:, column]), retain_graph=True
            )
            total[:, column] += torch.cat([part.flatten() for part in parts])
    return total / len(subject.y)


def product(subject: Subject, *, columns: int = 1) -> Work:
    """H V, after a first product that is not timed."""
    vectors = subject.vectors(columns).to(subject.parameters[0].dtype)
    hessian_times(subject, vectors[:, :1])
    return lambda: Answer(hessian_times(subject, vectors))


def lanczos(subject: Subject, *, steps: int) -> Work:
    """λ₁ by Lanczos with full orthogonalisation, a fixed number of products."""

    def work() -> Answer:
        vector = subject.vectors()[:, 0].to(subject.parameters[0].dtype)
        basis, alphas, betas = [vector / vector.norm()], [], []
        for _ in range(min(steps, subject.size)):
            new = hessian_times(subject, basis[-1][:, None])[:, 0]
            alphas.append(float(new @ basis[-1]))
            for _ in range(2):
                for old in basis:
                    new = new - (new @ old) * old
            betas.append(float(new.norm()))
            basis.append(new / betas[-1])
        matrix = torch.diag(torch.tensor(alphas).double())
        matrix += torch.diag(torch.tensor(betas[:-1]).double(), 1) + torch.diag(torch.tensor(betas[:-1]).double(), -1)
        values, vectors = torch.linalg.eigh(matrix)
        return Answer(float(values[-1]), abs(float(vectors[-1, -1])) * betas[-1] / abs(float(values[-1])))

    return work


def hutchinson(subject: Subject, *, tol: float, most: int = 2000) -> Work:
    """The trace of H by Hutchinson's estimator until its standard error is small enough."""

    def work() -> Answer:
        rng, found = torch.Generator().manual_seed(2), []
        while len(found) < most:
            signs = torch.randint(0, 2, (subject.size, 8), generator=rng).to(subject.vectors()) * 2 - 1
            found += (signs * hessian_times(subject, signs)).sum(0).tolist()
            mean, error = mean_and_error(found)
            if len(found) >= 16 and error <= tol * abs(mean):
                break
        return Answer(mean, error / abs(mean), f"{len(found)} products")

    return work


def mean_and_error(found: list[float]) -> tuple[float, float]:
    """Mean and standard error."""
    values = torch.tensor(found).double()
    return float(values.mean()), float(values.std() / len(found) ** 0.5)


def roots(subject: Subject, samples: int = 8) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """For some samples at a time: Jacobian (b, C, P), probabilities, their root L with L Lᵀ = diag p − ppᵀ, labels."""
    names = [name for name, _ in subject.model.named_parameters()]
    buffers = dict(subject.model.named_buffers())
    params = tuple(p.detach() for p in subject.parameters)

    def one(params: tuple[Tensor, ...], x: Tensor) -> Tensor:
        return functional_call(subject.model, {**dict(zip(names, params, strict=True)), **buffers}, x[None])[0]

    for x, y in zip(subject.x.split(samples), subject.y.split(samples), strict=True):
        jacobian = torch.cat([j.flatten(2) for j in torch.func.vmap(torch.func.jacrev(one), (None, 0))(params, x)], 2)
        p = subject.model(x).detach().softmax(1)
        root = torch.diag_embed(p.sqrt()) - p[:, :, None] * p.sqrt()[:, None, :]
        yield jacobian, p, root, y


def ggn_trace(subject: Subject) -> Work:
    """The trace of the Gauss–Newton matrix, which is the Fisher matrix here: Σ_i ‖L_iᵀ J_i‖² / n, exact."""

    def work() -> Answer:
        total = sum(float((root.mT @ jacobian).square().sum()) for jacobian, _, root, _ in roots(subject))
        return Answer(total / len(subject.y), 0.0)

    return work


def igs(subject: Subject, *, rank: int, samples: int) -> Work:
    """Information-geometric sharpness from the eigenvalues of the whole Gram matrix; memory of n C × P."""
    part = subject.part(samples)

    def work() -> Answer:
        rows, gradients = [], []
        for jacobian, p, root, y in roots(part):
            rows.append((root.mT @ jacobian).flatten(0, 1))
            gradients.append(((p - F.one_hot(y, p.shape[1]))[:, None] @ jacobian)[:, 0])
        g, slopes = torch.cat(rows) / samples**0.5, torch.cat(gradients)
        values, vectors = torch.linalg.eigh(g @ g.T)
        values, vectors = values[-rank:], vectors[:, -rank:]
        along = (slopes @ g.T @ vectors).square() / values.square()
        return Answer(float(along.sum(1).mean()))

    return work


def igs_by_power_iteration(subject: Subject, *, rank: int, samples: int, iterations: int = 100) -> Work:
    """The published way: eigenvectors of the Fisher matrix one after the other, each by a fixed number of products."""
    part = subject.part(samples)
    names = [name for name, _ in part.model.named_parameters()]
    params = tuple(p.detach() for p in part.parameters)

    def outputs(*given: Tensor) -> Tensor:
        return functional_call(part.model, dict(zip(names, given, strict=True)), part.x)

    def along(vector: Tensor) -> tuple[Tensor, Tensor]:
        z, tangent = jvp(outputs, params, split(part, vector))
        return z.softmax(1), tangent

    def fisher(vector: Tensor) -> Tensor:
        p, tangent = along(vector)
        inner = p * (tangent - (p * tangent).sum(1, keepdim=True)) / samples
        return torch.cat([g.flatten() for g in vjp(outputs, *params)[1](inner)])

    def work() -> Answer:
        found, total = torch.zeros(part.size, 0, device=part.device), 0.0
        starts = part.vectors(rank)
        for k in range(rank):
            vector, value = starts[:, k], 0.0
            for _ in range(iterations):
                vector = vector - found @ (found.T @ vector)
                vector = vector / vector.norm()
                image = fisher(vector)
                value, vector = float(vector @ image), image
            vector = vector - found @ (found.T @ vector)
            vector = vector / vector.norm()
            p, tangent = along(vector)
            residual = p - F.one_hot(part.y, p.shape[1])
            total += float((residual * tangent).sum(1).square().mean()) / value
            found = torch.cat([found, vector[:, None]], 1)
        return Answer(total, note=f"{rank * iterations} products")

    return work


def relative_flatness(subject: Subject) -> Work:
    """κ from the head's Hessian, C × d × C × d, by autograd on its features, as the papers' code does."""

    def work() -> Answer:
        with torch.no_grad(), subject.features() as features:
            inputs = []
            for x, _ in subject.batches:
                subject.model(x)
                inputs.append(features())
        layer = subject.head[1]
        return Answer(float(head_flatness(layer.weight, layer.bias, torch.cat(inputs), subject.y)))

    return work


def head_flatness(weight: Tensor, bias: Tensor, features: Tensor, labels: Tensor) -> Tensor:
    """Σ_{s,s'} ⟨w_s, w_s'⟩ tr H_{s,s'}, with its graph."""
    hessian = torch.func.hessian(lambda w: F.cross_entropy(features @ w.T + bias, labels))(weight)
    return torch.einsum("sd,td,sktk->", weight, weight, hessian)


def fisher_rao(subject: Subject) -> Work:
    """θᵀFθ = mean_i Var_{p_i}(J_i θ), by one forward-mode pass."""
    names = [name for name, _ in subject.model.named_parameters()]
    params = tuple(p.detach() for p in subject.parameters)

    def work() -> Answer:
        total = 0.0
        for x, _ in subject.batches:
            z, tangent = jvp(
                lambda *given, x=x: functional_call(subject.model, dict(zip(names, given, strict=True)), x),
                params,
                params,
            )
            p = z.softmax(1)
            total += float(((p * tangent**2).sum(1) - (p * tangent).sum(1) ** 2).sum())
        return Answer(total / len(subject.y))

    return work


def adaptive_sharpness(subject: Subject, *, rho: float, steps: int) -> Work:
    """Steps to the maximum of the linearised loss in the ball, δ = ρ θ² g / ‖θ g‖, the best of them kept."""

    def work() -> Answer:
        model, start = fresh(subject), [p.detach().clone() for p in subject.parameters]
        params, first, best = list(model.parameters()), 0.0, 0.0
        for step in range(steps + 1):
            loss = sum(F.cross_entropy(model(x), y, reduction="sum") for x, y in subject.batches) / len(subject.y)
            first = float(loss) if step == 0 else first
            best = max(best, float(loss) - first)
            slopes = torch.autograd.grad(loss, params)
            norm = torch.stack([(w * g).square().sum() for w, g in zip(start, slopes, strict=True)]).sum().sqrt()
            with torch.no_grad():
                for p, w, g in zip(params, start, slopes, strict=True):
                    p.copy_(w + rho * w**2 * g / norm)
        return Answer(best)

    return work


def plane_directions(subject: Subject) -> list[Tensor]:
    """Two random directions, every filter as long as the model's own (Li et al. 2018), as vectors."""
    scaled = []
    for vector in subject.vectors(2).T:
        parts = []
        for part, p in zip(split(subject, vector), subject.parameters, strict=True):
            if p.dim() < 2:
                parts.append(torch.zeros_like(p).flatten())
                continue
            part = part.flatten(1)
            own = p.detach().flatten(1).norm(dim=1, keepdim=True)
            parts.append((part * own / part.norm(dim=1, keepdim=True)).flatten())
        scaled.append(torch.cat(parts).to(subject.parameters[0].dtype))
    return scaled


def plane(subject: Subject, *, points: int) -> Work:
    """A loop over the points of the grid."""
    first, second = (split(subject, direction) for direction in plane_directions(subject))

    def work() -> Answer:
        model, start = fresh(subject), [p.detach().clone() for p in subject.parameters]
        steps, losses = torch.linspace(-1, 1, points).tolist(), []
        with torch.no_grad():
            for a in steps:
                for b in steps:
                    for p, w, d, e in zip(model.parameters(), start, first, second, strict=True):
                        p.copy_(w + a * d + b * e)
                    losses.append(sum(F.cross_entropy(model(x), y, reduction="sum") for x, y in subject.batches))
        return Answer(torch.stack(losses) / len(subject.y))

    return work


def ece(subject: Subject) -> Work:
    """Σ_b n_b/n |accuracy − confidence| over 15 bins of equal width."""
    with torch.no_grad():
        logits = subject.model(subject.x)

    def work() -> Answer:
        confidence, answer = logits.softmax(1).max(1)
        bins = (confidence * 15).ceil().long().clamp(1, 15) - 1
        gap = (answer == subject.y).to(confidence) - confidence
        return Answer(
            torch.zeros(15, dtype=gap.dtype, device=gap.device).index_add(0, bins, gap).abs().sum() / len(gap)
        )

    return work


def sam_steps(subject: Subject, *, steps: int) -> Work:
    """The weights after some steps of SAM with radius 0.05, two gradients each, written out."""
    x, y = subject.batches[0]

    def work() -> Answer:
        model = fresh(subject)
        params, begin = list(model.parameters()), flat(model)
        for _ in range(steps):
            slopes = torch.autograd.grad(F.cross_entropy(model(x), y), params)
            norm = torch.stack([g.square().sum() for g in slopes]).sum().sqrt()
            moves = [0.05 * g / norm for g in slopes]
            with torch.no_grad():
                torch._foreach_add_(params, moves)
            slopes = torch.autograd.grad(F.cross_entropy(model(x), y), params)
            with torch.no_grad():
                torch._foreach_sub_(params, moves)
                torch._foreach_sub_(params, [RATE * g for g in slopes])
        return Answer(torch.cat([begin, flat(model)]))

    return work


def fam_steps(subject: Subject, *, steps: int, strength: float) -> Work:
    """The weights after some steps on L + λ κ, κ by the head's whole Hessian and differentiated through."""
    x, y = subject.batches[0]

    def work() -> Answer:
        model = fresh(subject)
        params, begin, layer = list(model.parameters()), flat(model), dict(model.named_modules())[subject.head[0]]
        seen: list[Tensor] = []
        layer.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
        for _ in range(steps):
            loss = F.cross_entropy(model(x), y)
            slopes = torch.autograd.grad(
                loss + strength * head_flatness(layer.weight, layer.bias, seen.pop(), y), params
            )
            with torch.no_grad():
                torch._foreach_sub_(params, [RATE * g for g in slopes])
        return Answer(torch.cat([begin, flat(model)]))

    return work


def pool_data(subject: Subject) -> tuple[Tensor, Tensor]:
    """Samples for many small networks, whatever the subject is."""
    rng = torch.Generator().manual_seed(3)
    x = torch.randn(128, 16, generator=rng)
    return x.to(subject.device), (x @ torch.randn(16, 4, generator=rng)).argmax(1).to(subject.device)


def pool(subject: Subject, *, members: int, epochs: int) -> Work:
    """The losses of small networks that are trained one after another in a plain loop."""
    from landscope.models import build

    x, y = pool_data(subject)
    x = x.to(subject.parameters[0].dtype)

    def work() -> Answer:
        losses = []
        for seed in range(members):
            model = build("mlp", seed=seed, in_features=16, widths=[32], num_classes=4).to(x)
            optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
            for _ in range(epochs):
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
            with torch.no_grad():
                losses.append(F.cross_entropy(model(x), y))
        return Answer(torch.stack(losses))

    return work

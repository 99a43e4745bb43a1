"""How the peers are called: as their own documentation does, on the same batches, to the accuracy that the row asks for.

Where a tool has no rule of its own for an accuracy, its user's loop stands here: more products until the standard error is small
enough, or a longer Lanczos run until the tool calls it converged. Only what is said in `PATCHES` was changed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .answers import Answer, Work
from .by_hand import RATE, flat, fresh, mean_and_error, plane_directions, split
from .networks import Subject

PATCHES = {
    "curvlinops": "its density is a smoothed curve on a grid, not nodes and weights; the smoothing is part of its error",
    "pyhessian": "its density calls `torch.eig`, which torch removed in 1.13; here that name is given to `torch.linalg.eigh`",
    "loss-landscapes": "`planar_interpolation` along given directions, since `random_plane` draws its own. It moves before it "
    "evaluates, so every other column of its grid lies one step off: that is its error here",
}
"""What was changed or chosen so that a tool can run at all, for the notes of the page."""


# curvlinops


def _curvlinops(subject: Subject, kind: str = "Hessian") -> Any:
    import curvlinops

    made = getattr(curvlinops, f"{kind}LinearOperator")
    return made(subject.model, nn.CrossEntropyLoss(), subject.parameters, subject.batches, check_deterministic=False)


def curvlinops_product(subject: Subject, *, columns: int = 1) -> Work:
    """H V, after a first product that is not timed."""
    operator, vectors = _curvlinops(subject), subject.vectors(columns)
    vectors = vectors[:, 0] if columns == 1 else vectors
    operator @ vectors
    return lambda: Answer(operator @ vectors)


def curvlinops_top_eigenvalue(subject: Subject, *, tol: float) -> Work:
    """λ₁ by SciPy's `eigsh`."""
    from scipy.sparse.linalg import eigsh

    def work() -> Answer:
        return Answer(float(eigsh(_curvlinops(subject).to_scipy(), k=1, which="LA", tol=tol)[0][0]))

    return work


def curvlinops_trace(subject: Subject, *, tol: float, kind: str = "Hessian", most: int = 250) -> Work:
    """Hutchinson's estimator in blocks of 8 until their standard error is small enough."""
    from curvlinops import hutchinson_trace

    def work() -> Answer:
        torch.manual_seed(0)
        operator, found, number = _curvlinops(subject, kind), [], min(8, subject.size - 1)
        while len(found) < most:
            found.append(float(hutchinson_trace(operator, num_matvecs=number)))
            mean, error = mean_and_error(found)
            if len(found) >= 3 and error <= tol * abs(mean):
                break
        return Answer(mean, error / abs(mean), f"{number * len(found)} products")

    return work


def curvlinops_ggn_trace(subject: Subject, *, tol: float) -> Work:
    """The same of the Gauss–Newton matrix, which is the Fisher matrix here."""
    return curvlinops_trace(subject, tol=tol, kind="GGN")


def curvlinops_density(subject: Subject, *, steps: int, probes: int) -> Work:
    """The density on a grid, smoothed as the tool does by default."""
    from curvlinops import lanczos_approximate_spectrum

    def work() -> Answer:
        torch.manual_seed(0)
        grid, height = lanczos_approximate_spectrum(_curvlinops(subject), min(steps, subject.size), num_repeats=probes)
        return Answer(torch.cat([torch.as_tensor(grid), torch.as_tensor(height)]))

    return work


def curvlinops_fisher_rao(subject: Subject) -> Work:
    """θᵀGθ by one product."""

    def work() -> Answer:
        weights = flat(subject.model)
        return Answer(weights @ (_curvlinops(subject, "GGN") @ weights))

    return work


# PyHessian


def _pyhessian(subject: Subject) -> Any:
    from pyhessian import hessian

    return hessian(subject.model, nn.CrossEntropyLoss(), dataloader=subject.batches, cuda=subject.device.type == "cuda")


def pyhessian_product(subject: Subject) -> Work:
    """H v, after a first product that is not timed."""
    hessian, vector = _pyhessian(subject), split(subject, subject.vectors()[:, 0])
    hessian.dataloader_hv_product(vector)
    return lambda: Answer(torch.cat([part.flatten() for part in hessian.dataloader_hv_product(vector)[1]]))


def pyhessian_top_eigenvalue(subject: Subject, *, tol: float) -> Work:
    """λ₁ by its power iteration, which stops when two values differ by less than the tolerance."""

    def work() -> Answer:
        torch.manual_seed(0)
        return Answer(_pyhessian(subject).eigenvalues(maxIter=1000, tol=tol)[0][0])

    return work


def pyhessian_trace(subject: Subject, *, tol: float) -> Work:
    """The trace of H by its own rule: stop when one more product moves the mean by less than the tolerance."""

    def work() -> Answer:
        torch.manual_seed(0)
        found = _pyhessian(subject).trace(maxIter=1000, tol=tol)
        return Answer(sum(found) / len(found), note=f"{len(found)} products")

    return work


def pyhessian_density(subject: Subject, *, steps: int, probes: int) -> Work:
    """Nodes and weights of its Lanczos quadrature."""

    def eig(matrix: Tensor, eigenvectors: bool) -> tuple[Tensor, Tensor]:
        del eigenvectors
        values, vectors = torch.linalg.eigh(matrix)
        return torch.stack([values, torch.zeros_like(values)], 1), vectors

    torch.eig = eig

    def work() -> Answer:
        torch.manual_seed(0)
        nodes, weights = _pyhessian(subject).density(iter=min(steps, subject.size), n_v=probes)
        return Answer(torch.cat([torch.tensor(nodes).flatten(), torch.tensor(weights).flatten()]))

    return work


# hessian-eigenthings


def _eigenthings(subject: Subject) -> Any:
    from hessian_eigenthings import HessianOperator, supervised_loss

    return HessianOperator(subject.model, subject.batches, supervised_loss(nn.functional.cross_entropy))


def _eigenthings_ggn(subject: Subject) -> Any:
    from hessian_eigenthings import GGNOperator, supervised_forward, supervised_loss_of_output

    of_output = supervised_loss_of_output(nn.functional.cross_entropy)
    return GGNOperator(subject.model, subject.batches, supervised_forward, of_output)


def eigenthings_product(subject: Subject) -> Work:
    """H v, after a first product that is not timed."""
    operator, vector = _eigenthings(subject), subject.vectors()[:, 0]
    operator.matvec(vector)
    return lambda: Answer(operator.matvec(vector))


def eigenthings_top_eigenvalue(subject: Subject, *, tol: float) -> Work:
    """λ₁ by its Lanczos method, twice as many steps until it calls the pair converged."""
    from hessian_eigenthings import lanczos

    def work() -> Answer:
        operator, steps, spent = _eigenthings(subject), 10, 0
        while True:
            steps = min(steps, subject.size)
            found = lanczos(operator, k=1, max_iter=steps, tol=tol, which="LA", reorthogonalize=True, seed=0)
            spent += found.iterations
            if bool(found.converged[0]) or steps >= min(subject.size, 640):
                value = float(found.eigenvalues[0])
                return Answer(value, float(found.residuals[0]) / abs(value), f"{spent} products")
            steps *= 2

    return work


def eigenthings_trace(subject: Subject, *, tol: float, ggn: bool = False, most: int = 2000, seed: int = 0) -> Work:
    """Hutchinson's estimator in blocks of 16 until its standard error is small enough."""
    from hessian_eigenthings import hutchinson

    def work() -> Answer:
        operator, found = _eigenthings_ggn(subject) if ggn else _eigenthings(subject), []
        while len(found) < most:
            found += hutchinson(operator, num_samples=16, seed=seed + len(found)).samples.tolist()
            mean, error = mean_and_error(found)
            if error <= tol * abs(mean):
                break
        return Answer(mean, error / abs(mean), f"{len(found)} products")

    return work


def eigenthings_ggn_trace(subject: Subject, *, tol: float) -> Work:
    """The same of the Gauss–Newton matrix, which is the Fisher matrix here."""
    return eigenthings_trace(subject, tol=tol, ggn=True)


def eigenthings_density(subject: Subject, *, steps: int, probes: int, seed: int = 0) -> Work:
    """Nodes and weights of its Lanczos quadrature."""
    from hessian_eigenthings import spectral_density

    def work() -> Answer:
        steps_here = min(steps, subject.size)
        found = spectral_density(_eigenthings(subject), num_runs=probes, lanczos_steps=steps_here, seed=seed)
        return Answer(torch.cat([found.raw_eigenvalues.nan_to_num().flatten(), found.raw_weights.flatten()]))

    return work


def eigenthings_fisher_rao(subject: Subject) -> Work:
    """θᵀGθ by one product."""

    def work() -> Answer:
        weights = flat(subject.model)
        return Answer(weights @ _eigenthings_ggn(subject).matvec(weights))

    return work


# loss-landscapes, pytorch_optimizer, torchmetrics


def loss_landscapes_plane(subject: Subject, *, points: int) -> Work:
    """The grid whose corner and spacing make its points those of the other tools."""
    from loss_landscapes import planar_interpolation
    from loss_landscapes.metrics import Metric

    first, second = plane_directions(subject)

    class MeanLoss(Metric):
        def __call__(self, wrapper: Any) -> float:
            with torch.no_grad():
                total = sum(
                    nn.functional.cross_entropy(wrapper.forward(x), y, reduction="sum") for x, y in subject.batches
                )
            return float(total) / len(subject.y)

    def at(vector: Tensor) -> nn.Module:
        model = fresh(subject)
        with torch.no_grad():
            for p, part in zip(model.parameters(), split(subject, vector), strict=True):
                p.copy_(part)
        return model

    def work() -> Answer:
        corner, whole = flat(subject.model) - first - second, 2 * points / (points - 1)
        ends = [at(corner + whole * direction) for direction in (first, second)]
        return Answer(torch.as_tensor(planar_interpolation(at(corner), *ends, MeanLoss(), steps=points)))

    return work


def pytorch_optimizer_sam_steps(subject: Subject, *, steps: int) -> Work:
    """The weights after some steps of its SAM around SGD."""
    from pytorch_optimizer import SAM

    x, y = subject.batches[0]

    def work() -> Answer:
        model = fresh(subject)
        start = flat(model)
        optimizer = SAM(model.parameters(), torch.optim.SGD, rho=0.05, lr=RATE)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            return loss

        for _ in range(steps):
            closure()
            optimizer.step(closure)
        return Answer(torch.cat([start, flat(model)]))

    return work


def torchmetrics_ece(subject: Subject) -> Work:
    """The expected calibration error of given logits."""
    from torchmetrics.functional.classification import multiclass_calibration_error

    with torch.no_grad():
        logits = subject.model(subject.x)
    return lambda: Answer(multiclass_calibration_error(logits, subject.y, logits.shape[1], n_bins=15))

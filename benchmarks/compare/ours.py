"""How Landscope is called, as a user would: from the model and its data to the number, checks included."""

from __future__ import annotations

import multiprocessing
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.nn.functional as F

from .answers import Answer, Work
from .memory import Memory
from .networks import Network, Subject, load


def measured(subject: Subject, name: str, **settings: object) -> Answer:
    """A measure by name, in float32 without TF32."""
    import landscope as ls

    estimate = ls.measure(subject.model, (subject.x, subject.y), {name: settings})[name]
    if not estimate.status.has_value:
        raise RuntimeError(f"{estimate.status}: {estimate.reason}")
    known = estimate.stderr is not None and estimate.value != 0
    claimed = abs(estimate.stderr / estimate.value) if known else None
    return Answer(estimate.value, claimed, f"{estimate.status}, {estimate.cost.passes:.0f} passes")


def product(subject: Subject, *, columns: int = 1) -> Work:
    """H V, after a first product that is not timed."""
    import landscope as ls

    hessian, vectors = ls.Hessian(ls.Probe(subject.model, (subject.x, subject.y))), subject.vectors(columns)
    vectors = vectors[:, 0] if columns == 1 else vectors
    hessian @ vectors
    return lambda: Answer(hessian @ vectors)


def top_eigenvalue(subject: Subject, *, tol: float) -> Work:
    """λ₁ of the Hessian."""
    return lambda: measured(subject, "hessian_top_eigenvalue", tol=tol)


def hessian_trace(subject: Subject, *, tol: float, seed: int = 0) -> Work:
    """The trace of the Hessian."""
    return lambda: measured(subject, "hessian_trace", tol=tol, seed=seed)


def ggn_trace(subject: Subject, *, tol: float) -> Work:
    """The trace of the Gauss–Newton matrix."""
    return lambda: measured(subject, "ggn_trace", tol=tol)


def fisher_trace(subject: Subject, *, tol: float) -> Work:
    """The trace of the Fisher matrix."""
    return lambda: measured(subject, "fisher_trace", tol=tol)


def density(subject: Subject, *, steps: int, probes: int, seed: int = 0) -> Work:
    """Nodes and weights of the spectral density of the Hessian."""

    def work() -> Answer:
        import landscope as ls

        hessian = ls.Hessian(ls.Probe(subject.model, (subject.x, subject.y)))
        found = ls.spectrum(hessian, steps=steps, probes=probes, seed=seed)
        return Answer(torch.cat([torch.as_tensor(found.nodes), torch.as_tensor(found.weights)]))

    return work


def relative_flatness(subject: Subject) -> Work:
    """κ of the classifier."""
    return lambda: measured(subject, "relative_flatness")


def igs(subject: Subject, *, rank: int, samples: int) -> Work:
    """Information-geometric sharpness of one batch."""
    part = subject.part(samples)
    return lambda: measured(part, "igs", rank=rank, batch_size=samples, batches=None)


def fisher_rao(subject: Subject) -> Work:
    """θᵀFθ."""
    return lambda: measured(subject, "fisher_rao")


def adaptive_sharpness(subject: Subject, *, rho: float, steps: int) -> Work:
    """The largest rise of the loss found with ‖δ ⊘ |θ|‖₂ ≤ ρ."""
    return lambda: measured(subject, "adaptive_sharpness", p=2, rho=rho, steps=steps, batch_size=None)


def plane(subject: Subject, *, points: int) -> Work:
    """The loss on a grid around the weights."""
    from .by_hand import plane_directions

    directions = plane_directions(subject)

    def work() -> Answer:
        import landscope as ls

        probe = ls.Probe(subject.model, (subject.x, subject.y))
        found = ls.landscape(
            probe, plane=directions, normalisation="none", resolution=points, span=1.0, metrics=["loss"]
        )
        return Answer(torch.as_tensor(found.loss).T)  # the first direction comes last

    return work


def ece(subject: Subject) -> Work:
    """The expected calibration error of given logits, without its error bar."""
    import landscope as ls

    with torch.no_grad():
        logits = subject.model(subject.x)
    return lambda: Answer(ls.ece(logits, subject.y, resamples=0).value)


def sam_steps(subject: Subject, *, steps: int) -> Work:
    """The weights after some steps of SAM around SGD on the first batch."""
    import landscope as ls

    from .by_hand import RATE, flat, fresh

    x, y = subject.batches[0]

    def work() -> Answer:
        model = fresh(subject)
        start = flat(model)
        optimizer = ls.SAM(model.parameters(), torch.optim.SGD, rho=0.05, lr=RATE)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        for _ in range(steps):
            optimizer.step(closure)
        return Answer(torch.cat([start, flat(model)]))

    return work


def fam_steps(subject: Subject, *, steps: int, strength: float) -> Work:
    """The weights after some steps of SGD on L + λ κ of the classifier, on the first batch."""
    import landscope as ls

    from .by_hand import RATE, flat, fresh

    x, y = subject.batches[0]

    def work() -> Answer:
        model = fresh(subject)
        start = flat(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        fam = ls.FAM(model, subject.head[0], strength=strength)
        for _ in range(steps):
            optimizer.zero_grad()
            with fam.ready():
                outputs = model(x)
            fam(F.cross_entropy(outputs, y)).backward()
            optimizer.step()
        return Answer(torch.cat([start, flat(model)]))

    return work


def pool(subject: Subject, *, members: int, epochs: int) -> Work:
    """The losses of small networks that are trained together, with all samples in every step."""
    from .by_hand import RATE, pool_data

    x, y = pool_data(subject)
    spec = {
        "model": {"name": "mlp", "widths": [32]},
        "epochs": epochs,
        "batch_size": len(y),
        "optimizer": {"lr": RATE, "momentum": 0.9},
    }

    def work() -> Answer:
        import landscope as ls

        trained = ls.train_pool(spec, members, data={"train": (x, y)}, device=subject.device, progress=False)
        return Answer(trained.losses("train"))

    return work


def everything(subject: Subject, *, seconds: float) -> Work:
    """How many measures have a value after all were asked for."""

    def work() -> Answer:
        import landscope as ls

        report = ls.measure(subject.model, (subject.x, subject.y), seconds=seconds)
        ended = [str(estimate.status) for estimate in report.values()]
        counts = ", ".join(f"{ended.count(status)} {status}" for status in dict.fromkeys(ended))
        return Answer(float(sum(estimate.status.has_value for estimate in report.values())), note=counts)

    return work


def two_processes(subject: Subject, *, tol: float) -> Work:
    """The trace of H by two processes, each with half of the samples."""
    context = multiprocessing.get_context("spawn")
    meeting = subject.folder / f"rendezvous-{time.time_ns()}"
    ends = [context.Pipe() for _ in range(2)]
    for rank, (_, theirs) in enumerate(ends):
        about = (rank, subject.network, subject.folder, str(meeting), torch.get_num_threads(), theirs)
        context.Process(target=_half, args=about, daemon=True).start()
    for mine, _ in ends:
        mine.recv()

    def work() -> Answer:
        for mine, _ in ends:
            mine.send(tol)
        first, second = (mine.recv() for mine, _ in ends)
        return replace(first, cpu=first.cpu + second.cpu, memory=first.memory + second.memory)

    return work


def _half(rank: int, network: Network, folder: Path, meeting: str, threads: int, parent: Connection) -> None:
    """One of two processes that form a group."""
    import torch.distributed as dist

    torch.set_num_threads(threads)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    whole = load(network, folder)
    half = len(whole.y) // 2
    rows = slice(0, half) if rank == 0 else slice(half, None)
    mine = Subject(network, whole.model, whole.x[rows], whole.y[rows], folder)
    memory = Memory(whole.device)
    parent.send("ready")
    while True:
        tol = parent.recv()
        start = time.process_time()
        answer = measured(mine, "hessian_trace", tol=tol)
        parent.send(replace(answer, cpu=time.process_time() - start, memory=memory.peak()))

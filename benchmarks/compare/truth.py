"""What answers are compared with.

`exact` is computed in float64 by plain torch (`by_hand`), from the definition. Where that takes too long (the eigenvalues of a
Hessian with more than 5,000 parameters), `long` has runs of several tools to a tighter accuracy than the row asks for. The
first two that are installed must agree; where they do not, the page says so instead of calling one of them the truth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from . import by_hand, ours, peers
from .answers import Answer, Tool, Work
from .networks import Kind, Subject

RECTIFIED: tuple[Kind, ...] = ("resnet20", "resnet18")
DENSE = 5_000
"""Parameters up to which the Hessian is computed as a matrix."""
SEED = 10_000
"""Of longer runs: with the seed of what is timed they would share its random vectors, and its error would look too small."""


@dataclass(frozen=True)
class Truth:
    """How the truth of a row is found."""

    name: str
    """Rows with the same truth share what was found."""
    exact: Tool | None = None
    """Called with the network in float64 and the row's settings."""
    most: int | None = None
    """Parameters up to which it is affordable."""
    long: Mapping[str, Tool] = field(default_factory=dict)
    """By tool, with the network as it is and the row's settings."""
    agree: float = 1e-3
    """How far the first two may be apart, in the row's own error."""
    best_answer: bool = False
    """Nothing is known but the largest answer of all tools."""
    kinds: tuple[Kind, ...] = ()
    """Networks on which `exact` is affordable whatever their size."""

    def is_exact(self, parameters: int, kind: Kind) -> bool:
        """Whether the definition is computed."""
        small = self.most is None or parameters <= self.most
        return self.exact is not None and (small or kind in self.kinds)


def hessian(subject: Subject) -> Tensor:
    """The Hessian as a matrix, by double backward over its columns in blocks."""
    loss = F.cross_entropy(subject.model(subject.x), subject.y)
    slope = torch.cat([g.flatten() for g in torch.autograd.grad(loss, subject.parameters, create_graph=True)])
    columns = []
    for block in torch.eye(subject.size, dtype=slope.dtype, device=slope.device).split(64):
        parts = torch.autograd.grad(slope, subject.parameters, block, retain_graph=True, is_grads_batched=True)
        columns.append(torch.cat([part.flatten(1) for part in parts], 1))
    return torch.cat(columns)


def _dense_top_eigenvalue(subject: Subject, **_: float) -> Work:
    return lambda: Answer(torch.linalg.eigvalsh(hessian(subject))[-1])


def _exact_trace(subject: Subject, **_: float) -> Work:
    """With rectifiers and frozen BatchNorm every parameter enters linearly: the diagonal is the Gauss–Newton matrix's."""
    if subject.network.kind in RECTIFIED:
        return by_hand.ggn_trace(subject)
    return lambda: Answer(hessian(subject).diagonal().sum())


def _dense_spectrum(subject: Subject, **_: float) -> Work:
    def work() -> Answer:
        values = torch.linalg.eigvalsh(hessian(subject))
        return Answer(torch.cat([values, torch.ones_like(values)]))

    return work


def _tighter(tool: Tool, **tighter: float) -> Tool:
    return lambda subject, **settings: tool(subject, **{**settings, **tighter})


def _alone(tool: Tool, **tighter: float) -> Tool:
    return lambda subject, **_: tool(subject, **tighter)


def _exactly(tool: Tool) -> Tool:
    """Without an accuracy: the definition has none."""
    return lambda subject, **settings: tool(subject, **{k: v for k, v in settings.items() if k != "tol"})


GRADIENT = Truth("gradient", by_hand.gradient)
PRODUCT = Truth("product", _exactly(by_hand.product))
TOP_EIGENVALUE = Truth(
    "top_eigenvalue",
    _dense_top_eigenvalue,
    DENSE,
    {
        "landscope": _tighter(ours.top_eigenvalue, tol=1e-4),
        "hessian-eigenthings": _tighter(peers.eigenthings_top_eigenvalue, tol=1e-4),
        "by hand": _alone(by_hand.lanczos, steps=40),
    },
    agree=1e-4,
)
TRACE = Truth(
    "trace",
    _exact_trace,
    DENSE,
    {
        "landscope": _tighter(ours.hessian_trace, tol=3e-3, seed=SEED),
        "hessian-eigenthings": _tighter(peers.eigenthings_trace, tol=1e-2, seed=SEED),
        "by hand": _alone(by_hand.hutchinson, tol=1e-2),
    },
    agree=3e-2,
    kinds=RECTIFIED,
)
SPECTRUM = Truth(
    "spectrum",
    _dense_spectrum,
    DENSE,
    {
        "landscope": _tighter(ours.density, probes=16, seed=SEED),
        "hessian-eigenthings": _tighter(peers.eigenthings_density, probes=16, seed=SEED),
    },
    agree=0.1,
)
GGN_TRACE = Truth("ggn_trace", _exactly(by_hand.ggn_trace))
RELATIVE_FLATNESS = Truth("relative_flatness", by_hand.relative_flatness)
IGS = Truth("igs", by_hand.igs, 300_000, {"landscope": ours.igs, "by hand": by_hand.igs_by_power_iteration}, agree=1e-2)
FISHER_RAO = Truth("fisher_rao", by_hand.fisher_rao)
LARGEST_FOUND = Truth("largest_found", best_answer=True)
PLANE = Truth("plane", by_hand.plane, 50_000, {"landscope": ours.plane, "by hand": by_hand.plane}, agree=1e-4)
ECE = Truth("ece", by_hand.ece)
SAM = Truth("sam", by_hand.sam_steps)
FAM = Truth("fam", by_hand.fam_steps)
POOL = Truth("pool", by_hand.pool)
NONE = Truth("none")

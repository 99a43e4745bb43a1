"""Hessian products as difference quotients of the gradient, (∇L(θ + h v) − ∇L(θ − h v)) / 2h, each with a certificate.

A quotient costs two gradients, keeps no graph of second order and works with fused attention. It is a product with another
matrix, and a Krylov method on that one converges with a residual of zero: for GPT-2 at h = 1e-3 ‖θ‖/‖v‖ to 71.6 in place of 43.0.
A step that is right to 3e-4 along a random direction is off by 89 % along the sharpest one, where it must be a thousand times
smaller. So every direction has a step of its own, the one whose quotient on some rows is nearest to the exact product there; and
by how much the two differ on *other* rows is the rounding that the operator states, which every bound contains. Both are rows
that may carry much of the curvature: on the first rows of the data the wrong step looked right, and bars were too short. Across
the kinks of rectifiers a quotient sees what a Hessian does not: models with such operations are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from landscope.core.distributed import sum_over_processes
from landscope.core.errors import NotApplicableError, OperandError
from landscope.curvature.differentiation import Params, hessian_reverse_over_reverse
from landscope.probe.batches import Batch
from landscope.probe.first_derivatives import graph_behind
from landscope.probe.probe import Probe
from landscope.probe.rows.outputs import outputs_of

FIRST_STEP = 1e-3
FACTOR = 4.0
"""Between two steps that are tried."""
RANGE = (1e-8, 1e-1)
SAFETY = 2.0
"""By what the disagreement on some rows is multiplied to stand for all."""
KINKS = (
    *(
        "Relu",
        "LeakyRelu",
        "Rrelu",
        "Prelu",
        "Threshold",
        "Hardtanh",
        "Hardswish",
        "Hardsigmoid",
        "Hardshrink",
        "Softshrink",
    ),
    *("Abs", "Clamp", "Max", "Min", "Amax", "Amin", "AdaptiveMax", "Topk", "Sort", "Round", "Floor", "Sign"),
)
"""How the names of operations begin that are not smooth."""


class Differences:
    """Products of the Hessian at a probe with vectors (P,), and by how much those so far may be off.

    Memory: six vectors of the size of the parameters, and the activations of one gradient; of an exact product on `few` rows.
    """

    def __init__(self, probe: Probe) -> None:
        if probe.sharding is not None or probe.narrow:
            held = "sharded" if probe.sharding is not None else "in bfloat16"
            raise NotApplicableError(
                f"difference quotients need whole weights in float32, and yours are {held}. Use method='exact'."
            )
        refuse_kinks(probe)
        self.probe = probe
        self.step = FIRST_STEP
        """That of the latest product, in units of ‖θ‖/‖v‖."""
        self._error, self._size, self._whole = 0.0, 0.0, 0.0
        self._chosen, self._judging = _two_chunks(probe)

    @property
    def rounding(self) -> float:
        """The largest disagreement so far on rows that had no part in the choice of a step, over the size of the matrix.

        Over its size on those rows or on all, whichever is smaller: they may have more than their share of the curvature.
        """
        size = min(self._size, self._whole)
        return SAFETY * self._error / size if size > 0 else 0.0

    def product(self, v: Tensor) -> Tensor:
        """H v: the step, the certificate, and two gradients over all rows."""
        length = float(torch.linalg.vector_norm(v))
        if length == 0.0:
            return torch.zeros_like(v)
        self.step = self._searched(v)
        exact = self._exact(self._judging, v)
        error, size = self._norms(self._quotient(self._judging, v, self.step).sub_(exact), exact)
        rows = float(sum_over_processes(torch.tensor([float(self._judging.size)], device=v.device))) * length
        found = difference_quotient(self.probe, v, self.step)
        self._error, self._size = max(self._error, error / rows), max(self._size, size / rows)
        self._whole = max(self._whole, float(torch.linalg.vector_norm(found)) / length)
        return found

    def _searched(self, v: Tensor) -> float:
        """The step whose quotient is nearest to the exact product on some rows, found from the latest one."""
        exact, errors = self._exact(self._chosen, v), dict[float, float]()

        def error(step: float) -> float:
            if step not in errors:
                errors[step] = self._norms(self._quotient(self._chosen, v, step).sub_(exact))[0]
            return errors[step]

        best = self.step
        while True:
            tried = [step for step in (best, best / FACTOR, best * FACTOR) if RANGE[0] <= step <= RANGE[1]]
            nearest = min(tried, key=error)
            if nearest == best:
                return best
            best = nearest

    def _exact(self, batch: Batch, v: Tensor) -> Tensor:
        probe = self.probe
        with probe.measuring():
            found = hessian_reverse_over_reverse(
                lambda at: probe.loss_sum(at, batch), probe.params, probe.space, v[None]
            )
        return found[0]

    def _quotient(self, batch: Batch, v: Tensor, step: float) -> Tensor:
        with self.probe.measuring():
            return _difference(self.probe, batch, v, _length(self.probe, v, step))

    def _norms(self, *vectors: Tensor) -> list[float]:
        """Of vectors whose parts are spread over processes by rows: as if the parts were at right angles."""
        squares = torch.stack([torch.linalg.vector_norm(each).double().square() for each in vectors])
        return sum_over_processes(squares).sqrt().tolist()


def difference_quotient(probe: Probe, v: Tensor, step: float) -> Tensor:
    """(∇L(θ + h v) − ∇L(θ − h v)) / 2h over all rows, h = `step` · ‖θ‖/‖v‖; nothing says how near it is to H v.

    >>> w = torch.nn.Linear(2, 1, bias=False)
    >>> probe = Probe(w, (torch.eye(2), torch.zeros(2, 1)), "mse", dtype=torch.float64)         # L = (w₁² + w₂²) / 2
    >>> difference_quotient(probe, torch.tensor([1.0, 2.0]).double(), 1e-3)
    tensor([1.0000, 2.0000], dtype=torch.float64)
    """
    h = _length(probe, v, step)
    (total,) = probe.total(lambda batch: (_difference(probe, batch, v, h),), load=1.0, passes=2.0)
    return total.div_(probe.n_samples)


def _length(probe: Probe, v: Tensor, step: float) -> float:
    size = sum(float(p.double().square().sum()) for p in probe.params.values()) ** 0.5
    return step * (size or 1.0) / float(torch.linalg.vector_norm(v))


def _difference(probe: Probe, batch: Batch, v: Tensor, h: float) -> Tensor:
    """The quotient of the sum of the loss over one piece of data."""
    ways = probe.space.unflatten(v)

    def slopes(at: Params) -> list[Tensor]:
        loss = probe.loss_sum(at, batch)
        return list(torch.autograd.grad(loss, list(at.values()), allow_unused=True, materialize_grads=True))

    def moved(by: float) -> Params:
        return {name: p.add(ways[name], alpha=by).requires_grad_() for name, p in probe.params.items()}

    with fused_attention():
        ahead, behind = slopes(moved(h)), slopes(moved(-h))
    for a, b in zip(ahead, behind, strict=True):
        a.sub_(b).div_(2 * h)
    del behind
    return probe.space.flatten(dict(zip(probe.params, ahead, strict=True)))


@contextmanager
def fused_attention() -> Iterator[None]:
    """Attention through whatever kernel is fastest: first derivatives are all that is needed."""
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        yield


def _two_chunks(probe: Probe) -> tuple[Batch, Batch]:
    """Some rows to choose steps on and others to judge them; the same where there are no others.

    Those that may carry most of the curvature, where rows can be taken: the others hardly move with the parameters.
    """
    sizes = _sizes(probe)
    if sizes is not None:
        count = max(1, min(probe.few.size, len(sizes) // 2))
        telling = sizes.topk(min(2 * count, len(sizes))).indices
        parts = (telling[::2], telling[1::2] if len(telling) > 1 else telling)
        chosen, judging = (probe.rows(part).prepared(probe.ready) for part in parts)
        return chosen, judging
    batches = probe.batches()
    first = next(batches)
    count = min(probe.few.size, first.size // 2)
    if first.divisible and count:
        chosen, rest = first.split(count)
        judging = rest if rest.size == count else rest.split(rest.size - count)[1]
    else:
        chosen, judging = first, next(batches, first)
        judging = judging if not judging.divisible else next(judging.pieces(probe.few.size))
    return chosen.prepared(probe.ready), judging.prepared(probe.ready)


def _sizes(probe: Probe) -> Tensor | None:
    """How much of the curvature every row may carry: one forward pass."""
    if not probe.takes_rows:
        return None
    outputs = outputs_of(probe)
    while outputs.advance():
        pass
    return outputs.sizes


def refuse_kinks(probe: Probe) -> None:
    """Raise where an operation between the parameters and the loss is not smooth."""
    with probe.measuring():
        leaves = {name: p.detach().requires_grad_() for name, p in probe.params.items()}
        nodes = {node.name() for node in graph_behind(probe.loss_sum(leaves, probe.few))}
    found = sorted(
        name for name in nodes if name.removeprefix("torch::autograd::").startswith(KINKS) or "MaxPool" in name
    )
    if found:
        raise NotApplicableError(
            f"difference quotients are not products with the Hessian here: {', '.join(found)} has kinks, across which a quotient "
            f"sees a jump of the gradient and the Hessian does not. Use method='exact'."
        )


def check_method(method: str, precision: str) -> None:
    """Refuse what is not a way to multiply by the Hessian."""
    if method not in ("exact", "difference"):
        raise OperandError(f"method must be 'exact' or 'difference', got {method!r}")
    if method == "difference" and precision != "highest":
        raise OperandError(
            "method='difference' needs precision='highest': a quotient magnifies the rounding of its gradients"
        )

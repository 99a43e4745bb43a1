"""Every eigenvalue of the Fisher matrix of a few samples, exactly.

F = GᵀG and K = GGᵀ (nC × nC) have the same non-zero eigenvalues, so that n samples with C outputs have at most nC of them,
however many parameters there are: trace, Frobenius norm and extreme eigenvalues of the Fisher matrix, and of the Gauss–Newton
matrix where it is the same, cost one Gram matrix (`landscope.curvature.gram`) instead of hundreds of products.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from landscope.core.batches import Batch
from landscope.core.distributed import sum_over_processes
from landscope.core.ledger import FORWARD
from landscope.core.probe import Probe
from landscope.curvature.gram import gram
from landscope.curvature.gram_assembly import gram_multiplications
from landscope.measures.minibatches import m_batches
from landscope.measures.shared import once_per_probe

__all__ = ["forward_operations", "gram_passes", "outputs_per_sample", "small_fisher", "small_fisher_passes"]

LARGEST = 1024
"""Rows of the Gram matrix up to which it is the way to go; its eigenvalues then take a second at most."""


@once_per_probe
def outputs_per_sample(probe: Probe) -> int:
    """C, from one sample; 1 where the model returns something else than a tensor."""
    z, size = _first_outputs(probe), next(next(probe.batches()).pieces(1)).size
    return max(1, z.numel() // size) if isinstance(z, Tensor) else 1


def _first_outputs(probe: Probe) -> object:
    sample = next(next(probe.batches()).pieces(1))
    with probe.measuring(), torch.no_grad():
        return probe.outputs(probe.params, Batch(probe.ready(sample.raw), sample.size, sample.divisible))


@once_per_probe
def forward_operations(probe: Probe) -> float:
    """Floating-point operations of a forward pass of one sample, at least those of touching every parameter once."""
    sample = next(next(probe.batches()).pieces(1))
    with FlopCounterMode(display=False) as counter:
        _first_outputs(probe)
    return max(counter.get_total_flops() / sample.size, 2.0 * probe.n_params / max(sample.size, 1), 1.0)


def gram_passes(probe: Probe, samples: int) -> float:
    """Passes over all data that the Gram matrix of so many samples takes.

    C + 4 forward or backward passes over the samples, and the products: two operations each and in float64, which takes twice
    the time, but above the diagonal only.
    """
    products = 2 * _multiplications(probe, samples) / forward_operations(probe)
    return (samples * (outputs_per_sample(probe) + 4) + products) * FORWARD / probe.n_samples


@once_per_probe
def _multiplications(probe: Probe, samples: int) -> int:
    def outputs(params: Mapping[str, Tensor], batch: Batch) -> Tensor:
        z = probe.outputs(params, batch)
        return z if isinstance(z, Tensor) else torch.zeros(batch.size)

    sample = next(next(probe.batches()).pieces(1))
    with probe.measuring():
        ready = Batch(probe.ready(sample.raw), sample.size, sample.divisible)
        return gram_multiplications(probe, ready, outputs, samples, outputs_per_sample(probe))


@once_per_probe
def _applies(probe: Probe) -> bool:
    if probe.loss.likelihood not in ("categorical", "bernoulli") or probe.mode != "eval":
        return False
    first = next(probe.batches())
    z = _first_outputs(probe)
    rows = isinstance(z, Tensor) and (z.dim() == 2 or probe.loss.likelihood == "bernoulli")
    return first.divisible and rows and probe.n_samples * outputs_per_sample(probe) <= LARGEST


def small_fisher_passes(probe: Probe) -> float | None:
    """What `small_fisher` takes; 0 once it is known, `None` where it does not apply."""
    if not _applies(probe):
        return None
    return 0.0 if (_eigenvalues.__wrapped__, (), ()) in probe.results else gram_passes(probe, probe.n_samples)  # type: ignore[attr-defined]


def small_fisher(probe: Probe, affordable: float = float("inf")) -> Tensor | None:
    """The eigenvalues of F that are not zero (float64, largest first); `None` where products are the better way.

    >>> probe = Probe(torch.nn.Linear(2, 3), (torch.eye(2), torch.tensor([0, 2])))
    >>> small_fisher(probe).shape
    torch.Size([4])
    """
    passes = small_fisher_passes(probe)
    return _eigenvalues(probe) if passes is not None and passes <= affordable else None


@once_per_probe
def _eigenvalues(probe: Probe) -> Tensor:
    rows = probe.n_samples * outputs_per_sample(probe)
    padded = torch.zeros(rows, dtype=torch.float64, device=probe.device)
    for batch in m_batches(probe, probe.n_samples):  # one, on one of the processes
        with probe.ledger.timed(probe.device):
            found = gram(probe, batch).eigenvalues()
        padded[: len(found)] = found
    probe.ledger.add(gram_passes(probe, probe.n_samples))
    values = sum_over_processes(padded)[: probe.n_params]
    return values[values > 0]

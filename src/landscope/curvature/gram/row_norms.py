"""Squared norms of what single samples pull back to the parameters: Σ_q ‖J_iᵀ s_iq‖², J_i = ∂z_i/∂θ, without holding a gradient.

With the squares of the loss's own slope this is ‖g_i‖²; with the columns of a root of the Fisher matrix at the outputs it is
tr F_i. A layer that follows a rule (`layers`) needs its inputs and the gradients of its outputs: with inputs a (T, K) and
output gradients δ (T, O) at T positions,

    ‖Σ_t δ_t a_tᵀ‖²  =  Σ_st ⟨a_s, a_t⟩ ⟨δ_s, δ_t⟩

by pairs of positions or by the sum itself, whichever is smaller (Goodfellow 2015; Li et al. 2022). For q seeds that is one
forward pass, q backward passes to the layers' outputs and q times the work of a weight gradient: (1 + 2q)/3 gradients, and one
more for the proof of the rules. Every other parameter goes through `vmap` of the gradient of one sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.utils import _pytree as pytree

from landscope.core.errors import LandscopeError
from landscope.core.memory import available_bytes, is_out_of_memory
from landscope.curvature.gram.assembly import OutputFunction, prove, record, rules_of
from landscope.probe.batches import Batch
from landscope.probe.probe import Probe

SEEDS_AT_ONCE = 5
"""Backward passes that run as one: more bring hardly any speed and hold more gradients."""

Seeds = Callable[[Tensor], Tensor]
"""Outputs (n, C) → seeds (q, n, C), constants of the differentiation."""


def row_norms(probe: Probe, batch: Batch, outputs: OutputFunction, seeds: Seeds) -> dict[str, Tensor]:
    """Σ_q ‖∂⟨s_iq, z_i⟩/∂θ‖² of the samples of a divisible piece, (n,) in float64, by layer; what no layer rules is under "".

    >>> probe = Probe(torch.nn.Linear(2, 3), (torch.eye(2), torch.tensor([0, 2])))
    >>> norms = row_norms(probe, next(probe.batches()), probe.outputs, lambda z: torch.ones(1, *z.shape))
    >>> {layer: values.tolist() for layer, values in norms.items()}             # inputs of norm 1, and a bias
    {'': [6.0, 6.0]}
    """
    with torch.enable_grad():
        rules = rules_of(probe)
        recorded = record(probe, batch, outputs, rules)
        z = recorded.z.detach()
        columns = seeds(z).detach()
        layers = list(prove(probe, recorded, rules))
        found = {layer: torch.zeros(batch.size, dtype=torch.float64, device=probe.device) for layer in layers}
        for some in columns.split(SEEDS_AT_ONCE) if layers else ():
            slopes, _ = recorded.pull_back(layers, some)
            for layer in layers:
                found[layer] += rules[layer].squared_norms(recorded.uses[layer].inputs, slopes.pop(layer))
    ruled = {name for layer in layers for name in rules[layer].names}
    rest = {name: p for name, p in probe.params.items() if name not in ruled}
    if rest:
        del recorded
        found[""] = found.get("", 0) + explicit_norms(probe, rest, batch, outputs, columns)
    return found


def explicit_norms(
    probe: Probe, params: Mapping[str, Tensor], batch: Batch, outputs: OutputFunction, columns: Tensor
) -> Tensor:
    """Explicit gradients of a few samples at a time, only their norms kept."""
    leaves, spec = pytree.tree_flatten(batch.raw)

    def along(at: Mapping[str, Tensor], sample: list[Tensor], seed: Tensor) -> Tensor:
        raw = pytree.tree_unflatten([t.unsqueeze(0) for t in sample], spec)
        return (outputs({**probe.params, **at}, Batch(raw, 1, True)).reshape(-1) * seed).sum()

    def squares(slopes: Iterable[Tensor]) -> Tensor:
        return sum((g.square().sum() for g in slopes), torch.zeros((), device=probe.device)).double()

    def norms(sample: list[Tensor], seeds: Tensor) -> Tensor:
        return torch.stack([squares(grad(along)(dict(params), sample, seed).values()) for seed in seeds]).sum()

    def plainly(sample: list[Tensor], seeds: Tensor) -> Tensor:
        """The same by autograd, for what takes no tensors of `torch.func`: packed sequences, some kernels of recurrent layers."""
        at = {name: p.detach().requires_grad_() for name, p in params.items()}
        sums = (along(at, sample, seed) for seed in seeds)
        return torch.stack(
            [
                squares(torch.autograd.grad(s, [*at.values()], materialize_grads=True) if s.requires_grad else ())
                for s in sums  # an expert that the sample does not visit has no gradient
            ]
        ).sum()

    size = sum(p.numel() * p.element_size() for p in params.values())
    at_once = max(1, min(batch.size, available_bytes(probe.device) // (16 * size)))
    by_sample = columns.transpose(0, 1)
    try:
        return vmap(norms, chunk_size=at_once)(leaves, by_sample)
    except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
        if isinstance(error, LandscopeError) or is_out_of_memory(error):
            raise
        with torch.enable_grad():
            return torch.stack([plainly([leaf[i] for leaf in leaves], by_sample[i]) for i in range(batch.size)])

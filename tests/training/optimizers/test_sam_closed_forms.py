"""One step on a quadratic is a calculation by hand: SAM, ASAM, groups with their own settings, m-SAM."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from landscope.core.errors import NotApplicableError
from landscope.training.optimizers import SAM, Neighbourhood, ascent

SHAPES = {"vector": [(3,)], "layer": [(2, 3), (2,)], "convolution": [(4, 2, 3, 3), (4,), (5, 4), (5,), ()]}
LR = 0.1


class Quadratic:
    """L = ½ Σ a (w − c)², entry by entry: the gradient is a (w − c)."""

    def __init__(self, shapes: list[tuple[int, ...]], seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.start = [rng.normal(size=s) for s in shapes]
        self.a = [rng.uniform(0.5, 3, size=s) for s in shapes]
        self.c = [rng.normal(size=s) for s in shapes]
        self.params = [torch.tensor(w, dtype=torch.float64, requires_grad=True) for w in self.start]

    def loss(self) -> Tensor:
        terms = zip(self.params, self.a, self.c, strict=True)
        return sum((torch.as_tensor(a) * (w - torch.as_tensor(c)) ** 2).sum() / 2 for w, a, c in terms)

    def gradients(self, points: list[np.ndarray]) -> list[np.ndarray]:
        return [a * (w - c) for w, a, c in zip(points, self.a, self.c, strict=True)]

    def closure(self, optimizer: SAM):
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = self.loss()
            loss.backward()
            return loss

        return closure

    def by_hand(self, rhos: list[float], metrics: list[np.ndarray]) -> list[np.ndarray]:
        g = self.gradients(self.start)
        length = np.sqrt(sum(((t * d) ** 2).sum() for t, d in zip(metrics, g, strict=True)))
        there = [w + rho * t**2 * d / length for w, rho, t, d in zip(self.start, rhos, metrics, g, strict=True)]
        return [w - LR * d for w, d in zip(self.start, self.gradients(there), strict=True)]

    def agrees(self, expected: list[np.ndarray]) -> bool:
        eps = np.finfo(np.float64).eps
        return all(
            np.allclose(p.detach().numpy(), w, rtol=16 * eps, atol=16 * eps)
            for p, w in zip(self.params, expected, strict=True)
        )


@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_a_step_of_sam(shapes: list[tuple[int, ...]]) -> None:
    problem = Quadratic(shapes)
    optimizer = SAM(problem.params, torch.optim.SGD, rho=0.7, lr=LR)
    loss = optimizer.step(problem.closure(optimizer))
    ones = [np.ones(s) for s in shapes]
    assert problem.agrees(problem.by_hand([0.7] * len(shapes), ones))
    assert not problem.agrees(problem.by_hand([0.0] * len(shapes), ones))
    assert loss.item() == pytest.approx(
        sum((a * (w - c) ** 2).sum() / 2 for w, a, c in zip(problem.start, problem.a, problem.c, strict=True)),
        rel=1e-14,
    )


@pytest.mark.parametrize("eta", [0.0, 0.01, 0.3])
@pytest.mark.parametrize("adaptive", [True, "all"])
@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_a_step_of_asam(shapes: list[tuple[int, ...]], adaptive: bool | str, eta: float) -> None:
    problem = Quadratic(shapes)
    optimizer = SAM(problem.params, torch.optim.SGD, rho=0.7, adaptive=adaptive, eta=eta, lr=LR)
    optimizer.step(problem.closure(optimizer))
    metrics = [np.abs(w) + eta if adaptive == "all" or w.ndim >= 2 else np.ones(w.shape) for w in problem.start]
    assert problem.agrees(problem.by_hand([0.7] * len(shapes), metrics))


def test_groups_have_their_own_settings_and_one_norm() -> None:
    shapes = SHAPES["convolution"]
    problem = Quadratic(shapes)
    own = [{"rho": 0.2}, {"rho": 0.0}, {"adaptive": True, "eta": 0.5}, {}, {"rho": 2.0, "adaptive": "all"}]
    groups = [{"params": [p], **settings} for p, settings in zip(problem.params, own, strict=True)]
    optimizer = SAM(groups, torch.optim.SGD, rho=0.7, lr=LR)
    optimizer.step(problem.closure(optimizer))
    w = problem.start
    metrics = [np.ones(w[0].shape), np.ones(w[1].shape), np.abs(w[2]) + 0.5, np.ones(w[3].shape), np.abs(w[4]) + 0.01]
    assert problem.agrees(problem.by_hand([0.2, 0.0, 0.7, 0.7, 2.0], metrics))


def test_the_worst_of_a_loss_that_is_maximised_is_downhill() -> None:
    """Maximising −L is minimising L, group by group."""
    shapes = SHAPES["layer"]
    ours, theirs = Quadratic(shapes), Quadratic(shapes)
    up = SAM(ours.params, torch.optim.SGD, rho=0.7, adaptive=True, lr=LR, maximize=True)
    down = SAM(theirs.params, torch.optim.SGD, rho=0.7, adaptive=True, lr=LR)
    for _ in range(3):
        up.zero_grad()
        up.step(lambda: [-ours.loss(), (-ours.loss()).backward()][0])
        down.step(theirs.closure(down))
    assert all(torch.equal(a, b) for a, b in zip(ours.params, theirs.params, strict=True))


def test_an_added_group_is_the_bases_too() -> None:
    problem = Quadratic(SHAPES["layer"])
    optimizer = SAM(problem.params[:1], torch.optim.SGD, rho=0.7, lr=LR)
    optimizer.add_param_group({"params": problem.params[1:], "rho": 0.3})
    assert optimizer.base_optimizer.param_groups is optimizer.param_groups
    assert optimizer.param_groups[1]["lr"] == LR
    optimizer.step(problem.closure(optimizer))
    assert problem.agrees(problem.by_hand([0.7, 0.3], [np.ones(s) for s in SHAPES["layer"]]))


@settings(max_examples=50, deadline=None)
@given(
    st.integers(0, 10**6),
    st.lists(st.lists(st.integers(0, 4), max_size=3).map(tuple), min_size=1, max_size=5),
    st.floats(0, 10),
    st.sampled_from([True, False, "all"]),
    st.floats(0, 2),
)
def test_the_ascent_is_the_best_step_of_its_length(
    seed: int, shapes: list[tuple[int, ...]], rho: float, adaptive: bool | str, eta: float
) -> None:
    """‖T⁻¹ε‖ = ρ, and ⟨g, ε⟩ = ρ ‖T g‖, which no other step within the radius exceeds (Cauchy–Schwarz)."""
    rng = torch.Generator().manual_seed(seed)
    params = [torch.randn(s, generator=rng, dtype=torch.float64).add_(3.0) for s in shapes]
    for p in params:
        p.grad = torch.randn(p.shape, generator=rng, dtype=torch.float64)
    hood = Neighbourhood(rho, adaptive, eta)
    found = ascent([(params, hood)])
    steps = {id(p): e for group, es in found.moves for p, e in zip(group, es, strict=True)}
    if rho == 0:
        assert not steps
        return
    metric = [(p.abs() + eta) if hood.rescales(p) else torch.ones_like(p) for p in params]
    norm = sum(((t * p.grad) ** 2).sum() for t, p in zip(metric, params, strict=True)) ** 0.5
    assert float(found.norm) == pytest.approx(float(norm), rel=1e-13)
    if norm == 0:  # nothing but tensors without entries
        return
    length = sum(((steps[id(p)] / t) ** 2).sum() for t, p in zip(metric, params, strict=True)) ** 0.5
    gain = sum((steps[id(p)] * p.grad).sum() for p in params)
    assert float(length) == pytest.approx(rho, rel=1e-12)
    assert float(gain) == pytest.approx(rho * float(norm), rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [1, 5])
@pytest.mark.parametrize("tiny", [0.0, "smallest"])
def test_no_gradient_no_step_and_no_nan(dtype: torch.dtype, size: int, tiny: float | str) -> None:
    w = torch.ones(size, dtype=dtype, requires_grad=True)
    w.grad = torch.full_like(w, torch.finfo(dtype).smallest_normal if tiny else 0.0)
    optimizer = SAM([w], torch.optim.SGD, rho=1e3, lr=LR)
    optimizer.first_step()
    assert w.isfinite().all()
    if not tiny:
        assert torch.equal(w.detach(), torch.ones_like(w))
    optimizer.second_step()
    assert w.isfinite().all()


def test_large_gradients_do_not_overflow_the_norm() -> None:
    w = torch.zeros(2, requires_grad=True)
    w.grad = torch.tensor([3e30, 4e30])
    SAM([w], torch.optim.SGD, rho=1.0, lr=LR).first_step()
    assert torch.allclose(w.detach(), torch.tensor([0.6, 0.8]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_weights_move_by_rho(dtype: torch.dtype) -> None:
    w = torch.zeros(1000, dtype=dtype, requires_grad=True)
    w.grad = torch.full_like(w, 1000.0)  # its norm is beyond float16
    SAM([w], torch.optim.SGD, rho=2.0, lr=LR).first_step()
    assert float(w.detach().double().norm()) == pytest.approx(2.0, rel=torch.finfo(dtype).eps)


def test_parameters_without_gradients_stay() -> None:
    used, unused = (torch.ones(2, dtype=torch.float64, requires_grad=True) for _ in range(2))
    optimizer = SAM([used, unused], torch.optim.SGD, rho=1.0, lr=LR)
    used.grad = torch.tensor([3.0, 4.0], dtype=torch.float64)
    optimizer.first_step()
    assert torch.allclose(used.detach(), torch.tensor([1.6, 1.8], dtype=torch.float64), rtol=1e-15)
    assert torch.equal(unused.detach(), torch.ones(2, dtype=torch.float64))
    optimizer.second_step()
    assert torch.equal(unused.detach(), torch.ones(2, dtype=torch.float64))


def test_no_gradients_at_all_is_a_step_of_nothing() -> None:
    w = torch.ones(2, requires_grad=True)
    optimizer = SAM([w], torch.optim.SGD, rho=1.0, lr=LR)
    optimizer.first_step()
    optimizer.second_step()
    assert torch.equal(w.detach(), torch.ones(2))


def test_sparse_gradients_are_refused() -> None:
    embedding = nn.Embedding(5, 2, sparse=True)
    optimizer = SAM(embedding.parameters(), torch.optim.SGD, rho=1.0, lr=LR)
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(NotApplicableError, match="sparse=False"):
        optimizer.first_step()


@pytest.mark.parametrize("sizes", [None, [1, 2, 5]])
def test_micro_batches_have_perturbations_of_their_own(sizes: list[int] | None) -> None:
    """Lᵢ = ½ (w − cᵢ)ᵀ Aᵢ (w − cᵢ); w ← w − lr Σ sᵢ Aᵢ (w + ρ gᵢ/‖gᵢ‖ − cᵢ)."""
    rng = np.random.default_rng(0)
    roots, centres, start = rng.normal(size=(3, 4, 4)), rng.normal(size=(3, 4)), rng.normal(size=4)
    matrices = roots @ roots.transpose(0, 2, 1) + np.eye(4)
    shares = np.full(3, 1 / 3) if sizes is None else np.array(sizes) / sum(sizes)
    w = torch.tensor(start, requires_grad=True)

    def loss(i: int):
        a, c = torch.as_tensor(matrices[i]), torch.as_tensor(centres[i])
        return lambda: (w - c) @ a @ (w - c) / 2

    optimizer = SAM([w], torch.optim.SGD, rho=0.7, lr=LR)
    value = optimizer.micro_batch_step([loss(i) for i in range(3)], sizes)
    expected = start.copy()
    for share, a, c in zip(shares, matrices, centres, strict=True):
        g = a @ (start - c)
        expected -= LR * share * a @ (start + 0.7 * g / np.linalg.norm(g) - c)
    assert np.allclose(w.detach().numpy(), expected, rtol=1e-14, atol=1e-15)
    at_start = [(start - c) @ a @ (start - c) / 2 for a, c in zip(matrices, centres, strict=True)]
    assert float(value) == pytest.approx(shares @ at_start, rel=1e-14)


def test_one_micro_batch_is_sam() -> None:
    first, second = Quadratic(SHAPES["layer"]), Quadratic(SHAPES["layer"])
    whole = SAM(first.params, torch.optim.SGD, rho=0.7, lr=LR)
    whole.step(first.closure(whole))
    SAM(second.params, torch.optim.SGD, rho=0.7, lr=LR).micro_batch_step([second.loss])
    assert all(torch.equal(a, b) for a, b in zip(first.params, second.params, strict=True))


@pytest.mark.parametrize(("count", "sizes"), [(0, None), (2, [1]), (2, [0, 0]), (2, [3, -1])])
def test_micro_batches_without_proper_sizes_are_refused(count: int, sizes: list[int] | None) -> None:
    problem = Quadratic(SHAPES["vector"])
    optimizer = SAM(problem.params, torch.optim.SGD, lr=LR)
    with pytest.raises(ValueError, match="one closure per micro-batch"):
        optimizer.micro_batch_step([problem.loss] * count, sizes)

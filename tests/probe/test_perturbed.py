"""The loss at perturbed parameters, and the batches of m samples."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from perturbation_nets import NETWORKS, probe_of, slow_losses
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from landscope.core.errors import NotApplicableError
from landscope.core.seeding import generator
from landscope.probe import perturbed as perturbation
from landscope.probe import points
from landscope.probe.perturbed import Shifts, direction, included, losses_at, on_sphere
from landscope.probe.probe import Probe
from landscope.probe.rows.samples import m_batches


@pytest.fixture(params=[True, False], ids=["at once", "one by one"])
def at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(perturbation, "together", lambda probe, samples: request.param)
    return request.param


def deltas(probe: Probe, count: int) -> Tensor:
    return torch.stack([0.3 * direction(probe, 5, j) for j in range(count)])


@pytest.mark.parametrize("name", NETWORKS)
def test_losses_and_data_errors_equal_a_loop_over_copied_models(
    name: str, at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(points, "REFUSALS", ())  # no way round
    probe = probe_of(name)
    moved = deltas(probe, 4)
    shifts = losses_at(probe, lambda j: moved[j], 4)
    at_rest = slow_losses(name, torch.zeros(probe.n_params))
    d = torch.stack([slow_losses(name, delta) - at_rest for delta in moved])
    torch.testing.assert_close(shifts.mean, d.mean(1), rtol=1e-9, atol=1e-12)
    assert math.isclose(shifts.base, float(at_rest.mean()), rel_tol=1e-12)
    w = torch.tensor([1.0, -2.0, 0.5, 0.0], dtype=torch.float64)
    expected = float((w @ d).std()) / math.sqrt(d.shape[1])
    error = shifts.data_stderr(w)
    assert error is not None
    assert math.isclose(error, expected, rel_tol=1e-6)


@pytest.mark.parametrize("batch_size", [1, 5, 12])
def test_batch_size_changes_nothing(batch_size: int) -> None:
    model, x, y, loss = NETWORKS["mlp"]
    whole = probe_of("mlp")
    moved = deltas(whole, 3)
    cut = Probe(model, [(x[i : i + batch_size], y[i : i + batch_size]) for i in range(0, 12, batch_size)], loss)
    a, b = (losses_at(p, lambda j: moved[j], 3) for p in (whole, cut))
    torch.testing.assert_close(a.mean, b.mean, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(a.gram, b.gram, rtol=1e-9, atol=1e-14)


def test_groups_that_do_not_fit_together_give_the_same_means(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = probe_of("mlp")
    moved = deltas(probe, 5)
    whole = losses_at(probe, lambda j: moved[j], 5)
    monkeypatch.setattr(perturbation, "width", lambda *args, **kwargs: 2)
    parts = losses_at(probe, lambda j: moved[j], 5)
    torch.testing.assert_close(whole.mean, parts.mean, rtol=1e-12, atol=1e-14)
    assert parts.gram is not None
    assert parts.gram.shape == (2, 2)


def test_a_model_that_vmap_cannot_follow_is_evaluated_one_by_one(at_once: bool) -> None:
    class Branching(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * (1.0 if float(self.weight.detach().sum()) > 0 else 2.0)

    torch.manual_seed(0)
    net = Branching(3, 2).double()
    x, y = torch.randn(6, 3).double(), torch.arange(6) % 2
    probe = Probe(net, (x, y))
    moved = deltas(probe, 3)
    shifts = losses_at(probe, lambda j: moved[j], 3)
    for j, delta in enumerate(moved):
        twin = copy.deepcopy(net)
        nn.utils.vector_to_parameters(probe.vector() + delta, twin.parameters())
        expected = nn.functional.cross_entropy(twin(x), y).item()
        assert math.isclose(float(shifts.mean[j]) + shifts.base, expected, rel_tol=1e-12)


def test_a_loss_that_gives_one_number_per_batch_has_no_data_error(at_once: bool) -> None:
    model, x, y, _ = NETWORKS["regression"]
    probe = Probe(model, (x, y), lambda z, y: (z - y).abs().mean())
    moved = deltas(probe, 2)
    shifts = losses_at(probe, lambda j: moved[j], 2)
    assert shifts.gram is None
    assert shifts.data_stderr(torch.ones(2)) is None
    assert math.isclose(shifts.base, float((model(x) - y).abs().mean().detach()), rel_tol=1e-12)


def test_only_the_included_parameters_move() -> None:
    probe = probe_of("batchnorm")
    assert included(probe, "all") is probe
    assert included(probe, "weights").space.names == ("0.weight", "3.weight")
    assert included(probe, "weights") is included(probe, "weights")
    assert included(probe, ("*.bias",)).space.names == ("0.bias", "1.bias", "3.bias")
    assert included(probe.restrict("3"), ("*.bias",)).space.names == ("3.bias",)
    with pytest.raises(NotApplicableError, match="leaves nothing to perturb"):
        included(probe.restrict("1"), "weights")


def test_directions_are_the_same_in_both_dtypes_and_have_the_exact_length() -> None:
    model, x, y, loss = NETWORKS["mlp"]
    double, single = Probe(model, (x, y), loss), Probe(model, (x, y), loss, dtype=torch.float32)
    assert torch.equal(direction(double, 0, 3), direction(single, 0, 3).double())
    for probe in (double, single):
        lengths = on_sphere(direction(probe, 0, 1), 0.05).double().norm()
        assert math.isclose(float(lengths), 0.05, rel_tol=4 * torch.finfo(probe.dtype).eps)
    assert not on_sphere(torch.zeros(4), 1.0).any()


def test_data_error_of_what_lies_outside_the_first_group_is_unknown() -> None:
    shifts = Shifts(0.0, torch.tensor([0.1, 0.2, 0.3]).double(), torch.ones(2, 2).double(), 10)
    assert shifts.data_stderr(torch.tensor([0.0, 0.0, 1.0])) is None


# Batches of m samples


def numbered(n: int, **options: object) -> Probe:
    """A probe whose samples are the numbers 0 … n − 1."""
    return Probe(nn.Linear(1, 1), (torch.arange(float(n))[:, None], torch.zeros(n, 1)), "mse", **options)  # type: ignore[arg-type]


def samples(probe: Probe, m: int, count: int | None = None, seed: int = 0) -> list[list[float]]:
    return [batch.raw[0].flatten().tolist() for batch in m_batches(probe, m, count, seed)]  # type: ignore[index]


def test_batches_have_exactly_m_samples_and_no_sample_comes_twice() -> None:
    cut = samples(numbered(23), 5)
    assert [len(batch) for batch in cut] == [5, 5, 5, 5]
    flat = [value for batch in cut for value in batch]
    assert len(set(flat)) == 20
    assert flat != sorted(flat)
    assert samples(numbered(23), 5, 2) == cut[:2]
    assert samples(numbered(23), 5, 99) == cut
    assert samples(numbered(23), 5, seed=1) != cut
    assert [len(batch) for batch in samples(numbered(3), 5)] == [3]


def test_the_cut_depends_on_the_samples_alone() -> None:
    cut = samples(numbered(23), 5)
    x, y = torch.arange(23.0)[:, None], torch.zeros(23, 1)
    shuffled = torch.randperm(23, generator=generator(3))
    net = nn.Linear(1, 1)
    for data in (
        (x[shuffled], y[shuffled]),
        [(x[i : i + 4], y[i : i + 4]) for i in range(0, 23, 4)],
        DataLoader(TensorDataset(x, y), batch_size=7),
    ):
        assert samples(Probe(net, data, "mse"), 5) == cut
    assert samples(numbered(23, dtype=torch.float64), 5) == cut


def test_repeated_samples_are_spread_over_the_batches() -> None:
    x = torch.tensor([[0.0], [1.0]]).repeat(200, 1)
    cut = samples(Probe(nn.Linear(1, 1), (x, x), "mse"), 20)
    assert len(cut) == 20
    assert all(2 <= sum(batch) <= 18 for batch in cut)


def test_streamed_data_is_cut_like_held_data(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = numbered(23)
    expected = samples(probe, 5)
    raws = [
        (torch.arange(float(a), float(min(a + 4, 23)))[:, None], torch.zeros(min(4, 23 - a), 1))
        for a in range(0, 23, 4)
    ]
    streaming = Probe(nn.Linear(1, 1), raws, "mse")
    monkeypatch.setattr(streaming, "_held", None)
    monkeypatch.setattr("landscope.probe.rows.samples.available_bytes", lambda device: 1)
    assert samples(streaming, 5) == expected


def test_data_that_cannot_be_cut_anew_is_taken_as_it_lies() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    raws = [(torch.randn(6, 2), torch.arange(6) % 2), (torch.randn(4, 2), torch.arange(4) % 2)]
    whole = Probe(net, raws, mode="batch_statistics")
    assert [batch.size for batch in m_batches(whole, 3)] == [6, 4]
    assert [batch.size for batch in m_batches(whole, 3, 1)] == [6]
    texts = nn.Sequential(nn.Embedding(5, 2), nn.AdaptiveAvgPool2d((1, 2)), nn.Flatten())
    ragged = Probe(
        texts, [(torch.ones(n, length, dtype=torch.long), torch.arange(n) % 2) for n, length in ((5, 3), (4, 6))]
    )
    assert [batch.size for batch in m_batches(ragged, 2)] == [2, 2, 2, 2]
    with pytest.raises(NotApplicableError, match="no batch of the data holds 6 samples"):
        list(m_batches(ragged, 6))


def test_activations_are_counted_per_sample_whatever_the_size_of_the_data() -> None:
    net = nn.Sequential(nn.Linear(50, 20), nn.ReLU(), nn.Linear(20, 2))
    small, large = (Probe(net, (torch.randn(n, 50), torch.arange(n) % 2)) for n in (4, 4000))
    assert small.activation_bytes == large.activation_bytes
    assert points.together(small, 64)
    assert not points.together(large, 10**7)

"""Layers left in evaluation mode: they train like a loop that forgets `model.train()`; what the notebook's ascent then sees."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from landscope.papers.adaptive_sharpness.as_published import MovedCentreSharpness, StaleStatistics
from landscope.papers.adaptive_sharpness.left_in_evaluation import leave_in_evaluation, return_to_training
from landscope.papers.adaptive_sharpness.notebook_steps import sum_of_batch_means
from landscope.probe.probe import Probe

STEPS = 4


def network(dropout: float) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Dropout(dropout), nn.Linear(3 * 36, 4)
    )


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    rng = torch.Generator().manual_seed(1)
    return [(torch.randn(16, 1, 8, 8, generator=rng), torch.randint(4, (16,), generator=rng)) for _ in range(count)]


def trained(model: nn.Module, *, forget_after: int | None) -> nn.Module:
    """Plain SGD; `forget_after` steps the loop puts the model into evaluation mode and leaves it there."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.train()
    torch.manual_seed(2)
    for step, (x, y) in enumerate(batches(3 * STEPS)):
        if step == forget_after:
            model.eval()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model.eval()


def test_it_trains_like_a_loop_that_forgets_training_mode() -> None:
    plain = trained(network(0.5), forget_after=STEPS)
    left = trained(leave_in_evaluation(network(0.5), STEPS), forget_after=None)
    ours = left.state_dict()
    for name, value in plain.state_dict().items():
        assert torch.allclose(ours[name].double(), value.double(), atol=1e-5), name
    ordinary = trained(network(0.5), forget_after=None)
    assert not torch.allclose(ordinary.state_dict()["5.weight"], plain.state_dict()["5.weight"], atol=1e-3)


def test_members_of_one_program_stand_still_each_by_its_own_count() -> None:
    model = leave_in_evaluation(network(0.0), STEPS).train()
    (x, _), *_ = batches(1)
    fresh = {name: value.detach().clone() for name, value in model.named_buffers()}
    done = {name: torch.full_like(value, STEPS) if value.dim() == 0 else value.clone() for name, value in fresh.items()}
    stacked = {name: torch.stack([fresh[name], done[name]]) for name in fresh}

    def member(buffers: dict[str, Tensor]) -> Tensor:
        params = {name: value.detach() for name, value in model.named_parameters()}
        out: Tensor = torch.func.functional_call(model, {**params, **buffers}, (x,))
        return out

    training, standing = torch.func.vmap(member)(stacked)
    assert torch.allclose(standing, model.eval()(x), atol=1e-5)
    assert not torch.allclose(training, standing, atol=1e-2)
    assert stacked["1.num_batches_tracked"].tolist() == [1, STEPS]
    assert torch.equal(stacked["1.running_mean"][1], fresh["1.running_mean"])


def test_the_ascent_of_a_left_network_is_that_of_an_ordinary_one() -> None:
    left = trained(leave_in_evaluation(network(0.0), STEPS), forget_after=None)
    ordinary = network(0.0)
    ordinary.load_state_dict({name: value for name, value in left.state_dict().items() if name != "4.seen"})
    data = tuple(torch.cat(parts) for parts in zip(*batches(12), strict=True))
    for measure in (MovedCentreSharpness(batch_size=16), StaleStatistics(batch_size=16)):
        mine, theirs = (measure(Probe(model.eval(), data)).value for model in (left, ordinary))
        assert abs(mine - theirs) < 1e-6
    twin = copy.deepcopy(left)
    return_to_training(twin)
    assert twin.training
    assert twin[1].steps is twin[4].steps is None


def test_statistics_are_stale_only_where_the_weights_went_on_without_them() -> None:
    data = tuple(torch.cat(parts) for parts in zip(*batches(40), strict=True))
    moved = network(0.0)
    with torch.no_grad():
        moved[0].weight.mul_(5)  # statistics of other weights
    followed = copy.deepcopy(moved).train()
    with torch.no_grad():
        for _ in range(3):
            for x, _ in batches(40):
                followed(x)
    stale, fresh = (StaleStatistics(batch_size=16)(Probe(model.eval(), data)).value for model in (moved, followed))
    assert abs(stale) > 0.05 > 10 * abs(fresh)
    without = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    assert StaleStatistics(batch_size=16)(Probe(without, data)).value == 0


def test_the_rest_of_a_cut_weighs_as_much_as_a_batch() -> None:
    x, y = torch.arange(5.0)[:, None].double(), torch.zeros(5, 1).double()
    probe = Probe(nn.Linear(1, 1, bias=False).double(), (x, y), "mse")
    one = probe.vector().fill_(1.0)
    squares = x.square().flatten()
    found = {round(sum_of_batch_means(probe, one, 4, seed), 9) for seed in range(40)}
    possible = {round(float((squares.sum() - rest) / 4 + rest), 9) for rest in squares}
    assert found <= possible
    assert len(found) > 2  # cut anew by every seed

"""FGSM and PGD against closed forms of linear models, and what every attack must keep to."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import landscope as ls
from landscope.core.errors import DataError, EmptyDataError, LabelRangeError, OperandError
from landscope.measures.robustness import Classifier, fgsm, pgd


def linear(seed: int = 0) -> tuple[nn.Module, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    net = nn.Linear(6, 2).double()
    with torch.no_grad():
        net.weight.copy_(torch.randn(2, 6, generator=rng))
        net.bias.zero_()
    x = torch.rand(40, 6, generator=rng).double()
    return net, x, torch.randint(0, 2, (40,), generator=rng)


def network(seed: int = 0) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(64, 3)
    )
    return net, torch.rand(30, 1, 6, 6), torch.randint(0, 3, (30,))


def margins(net: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Margin of the true class of a linear two-class model, and its gradient."""
    rows = torch.arange(len(y))
    z = net(x).detach()
    return z[rows, y] - z[rows, 1 - y], (net.weight[y] - net.weight[1 - y]).detach()


def test_fgsm_is_one_signed_step() -> None:
    net, x, y = linear()
    attack = fgsm(net, x, y, 0.05)
    _, slope = margins(net, x, y)
    torch.testing.assert_close(attack.inputs, (x - 0.05 * slope.sign()).clamp(0, 1))
    assert torch.equal(attack.correct, net(attack.inputs).argmax(1) == y)
    assert torch.equal(attack.clean_correct, net(x).argmax(1) == y)
    assert attack.accuracy.value == float(attack.correct.double().mean())


@pytest.mark.parametrize("eps", [0.05, 0.3, 1.0])
def test_without_clipping_the_worst_case_of_a_linear_model_is_known(eps: float) -> None:
    net, x, y = linear()
    margin, slope = margins(net, x, y)
    for norm, dual in (("inf", slope.abs().sum(1)), ("2", slope.norm(dim=1))):
        attack = pgd(net, x, y, eps, steps=40, step_size=eps, norm=norm, clip=None)
        reached, _ = margins(net, attack.inputs, y)
        torch.testing.assert_close(reached, margin - eps * dual, rtol=1e-6, atol=1e-6)
        assert torch.equal(attack.correct, margin - eps * dual > 0)


def test_within_the_pixels_the_worst_case_of_a_linear_model_is_known() -> None:
    net, x, y = linear()
    margin, slope = margins(net, x, y)
    corner = (x - 0.4 * slope.sign()).clamp(0, 1)
    worst = margin + ((corner - x) * slope).sum(1)
    reached, _ = margins(net, pgd(net, x, y, 0.4, steps=30).inputs, y)
    torch.testing.assert_close(reached, worst, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("norm", ["inf", "2"])
@pytest.mark.parametrize("attack", ["fgsm", "pgd"])
def test_perturbations_stay_in_the_ball_and_in_range(attack: str, norm: str) -> None:
    net, x, y = network()
    found = fgsm(net, x, y, 0.1) if attack == "fgsm" else pgd(net, x, y, 0.1, steps=7, restarts=2, norm=norm)
    shift = (found.inputs - x).flatten(1)
    length = shift.abs().amax(1) if norm == "inf" or attack == "fgsm" else shift.norm(dim=1)
    assert float(length.max()) <= 0.1 + 1e-6
    assert float(found.inputs.min()) >= 0
    assert float(found.inputs.max()) <= 1


def test_pgd_is_stronger_with_more_of_everything() -> None:
    net, x, y = network()
    clean = pgd(net, x, y, 0.0)
    assert torch.equal(clean.inputs, x)
    assert clean.accuracy.value == clean.clean_accuracy.value
    once, often = (pgd(net, x, y, 0.1, steps=3, restarts=k) for k in (1, 4))
    assert bool((often.correct <= once.correct).all())
    assert often.accuracy.value <= once.accuracy.value <= once.clean_accuracy.value
    losses = [nn.functional.cross_entropy(net.eval()(a.inputs), y).item() for a in (clean, once, often)]
    assert losses[0] < losses[1]
    assert bool((often.correct == (net.eval()(often.inputs).argmax(1) == y)).all())


@pytest.mark.parametrize("norm", ["inf", "2"])
def test_batches_change_nothing_and_seeds_do(norm: str) -> None:
    net, x, y = network()
    net = net.double()
    x = x.double()
    whole = pgd(net, x, y, 0.1, steps=3, norm=norm)
    torch.testing.assert_close(
        pgd(Classifier.of(net, batch_size=7), x, y, 0.1, steps=3, norm=norm).inputs, whole.inputs
    )
    assert torch.equal(pgd(net, x, y, 0.1, steps=3, norm=norm).inputs, whole.inputs)
    assert not torch.equal(pgd(net, x, y, 0.1, steps=3, norm=norm, seed=1).inputs, whole.inputs)
    torch.testing.assert_close(fgsm(Classifier.of(net, batch_size=4), x, y, 0.1).inputs, fgsm(net, x, y, 0.1).inputs)


def test_random_starts_fill_the_ball() -> None:
    from landscope.measures.robustness.attacks import InputBall

    like = torch.zeros(20000, 3)
    for norm, inner in (("inf", lambda s: s.abs().amax(1)), ("2", lambda s: s.norm(dim=1))):
        shift = InputBall.of(0.5, norm, None).draw(like, 0, 0)
        within = inner(shift) / 0.5
        assert float(within.max()) <= 1 + 1e-6
        assert float((within < 0.5).double().mean()) == pytest.approx(1 / 8, abs=0.01)  # volume grows with the cube
        assert float(shift.mean(0).abs().max()) < 0.01


def test_the_model_and_the_global_state_stay_as_they_were() -> None:
    net, x, y = network()
    net.train()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    state = torch.get_rng_state()
    with torch.no_grad():
        fgsm(net, x, y, 0.1)
    pgd(net, x.requires_grad_(), y, 0.1, steps=2)
    assert net.training
    assert all(p.requires_grad and p.grad is None for p in net.parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())
    assert x.grad is None


def test_a_probe_may_be_attacked() -> None:
    net, x, y = network()
    probe = ls.Probe(net, (x, y))
    assert torch.equal(pgd(probe, x, y, 0.1, steps=2).inputs, pgd(net, x, y, 0.1, steps=2).inputs)
    with pytest.raises(OperandError, match="eval"):
        fgsm(ls.Probe(net, [(x, y)], mode="batch_statistics"), x, y, 0.1)


def test_refusals() -> None:
    net, x, y = linear()
    with pytest.raises(OperandError, match="outside clip"):
        fgsm(net, 2 * x, y, 0.1)
    assert fgsm(net, 2 * x, y, 0.1, clip=(0, 2)).inputs.max() <= 2
    with pytest.raises(OperandError, match="real numbers"):
        pgd(net, (255 * x).to(torch.uint8), y, 0.1)
    with pytest.raises(OperandError, match="one label per input"):
        fgsm(net, x, y[:3], 0.1)
    with pytest.raises(LabelRangeError, match="integers"):
        fgsm(net, x, y.double(), 0.1)
    with pytest.raises(EmptyDataError):
        fgsm(net, x[:0], y[:0], 0.1)
    with pytest.raises(DataError, match="NaN"):
        fgsm(net, x * math.nan, y, 0.1)
    with pytest.raises(ValueError, match="norm"):
        pgd(net, x, y, 0.1, norm="1")
    with pytest.raises(ValueError, match="eps"):
        pgd(net, x, y, -0.1)
    with pytest.raises(ValueError, match="steps"):
        pgd(net, x, y, 0.1, steps=0)
    with pytest.raises(ValueError, match="clip"):
        pgd(net, x, y, 0.1, clip=(1, 0))
    with pytest.raises(OperandError, match="two classes"):
        fgsm(nn.Linear(6, 1).double(), x, y, 0.1)

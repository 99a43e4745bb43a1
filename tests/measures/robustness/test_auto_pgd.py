"""Auto-PGD, targeted attacks and the strongest of them: closed forms of linear models, hidden gradients, invariances."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from landscope.core.estimate import Status
from landscope.measures.robustness import Attack, Classifier, apgd, fgsm, pgd, strongest, targeted
from landscope.measures.robustness.auto_pgd import dlr, towards
from landscope.measures.robustness.classifier import margin

EPS = 0.08


class Scaled(nn.Module):
    """The same predictions with logits so large that the gradient of the cross-entropy is zero to rounding."""

    def __init__(self, net: nn.Module, factor: float) -> None:
        super().__init__()
        self.net, self.factor = net, factor

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * self.net(x)


def linear(classes: int = 5) -> tuple[nn.Linear, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(classes)
    net = nn.Linear(8, classes)
    with torch.no_grad():
        net.weight.copy_(torch.randn(classes, 8, generator=rng))
        net.bias.zero_()
    x = torch.rand(60, 8, generator=rng)
    y = net(x).argmax(1)
    y[::10] = (y[::10] + 1) % classes
    return net, x, y


def radii(net: nn.Linear, x: Tensor, y: Tensor, norm: str = "inf") -> Tensor:
    """How far each input is from the nearest one that is classified otherwise: over all classes, the margin over its slope."""
    z = net(x).detach()
    apart = (net.weight[y][:, None] - net.weight[None]).detach()
    slopes = torch.linalg.vector_norm(apart, ord=1 if norm == "inf" else 2, dim=2)
    return ((z.gather(1, y[:, None]) - z) / slopes).scatter(1, y[:, None], torch.inf).amin(1)


@pytest.mark.parametrize("factor", [1.0, 1e4])
@pytest.mark.parametrize("norm", ["inf", "2"])
@pytest.mark.parametrize("classes", [2, 3, 5])
def test_the_strongest_attack_finds_the_robust_accuracy_of_a_linear_model(
    classes: int, norm: str, factor: float
) -> None:
    net, x, y = linear(classes)
    far = radii(net, x, y, norm)
    eps = float(far[far > 0].median()) + 1e-4
    truth = far > eps
    found = strongest(Scaled(net, factor), x, y, eps, norm=norm, clip=None, steps=30)
    assert torch.equal(found.correct, truth)
    by_class = targeted(Scaled(net, factor), x, y, eps, norm=norm, clip=None, steps=30)
    assert torch.equal(by_class.correct, truth)


def test_hidden_gradients_fool_the_cross_entropy_and_nothing_else() -> None:
    net, x, y = linear()
    hidden = Scaled(net, 1e4)
    truth = float((radii(net, x, y) > EPS).double().mean())
    fooled = pgd(hidden, x, y, EPS, steps=50, restarts=3, clip=None).accuracy.value
    found = strongest(hidden, x, y, EPS, clip=None, steps=30)
    assert fooled > truth + 0.2
    assert found.accuracy.value == pytest.approx(truth)
    assert found.after["clean"] >= found.after["APGD on the cross-entropy"] > truth + 0.2
    assert list(found.after.values()) == sorted(found.after.values(), reverse=True)
    for loss in ("dlr", "margin"):
        assert apgd(hidden, x, y, EPS, loss=loss, clip=None, steps=30).accuracy.value < fooled  # type: ignore[arg-type]


def every(net: nn.Module | Classifier, x: Tensor, y: Tensor) -> dict[str, Attack]:
    return {
        "fgsm": fgsm(net, x, y, EPS),
        "pgd": pgd(net, x, y, EPS, steps=5),
        "apgd": apgd(net, x, y, EPS, steps=5),
        "targeted": targeted(net, x, y, EPS, steps=5, targets=2),
        "strongest": strongest(net, x, y, EPS, steps=5, targets=2),
    }


def test_accuracy_under_attack_is_at_most_what_was_found() -> None:
    net, x, y = linear()
    for found in every(net, x, y).values():
        assert found.accuracy.status is Status.UPPER_BOUND
        assert str(found.accuracy).startswith("at most ")
        assert (radii(net, x, y) > EPS).double().mean() <= found.accuracy.value
    nothing = strongest(net, x, y, 5.0, clip=None, steps=10)
    assert (nothing.accuracy.value, nothing.accuracy.status) == (0.0, Status.EXACT)


def test_attacks_stay_in_the_ball_and_in_range_and_do_not_depend_on_batches() -> None:
    net, x, y = linear()
    whole = every(net.double(), x.double(), y)
    parts = every(Classifier.of(net, batch_size=7), x.double(), y)
    for name, found in whole.items():
        assert float((found.inputs - x).abs().max()) <= EPS + 1e-9
        assert 0 <= float(found.inputs.min()) <= float(found.inputs.max()) <= 1
        assert torch.equal(found.correct, net(found.inputs).argmax(1) == y)
        torch.testing.assert_close(parts[name].inputs, found.inputs)


def test_losses_are_differences_of_logits_that_scale_does_not_change() -> None:
    z = torch.tensor([[4.0, 1.0, 3.0, -2.0], [0.0, 5.0, 1.0, 2.0]])
    y = torch.tensor([0, 2])
    torch.testing.assert_close(margin(z, y), torch.tensor([-1.0, 4.0]))
    torch.testing.assert_close(dlr(z, y), torch.tensor([-1 / 3, 1.0]))
    torch.testing.assert_close(dlr(7 * z + 3, y), dlr(z, y))
    t = torch.tensor([2, 1])
    torch.testing.assert_close(towards(z, y, t), torch.tensor([-1 / 4.5, 4 / 4.5]))
    torch.testing.assert_close(towards(7 * z + 3, y, t), towards(z, y, t))
    assert bool(torch.isfinite(dlr(torch.zeros(1, 3), torch.tensor([0]))).all())


def test_refusals() -> None:
    net, x, y = linear()
    with pytest.raises(ValueError, match="loss must be one of"):
        apgd(net, x, y, EPS, loss="hinge")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="targets must be at least 1"):
        strongest(net, x, y, EPS, targets=0)
    with pytest.raises(ValueError, match="steps must be at least 1"):
        targeted(net, x, y, EPS, steps=0)


class Rounded(nn.Module):
    """Rounds its inputs, so that no gradient reaches them."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        rounded: Tensor = self.net((8 * x).round() / 8)
        return rounded


def test_samples_that_no_gradient_reaches_are_counted_and_said() -> None:
    torch.manual_seed(0)
    net, x = nn.Linear(4, 3), torch.rand(12, 4)
    y = net(x).argmax(1)
    rounded = strongest(Rounded(net), x, y, eps=0.02, steps=4)
    assert rounded.blind == 1.0
    assert "No gradient led anywhere on 100% of the samples" in rounded.accuracy.reason
    sure = strongest(Scaled(net, 1e6), x, y, eps=0.3, steps=10)
    assert sure.blind == 0.0
    assert sure.accuracy.value == strongest(net, x, y, eps=0.3, steps=10).accuracy.value < 1
    assert repr(sure).startswith("Attack(12 samples: clean accuracy 1")

"""The reading of a report: what it says must be true, and no more than is known."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from landscope import Estimate, Report, Status, measure
from landscope.measures.reading.words import reading

ASKED = ["loss", "gradient_norm", "hessian_top_eigenvalue", "hessian_bottom_eigenvalue"]


def about(report: Report, topic: str) -> str:
    return next((remark.text for remark in report.reading if remark.topic == topic), "")


class Bowl(nn.Module):
    """Outputs whose squares add up to a quadratic form with curvatures 1 and 4 at a point of one's own."""

    def __init__(self, at: tuple[float, float]) -> None:
        super().__init__()
        self.at = nn.Parameter(torch.tensor(at, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.at * torch.tensor([1.0, 2.0], dtype=torch.float64) + 1.0 - x


ROWS = (torch.ones(8, 2, dtype=torch.float64), torch.zeros(8, 2, dtype=torch.float64))


def test_descent_that_is_promised_is_there() -> None:
    """A step of 1/λ₁ lowers the loss by at least the share that the reading states."""
    bowl = Bowl((1.0, 0.3))
    report = measure(bowl, ROWS, ASKED, loss="mse")
    message = about(report, "A minimum?")
    assert message.startswith("No. The gradient norm is")
    share = float(message.partition("lower the loss by about ")[2].partition(" % or more")[0]) / 100
    before = bowl(ROWS[0]).square().mean()
    before.backward()
    assert bowl.at.grad is not None
    with torch.no_grad():
        bowl.at -= bowl.at.grad / report["hessian_top_eigenvalue"].value
        after = bowl(ROWS[0]).square().mean()
    assert float(1 - after / before.detach()) >= 0.98 * share > 0.1


def test_a_minimum_a_saddle_and_what_was_not_measured() -> None:
    at_bottom = {"loss": Estimate(0.5), "gradient_norm": Estimate(1e-4), "hessian_top_eigenvalue": Estimate(2.0, 0.01)}
    positive = {**at_bottom, "hessian_bottom_eigenvalue": Estimate(0.1, 0.001)}
    unsure = {**at_bottom, "hessian_bottom_eigenvalue": Estimate(-0.001, 0.001)}
    saddle = {**at_bottom, "hessian_bottom_eigenvalue": Estimate(-0.1, 0.001)}
    bound = {**at_bottom, "hessian_bottom_eigenvalue": Estimate(0.01, status=Status.UPPER_BOUND)}
    flat = {**at_bottom, "gradient_norm": Estimate(0.2)}
    between = {**saddle, "gradient_norm": Estimate(0.06)}
    linear = {**flat, "hessian_top_eigenvalue": Estimate(0.0)}
    rounding = {**flat, "hessian_top_eigenvalue": Estimate(1e-9, 2e-9, status=Status.SATURATED)}
    starts = {
        "As far as was measured, yes.": [positive, unsure],
        "Stationary, but not a minimum.": [saddle],
        "Nearly stationary; hessian_bottom": [at_bottom],
        "No.": [flat, linear],
        "Cannot tell.": [rounding, {"gradient_norm": Estimate(0.1)}, {**bound, "gradient_norm": Estimate(0.06)}],
    }
    for start, cases in starts.items():
        for case in cases:
            assert about(Report(case), "A minimum?").startswith(start)
    assert "zero within its error" in about(Report(unsure), "A minimum?")
    assert "curves downwards" in about(Report(saddle), "A minimum?")
    assert "sign open" in about(Report(bound), "A minimum?")
    assert about(Report(between), "A minimum?").startswith("No.")
    assert not about(Report({"loss": Estimate(0.5)}), "A minimum?")
    assert not about(Report(rounding), "Learning rate")
    assert about(Report(rounding), "Caution") == "Saturated, hence uninformative: hessian_top_eigenvalue."


def test_a_small_step_along_the_top_direction_is_no_minimum() -> None:
    """A gradient that one step of 1/λ₁ hardly uses, because the direction it lies in curves 10⁴ times less."""

    class Valley(Bowl):
        def forward(self, x: Tensor) -> Tensor:
            return x * self.at * torch.tensor([0.01, 1.0], dtype=torch.float64) + 1.0 - x

    valley = Valley((1.0, 0.0))
    told = about(measure(valley, ROWS, ASKED, loss="mse"), "A minimum?")
    assert told.startswith("Cannot tell.")
    assert "about 0.010 %, and directions that curve less may lower it further" in told
    bottom = measure(Valley((1e-6, 0.0)), ROWS, ASKED, loss="mse")
    assert not about(bottom, "A minimum?").startswith("As far as was measured, yes."), "99 % of its loss can go"
    wide = {
        "loss": Estimate(1.3),
        "gradient_norm": Estimate(0.84),
        "hessian_top_eigenvalue": Estimate(570.0, 0.01),
        "hessian_bottom_eigenvalue": Estimate(-0.4, 0.5),
    }
    assert about(Report(wide), "A minimum?").startswith("Cannot tell.")


def test_a_fitted_cross_entropy_has_its_minimum_at_infinity() -> None:
    """The gradient of outputs that are sure underflows to zero, and still larger outputs lower the loss."""
    x, y = torch.eye(3, dtype=torch.float64), torch.arange(3)
    net = nn.Linear(3, 3, bias=False).double()
    with torch.no_grad():
        net.weight.copy_(2000.0 * torch.eye(3))
    told = about(measure(net, (x, y), [*ASKED, "error"]), "A minimum?")
    assert told.startswith("Only in the limit. The gradient is zero. Every row is classified correctly")
    assert "Only in the limit" in about(measure(net, (x, y), ASKED), "A minimum?")
    for scale in (2.0, 8.0):
        with torch.no_grad():
            net.weight.copy_(scale * torch.eye(3))
        report = measure(net, (x, y), [*ASKED, "error"])
        assert "as the outputs grow" in about(report, "A minimum?")
        with torch.no_grad():
            assert nn.functional.cross_entropy(1.5 * net(x), y) < report["loss"].value
    part = measure(nn.Sequential(net, nn.Linear(3, 3).double()), (x, y), [*ASKED, "error"], params=["0.weight"])
    assert "as the outputs grow" not in about(part, "A minimum?")
    assert part.title.split(" · ")[1] == "9 of 21 parameters"


def test_a_network_that_knows_nothing_is_told_so() -> None:
    x, y = torch.randn(60, 4, dtype=torch.float64), torch.arange(60) % 3

    class HeadFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.body = nn.Linear(2, 3).double(), nn.Linear(4, 2).double()

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.body(x).tanh())

    torch.manual_seed(1)
    net = HeadFirst()
    told = about(measure(net, (x, y), [*ASKED, "error"]), "A minimum?")
    assert "no better than ln 3 = 1.10" in told
    assert "Weight decay" not in told
    learnt = {"loss": Estimate(1.0, data_stderr=0.01), "gradient_norm": Estimate(1.0)}
    sure = {**learnt, "hessian_top_eigenvalue": Estimate(1.0)}
    assert "Weight decay" in about(Report(sure, {"loss": "cross_entropy", "outputs": 3}), "A minimum?")
    assert "no better" not in about(Report(sure, {"loss": "mse", "outputs": 2}), "A minimum?")


def test_an_eigenvalue_within_its_error_sets_no_rate() -> None:
    report = Report({"hessian_top_eigenvalue": Estimate(1.6e-20, 1.2e-19, status=Status.BUDGET_SPENT)})
    assert not about(report, "Learning rate")


@pytest.mark.parametrize(("factor", "stable"), [(0.95, True), (1.05, False)])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_learning_rate_that_is_named_is_the_limit(factor: float, stable: bool, momentum: float) -> None:
    bowl = Bowl((0.3, 0.4))
    message = about(measure(bowl, ROWS, ASKED, loss="mse"), "Learning rate")
    word = "below " if momentum else "2/λ₁ = "
    rate = factor * float(message.rpartition(word)[2].split()[0].rstrip(").")) if momentum else None
    rate = rate or factor * float(message.partition(word)[2].split()[0])
    optimizer = torch.optim.SGD(bowl.parameters(), lr=rate, momentum=momentum)
    for _ in range(400):
        optimizer.zero_grad()
        (bowl(ROWS[0]).square().mean()).backward()
        optimizer.step()
    assert (float(bowl(ROWS[0]).square().mean().detach()) < 1.0) == stable


def test_a_bound_of_the_curvature_bounds_the_rate() -> None:
    report = Report({"hessian_top_eigenvalue": Estimate(4.0, status=Status.LOWER_BOUND)})
    assert "at most 2/λ₁ = 0.50" in about(report, "Learning rate")
    assert not about(Report({"hessian_top_eigenvalue": Estimate(-1.0)}), "Learning rate")


def test_cautions_name_what_is_not_to_be_believed() -> None:
    report = Report(
        {
            "loss": Estimate(1e-4, data_stderr=1e-5),
            "hessian_trace": Estimate(1.0, 0.8, status=Status.BUDGET_SPENT),
            "fisher_rao": Estimate(1.0, data_stderr=0.6),
            "igs": Estimate(1.0, status=Status.SATURATED, reason="too high a rank"),
            "adaptive_sharpness": Estimate(1.0, status=Status.LOWER_BOUND),
        },
        {"loss": "cross_entropy"},
    )
    message = about(report, "Caution")
    for words in (
        "At a cross-entropy of 0.00010 all curvature is small",
        "Known no better than to its own size: hessian_trace.",
        "Another sample could change all of it: fisher_rao.",
        "Saturated, hence uninformative: igs.",
        "A bound and not the value: adaptive_sharpness.",
        "Ended before the accuracy asked for: hessian_trace.",
    ):
        assert words in message
    assert not about(Report({"loss": Estimate(1e-4)}, {"loss": "mse"}), "Caution")


def test_scale_is_said_of_what_rescaling_changes_and_only_of_that() -> None:
    message = about(
        Report({"hessian_trace": Estimate(1.0), "fisher_rao": Estimate(1.0), "loss": Estimate(1.0)}), "Scale"
    )
    assert message.startswith("The curvature rows depend on the size of the weights")
    assert message.endswith("Such a trade does not change fisher_rao.")
    assert not about(Report({"fisher_rao": Estimate(1.0)}), "Scale")


def test_scale_is_that_of_the_settings_a_value_was_measured_with() -> None:
    plain, adaptive = (Estimate(1.0, settings={"adaptive": adaptive}) for adaptive in (False, True))
    assert "depend on the size of the weights" in about(Report({"average_sharpness": plain}), "Scale")
    assert not about(Report({"average_sharpness": adaptive}), "Scale")


def test_nothing_is_read_into_a_report_without_estimates() -> None:
    assert reading({}, {}) == ()
    assert reading({"mine": Estimate(1.0)}, {"loss": "cross_entropy", "parameters": "7 parameters"}) == ()

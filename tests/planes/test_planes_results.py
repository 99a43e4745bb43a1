"""What comes back: JSON, budgets, progress, figures."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.colors import LogNorm
from networks import BY_NAME
from processes import run_together
from torch import nn

import landscope.planes
from landscope.core.errors import BudgetSpentError, UnknownNameError
from landscope.core.estimate import Cost, Status
from landscope.planes import Landscape, between, landscape, line, random_slice
from landscope.planes.grid import Deadline, PointValues, measure_grid, nodes
from landscope.planes.result import GridValues
from landscope.planes.scale import Scale
from landscope.probe.probe import Probe


def probe_of(name: str = "relu_mlp") -> Probe:
    net = BY_NAME[name]
    return Probe(net.model(), net.data())


def test_json_gives_back_the_same() -> None:
    probe = probe_of()
    states = [BY_NAME["relu_mlp"].model(seed=seed).state_dict() for seed in (1, 2)]
    found = landscape(probe, plane="trajectory", checkpoints=states, resolution=3, others={"test": probe_of()})
    loss = found.loss.copy()
    loss[0, 1] = np.inf
    for each in (found, dataclasses.replace(found, values=GridValues(loss, found.accuracy, 14))):
        again = Landscape.from_json(each.to_json())
        assert again == each
        np.testing.assert_array_equal(again.loss, each.loss)
        np.testing.assert_array_equal(again.path, each.path)
        np.testing.assert_array_equal(again.undefined, ~np.isfinite(each.loss))
    assert json.loads(again.to_json())["values"]["loss"][0][1] is None
    assert found != landscape(probe, resolution=3)


def test_the_cost_is_a_forward_pass_per_point_and_probe() -> None:
    found = landscape(probe_of(), resolution=(5, 3))
    assert found.cost.passes == pytest.approx(15 / 3)
    shared = landscape(probe_of(), resolution=(5, 3), others={"test": probe_of()})
    assert shared.cost.passes == pytest.approx(2 * 15 / 3)
    curved = landscape(probe_of(), plane="eigenvectors", resolution=(5, 3))
    assert curved.cost.passes > 15 / 3 + 3


class Impatient(Deadline):
    """A deadline that passes at the given look at the clock."""

    def __init__(self, looks: int) -> None:
        super().__init__(1e9, torch.device("cpu"))
        self.looks = looks

    def passed(self) -> bool:
        self.looks -= 1
        return self.looks < 0

    def group(self, points: int, done: int, taken: float) -> int:
        return min(points, 10)


@pytest.mark.parametrize(("looks", "lines"), [(0, 0), (8, 0), (9, 9), (29, 9), (30, 17), (109, 17), (110, 33)])
def test_time_that_runs_out_leaves_the_finest_grid_that_is_whole(looks: int, lines: int) -> None:
    probe = probe_of()
    cut, axis = random_slice(probe), np.linspace(-1, 1, 33)
    options = {"metrics": None, "others": {"same": probe_of()}, "progress": False, "settings": {}}
    run = lambda: measure_grid(Landscape, probe, cut, [axis, axis], deadline=Impatient(looks), **options)  # noqa: E731
    if not lines:
        with pytest.raises(BudgetSpentError, match="coarse grid"):
            run()
        return
    found = run()
    assert found.loss.shape == found.others["same"].loss.shape == (lines, lines)
    assert (found.status, bool(found.reason)) == ((Status.EXACT, False) if lines == 33 else (Status.BUDGET_SPENT, True))
    assert found.centre_loss == pytest.approx(probe.value(), rel=1e-12)
    rows = torch.from_numpy(np.stack([found.a, np.full(lines, found.b[1])], -1))
    np.testing.assert_allclose(found.loss[1], PointValues(probe, cut, False)(rows)[:, 0], rtol=1e-12)


def test_nodes_hold_the_origin_and_coarse_grids_lie_within_fine_ones() -> None:
    for axis in (np.linspace(-1, 1, 51), np.linspace(-0.2, 1.9, 40), np.linspace(-1, 1, 5)):
        for stride in (2, 4, 8):
            coarse, fine = nodes(axis, stride), nodes(axis, stride // 2)
            assert set(coarse) <= set(fine)
            assert int(np.abs(axis).argmin()) in coarse
            assert len(coarse) >= 2


def results(rows: slice) -> list[list[list[float]]]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    x, y = torch.randn(15, 4, generator=torch.Generator().manual_seed(0)).double(), torch.arange(15) % 3
    probe = Probe(net, (x[rows], y[rows]))
    found = [landscape(probe, resolution=5, plane=plane, seconds=600) for plane in ("random", "eigenvectors")]
    return [grid.tolist() for each in found for grid in (each.loss, each.accuracy)]


def work(rank: int, folder: Path) -> None:
    (folder / f"{rank}.json").write_text(json.dumps(results(slice(0, 11) if rank == 0 else slice(11, 15))))


def test_two_processes_give_the_grid_of_one(tmp_path: Path) -> None:
    run_together(work, tmp_path)
    alone = np.array(results(slice(0, 15)))
    for rank in range(2):
        np.testing.assert_allclose(json.loads((tmp_path / f"{rank}.json").read_text()), alone, rtol=1e-6)


def test_progress_in_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    landscape(probe_of(), resolution=5, progress=True)
    lines = capsys.readouterr().err.split("\n")
    assert lines[-2] == "points: 25 of 25"
    landscape(probe_of(), resolution=3)
    assert capsys.readouterr().err == ""


def drawn(figure: object) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=40)
    return buffer.getvalue()


def test_contours_say_what_they_show() -> None:
    found = landscape(probe_of(), resolution=9, others={"test": probe_of()}, span=3.0)
    figure = found.plot()
    left, right, bar = figure.axes
    assert left.get_xlabel() == "1st random direction, in filter norms"
    assert left.get_ylabel() == "2nd random direction, in filter norms"
    assert (left.get_title(), right.get_title()) == ("probe, 14 samples", "test, 14 samples")
    assert bar.get_ylabel() == "loss (cross_entropy)"
    assert len(left.texts) >= 3
    assert {text.get_text() for text in left.texts} <= {f"{level:.3g}" for level in Scale.of([found.loss]).levels}
    assert drawn(figure).startswith(b"\x89PNG")
    surface = found.plot("surface")
    assert [axes.get_zlabel() for axes in surface.axes] == ["loss (cross_entropy)"] * 2
    assert drawn(surface).startswith(b"\x89PNG")
    assert found.plot(metric="accuracy").axes[-1].get_ylabel() == "accuracy"
    with pytest.raises(UnknownNameError, match="did you mean 'contour'"):
        found.plot("contours")
    with pytest.raises(UnknownNameError, match="did you mean 'loss'"):
        found.plot(metric="los")


def test_infinite_losses_are_drawn_as_holes() -> None:
    base = landscape(probe_of(), resolution=9)
    loss = np.geomspace(0.01, 100, 81).reshape(9, 9)
    loss[7:, 7:] = np.inf
    found = dataclasses.replace(base, values=GridValues(loss, None, 14))
    for kind in ("contour", "surface"):
        assert drawn(found.plot(kind)).startswith(b"\x89PNG")
    assert "drawn up to" in found.plot().axes[-1].get_ylabel()
    assert isinstance(Scale.of([loss]).norm(), LogNorm)
    flat = dataclasses.replace(base, values=GridValues(np.full((9, 9), 0.5), None, 14))
    assert drawn(flat.plot()).startswith(b"\x89PNG")


def test_scales_of_every_range() -> None:
    for low, high in (
        (1e-3, 1e-2),
        (0.5, 0.6),
        (1e-5, 1e9),
        (-2.0, 3.0),
        (0.0, 5.0),
        (1.0, 1.0),
        (0.0, 0.0),
        (1.0, 1 + 1e-7),
    ):
        scale = Scale.of([np.linspace(low, high, 50)])
        assert 1 <= len(scale.levels) <= 13
        assert scale.low <= scale.levels[0] + 1e-12
        assert scale.levels[-1] <= scale.high * (1 + 1e-9) + 1e-12
        assert scale.logarithmic == (low > 0 and high > 8 * low)
        assert (np.diff(scale.levels) > 0).all()
        assert len({scale.text(level) for level in scale.levels}) == len(scale.levels)
        assert scale.high <= scale.low * 1e6 * (1 + 1e-9) or not scale.logarithmic
        assert np.isfinite(scale.heights(np.linspace(low, high, 50))).all()


def test_pictures_of_lines_and_trajectories() -> None:
    probe = probe_of()
    states = [BY_NAME["relu_mlp"].model(seed=seed).state_dict() for seed in (1, 2, 3)]
    found = landscape(probe, plane="trajectory", checkpoints=states, resolution=5)
    figure = found.plot()
    assert "principal direction" in figure.axes[0].get_xlabel()
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == [
        "checkpoints",
        "first of them",
        "the model",
    ]
    assert drawn(figure).startswith(b"\x89PNG")
    for each in (line(probe, resolution=5), between(probe, states[0], resolution=5, others={"test": probe_of()})):
        assert [axes.get_ylabel() for axes in each.plot().axes] == ["loss (cross_entropy)", "accuracy"]
        assert drawn(each.plot()).startswith(b"\x89PNG")
    assert "eigenvector (λ = " in line(probe, direction="eigenvector", resolution=3).plot().axes[-1].get_xlabel()


def test_no_global_state_of_pyplot() -> None:
    for path in Path(landscope.planes.__file__).parent.glob("*.py"):
        assert "pyplot" not in path.read_text(), path


def test_results_are_described() -> None:
    found = landscape(probe_of(), resolution=3)
    assert repr(found).startswith("Landscape(random, 3 × 3 points, lowest ")
    assert found.directions["kind"] == "random"
    assert found.directions["moved_parameters"] == 60
    assert found.settings["loss"] == "cross_entropy"
    assert isinstance(found.cost, Cost)

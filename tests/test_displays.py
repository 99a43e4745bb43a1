"""What a notebook shows of each result: tables and pictures, with the user's text escaped."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch
from torch import nn

import landscope as ls
from landscope.core.display import as_text
from landscope.core.estimate import Status
from landscope.studies.study import Study


@pytest.fixture(scope="module")
def probe() -> ls.Probe:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    return ls.Probe(net, (torch.randn(30, 3), torch.arange(30) % 2))


def test_an_estimate_and_its_reason() -> None:
    shown = ls.Estimate(1.5, 0.25, 0.5, Status.BUDGET_SPENT, "<the budget ended>")._repr_html_()
    assert "1.5" in shown
    assert "budget spent" in shown
    assert "&lt;the budget ended&gt;" in shown


def test_a_probe_and_its_layers(probe: ls.Probe) -> None:
    shown = probe._repr_html_()
    assert "Probe(Sequential, 26 parameters" in shown
    assert ">16</td>" in shown
    assert ">10</td>" in shown


def test_tables_of_layers_and_blocks(probe: ls.Probe) -> None:
    layers, blocks = ls.by_layer(probe, ["l2_norm"]), ls.by_block(probe, measures=["l2_norm"])
    assert layers._repr_html_().count("<tr>") == blocks._repr_html_().count("<tr>") == 3


@pytest.mark.parametrize("width", [150, 80, 40])
def test_no_digit_of_a_table_is_cut_off_on_a_narrow_terminal(width: int, probe: ls.Probe) -> None:
    again = ls.Probe(
        nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), (torch.randn(30, 3), torch.arange(30) % 2)
    )
    compared = ls.compare(
        {"before": probe, "after the last epoch": again}, measures=["loss", "hessian_trace", "l2_norm"]
    )
    for shown, cells in (
        (compared.table(), [compared._cells(difference) for difference in compared]),
        (
            compared.reports["before"].table(),
            [(row.name, row.value, row.own_error) for row in compared.reports["before"].rows],
        ),
    ):
        words = as_text(shown, width).split()
        assert max(map(len, as_text(shown, width).splitlines())) <= width
        assert "…" not in "".join(words)
        assert {word for row in cells for cell in row for word in cell.split()} <= set(words)


def test_pictures(probe: ls.Probe) -> None:
    results = [
        ls.spectrum(ls.Hessian(probe), steps=8, probes=2),
        ls.reliability(torch.randn(40, 2), torch.arange(40) % 2),
        ls.landscape(probe, resolution=3),
        ls.line(probe, resolution=3),
    ]
    for result in results:
        shown = result._repr_html_()
        assert shown.startswith("<div><b>")
        assert 'src="data:image/png;base64,iVBOR' in shown
        assert 'alt=""' not in shown


def test_a_study_and_its_runs(tmp_path: Path) -> None:
    spec = {
        "name": "<mine>",
        "training": {"model": {"name": "mlp"}, "data": {"name": "digits"}, "epochs": 1},
        "axes": {"rate": {"optimizer.lr": [0.1, 0.2]}},
        "seeds": 2,
    }
    shown = Study.of(spec, tmp_path)._repr_html_()
    assert "&lt;mine&gt;" in shown
    assert shown.count("<tr>") == 3


def test_pictures_of_the_site_are_described() -> None:
    """What a page of the documentation draws has words for those who do not see it."""
    at = Path(__file__).parent.parent / "docs" / "notebooks.py"
    found = spec_from_file_location("notebooks_of_docs", at)
    assert found is not None
    assert found.loader is not None
    notebooks = module_from_spec(found)
    found.loader.exec_module(notebooks)
    code = "import matplotlib.pyplot as plt\n_, ax = plt.subplots()\nax.set(title='loss [nats]', xlabel='t', ylabel='L');\n"
    page = notebooks.with_outputs(f"```python\n{code}```\n", "page.md")
    assert "![Figure: loss (nats), L over t](data:image/png" in page

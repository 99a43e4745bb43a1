"""`landscope compare` within a time, and `landscope compare-studies`: one page that leads to the reports of several studies."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

Call = Callable[..., tuple[int, str, str]]

STUDY = """\
name: tiny
training: {data: circles, model: {name: mlp, widths: [4]}, epochs: 1, batch_size: 50}
axes: {regulariser: {none: {}, decay: {optimizer.weight_decay: 0.1}}}
seeds: 2
measuring: {splits: {train: [loss, l2_norm], test: [loss, error]}}
"""


@pytest.mark.usefixtures("without_workers")
def test_a_page_of_two_studies_leads_to_their_reports(call: Call, tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(STUDY)
    first, second = tmp_path / "first", tmp_path / "second"
    code, _, err = call("study", "run", tmp_path / "study.yaml", "--into", first)
    assert code == 0, err
    shutil.copytree(first, second)
    (second / "report.html").unlink()
    page = tmp_path / "pages" / "index.html"
    page.parent.mkdir()
    code, out, err = call("compare-studies", first, second, "--output", page)
    assert (code, out) == (0, f"page: {page}\n"), err
    text = page.read_text(encoding="utf-8")
    for folder in (first, second):
        assert f'href="../{folder.name}/report.html"' in text
        assert (folder / "report.html").exists()


def test_one_study_is_not_compared(call: Call, tmp_path: Path) -> None:
    code, _, err = call("compare-studies", tmp_path, tmp_path)
    assert code == 2
    assert "expected two studies or more" in err


def test_models_compared_within_a_time_say_what_was_not_compared(call: Call, tmp_path: Path, digits_net: Path) -> None:
    other = shutil.copy(digits_net, tmp_path / "other.safetensors")
    network = ("--model", "mlp", "-o", "in_features=64", "-o", "widths=[4]", "--data", "digits")
    words = ("compare", digits_net, other, *network)
    code, out, err = call(*words, "--measures", "loss,igs,hessian_top_eigenvalue", "--seconds", "0.001")
    assert code == 0, err
    assert re.search(r"Not compared: (.*, )?hessian_top_eigenvalue \(", out), out
    assert "[1/4] net, on groups of rows" not in err
    assert "[0/4] net\n" in err
    assert call(*words, "--seconds", "0")[0] == 2

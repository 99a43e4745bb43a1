"""The comparison with other tools: it runs, its errors mean what they say, and a tool that is missing is reported.

`make test` installs no peer: what needs them is marked `peers` and runs only where `make bench` has installed them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent.parent
sys.path.append(str(ROOT))

from benchmarks.compare import answers, page  # noqa: E402
from benchmarks.compare.environment import PEERS  # noqa: E402
from benchmarks.compare.networks import NETWORKS, load  # noqa: E402
from benchmarks.compare.rows import ROWS  # noqa: E402
from benchmarks.compare.truth import hessian  # noqa: E402

Call = Callable[..., tuple[int, str, str]]
QUICK = ("bench", "--size", "tiny", "--threads", 1, "--rounds", 1)


def test_a_row_runs_and_a_missing_tool_is_reported(call: Call, tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    places = ("--folder", tmp_path / "kept", "--into", tmp_path / "page", "--wheels", tmp_path / "wheels")
    code, out, err = call(*QUICK, "--rows", "fisher_rao", "--against", "curvlinops", *places, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert list(found["missing"]) == ["curvlinops"]
    (case,) = found["cases"]
    ours, theirs, by_hand = case["tools"]
    assert ours["error"] < 1e-5
    assert by_hand["error"] < 1e-5
    assert len(ours["wall"]) == len(ours["cpu"]) == 1
    assert not theirs["wall"]
    assert "is not in" in theirs["failed"]
    written = (tmp_path / "page" / "README.md").read_text()
    assert "### Fisher–Rao norm" in written
    assert "curvlinops is not in" in written
    assert case["run"]["torch"] == torch.__version__
    code, out, err = call(*QUICK, "--rows", "fisher_rao", "--against", "curvlinops", *places, "--json", "--resume")
    assert (code, json.loads(out)["cases"]) == (0, []), err
    assert json.loads((tmp_path / "page" / "measured" / "tiny.json").read_text()) == [case]


@pytest.mark.slow
def test_every_row_runs_at_the_tiny_size(call: Call, tmp_path: Path) -> None:
    code, out, err = call(*QUICK, "--against", "none", "--folder", tmp_path, "--json")
    assert code == 0, err
    cases = json.loads(out)["cases"]
    assert {case["row"] for case in cases} == {row.name for row in ROWS}
    assert [
        (case["row"], tool["tool"], tool["failed"]) for case in cases for tool in case["tools"] if tool["failed"]
    ] == []
    exact = {"product", "fisher_trace", "relative_flatness", "igs", "plane", "ece", "sam", "fam", "pool"}
    errors = {case["row"]: case["tools"][0]["error"] for case in cases if case["row"] in exact}
    assert max(errors.values()) < 1e-3, errors


@pytest.mark.slow
@pytest.mark.peers
@pytest.mark.skipif(not (ROOT / ".bench" / "peers").exists(), reason="no peers: `make bench` installs them")
def test_peers_give_the_same_product(call: Call) -> None:
    code, out, err = call(*QUICK, "--rows", "product", "--json")
    assert code == 0, err
    ((case,), missing) = json.loads(out)["cases"], json.loads(out)["missing"]
    assert all(tool["error"] < 1e-5 for tool in case["tools"] if tool["tool"] not in missing)


def test_what_is_unknown_is_refused(call: Call, tmp_path: Path) -> None:
    code, _, err = call("bench", "--rows", "lambda2", "--against", "none", "--folder", tmp_path, "--into", tmp_path)
    assert code == 2
    assert "lambda1_1e-3" in err
    code, _, err = call("bench", "--against", "weightwatcher", "--folder", tmp_path, "--into", tmp_path)
    assert code == 2
    assert "pyhessian" in err


def test_rows_are_listed(call: Call) -> None:
    code, out, _ = call("bench", "--list", "--json")
    assert code == 0
    assert "hessian-eigenthings" in json.loads(out)["trace_2e-2"]["tools"]


def test_without_a_checkout_the_remedy_is_named(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("landscope.__file__", str(tmp_path / "site-packages" / "landscope" / "__init__.py"))
    code, _, err = call("bench", "--list")
    assert code == 2
    assert "make bench" in err


def test_rows_are_declared_whole() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert sum(row.headline for row in ROWS) == 5
    for row in ROWS:
        ours = {"landscope", "landscope, two processes", "by hand"}
        assert set(row.tools) <= ours | set(PEERS)
        for size in ("tiny", "cpu", "gpu"):
            assert row.cases(size) or size == "gpu", row.name


def test_the_dense_truth_is_the_hessian(tmp_path: Path) -> None:
    subject = load(NETWORKS["tiny"]["mlp"], tmp_path).double()
    names, start = zip(*subject.model.named_parameters(), strict=True)

    def loss(vector: torch.Tensor) -> torch.Tensor:
        parts = vector.split([p.numel() for p in start])
        given = {name: part.view_as(p) for name, part, p in zip(names, parts, start, strict=True)}
        return torch.nn.functional.cross_entropy(torch.func.functional_call(subject.model, given, subject.x), subject.y)

    expected = torch.autograd.functional.hessian(loss, torch.cat([p.detach().flatten() for p in start]))
    assert torch.allclose(hessian(subject), expected, atol=1e-12)


def test_errors() -> None:
    one = torch.tensor
    assert answers.relative(one([3.0, 4.5]), one([3.0, 4.0])) == pytest.approx(0.1)
    assert answers.shortfall(one([1.5]), one([2.0])) == pytest.approx(0.25)
    assert answers.of_the_move(one([0.0, 0.0, 0.0, 2.2]), one([0.0, 0.0, 0.0, 2.0])) == pytest.approx(0.1)
    assert answers.of_the_range(one([0.0, 1.0]), one([0.0, 2.0])) == pytest.approx(0.5**0.5 / 2)
    shifted = answers.between_spectra(one([1.5, 2.5, 1.0, 1.0]), one([1.0, 2.0, 3.0, 3.0]))
    assert shifted == pytest.approx(0.5 / 1.5)  # every eigenvalue moved by a half, the mean is 3/2


def tool(name: str, seconds: float, error: float | None, failed: str = "") -> dict[str, object]:
    times = [] if failed else [seconds, 2 * seconds]
    return {
        "tool": name,
        "version": "",
        "wall": times,
        "cpu": times,
        "memory": 2**20,
        "set_up": 0.0,
        "value": 1.0,
        "claimed": None,
        "error": error,
        "note": "",
        "failed": failed,
    }


def case(row: str, tools: list[dict[str, object]], **given: object) -> dict[str, object]:
    run = dict.fromkeys(("command", "date", "processor", "landscope", "python", "torch", "numpy", "scipy"), "x")
    about = {
        "run": {**run, "gpu": "", "note": "", "threads": 2, "load": 0.5},
        "truth": "exact",
        "settings": {"tol": 0.02},
        "at": None,
    }
    return {
        "row": row,
        "title": row,
        "label": "mlp",
        "parameters": 10,
        "samples": 5,
        "batch": 5,
        **about,
        "tools": tools,
        **given,
    }


def test_pages_keep_what_was_not_run_again(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(f"before\n{page.MARKERS[0]}\n{page.MARKERS[1]}\nafter\n")
    old = [case("trace_2e-2", [tool("landscope", 1.0, 0.01)]), case("ece", [tool("landscope", 7.0, 0.0)])]
    tools = [tool("landscope", 2.0, 0.01), tool("pyhessian", 0.1, 0.2), tool("curvlinops", 6.0, 0.03)]
    new = [case("trace_2e-2", [*tools, tool("hessian-eigenthings", 0.0, None, "more than 300 s")])]
    into = tmp_path / "benchmarks"
    for cases in (old, new):
        page.write({"size": "cpu", "cases": cases}, into, tmp_path / "README.md")
    text = (into / "README.md").read_text()
    assert "more than 300 s" in text
    assert "### ece" in text
    assert [each["row"] for each in json.loads((into / "measured" / "cpu.json").read_text())] == ["trace_2e-2", "ece"]
    readme = (tmp_path / "README.md").read_text()
    assert readme.startswith("before\n")
    assert readme.endswith("after\n")
    line = next(line for line in readme.splitlines() if "trace_2e-2" in line)
    assert "curvlinops" in line  # the fastest of those that are as accurate as asked for
    assert "pyhessian" not in line
    assert line.endswith("| 3.00 |")


def test_a_page_takes_over_the_numbers_of_another_machine(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    old, new = case("trace_2e-2", [tool("landscope", 1.0, 0.01)]), case("trace_2e-2", [tool("landscope", 3.0, 0.01)])
    page.write({"size": "cpu", "cases": [old, case("ece", [tool("landscope", 7.0, 0.0)])]}, here)
    page.write({"size": "cpu", "cases": [new]}, there)
    assert page.take_over(there, here, None)
    assert page.stored(here, "cpu")[0] == new
    assert [each["row"] for each in page.stored(here, "cpu")] == ["trace_2e-2", "ece"]


def test_growth_has_an_exponent(tmp_path: Path) -> None:
    cases = [
        case("growth_samples", [tool("landscope", seconds, 1e-6)], label=f"samples {at}", at=at)
        for at, seconds in ((100, 1.0), (1000, 10.0))
    ]
    page.write({"size": "cpu", "cases": cases}, tmp_path)
    assert "| 1.50 | 15.0 | 1.0 |" in (tmp_path / "README.md").read_text()


def test_the_readme_has_a_place_for_the_benchmarks() -> None:
    readme = (ROOT / "README.md").read_text()
    assert page.between_markers(readme, ["x"]) != readme
    with pytest.raises(ValueError, match="has no place"):
        page.between_markers("nothing here", [])

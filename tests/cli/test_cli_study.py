"""`landscope study`, `report` and `recipe`, from a file to what they leave."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from landscope.studies.study import Study

Call = Callable[..., tuple[int, str, str]]
needs_plotly = pytest.mark.skipif(importlib.util.find_spec("plotly") is None, reason="needs plotly (landscope[report])")

STUDY = """\
name: tiny
training: {data: circles, model: {name: mlp, widths: [4]}, epochs: 2, batch_size: 20}
axes:
  regulariser:
    none: {}
    decay: {optimizer.weight_decay: 0.1}
seeds: 2
measuring:
  splits:
    train: [loss, l2_norm]
    test: [loss, error]
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "study.yaml"
    path.write_text(STUDY)
    return path


def test_a_dry_run_lists_the_runs_and_does_nothing(call: Call, spec: Path, tmp_path: Path) -> None:
    code, out, err = call("study", "run", spec, "--into", tmp_path / "s", "--dry-run", "--json")
    assert code == 0, err
    message = json.loads(out)
    assert [(run["condition"], run["seed"]) for run in message["runs"]] == [
        ("none", 0),
        ("none", 1),
        ("decay", 0),
        ("decay", 1),
    ]
    assert all(run["training_seconds"] > 0 for run in message["runs"])
    assert not (tmp_path / "s").exists()
    code, out, _ = call("study", "run", spec, "--into", tmp_path / "s", "--dry-run")
    assert code == 0
    assert "4 runs to do: about " in out, "what is measured was timed, too"
    code, out, err = call("study", "run", spec, "--into", tmp_path / "s", "--dry-run", "--time-limit", 60)
    assert (code, err) == (0, "timing a slice of each kind of run, for 1 min at most\n")
    assert "4 runs to do: about " in out
    assert not (tmp_path / "s").exists()


def test_a_dry_run_says_which_runs_cannot_start(call: Call, tmp_path: Path) -> None:
    axes = "axes: {net: {small: {}, deep: {model: lenet5}}}"
    training = "training: {data: digits, model: {name: mlp, widths: [4]}, epochs: 1}"
    (tmp_path / "s.yaml").write_text(f"name: s\n{training}\n{axes}\nmeasuring: {{splits: {{train: [loss]}}}}\n")
    code, out, _ = call("study", "run", tmp_path / "s.yaml", "--into", tmp_path / "s", "--dry-run")
    assert code == 0
    assert "for the 3 that could be timed" in out
    assert "3 runs cannot start: lenet5 needs images of 16×16 or more" in " ".join(out.split())
    assert out.count("cannot start") == 4


@pytest.mark.usefixtures("without_workers")
def test_some_of_the_runs(call: Call, spec: Path, tmp_path: Path) -> None:
    words = ["study", "run", spec, "--into", tmp_path / "s", "--only", "seed=1"]
    code, out, _ = call(*words, "--only", "condition=decay", "--dry-run", "--json")
    assert code == 0
    assert [(run["condition"], run["seed"]) for run in json.loads(out)["runs"]] == [("decay", 1)]
    code, _, err = call(*words, "-e", "workers=1")
    assert code == 0, err
    assert "4 runs, 2 asked for, 0 done before" in err
    assert "2 runs finished" in err
    code, _, err = call("study", "run", spec, "--into", tmp_path / "s", "-e", "workers=1", "--pool")
    assert code == 0, err
    assert "4 runs, 2 done before; in" in err
    for wrong, message in [("seed", "expected NAME=VALUE"), ("sed=1", "seed"), ("seed=5", 'Choices: "0", "1"')]:
        code, _, err = call("study", "run", spec, "--into", tmp_path / "s", "--only", wrong)
        assert code == 2
        assert message in err


def test_mistakes_are_one_line_each(call: Call, spec: Path, tmp_path: Path) -> None:
    spec.write_text(STUDY.replace("weight_decay", "wait_decay").replace("epochs: 2", "epochs: none"))
    code, _, err = call("study", "run", spec, "--into", tmp_path / "s")
    assert code == 2
    assert f"{spec}:6:" in err
    assert "did you mean 'weight_decay'" in err
    assert f"{spec}:2: training.epochs: must be an integer" in err


def test_no_study_there(call: Call, tmp_path: Path) -> None:
    for command in (("study", "status"), ("study", "report"), ("report",)):
        code, _, err = call(*command, tmp_path)
        assert code == 2
        assert "holds no study" in err


def test_a_shared_store_that_is_not_mounted_is_not_an_empty_one(call: Call, spec: Path, tmp_path: Path) -> None:
    Study.of(spec, tmp_path / "store").save(tmp_path / "s")
    for command in (("study", "status"), ("study", "report"), ("report",), ("study", "status", "--watch")):
        code, _, err = call(*command, tmp_path / "s")
        assert code == 2
        assert f"{tmp_path / 'store'}, where the runs of {tmp_path / 's'} are, is not there" in err


def test_a_study_that_vanishes_ends_the_watch(
    call: Call, spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = Study.of(spec, tmp_path / "s")
    study.store.add(next(iter(study.runs.values())).plain)
    study.save(tmp_path / "s")
    monkeypatch.setattr("time.sleep", lambda _: shutil.rmtree(tmp_path / "s", ignore_errors=True))
    code, _, err = call("study", "status", tmp_path / "s", "--watch")
    assert code == 2
    assert "is not there any more" in err


def test_unknown_executor_settings(call: Call, spec: Path, tmp_path: Path) -> None:
    code, _, err = call("study", "run", spec, "--into", tmp_path / "s", "-e", "wrokers=2")
    assert code == 2
    assert "did you mean 'workers'" in err


@needs_plotly
def test_from_a_file_to_a_report(call: Call, spec: Path, tmp_path: Path) -> None:
    folder = tmp_path / "s"
    code, out, err = call("study", "run", spec, "--into", folder, "-e", "workers=1", "--json")
    assert code == 0, err
    done = json.loads(out)
    assert len(done["finished"]) == 4
    assert done["failed"] == {}
    assert "[4/4] finished decay · seed 1" in err
    page = Path(done["report"])
    assert "<title>" in page.read_text()
    code, out, err = call("study", "status", folder, "--json")
    assert [run["state"] for run in json.loads(out)] == ["done"] * 4
    code, out, err = call("study", "run", spec, "--into", folder, "--no-report", "--json")
    assert len(json.loads(out)["skipped"]) == 4
    code, out, err = call("study", "run", spec, "--into", folder)  # whose report is up to date
    assert out.splitlines()[-1] == f"answer: {done['answer']}"
    assert done["answer"] in page.read_text().split("</head>")[1]
    code, out, err = call("report", folder, "--output", tmp_path / "page.html", "--figures", "png", "--json")
    assert code == 0, err
    assert all(Path(path).stat().st_size > 1000 for path in json.loads(out)["figures"])


@pytest.mark.slow
@pytest.mark.usefixtures("without_workers")
def test_figures_that_a_study_asks_for_lie_beside_its_report(call: Call, spec: Path, tmp_path: Path) -> None:
    folder = tmp_path / "s"
    more = STUDY.replace("epochs: 2", "epochs: 40").replace("widths: [4]", "widths: [32]").replace("0.1}", "0.001}")
    more = more.replace("seeds: 2", "    more: {optimizer.weight_decay: 0.01}\nseeds: 3")
    spec.write_text(f"{more}\nfigures: [svg]\nanalysis: {{outcomes: [test.loss]}}\n")
    code, out, err = call("study", "run", spec, "--into", folder, "-e", "workers=1", "--json")
    assert code == 0, err
    drawn = [Path(path) for path in json.loads(out)["figures"]]
    assert drawn
    assert all(path.parent == folder / "figures" and path.suffix == ".svg" for path in drawn)
    text = (folder / "figures" / "scatter.svg").read_text()
    assert "test loss" in text  # what the report is of
    assert "test error" not in text
    code, out, _ = call("study", "run", spec, "--into", folder, "-e", "workers=1")
    assert f"figures: {folder / 'figures'}" in out.replace("\n", "")
    code, out, _ = call("report", folder, "--light", "--json")
    assert code == 0
    assert [Path(path) for path in json.loads(out)["figures"]] == drawn


@pytest.mark.usefixtures("without_workers")
def test_runs_are_trained_together_when_asked_for(call: Call, spec: Path, tmp_path: Path) -> None:
    code, out, err = call(
        "study", "run", spec, "--pool", "--into", tmp_path / "s", "-e", "workers=1", "--no-report", "--json"
    )
    assert code == 0, err
    assert "finished training 4 runs together" in err
    assert len(json.loads(out)["finished"]) == 4
    code, out, err = call("report", tmp_path / "s", "--light", "--json")
    assert code == 0, err
    assert "<script" not in Path(json.loads(out)["report"]).read_text()


@pytest.mark.usefixtures("without_workers")
def test_averages_that_nobody_measures_are_pointed_out(call: Call, spec: Path, tmp_path: Path) -> None:
    spec.write_text(
        STUDY.replace("epochs: 2,", "epochs: 2, averaging: {kind: swa, start: 0.5},").replace("seeds: 2", "seeds: 1")
    )
    code, _, err = call("study", "run", spec, "--into", tmp_path / "s", "-e", "workers=1", "--no-report")
    assert code == 0, err
    assert "iterates are averaged, but only final weights are measured" in err


@pytest.mark.usefixtures("without_workers")
def test_a_failed_run_keeps_its_traceback_and_can_be_retried(call: Call, spec: Path, tmp_path: Path) -> None:
    spec.write_text(STUDY.replace("epochs: 2,", "epochs: 2, optimizer: {lr: 1e30},").replace("seeds: 2", "seeds: 1"))
    folder = tmp_path / "s"
    code, _, err = call("study", "run", spec, "--into", folder, "-e", "workers=1")
    assert code == 2
    assert "2 of 2 runs failed" in err
    code, out, _ = call("study", "status", folder, "--json")
    (first, _) = json.loads(out)
    assert first["state"] == "failed"
    assert "NonFiniteTrainingError" in first["error"]
    assert "Traceback" in (folder / "runs" / first["run"] / "failure.txt").read_text()
    code, _, err = call("study", "run", spec, "--into", folder, "-e", "workers=1")
    assert code == 2
    assert "[0/2] skipped none · seed 0" in err  # not counted as done
    assert "finished" not in err
    assert "2 of 2 runs failed; the first, " in err
    assert "--retry-failed (in Python: retry_failed=True) tries them again" in err
    code, _, err = call("study", "run", spec, "--into", folder, "--retry-failed", "-e", "workers=1")
    assert code == 2
    assert "failed" in err


def test_killed_and_started_again(spec: Path, tmp_path: Path) -> None:
    """kill -9 of the whole study; the same command finishes it, and loses nothing that was done."""
    words = [
        sys.executable,
        "-m",
        "landscope",
        "study",
        "run",
        str(spec),
        "--into",
        str(tmp_path / "s"),
        "--no-report",
        "--json",
    ]
    first = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    records = tmp_path / "s" / "runs"
    deadline = time.monotonic() + 120
    while not list(records.glob("*/record.json")) and time.monotonic() < deadline and first.poll() is None:
        time.sleep(0.05)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    kept = {path: path.read_bytes() for path in records.glob("*/record.json")}
    again = subprocess.run(words, capture_output=True, text=True, check=True, timeout=240)
    summary = json.loads(again.stdout)
    assert len(summary["finished"]) + len(summary["skipped"]) == 4
    assert len(summary["skipped"]) >= len(kept) >= 1
    assert all(path.read_bytes() == content for path, content in kept.items())


@pytest.mark.usefixtures("without_workers")
def test_models_that_exist(call: Call, digits_net: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.safetensors"
    shutil.copy(digits_net, other)
    words = ["--model", "mlp", "-o", "widths=[4]", "--data", "digits", "--measures", "l2_norm", "--samples", 50]
    code, out, err = call(
        "study", "measure", digits_net, other, *words, "--into", tmp_path / "s", "-e", "workers=1", "--json"
    )
    if importlib.util.find_spec("plotly") is None:
        assert code == 3
        return
    assert code == 0, err
    assert len(json.loads(out)["finished"]) == 2
    code, _, err = call("study", "measure", tmp_path / "none.pt", *words, "--into", tmp_path / "t")
    assert code == 2
    assert "no such file" in err


@pytest.mark.usefixtures("without_workers")
def test_without_plotly_the_report_of_a_study_has_no_script(
    call: Call, spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("landscope.cli.study.showing.find_spec", lambda name: None)
    monkeypatch.setattr("landscope.report.page.html.util.find_spec", lambda name: None)
    code, out, err = call("study", "run", spec, "--into", tmp_path / "s", "-e", "workers=1", "--json")
    assert code == 0, err
    assert "reports are written without script" in err
    assert "<script" not in Path(json.loads(out)["report"]).read_text(encoding="utf-8")


def test_a_file_where_a_folder_is_to_be_is_told_before_anything_starts(
    call: Call, spec: Path, digits_net: Path
) -> None:
    training = spec.with_name("training.yaml")
    training.write_text("{data: circles, model: mlp, epochs: 1}")
    measured = ["study", "measure", digits_net, "--model", "mlp", "--data", "digits"]
    for words in (["study", "run", spec], ["train", training], measured):
        code, _, err = call(*words, "--into", spec)
        assert code == 2
        assert f"{spec} is a file. Name another folder" in err


def test_recipes_are_listed(call: Call) -> None:
    code, out, err = call("paper", "list", "--json")
    assert code == 0, err
    listed = {entry["name"]: entry for entry in json.loads(out)}
    assert (
        listed["adaptive-sharpness"]["models"]["paper"]["fcnn"]
        > listed["adaptive-sharpness"]["models"]["tiny"]["fcnn"]
        > 0
    )
    code, _, err = call("paper", "run", "adaptive-sharpnes")
    assert code == 2
    assert "did you mean 'adaptive-sharpness'" in err


@needs_plotly
@pytest.mark.usefixtures("without_workers")
def test_a_tiny_recipe_and_the_page_of_results(call: Call, tmp_path: Path) -> None:
    folder = tmp_path / "results" / "adaptive-sharpness"
    words = ["adaptive-sharpness", "--size", "tiny", "--part", "fcnn", "--into", folder, "-e", "workers=1", "--json"]
    code, out, err = call("paper", "run", *words)
    assert code == 0, err
    records, page = map(Path, json.loads(out))
    assert (records.name, page.name) == ("fcnn.json.gz", "fcnn.html")
    results = tmp_path / "RESULTS.md"
    code, _, err = call("paper", "results", tmp_path / "results", "--page", results)
    assert code == 0, err
    assert "[adaptive-sharpness.md](results/adaptive-sharpness.md)" in results.read_text()
    text = (tmp_path / "results" / "adaptive-sharpness.md").read_text()
    assert "## fcnn" in text
    assert "Size `tiny`, 4 runs" in text
    words[words.index(folder)] = tmp_path / "elsewhere"
    code, out, err = call("paper", "run", *words, "--from", tmp_path / "results")
    assert code == 0, err
    assert "4 of 4 runs taken over" in err
    assert Path(json.loads(out)[0]).read_bytes() == records.read_bytes()
    records.write_bytes(gzip.compress(gzip.decompress(records.read_bytes()).replace(b'"tiny"', b'"small"')))
    words[words.index(tmp_path / "elsewhere")] = tmp_path / "other size"
    code, _, err = call("paper", "run", *words, "--from", tmp_path / "results")
    assert code == 0, err
    assert "4 of 4 runs taken over; the records are of size small, not tiny" in err
    code, _, err = call("paper", "run", *words, "--from", tmp_path / "nowhere")
    assert code == 2
    assert "nowhere: no such folder" in err
    assert "**not tested**" in text


@pytest.mark.slow
@needs_plotly
@pytest.mark.usefixtures("without_workers")
def test_a_recipe_goes_on_where_a_run_fails(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from papers_made import lend

    from landscope.specs.schema import parse
    from landscope.studies.spec import StudySpec

    rates = {"steady": {"optimizer.lr": 0.1}, "runaway": {"optimizer.lr": 1e38}}
    training = {"data": "circles", "model": {"name": "mlp", "widths": [4]}, "epochs": 2, "batch_size": 20}
    studies = {
        part: parse(
            StudySpec,
            {
                "name": part,
                "training": training,
                "axes": {"rate": {name: rates[name] for name in names}},
                "seeds": 1,
                "measuring": {"splits": {"train": ["loss"], "test": ["error"]}, "consistency": False},
            },
        )
        for part, names in {"both": ["steady", "runaway"], "none": ["runaway"], "last": ["steady"]}.items()
    }
    lend(monkeypatch, "rates", studies)
    folder = tmp_path / "results" / "rates"
    code, out, err = call("paper", "run", "rates", "--size", "tiny", "--into", folder, "-e", "workers=1")
    assert code == 2
    assert "1 of 2 runs failed" in err
    assert "both.json.gz" in out
    assert "last.json.gz" in out
    assert "none.json.gz" not in out  # there is nothing to keep
    report = (folder / "both.html").read_text()
    assert "Runs that failed" in report
    assert "1 failed" in report
    code, _, err = call("paper", "results", tmp_path / "results", "--page", tmp_path / "RESULTS.md")
    assert code == 0, err
    page = (tmp_path / "results" / "rates.md").read_text()
    assert "1 of 2 runs (1 failed), seed 0" in page
    assert "- runaway, seed 0: NonFiniteTrainingError: the loss became" in page
    assert "makes the others" not in page


@pytest.mark.usefixtures("without_workers")
def test_an_edit_says_why_runs_are_new_and_what_they_take_over(call: Call, spec: Path, tmp_path: Path) -> None:
    words = ["study", "run", spec, "--into", tmp_path / "s", "--no-report", "-e", "workers=1"]
    code, _, err = call(*words)
    assert code == 0, err
    spec.write_text(STUDY.replace("l2_norm", "l2_norm, gradient_norm"))
    for more in (["--dry-run"], []):
        code, _, err = call(*words, *more)
        assert code == 0, err
        assert "4 runs changed since the study last ran: measuring.splits.train.measures: gradient_norm added" in err
    assert "taken over from runs made before: 4 trainings and 16 estimates for 4 runs" in err
    code, out, err = call("study", "prune", tmp_path / "s", "--dry-run")
    assert code == 0, err
    assert "mlp on circles, seed 1" in out
    assert "nothing was removed" in out
    assert len(json.loads(call("study", "prune", tmp_path / "s", "--json")[1])) == 4
    assert "nothing to remove" in call("study", "prune", tmp_path / "s")[1]
    assert "4 done" in call("study", "status", tmp_path / "s")[1]


def test_a_store_that_others_may_use_is_not_pruned_by_mistake(call: Call, spec: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        study = Study.of(spec, tmp_path / "shared")
        study.save(tmp_path / name)
    study.store.add({"seed": 1})
    code, _, err = call("study", "prune", tmp_path / "a")
    assert code == 2
    assert "which other studies may use. Name all of those that do, and add --shared" in err
    code, out, err = call("study", "prune", tmp_path / "a", tmp_path / "b", "--shared", "--json")
    assert (code, len(json.loads(out))) == (0, 1), err


def test_a_module_beside_the_study_is_found_from_anywhere(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "beside_the_study", None)  # so that it is gone afterwards
    del sys.modules["beside_the_study"]
    (tmp_path / "there").mkdir()
    (tmp_path / "beside_the_study.py").write_text("from torch import nn\n\ndef build():\n    return nn.Linear(2, 2)\n")
    spec = tmp_path / "study.yaml"
    spec.write_text(STUDY.replace("{name: mlp, widths: [4]}", "beside_the_study:build"))
    monkeypatch.chdir(tmp_path / "there")
    code, _, err = call("study", "run", spec, "--only", "seed=0", "--no-report", "-e", "workers=1")
    assert code == 0, err
    assert "2 runs finished" in err
    spec.write_text(spec.read_text().replace("beside_the_study:build", "beside_the_study:biuld"))
    code, _, err = call("study", "run", spec, "--no-report")
    assert code == 2
    assert "beside_the_study has no function 'biuld'; did you mean beside_the_study:build?" in err


def test_the_other_command_is_named(call: Call, spec: Path, tmp_path: Path) -> None:
    (tmp_path / "first.yaml").write_text("{data: circles, model: mlp}")
    (tmp_path / "empty.yaml").write_text("# nothing yet\n")
    for words, message in {
        ("study", "run", tmp_path / "first.yaml"): f"describes one training; run it with: landscope train {tmp_path}",
        ("train", spec): f"describes a study; run it with: landscope study run {spec}",
        ("study", "run", tmp_path): "is a folder; expected the file of a study",
        ("study", "status", spec): "is a file; expected the folder of a study",
        ("report", spec): "is a file; expected the folder of a study",
        ("train", tmp_path / "empty.yaml"): "must be a mapping with the keys model, data, loss",
        ("study", "run", tmp_path / "empty.yaml"): "but is empty",
    }.items():
        code, _, err = call(*words)
        assert code == 2
        assert message in err

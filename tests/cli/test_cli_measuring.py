"""`landscope measure` and `landscope robustness`, from a checkpoint to their results."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from processes import start_together
from safetensors.torch import save_file
from typer.testing import CliRunner

import landscope
from landscope.cli import app
from landscope.data import CORRUPTIONS, corrupt, load
from landscope.data.loading import draw
from landscope.measures.reading.rows import value_text
from landscope.measures.robustness import Classifier, corruption_accuracy, strongest
from landscope.models import build
from landscope.studies.study import Study

Call = Callable[..., tuple[int, str, str]]
OWN_FILES = ["--data-option", "verify=false"]
NET = ["--model", "mlp", "-o", "in_features=64", "-o", "widths=[4]", "--data", "digits"]


def test_the_same_as_from_python(call: Call, digits_net: Path, tmp_path: Path) -> None:
    target = tmp_path / "report.json"
    words = ["--measures", "loss,accuracy,hessian_trace", "--split", "test", "--samples", 100, "--seed", 3]
    code, out, err = call("measure", digits_net, *NET, *words, "--json", "--output", target)
    assert code == 0, err
    assert "[3/3]" in err, "plain lines where there is no terminal"
    x, y = load("digits").test
    net = build("mlp", in_features=64, widths=(4,))
    rows, _ = draw(y, 100, 3, "measured test")  # as a study draws them
    truth = landscope.measure(net, (x[rows], y[rows]), ["loss", "accuracy", "hessian_trace"], seed=3)
    report = landscope.Report.from_json(out)
    assert {name: e.value for name, e in report.items()} == pytest.approx({name: e.value for name, e in truth.items()})
    assert landscope.Report.load(target) == report
    assert report.about["checkpoint"] == str(digits_net)
    assert (report.about["data"], report.about["split"]) == ("digits (computed)", "test")
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


@pytest.mark.slow
def test_a_process_group_is_gone_after_its_end(tmp_path: Path) -> None:
    script = tmp_path / "group.py"
    script.write_text(
        "import weakref, torch, torch.distributed as dist\n"
        "from landscope.cli.sources import process_group\n"
        "with process_group(torch.device('cpu')) as (_, rank, world):\n"
        "    import torch._dynamo  # as compiled products do\n"
        "    dist.all_reduce(torch.ones(1))\n"
        "    group = weakref.ref(dist.group.WORLD)\n"
        "assert world == 2 and group() is None\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    made = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert made.returncode == 0, made.stderr


def measured_as_by_torchrun(rank: int, words: list[str], folder: str) -> None:
    """What one of the processes that torchrun starts does."""
    place = {"MASTER_ADDR": "localhost", "MASTER_PORT": Path(folder, "port").read_text()}
    os.environ |= {**place, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    done = CliRunner().invoke(app, words)
    Path(folder, f"{rank}.txt").write_text(done.stdout if done.exit_code == 0 else done.output)


def test_processes_of_torchrun_share_the_rows(call: Call, digits_net: Path, tmp_path: Path) -> None:
    words = ["measure", str(digits_net), *NET, "--samples", "101", "--dtype", "float64", "--device", "cpu", "--json"]
    words += ["--measures", "loss,gradient_norm,hessian_top_eigenvalue"]
    group = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "landscope"]
    made = subprocess.run([sys.executable, *group, *words, "--shard"], capture_output=True, text=True, timeout=300)
    words[-1] += ",hessian_trace"
    assert made.returncode == 0, made.stderr
    with socket.socket() as free:
        free.bind(("localhost", 0))
        (tmp_path / "port").write_text(str(free.getsockname()[1]))
    start_together(measured_as_by_torchrun, (words, str(tmp_path)))
    assert (tmp_path / "1.txt").read_text() == ""  # one process prints, once
    code, out, err = call(*words)
    assert code == 0, err
    alone = landscope.Report.from_json(out)
    for printed, number in ((made.stdout, 3), ((tmp_path / "0.txt").read_text(), 4)):
        together = landscope.Report.from_json(printed)
        assert len(together) == number
        for name, estimate in together.items():
            assert estimate.value == pytest.approx(alone[name].value, rel=1e-6)
        assert together.about["samples"] == alone.about["samples"] == "101 samples"


def test_settings_options_and_a_table(call: Call, digits_net: Path, tmp_path: Path) -> None:
    settings = tmp_path / "chosen.yaml"
    settings.write_text("loss:\nl2_norm: {squared: true}\n")
    words = ["--settings", settings, "--dtype", "float64", "--temperature", 2, "--data-option", "label_noise=0.5"]
    code, out, err = call("measure", digits_net, *NET, *words, "--pixels", "standard", "--loss", "cross_entropy")
    assert code == 0, err
    data = load("digits", pixels="standard", label_noise=0.5).train
    net = build("mlp", in_features=64, widths=(4,)).double()
    truth = landscope.measure(net, (data.x.double(), data.y), "loss", temperature=2.0)["loss"]
    assert value_text(truth) in out
    norm = sum(float(p.detach().square().sum()) for p in net.parameters())
    assert f"{norm:.4g}" in out


def test_regression_is_measured_with_squares(call: Call, tmp_path: Path) -> None:
    net = build("mlp", in_features=10, widths=(4,), num_classes=1)
    save_file(net.state_dict(), tmp_path / "net.safetensors")
    words = ["--model", "mlp", "-o", "in_features=10", "-o", "widths=[4]", "-o", "num_classes=1", "--data", "abalone"]
    code, out, err = call("measure", tmp_path / "net.safetensors", *words, "--measures", "loss", "--json")
    assert code == 0, err
    x, y = load("abalone").train
    with torch.no_grad():
        assert json.loads(out)["estimates"]["loss"]["value"] == pytest.approx(float((net(x) - y).square().mean()))


OWN = """
from torch import nn

def build(width=3, declared=True):
    net = nn.Sequential(nn.Linear(64, width), nn.Tanh(), nn.Linear(width, 10))
    if declared:
        net.input_shape = (64,)
    return net
"""


def test_a_model_of_ones_own(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the present folder; weights nested, with the prefix of DataParallel; flattened as it declares, or refused."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_nets.py").write_text(OWN)
    net = torch.nn.Sequential(torch.nn.Linear(64, 5), torch.nn.Tanh(), torch.nn.Linear(5, 10))
    wrapped = {f"module.{name}": value for name, value in net.state_dict().items()}
    words = ["--model", "own_nets:build", "-o", "width=5", "--data", "digits", "--measures", "loss", "--json"]
    for key in ("state_dict", "model_state_dict", "model"):
        torch.save({key: wrapped, "epoch": 3}, tmp_path / "net.pt")
        code, out, err = call("measure", "net.pt", *words)
        assert code == 0, err
        assert "own_nets:build takes vectors: inputs 1×8×8 are flattened" in err
        x, y = load("digits").train
        truth = float(torch.nn.functional.cross_entropy(net(x.flatten(1)), y))
        assert json.loads(out)["estimates"]["loss"]["value"] == pytest.approx(truth)
    code, _, err = call("measure", "net.pt", *words, "-o", "declared=false")
    assert code == 2
    assert "own_nets:build does not take the samples of digits, 1×8×8 of float32" in err


def test_a_training_of_a_model_of_ones_own_opens_from_anywhere(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    for folder in (project, elsewhere):
        folder.mkdir()
    (project / "nets_of_a_project.py").write_text(OWN)
    model = "{name: nets_of_a_project:build, width: 4}"
    (project / "own.yaml").write_text(f"data: {{name: digits, train_size: 100}}\nmodel: {model}\nepochs: 1\n")
    monkeypatch.setattr("landscope.specs.names._also", [])
    monkeypatch.setattr("sys.path", sys.path[:])
    assert call("train", str(project / "own.yaml"), "--into", str(project / "runs" / "first"))[0] == 0
    monkeypatch.setattr("landscope.specs.names._also", [])
    monkeypatch.setattr("sys.path", [path for path in sys.path if path != str(project)])
    monkeypatch.delitem(sys.modules, "nets_of_a_project")
    monkeypatch.chdir(elsewhere)
    code, out, err = call("measure", "../project/runs/first", "--measures", "l2_norm")
    assert code == 0, err
    assert "l2_norm" in out


@pytest.mark.parametrize("pixels", ["unit", "standard", "symmetric"])
def test_robustness_is_that_of_the_library(pixels: str, call: Call, sample_mnist: Path, tmp_path: Path) -> None:
    net = build("softmax_regression")
    save_file(net.state_dict(), tmp_path / "net.safetensors")
    words = ["--model", "softmax_regression", "--data", "mnist", "--root", sample_mnist, *OWN_FILES, "--pixels", pixels]
    chosen = ["--corruptions", "gaussian_noise,brightness", "--severities", "1,5", "--batch-size", 7, "--seed", 2]
    target = tmp_path / "table.csv"
    code, out, err = call("robustness", tmp_path / "net.safetensors", *words, *chosen, "--json", "--output", target)
    assert code == 0, err
    raw = load("mnist", root=sample_mnist, verify=False, pixels="raw", validation=0)
    clean = load("mnist", root=sample_mnist, verify=False, pixels=pixels, validation=0).test
    assert json.loads(out)["clean"] == pytest.approx(float((net(clean.x).argmax(1) == clean.y).double().mean()))
    mean, std = raw.card.mean[0], raw.card.std[0]
    scale = {"unit": lambda u: u, "symmetric": lambda u: 2 * u - 1, "standard": lambda u: (u - mean) / std}[pixels]
    truth = corruption_accuracy(
        net, *raw.test, corrupt, ["gaussian_noise", "brightness"], [1, 5], seed=2, prepare=lambda x: scale(x / 255)
    )
    found = json.loads(out)
    assert [found["accuracy"]["brightness"][s] for s in "15"] == truth.accuracy[1].tolist()
    assert found["mean"] == pytest.approx(float(truth.accuracy.mean()))
    assert found["samples"] == len(raw.test.y)
    written = pd.read_csv(target)
    assert written[written.severity > 0].accuracy.tolist() == pytest.approx(truth.accuracy.reshape(-1).tolist())


def test_all_nineteen_in_one_command(call: Call, sample_mnist: Path, tmp_path: Path) -> None:
    torch.save(build("softmax_regression").state_dict(), tmp_path / "net.pt")
    words = ["--model", "softmax_regression", "--data", "mnist", "--root", sample_mnist, *OWN_FILES, "--severities", 1]
    code, out, err = call("robustness", tmp_path / "net.pt", *words, "--samples", 3)
    assert code == 0, err
    rows = [line.split() for line in out.splitlines()]
    assert {row[0] for row in rows if row} >= {*CORRUPTIONS, "mean", "clean"}
    scores = [float(row[2]) for row in rows if row and row[0] in CORRUPTIONS]
    mean = next(float(row[2]) for row in rows if row and row[0] == "mean")
    assert mean == pytest.approx(np.mean(scores), abs=0.06)


@pytest.mark.parametrize("option", ["--seconds", "--passes"])
@pytest.mark.parametrize("limit", ["-1", "0", "nan", "-inf"])
def test_a_budget_that_means_nothing_is_refused_before_anything_is_read(call: Call, option: str, limit: str) -> None:
    code, out, err = call("measure", "no-such-file.pt", *NET, f"{option}={limit}")
    assert (code, out) == (2, "")
    assert f"{option} must be a positive number, got {float(limit)!r}" in err


@pytest.mark.parametrize("limit", ["-1", "0", "nan", "abc"])
def test_a_study_of_checkpoints_refuses_such_a_budget_too(
    call: Call, digits_net: Path, tmp_path: Path, limit: str
) -> None:
    code, _, err = call("study", "measure", digits_net, *NET, f"--seconds={limit}", "--into", tmp_path / "study")
    assert code == 2
    assert "seconds" in err
    assert not (tmp_path / "study").exists()


def test_attacks_are_those_of_the_library(call: Call, sample_mnist: Path, tmp_path: Path) -> None:
    net = build("softmax_regression")
    save_file(net.state_dict(), tmp_path / "net.safetensors")
    words = ["--model", "softmax_regression", "--data", "mnist", "--root", sample_mnist, *OWN_FILES]
    asked = ["--pixels", "symmetric", "--eps", 0.02, "--output", tmp_path / "table.csv"]
    code, out, err = call("robustness", tmp_path / "net.safetensors", *words, *asked, "--json")
    assert code == 0, err
    raw = load("mnist", root=sample_mnist, verify=False, pixels="unit", validation=0).test
    twice = Classifier(net, torch.device("cpu"), torch.float32, prepare=lambda x: (2 * x - 1).flatten(1))
    truth = strongest(twice, raw.x, raw.y, 0.02)
    found = json.loads(out)["accuracy_at_most"]
    assert {name: found[name] for name in truth.after} == truth.after
    assert found["all"] <= min(found.values())
    assert pd.read_csv(tmp_path / "table.csv").accuracy.tolist() == pytest.approx(list(found.values()))
    code, out, _ = call("robustness", tmp_path / "net.safetensors", *words, *asked)
    assert code == 0
    assert "at most" in out


def test_compare_is_that_of_the_library(call: Call, tmp_path: Path) -> None:
    nets = {}
    for seed, name in enumerate(["before", "after"]):
        torch.manual_seed(seed)
        nets[name] = build("mlp", in_features=64, widths=(4,))
        save_file(nets[name].state_dict(), tmp_path / f"{name}.safetensors")
    files = [tmp_path / "before.safetensors", tmp_path / "after.safetensors"]
    words = [*NET, "--samples", 100, "--measures", "loss,l2_norm"]
    asked = ["--output", tmp_path / "c.json", "--figure", tmp_path / "c.png"]
    code, out, err = call("compare", *files, *words, *asked, "--json")
    assert code == 0, err
    data = load("digits").train
    truth = landscope.compare(nets, (data.x[:100].flatten(1), data.y[:100]), ["loss", "l2_norm"])
    found = json.loads(out)
    assert [d["difference"] for d in found["differences"]] == pytest.approx([d.value for d in truth])
    assert json.loads((tmp_path / "c.json").read_text()) == found
    assert (tmp_path / "c.png").stat().st_size > 1000
    code, out, _ = call("compare", *files, *words)
    assert code == 0
    assert "verdict" in out
    assert call("compare", files[0], *words)[0] == 2
    assert call("compare", files[0], files[0], *words)[0] == 2
    assert call("compare", *files, *words, "--figure", tmp_path / "c.doc")[0] == 2


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a training whose data differs from the defaults in scale, size, splits and labels."""
    folder = tmp_path_factory.mktemp("runs") / "first"
    data = {"name": "digits", "pixels": "standard", "train_size": 200, "label_noise": 0.1, "seed": 3}
    spec = {"data": data, "model": {"name": "mlp", "widths": [8]}, "epochs": 5, "early_stopping": {}, "snapshots": [3]}
    landscope.train(spec, folder=folder, progress=False)
    return folder


def scores(folder: Path, weights: str = "final") -> dict[str, float]:
    return json.loads((folder / "history.json").read_text())["scores"][weights]


@pytest.mark.parametrize("split", ["train", "validation", "test"])
@pytest.mark.parametrize("weights", ["final", "best"])
def test_the_folder_of_a_training_is_enough(call: Call, trained: Path, split: str, weights: str) -> None:
    what = trained if weights == "final" else trained / "best.safetensors"
    code, out, err = call("measure", what, "--split", split, "--measures", "loss,error", "--json")
    assert code == 0, err
    assert "mlp on digits, pixels=standard, train_size=200, label_noise=0.1, seed=3 (from " in err
    assert "warning" not in err
    found = landscope.Report.from_json(out)
    assert found["error"].value == pytest.approx(scores(trained, weights)[f"{split}_error"])
    assert found["loss"].value == pytest.approx(scores(trained, weights)[f"{split}_loss"])
    assert found.about["pixels"] == "standard"


def test_what_differs_from_the_training_is_warned_of(call: Call, trained: Path) -> None:
    for words, message in {
        ("--pixels", "unit"): "pixels=unit, but the network was trained with pixels=standard",
        ("--data-option", "seed=1"): "seed=1, but the network was trained with seed=3: splits may hold other rows",
        ("--data-option", "train_size=300"): "train_size=300, but the network was trained with train_size=200",
        ("--data-option", "validation=10"): "validation=10, but the network was trained with validation=null",
        ("--pixels", "standard"): "",
        ("--data-option", "random_labels=false"): "",
    }.items():
        code, out, err = call("measure", trained, *words, "--measures", "loss", "--json")
        assert code == 0, err
        assert message in err
        notices = landscope.Report.from_json(out).about.get("notices", [])
        assert [notice for notice in notices if message in notice] == (notices if message else [])  # type: ignore[union-attr]
        assert ("warning" in err) == bool(message)


def test_weights_beside_which_there_is_no_training(call: Call, trained: Path, tmp_path: Path) -> None:
    (tmp_path / "net.safetensors").write_bytes((trained / "final.safetensors").read_bytes())
    for content in (None, "[]", '{"model": 3}', "{"):
        if content is not None:
            (tmp_path / "spec.json").write_text(content)
        code, _, err = call("measure", tmp_path / "net.safetensors")
        assert code == 2
        assert "give --model and --data; no spec.json of a training lies beside it" in err
    code, _, err = call("measure", tmp_path)
    assert "the training there is not finished" in err
    (tmp_path / "spec.json").unlink()
    assert "expected weights, or the folder of a training" in call("measure", tmp_path)[2]
    assert "no such file" in call("measure", tmp_path / "none")[2]


def test_a_model_that_was_given_in_python_must_be_named(call: Call, tmp_path: Path) -> None:
    landscope.train(
        {"data": "circles", "epochs": 1}, model=build("mlp", in_features=2), folder=tmp_path, progress=False
    )
    code, _, err = call("measure", tmp_path)
    assert code == 2
    assert "give --model; the training in" in err
    code, _, err = call("measure", tmp_path, "--model", "mlp", "-o", "num_classes=10", "--measures", "loss", "--json")
    assert code == 0, err
    assert "warning" not in err


@pytest.mark.usefixtures("without_workers")
def test_the_rows_are_those_of_a_study(call: Call, trained: Path, tmp_path: Path) -> None:
    words = ["--measures", "loss,hessian_trace", "--samples", 50]
    code, out, err = call("measure", trained, *words, "--json")
    assert code == 0, err
    code, _, err = call("study", "measure", trained, *words, "--into", tmp_path, "-e", "workers=1", "--name", "s")
    assert code == 0, err
    found = landscope.Report.from_json(out)
    row = Study.open(tmp_path).table().iloc[0]
    for name in found:
        assert found[name].value == row[f"train.{name}"]


def test_networks_that_are_not_alike_are_not_one_study(call: Call, trained: Path, tmp_path: Path) -> None:
    landscope.train({"data": "digits", "model": {"name": "mlp", "widths": [8]}, "epochs": 1}, folder=tmp_path / "b")
    code, _, err = call("study", "measure", trained, tmp_path / "b", "--into", tmp_path / "s")
    assert code == 2
    assert "are not of one network on the same data" in err
    code, _, err = call("compare", trained, trained / "best.safetensors", "--measures", "loss", "--json")
    assert code == 0, err

"""Every mistake gets one line with the remedy and a documented exit code; tracebacks come on demand only."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from landscope import Report, Status
from landscope.models import build

Call = Callable[..., tuple[int, str, str]]
SOURCE = Path(__file__).parent.parent.parent / "src"
NET = ["--model", "mlp", "-o", "in_features=64", "-o", "widths=[4]"]
DIGITS = [*NET, "--data", "digits"]

MISTAKES = {
    "no such command": (["mesure"], 2, "Did you mean 'measure'"),
    "no model": (["measure", "NET", "--data", "digits"], 2, "give --model; no spec.json of a training lies beside"),
    "model": (["measure", "NET", "--model", "mlpp", "--data", "digits"], 2, "did you mean 'mlp'?"),
    "data": (["measure", "NET", *NET, "--data", "digit"], 2, "did you mean 'digits'?"),
    "measure": (["measure", "NET", *DIGITS, "--measures", "los"], 2, "did you mean 'loss'?"),
    "loss": (["measure", "NET", *DIGITS, "--loss", "cross"], 2, "did you mean 'cross_entropy'?"),
    "device": (["measure", "NET", *DIGITS, "--device", "quantum"], 2, "See: landscope doctor"),
    "split": (["measure", "NET", *DIGITS, "--split", "tset"], 2, "'train', 'validation', 'test'"),
    "samples": (["measure", "NET", *DIGITS, "--samples", "0"], 2, "--samples"),
    "option": (["measure", "NET", *DIGITS, "-o", "in_feature=3"], 2, "did you mean 'in_features'?"),
    "option's value": (["measure", "NET", *DIGITS, "-o", "bias=3"], 2, "must be true or false, but is 3"),
    "no value": (["measure", "NET", *DIGITS, "-o", "bias"], 2, "expected key=value"),
    "data option": (["measure", "NET", *DIGITS, "--data-option", "noise=3"], 2, "unknown option of digits"),
    "its value": (
        ["measure", "NET", *DIGITS, "--data-option", "label_noise=x"],
        2,
        "cannot be loaded with the options",
    ),
    "clash": (["measure", "NET", *DIGITS, "--data-option", "pixels=raw"], 2, "write --pixels instead"),
    "other data": (
        ["measure", "NET", *NET, "--data", "circles"],
        2,
        "does not fit the model: other shapes: fc.bias (10 in the",
    ),
    "a graph": (["robustness", "NET", *NET, "--data", "cora"], 2, "cora holds no images"),
    "module": (["measure", "NET", "--model", "no_such:net", "--data", "digits"], 2, "No module named 'no_such'"),
    "function": (["measure", "NET", "--model", "torch:net", "--data", "digits"], 2, "torch has no function 'net'"),
    "no module": (
        ["measure", "NET", "--model", "torch:get_num_threads", "--data", "digits"],
        2,
        "expected an nn.Module",
    ),
    "folder": (["measure", "NET", *DIGITS, "--output", "no/such/folder.json"], 2, "its folder is not there"),
    "missing data": (["measure", "NET", *NET, "--data", "svhn", "--root", "."], 3, "Run `landscope data get svhn`"),
    "corruption": (["robustness", "NET", *DIGITS, "--corruptions", "fogg"], 2, "did you mean 'fog'?"),
    "severity": (["robustness", "NET", *DIGITS, "--severities", "0"], 2, "from 1 to 5"),
    "small images": (["robustness", "NET", *DIGITS], 2, "at least 28"),
    "no images": (["robustness", "NET", *NET, "--data", "abalone"], 2, "holds no images with classes"),
}


@pytest.mark.parametrize(("words", "code", "remedy"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes(words: list[str], code: int, remedy: str, call: Call, digits_net: Path) -> None:
    found, out, err = call(*(digits_net if word == "NET" else word for word in words))
    assert (found, out) == (code, "")
    assert remedy in err
    assert "Traceback" not in err
    assert [line for line in err.splitlines() if line.startswith("landscope: error: ")] == err.splitlines()[-1:]


def test_checkpoints_that_do_not_fit(call: Call, tmp_path: Path) -> None:
    weights = build("mlp", in_features=64, widths=(4,)).state_dict()
    weights["extra"] = torch.zeros(1)
    del weights["fc.bias"]
    save_file(weights, tmp_path / "net.safetensors")
    code, _, err = call("measure", tmp_path / "net.safetensors", *DIGITS, "-o", "in_features=32")
    assert code == 2
    assert "missing: fc.bias; unexpected: extra; other shapes: hidden.0.weight (4×64 in the checkpoint, 4×32" in err
    assert "landscope models mlp" in err


def test_files_that_are_no_checkpoint(call: Call, tmp_path: Path) -> None:
    whole = build("mlp", in_features=64, widths=(4,))
    torch.save(whole, tmp_path / "whole.pt")
    torch.save({"epoch": 3}, tmp_path / "nothing.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    torch.save({}, tmp_path / "empty.pt")
    (tmp_path / "text.pt").write_text("hello, these are no weights")
    (tmp_path / "short.pt").write_bytes(b"")
    (tmp_path / "cut.pt").write_bytes((tmp_path / "whole.pt").read_bytes()[:1500])
    save_file(whole.state_dict(), tmp_path / "whole.safetensors")
    (tmp_path / "cut.safetensors").write_bytes((tmp_path / "whole.safetensors").read_bytes()[:100])
    for name, reason in {
        "none.pt": "no such file",
        "whole.pt": "that is code, which is not run. Save model.state_dict()",
        "nothing.pt": "epoch are not tensors",
        "list.pt": "expected a state dict, found a list",
        "empty.pt": "expected a state dict, found nothing",
        "text.pt": "neither a safetensors file nor one that torch.save wrote",
        "short.pt": "neither a safetensors file nor one that torch.save wrote",
        "cut.pt": "neither a safetensors file nor one that torch.save wrote",
        "cut.safetensors": "is damaged or not a safetensors file",
    }.items():
        code, out, err = call("measure", tmp_path / name, *DIGITS)
        assert (code, out) == (2, ""), name
        assert err.count("\n") == 1
        assert str(tmp_path / name) in err
        assert reason in err


def test_settings_files(call: Call, digits_net: Path, tmp_path: Path) -> None:
    file = tmp_path / "chosen.yaml"
    for content, reason in {
        "loss: [1": "the bracket that opens here is not closed",
        "3": "expected measures with settings",
        "loss: 3": "must be written {key: value}",
        "hessian_trace: {tool: 1}": "did you mean 'tol'?",
        "los:": "did you mean 'loss'?",
    }.items():
        file.write_text(content)
        code, _, err = call("measure", digits_net, *DIGITS, "--settings", file)
        assert code == 2
        assert reason in err
        assert err.count("\n") == 1
    assert "No such file" in call("measure", digits_net, *DIGITS, "--settings", tmp_path / "none.yaml")[2]
    assert (
        "give --measures or --settings, not both"
        in call("measure", digits_net, *DIGITS, "--settings", file, "--measures", "loss")[2]
    )


@pytest.mark.parametrize("words", [["--debug", "models", "vgg20"], ["models", "vgg20", "--debug"]])
def test_debug_shows_the_traceback_wherever_it_stands(words: list[str], call: Call) -> None:
    code, _, err = call(*words)
    assert code == 2
    assert err.startswith("Traceback (most recent call last)")
    assert "did you mean 'vgg19'?" in err.splitlines()[-1]


def test_what_was_not_foreseen(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ZeroDivisionError("a\nlong\nstory")

    monkeypatch.setattr("landscope.cli.doctor.examine", broken)
    code, _, err = call("doctor")
    assert code == 1
    assert err == "landscope: error: ZeroDivisionError: a; long; story (unexpected; --debug shows where)\n"


def test_interrupted(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("landscope.cli.doctor.examine", interrupted)
    code, out, err = call("doctor")
    assert (code, out) == (130, "")
    assert err == "landscope: stopped\n"


@pytest.mark.skipif(os.name == "nt", reason="POSIX pipes")
def test_a_reader_that_has_seen_enough() -> None:
    command = [sys.executable, "-m", "landscope", "models"]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, env=environment)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


def test_an_unknown_name_in_a_training_is_told_with_its_line(call: Call, tmp_path: Path) -> None:
    spec = tmp_path / "first.yaml"
    spec.write_text("data: digts\nmodel: mlp\n")
    assert f"{spec}:1: data: unknown data 'digts'; did you mean 'digits'?" in call("train", spec)[2]
    spec.write_text("data: digits\nmodel: mpl\n")
    assert f"{spec}:2: model: unknown model 'mpl'; did you mean 'mlp'?" in call("train", spec)[2]
    spec.write_text("name: a\ntraining:\n  data: digts\n  model: mlp\n")
    assert f"{spec}:3: unknown data set 'digts'; did you mean 'digits'?" in call("study", "run", spec, "--dry-run")[2]


def test_nothing_to_measure(call: Call) -> None:
    code, _, err = call("measure")
    assert (code, "nothing to measure; name a file of weights" in err) == (2, True)


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_ctrl_c_in_the_middle_of_a_measurement(digits_net: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "landscope", "measure", str(digits_net), *DIGITS, "--output", "report.json"]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment, cwd=tmp_path) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("[1/"), "the first measure is done"
        process.send_signal(signal.SIGINT)
        err = process.stderr.read()
    assert process.returncode == 130
    assert "Traceback" not in err
    report = Report.load(tmp_path / "report.json")  # what there was by then
    assert any(found.status.has_value for found in report.values())
    assert any(found.status in (Status.INTERRUPTED, Status.SKIPPED) for found in report.values())


def test_code_that_ends_the_process_is_told(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "ends_on_import.py").write_text("import sys\nsys.exit(0)\n")
    (tmp_path / "ends_later.py").write_text(
        "import sys, torch\n"
        "class Net(torch.nn.Linear):\n"
        "    def __init__(self): super().__init__(2, 2)\n"
        "    def forward(self, x): sys.exit()\n"
    )
    (tmp_path / "a.yaml").write_text("{data: circles, model: ends_on_import:build, epochs: 1}")
    (tmp_path / "b.yaml").write_text("{data: circles, model: ends_later:Net, epochs: 1}")
    (tmp_path / "s.yaml").write_text("{name: s, training: {data: circles, model: ends_on_import:build, epochs: 1}}")
    for words in (["train", "a.yaml"], ["study", "run", "s.yaml"]):
        code, _, err = call(*words)
        assert code == 2
        assert "ends_on_import:build: importing ends_on_import ended the process" in err
    code, _, err = call("train", "b.yaml")
    assert code == 1
    assert "ended the process (sys.exit(None))" in err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hessian_trace: {tol: -1}", "hessian_trace: tol must be positive, got -1"),
        ("hessian_trace: {tol: .nan}", "hessian_trace: tol must be a number, but is nan"),
        ("hessian_top_eigenvalue: {k: 2.5}", "k must be an integer, but is 2.5"),
        ("loss:\nloss:", "chosen.yaml:2: the key 'loss' is given twice"),
        ("a: &a [x, x]\nb: [*a, *a", "chosen.yaml:"),
        ("loss: !!timestamp foo", "chosen.yaml:1: 'foo' is not of the type !!timestamp"),
        ("loss: !!bool foo", "chosen.yaml:1: 'foo' is not of the type !!bool"),
        ("loss: !!int foo", "chosen.yaml:1: "),
        ("[" * 200, "levels deep"),
        ("loss: {seed: {}", "chosen.yaml:"),
        ("3", "expected measures with settings"),
        ("loss: 3", "the settings of loss must be written {key: value}, not 3"),
    ],
)
def test_settings_files_that_are_wrong(call: Call, digits_net: Path, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "chosen.yaml").write_text(text)
    code, _, err = call("measure", digits_net, *DIGITS, "--settings", tmp_path / "chosen.yaml")
    assert code == 2, err
    assert message in err
    assert "Traceback" not in err


@pytest.mark.parametrize("name", ["chosen.yaml", "chosen.txt", "chosen.json", "chosen"])
def test_settings_files_are_read_like_specs(call: Call, digits_net: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text('{"loss": null, "hessian_trace": {"tol": 1e-1, "max_matvecs": 5}}')
    words = ["--settings", tmp_path / name, "--samples", 20, "--json"]
    code, out, err = call("measure", digits_net, *DIGITS, *words)
    assert code == 0, err
    assert '"tol": 0.1' in out


@pytest.mark.parametrize("names", ["", ",", " , "])
def test_no_measures_at_all(call: Call, digits_net: Path, names: str) -> None:
    for words in (["measure"], ["study", "measure"]):
        code, _, err = call(*words, digits_net, *DIGITS, "--measures", names)
        assert code == 2
        assert "--measures: expected names such as loss,accuracy" in err


@pytest.mark.parametrize("limit", ["nan", "-1", "-inf"])
def test_time_limits_that_are_none(call: Call, tmp_path: Path, limit: str) -> None:
    (tmp_path / "t.yaml").write_text("{data: circles, model: mlp, epochs: 1}")
    (tmp_path / "s.yaml").write_text("{name: s, training: {data: circles, model: mlp, epochs: 1}}")
    for words in (["train", "t.yaml"], ["study", "run", "s.yaml"]):
        command, file = words[:-1], tmp_path / words[-1]
        code, _, err = call(*command, file, "--into", tmp_path / "into", f"--time-limit={limit}")
        assert code == 2, err
        assert "--time-limit" in err
    code, _, err = call("train", tmp_path / "t.yaml", "--into", tmp_path / "into", f"--checkpoint-every={limit}")
    assert code == 2
    assert "--checkpoint-every must be a number of seconds, 0 or more" in err


def test_what_was_measured_is_shown_even_if_the_disk_is_full(
    call: Call, digits_net: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Report, path: Path) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Report, "save", full)
    code, out, err = call("measure", digits_net, *DIGITS, "--measures", "loss", "--output", tmp_path / "report.json")
    assert code == 2
    assert "± data" in out
    assert err.splitlines()[-1].endswith("No space left on device. Free some space, and run the command again")

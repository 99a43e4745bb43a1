"""The commands that only look: data, models, measures, doctor, and the help."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from landscope import MEASURES, __version__
from landscope.cli import output
from landscope.cli.doctor import requirements
from landscope.cli.failures import EXIT_CODES
from landscope.data import DATASETS
from landscope.models import MODELS

ROOT = Path(__file__).parent.parent.parent
Call = Callable[..., tuple[int, str, str]]
COMMANDS = ["models", "measures", "measure", "robustness", "doctor", "bench", "data list", "data get"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_teaches(command: str, call: Call) -> None:
    code, out, _ = call(*command.split(), "--help")
    assert code == 0
    assert f"landscope {command}" in out.partition("Examples:")[2]
    assert "--json" in out


@pytest.mark.parametrize("words", [[], ["data"], ["-h"]])
def test_help_without_a_command(words: list[str], call: Call) -> None:
    code, out, err = call(*words)
    assert (code, err) == (0, "")
    assert "Usage: landscope" in out


def test_exit_codes_are_documented(call: Call) -> None:
    _, out, _ = call("--help")
    for code, meaning in EXIT_CODES.items():
        assert re.search(rf"{code} +{re.escape(meaning)}", out)
    assert call("--version")[1] == f"landscope {__version__}\n"


@pytest.mark.parametrize("words", ["measures", "models", "data list"])
def test_names_are_whole_on_a_terminal_of_80_columns(words: str, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_PLAIN_WIDTH", 80)
    _, out, _ = call(*words.split())
    names = {"measures": MEASURES, "models": MODELS, "data list": DATASETS}[words]
    assert {line.split()[0] for line in out.splitlines() if line.strip()} >= set(names)
    assert max(map(len, out.splitlines())) <= 80


def test_models(call: Call) -> None:
    listed = json.loads(call("models", "--json")[1])
    assert [entry["name"] for entry in listed] == list(MODELS)
    one = json.loads(call("models", "lenet5", "--json")[1])
    assert one["options"]["num_classes"] == {"default": 10, "accepts": "an integer ≥ 1"}
    assert one["counts"][0]["parameters"] == one["parameters"] == MODELS["lenet5"].parameters
    _, out, _ = call("models", "lenet5")
    assert "61,706" in out
    _, out, _ = call("models")
    assert "landscope[graphs]" in out, "brackets are no markup"


def test_measures(call: Call) -> None:
    listed = json.loads(call("measures", "--json")[1])
    assert [entry["name"] for entry in listed] == list(MEASURES)
    one = json.loads(call("measures", "hessian_trace", "--json")[1])
    assert set(one["invariant_to"]) == MEASURES["hessian_trace"].invariant_to
    assert "tol" in one["settings"]
    assert "max_probes" in call("measures", "relative_flatness")[1]
    assert "hessian_trace" in call("measures")[1]


def test_data_list(call: Call, tmp_path: Path) -> None:
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "train-labels-idx1-ubyte").write_bytes(b"not an idx file")
    code, out, _ = call("data", "list", "--root", tmp_path, "--json")
    assert code == 0
    found = {entry["name"]: entry for entry in json.loads(out)}
    assert sorted(found) == list(DATASETS)
    assert found["abalone"]["state"] == "present", "shipped"
    assert found["abalone"]["bytes"] > 10_000
    assert (found["cifar10"]["state"], found["cifar10"]["what_to_do"]) == ("missing", "landscope data get cifar10")
    assert (found["mnist"]["state"], found["mnist"]["bytes"]) == ("damaged", 15)
    code, out, err = call("data", "list", "--root", tmp_path)
    assert code == 0
    assert re.search(r"mnist +damaged", out)
    assert "train-images-idx3-ubyte: missing" in err


def test_data_get(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(*_: object, **__: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr("urllib.request.urlopen", no_network)
    assert call("data", "get", "circles")[:2] == (0, "circles needs no files\n")
    code, out, _ = call("data", "get", "abalone", "--json")
    assert (code, json.loads(out)["state"]) == (0, "present")
    code, out, err = call("data", "get", "svhn", "--root", tmp_path)
    assert (code, out) == (3, "")
    assert re.fullmatch(r"landscope: error: .*train_32x32.mat.*md5:.*no route to host\n", err)
    code, _, err = call("data", "get", "cifar10", "--version", "zip", "--root", tmp_path)
    assert code == 2
    assert "Choices: binary, python" in err


def test_doctor_in_a_process_of_its_own() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "landscope", "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["python"] == sys.version.split()[0]
    assert found["packages"]["torch"]
    assert set(found["data"]) == set(DATASETS)
    assert all(found["install"][extra] == f"pip install 'landscope[{extra}]'" for extra in found["install"])


def test_doctor_as_a_table(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    code, out, _ = call("doctor")
    assert code == 0
    assert re.search(r"torch.compile +cannot work +no C\+\+ compiler 'no-such-compiler'", out)


def test_doctor_knows_every_extra() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {
        extra: tuple(re.split(r"[<>=]", name)[0] for name in names)
        for extra, names in {"": declared["dependencies"], **declared["optional-dependencies"]}.items()
    }
    assert requirements() == wanted

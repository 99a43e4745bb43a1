"""The peers' packages: in a virtual environment of their own, or from wheels in a folder where nothing can be installed.

torch is installed first and by itself, in the version that runs here: another package's open-ended wish for it would pull the
newest build for another device. The peers follow without their dependencies, of which `NEEDED` has those that they import;
so torchvision, which BackPACK asks for, is never installed.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

PEERS = {
    "curvlinops": ("curvlinops", "curvlinops-for-pytorch==3.0.1"),
    "pyhessian": ("pyhessian", "pyhessian==0.1"),
    "hessian-eigenthings": ("hessian_eigenthings", "hessian-eigenthings==1.0.0a5"),
    "loss-landscapes": ("loss_landscapes", "loss-landscapes==3.0.6"),
    "pytorch_optimizer": ("pytorch_optimizer", "pytorch_optimizer==4.1.0"),
    "torchmetrics": ("torchmetrics", "torchmetrics==1.9.0"),
}
"""Module and requirement of each."""

NEEDED = (
    "einops==0.8.2",
    "einconv==0.1.0",
    "linear_operator==0.6.1",
    "opt-einsum==3.4.0",
    "tqdm==4.70.1",
    "lightning-utilities==0.15.3",
)
"""What the peers import besides torch, NumPy, SciPy and packaging."""

LEFT_OUT = "BackPACK and with it torchvision, which curvlinops asks for and imports in `curvlinops.experimental` alone"

Say = Callable[[str], None]


@dataclass(frozen=True)
class Environment:
    """How to start a peer's process, and which peers are not there."""

    python: str
    path: tuple[str, ...] = ()
    """Folders that are searched for modules."""
    missing: dict[str, str] = field(default_factory=dict)
    """Why, by peer."""


def prepare(wanted: Sequence[str], folder: Path, root: Path, wheels: Path | None, say: Say) -> Environment:
    """An environment with the wanted peers; what cannot be installed is missing in it, with the reason."""
    if not wanted:
        return Environment(sys.executable)
    return _unpacked(wanted, folder, wheels) if wheels else _installed(wanted, folder, root, say)


def _unpacked(wanted: Sequence[str], folder: Path, wheels: Path) -> Environment:
    """Packages of a folder that holds wheels, unpacked wheels, or both; run by the interpreter that runs here."""
    places = [wheels, *(place for place in sorted(wheels.glob("*")) if place.is_dir())]
    for wheel in sorted(wheels.glob("*.whl")):
        place = folder / "wheels" / wheel.stem
        if not place.exists():
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(place)
        places.append(place)
    modules = {name: PEERS[name][0] for name in wanted}
    missing = {
        name: f"{module} is not in {wheels}"
        for name, module in modules.items()
        if not any((place / module).is_dir() for place in places)
    }
    return Environment(sys.executable, tuple(str(place) for place in places), missing)


def _installed(wanted: Sequence[str], folder: Path, root: Path, say: Say) -> Environment:
    """A virtual environment, made where it is missing; a second run finds what the first installed."""
    import torch

    place, missing = folder / "peers", {}
    python = str(place / "bin" / "python")
    exact = torch.__version__.partition("+")[0]
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pip += ["--constraint", str(_constraints(folder, root, f"torch=={exact}"))]
    common = ("torch", "numpy", "scipy", "packaging")
    try:
        if not Path(python).exists():
            say(f"making an environment for the peers in {place}")
            _call([sys.executable, "-m", "venv", str(place)])
        _once(place, [*common, exact], [*pip, *common], say)
        _once(place, NEEDED, [*pip, "--no-deps", *NEEDED], say)
    except RuntimeError as error:
        return Environment(python, (), dict.fromkeys(wanted, str(error)))
    for name in wanted:
        try:
            _once(place, [PEERS[name][1]], [*pip, "--no-deps", PEERS[name][1]], say)
        except RuntimeError as error:
            missing[name] = str(error)
    return Environment(python, (), missing)


def _constraints(folder: Path, root: Path, torch: str) -> Path:
    """The repository's exact versions, with the torch that runs here: on a machine with a GPU it may be another one."""
    lines = [line for line in (root / "constraints.txt").read_text().splitlines() if not line.startswith("torch==")]
    path = folder / "constraints.txt"
    path.write_text("\n".join([*lines, torch]) + "\n")
    return path


def _once(place: Path, what: Sequence[str], command: list[str], say: Say) -> None:
    """Install, unless it was."""
    mark = place / f"installed-{hashlib.sha256(' '.join(what).encode()).hexdigest()[:12]}"
    if not mark.exists():
        say(f"installing {', '.join(what)}")
        _call(command)
        mark.touch()


def _call(command: list[str]) -> None:
    """Run; the last line of what it says is the error."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        raise RuntimeError(f"could not be installed: {lines[-1] if lines else 'no message'}")

"""`landscope doctor`: what this machine has, what is missing, and the command that adds it."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires, version

from landscope.cli.options import Json
from landscope.cli.output import console, print_json, table
from landscope.core.text import counted, examples, size

EXAMPLES = examples("landscope doctor", "landscope doctor --json > machine.json   # to attach to a question")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What was found; `asdict` gives what `--json` prints."""

    landscope: str
    python: str
    platform: str
    torch: str
    device: str
    gpus: dict[str, int]
    """Bytes of each, by name."""
    cpus: int
    threads: int
    memory_available: int
    compiles: bool
    compiler: str
    """Which one, or what is missing."""
    packages: dict[str, str | None]
    extras: dict[str, dict[str, str | None]]
    """Versions of the packages of each."""
    data_folders: list[str]
    data: dict[str, str]
    """State of each set; checksums are not compared."""


def doctor(as_json: Json = False) -> None:
    """Show what this machine has and lacks.

    Versions, devices, memory, optional packages and data sets, and the command that adds what is missing.
    """
    found = examine()
    if as_json:
        install = {extra: _install(extra) for extra, packages in found.extras.items() if None in packages.values()}
        print_json({**asdict(found), "install": install})
        return
    shown = table("what", "found", "what to do")
    for row in _rows(found):
        shown.add_row(*row)
    console().print(shown)


def examine() -> Machine:
    """Look at this machine.

    >>> examine().packages["torch"] is not None
    True
    """
    import torch

    from landscope import __version__
    from landscope.core.memory import available_bytes
    from landscope.data import list_status
    from landscope.data.files import search_folders

    gpus = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    compiles, compiler = _compiler(bool(gpus))
    wanted = requirements()
    return Machine(
        landscope=__version__,
        python=platform.python_version(),
        platform=platform.platform(),
        torch=torch.__version__,
        device="cuda" if gpus else "cpu",
        gpus={f"cuda:{i} {gpu.name}": gpu.total_memory for i, gpu in enumerate(gpus)},
        cpus=os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        memory_available=available_bytes(torch.device("cpu")),
        compiles=compiles,
        compiler=compiler,
        packages={name: _version(name) for name in wanted.pop("", ())},
        extras={extra: {name: _version(name) for name in names} for extra, names in wanted.items()},
        data_folders=[str(folder) for folder in search_folders()],
        data={status.name: status.state for status in list_status(verify=False)},
    )


def requirements() -> dict[str, tuple[str, ...]]:
    """Extra → packages, as the installed package declares them; those of "" are needed for everything.

    >>> requirements()["digits"]
    ('scikit-learn',)
    """
    found: dict[str, tuple[str, ...]] = {}
    for line in requires("landscope") or ():
        package, extra = re.fullmatch(r"""([\w.-]+)[^;]*(?:;.*extra == ["'](\w+)["'])?""", line).groups("")  # type: ignore[union-attr]
        found[extra] = (*found.get(extra, ()), package)
    return found


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _install(extra: str) -> str:
    return f"pip install 'landscope[{extra}]'"


def _compiler(gpu: bool) -> tuple[bool, str]:
    """Whether torch.compile finds a compiler; without one products run uncompiled, more slowly."""
    default = {"win32": "cl", "darwin": "clang++"}.get(sys.platform, "g++")
    wanted = os.environ.get("CXX") or default
    if shutil.which(wanted) is None:
        return False, f"no C++ compiler {wanted!r} on the PATH; install one (Debian: apt install g++) or set CXX"
    if gpu and importlib.util.find_spec("triton") is None:
        return False, "triton, which compiles for the GPU, is not installed: pip install triton"
    return True, str(shutil.which(wanted))


def _rows(found: Machine) -> Iterator[tuple[str, str, str]]:
    """What, what was found, what to do."""
    yield "landscope", found.landscope, ""
    yield "python", f"{found.python} on {found.platform}", ""
    yield "device", found.device, ""
    for name, held in found.gpus.items():
        yield "gpu", f"{name}, {size(held)}", ""
    yield "processor", f"{counted(found.threads, 'thread')} of {counted(found.cpus, 'core')}", ""
    yield "memory", f"{size(found.memory_available)} available", ""
    yield "torch.compile", found.compiler if found.compiles else "cannot work", "" if found.compiles else found.compiler
    for name, version_found in found.packages.items():
        yield name, version_found or "absent", "" if version_found else f"pip install {name}"
    for extra, packages in found.extras.items():
        words = ", ".join(f"{name} {found_there or 'absent'}" for name, found_there in packages.items())
        yield f"landscope[{extra}]", words, _install(extra) if None in packages.values() else ""
    yield "data folders", "\n".join(found.data_folders), "another one: set LANDSCOPE_DATA"
    for state in ("present", "damaged", "missing"):
        names = [name for name, there in found.data.items() if there == state]
        if names:
            yield f"data {state}", ", ".join(names), "" if state == "present" else "landscope data list"

"""Optional packages: imported when used, and the files they carry found without running their code."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from types import ModuleType

from landscope.core.errors import MissingExtraError

__all__ = ["package_file", "require"]


def require(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Import a module, or raise an error that names the extra to install.

    >>> require("no_such_package", extra="graphs", purpose="the graph attention network")
    Traceback (most recent call last):
    landscope.core.errors.MissingExtraError: the graph attention network needs no_such_package, which is not ...
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise
        raise MissingExtraError.of(module.split(".")[0], extra, purpose) from None


def package_file(package: str, file: str, *, extra: str, purpose: str) -> Path:
    """Find a file that an installed package carries.

    >>> package_file("no_such_package", "weights.safetensors", extra="text", purpose="the pretrained encoder")
    Traceback (most recent call last):
    landscope.core.errors.MissingExtraError: the pretrained encoder needs no_such_package, which is not ...
    """
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (path := Path(folder) / file).is_file():
            return path
    raise MissingExtraError.of(package if spec is None else f"{file} of {package}", extra, purpose)

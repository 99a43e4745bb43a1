"""Functions of the user's own, named in a spec or on the command line as `package.module:function`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

from landscope.core.errors import SpecError

__all__ = ["call_imported", "import_function", "is_import"]


def is_import(source: str) -> bool:
    """Whether a name is that of a function to import, not one of ours.

    >>> is_import("my_package.nets:build"), is_import("resnet18")
    (True, False)
    """
    return ":" in source


def import_function(source: str) -> Callable[..., object]:
    """The function behind `package.module:function`; the present folder is searched, too.

    >>> import_function("math:hypot")(3, 4)
    5.0
    >>> import_function("math:hypothenuse")
    Traceback (most recent call last):
    landscope.core.errors.SpecError: math:hypothenuse: math has no function 'hypothenuse'
    """
    module_name, _, function_name = source.partition(":")
    if not module_name or not function_name:
        raise SpecError(f"{source}: a function is written package.module:function")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise SpecError(f"{source}: {error}. It is looked for in this folder and where packages are") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise SpecError(f"{source}: {module_name} has no function {function_name!r}")
    return cast(Callable[..., object], function)


def call_imported(source: str, options: Mapping[str, object]) -> object:
    """What the function behind `source` returns for the options."""
    function = import_function(source)
    try:
        return function(**options)
    except TypeError as error:
        raise SpecError(f"{source} cannot be called with the options {dict(options)}: {error}") from error

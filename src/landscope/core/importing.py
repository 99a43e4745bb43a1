"""Functions of the user's own, named in a spec or on the command line as `package.module:function`."""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

from landscope.core.errors import SpecError

__all__ = ["call_imported", "import_function", "is_import", "source_version"]


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


def source_version(source: str) -> str:
    """The name of a function with a digest of the file that it is written in, so that an edit is another version.

    A function of our own, whose versions have numbers, or one without a file goes by its name alone.

    >>> source_version("math:hypot")
    'math:hypot'
    """
    function = import_function(source)
    file = getattr(sys.modules.get(getattr(function, "__module__", "") or ""), "__file__", None)
    if source.startswith(f"{__package__.partition('.')[0]}.") or file is None or not file.endswith(".py"):
        return source
    return f"{source} {hashlib.sha256(Path(file).read_bytes()).hexdigest()[:12]}"


def call_imported(source: str, options: Mapping[str, object]) -> object:
    """What the function behind `source` returns for the options."""
    function = import_function(source)
    try:
        return function(**options)
    except TypeError as error:
        raise SpecError(f"{source} cannot be called with the options {dict(options)}: {error}") from error

"""Processes that take no module from the current folder by chance: a `random.py` there is not Python's `random`.

`python -m` puts the current folder before everything else. `importing` searches it last, where a spec names a module of it.
"""

from __future__ import annotations

import os
import sys

__all__ = ["SAFE", "leave_current_folder", "search_path"]

SAFE = ("-P",) if sys.version_info >= (3, 11) else ()
"""Flags of a process that does not search the current folder; before 3.11 `leave_current_folder` does the same for ours."""


def leave_current_folder() -> None:
    """Undo what `python -m landscope` did to the path, before anything else is imported."""
    started_by_name = sys.argv[:1] == ["-m"]  # only while Python looks for the module to run
    if started_by_name and not getattr(sys.flags, "safe_path", False):
        module = sys.orig_argv[-len(sys.argv)].removeprefix("-m")
        if module.partition(".")[0] == __name__.partition(".")[0] and sys.path[:1] == [_here()]:
            del sys.path[0]


def search_path() -> str:
    """PYTHONPATH of a process that finds what this one finds; the current folder last, unless PYTHONPATH names it."""
    here = _here()
    asked = {os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path}
    others = [path for path in sys.path if path and (path != here or here in asked)]
    last = [here] if here not in others and (here in sys.path or "" in sys.path) else []
    ours = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return os.pathsep.join([*others, *last, *([] if ours in (*others, *last) else [ours])])


def _here() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # it was removed
        return ""

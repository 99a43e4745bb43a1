"""What everything speaks: probes, estimates, parameter vectors, registries, errors, seeds.

Imported before anything else of ours, so that no module is taken from the current folder by chance: a `random.py` there is not
Python's `random`. `python -m` puts that folder before everything else; `specs.names` searches it last, where a spec names a
module of it.
"""

from __future__ import annotations

import os
import sys


def _leave_current_folder() -> None:
    """Undo what `python -m landscope` did to the path."""
    started_by_name = sys.argv[:1] == ["-m"]  # only while Python looks for the module to run
    if started_by_name and not sys.flags.safe_path:
        module = sys.orig_argv[-len(sys.argv)].removeprefix("-m")
        if module.partition(".")[0] == __name__.partition(".")[0] and sys.path[:1] == [_here()]:
            del sys.path[0]


def search_path() -> str:
    """PYTHONPATH of a process (`python -P`) that finds what this one finds; the current folder last, unless it is named there."""
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


_leave_current_folder()

"""How commands fail: one line that names the remedy, an exit code that a script can rely on, tracebacks on demand."""

from __future__ import annotations

import errno
import sys
import traceback
from collections.abc import Sequence

import typer
from typer.core import TyperGroup

from landscope.core.errors import DataFileError, LandscopeError, MissingExtraError
from landscope.core.files import is_full

EXIT_CODES = {
    0: "done (a measure that does not apply or fails shows that in its row)",
    1: "an unexpected error; --debug shows where",
    2: "the input cannot be used: a name, an option, a checkpoint",
    3: "something is missing: data files, the network, an optional package",
    4: "a time limit was reached; run the same command to resume",
    130: "stopped by Ctrl-C",
}

BROKEN_PIPE = 141
"""As the shell reports a process that SIGPIPE ended."""
_DETAILS = 4
# Typer brings its own copy of click in some versions and depends on click in others; this finds the class in both.
_UsageError: type = typer.BadParameter.__bases__[0]


class CommandError(LandscopeError, ValueError):
    """Something on the command line cannot be used."""


class StoppedError(LandscopeError):
    """A limit was reached before the work was done."""


def exit_code(error: BaseException) -> int:
    """The exit code for an error.

    >>> exit_code(CommandError("no such file")), exit_code(MissingExtraError("no sklearn")), exit_code(ZeroDivisionError())
    (2, 3, 1)
    """
    if isinstance(error, DataFileError | MissingExtraError):
        return 3
    if isinstance(error, StoppedError):
        return 4
    return 2 if isinstance(error, LandscopeError | _UsageError) or _remedy(error) else 1


def _remedy(error: BaseException) -> str:
    """What to do about a place that cannot be written to; empty for any other error.

    >>> _remedy(OSError(errno.ENOSPC, "No space left on device")), _remedy(ValueError())
    ('Free some space, and run the command again', '')
    """
    if is_full(error):
        return "Free some space, and run the command again"
    closed = isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
    return "Name another place" if closed else ""


def one_line(error: Exception) -> str:
    r"""What went wrong and what to do, in one line; long lists are cut.

    >>> one_line(CommandError("three files are missing:\n  a\n  b\n  b\n  c"))
    'three files are missing: a; b; c'
    """
    if isinstance(error, _UsageError):
        context = getattr(error, "ctx", None)
        text = " ".join(getattr(error, "format_message", error.__str__)().split())
        stop = "" if text.endswith((".", "?")) else "."
        return f"{text}{stop} See: {context.command_path if context else 'landscope'} --help"
    lines = list(dict.fromkeys(line.strip() for line in str(error).splitlines() if line.strip()))
    if len(lines) > _DETAILS + 1:
        lines[_DETAILS:] = [f"… and {len(lines) - _DETAILS} more (--debug shows all)"]
    text = ""
    for line in lines:
        text += (" " if text.endswith((".", ":")) else "; " if text else "") + line
    if isinstance(error, LandscopeError):
        return text
    if remedy := _remedy(error):
        return f"{text}. {remedy}"
    return f"{type(error).__name__}: {text or 'no message'} (unexpected; --debug shows where)"


class Commands(TyperGroup):
    """The commands, with the failures above and `--debug` anywhere on the line."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: object,
    ) -> None:
        """Run the command and leave the process with its exit code."""
        given = list(sys.argv[1:] if args is None else args)
        end = given.index("--") if "--" in given else len(given)
        debug = "--debug" in given[:end]
        given = [word for word in given[:end] if word != "--debug"] + given[end:]
        del standalone_mode  # failures are dealt with here
        try:
            code = super().main(given, prog_name, complete_var, False, windows_expand_args, **extra)
        except (KeyboardInterrupt, typer.Abort):
            code = 130
        except SystemExit as error:
            if isinstance(error.__context__, BrokenPipeError):  # as in `landscope measures | head`
                sys.exit(BROKEN_PIPE)
            # by code that the command was given: ours leaves below
            sys.stderr.write(
                f"landscope: error: code that the command runs ended the process (sys.exit({error.code!r}))\n"
            )
            code = 1
        except Exception as error:
            if debug:
                traceback.print_exc()
            sys.stderr.write(f"landscope: error: {one_line(error)}\n")
            code = exit_code(error)
        if code == 130:
            sys.stderr.write("landscope: stopped\n")
        sys.exit(code or 0)

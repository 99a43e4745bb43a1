"""`python -m tests.golden make|compare [--only NAME]`."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # as conftest.py does

SHOWN = 40
"""Lines of a part's differences that are printed."""


def main() -> int:
    """Make golden files, or compare them; 1 where one differs."""
    import torch

    from golden.parts import PARTS, compare, refusal
    from golden.stored import made_here, read, write

    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description="Golden files of the package.")
    parser.add_argument("what", choices=["make", "compare"])
    parser.add_argument("--only", choices=list(PARTS), action="append", help="this part; may be repeated")
    parser.add_argument("--all-lines", action="store_true", help=f"print every difference, not {SHOWN} for each part")
    given = parser.parse_args()
    differ = False
    for name in given.only or PARTS:
        start = time.monotonic()
        if given.what == "make":
            values, lines = PARTS[name].make(), []
            if why := refusal(name, values):
                differ, told = differ or not PARTS[name].frozen, f"not made: {why}"
            else:
                told = f"{len(values)} values in {write(name, values).name}"
        else:
            found = compare(name)
            lines = found or []
            told = "the same" if found == [] else f"{len(lines)} differences"
            if found is None:
                told = f"not compared: made with {read(name)[0]}, here is {made_here()}"
        differ = differ or bool(lines)
        shown = lines if given.all_lines else lines[:SHOWN]
        say(f"{name}: {told} ({time.monotonic() - start:.1f} s)", *(f"  {line}" for line in shown))
        if len(shown) < len(lines):
            say(f"  … and {len(lines) - len(shown)} more (--all-lines)")
    return int(differ)


def say(*lines: str) -> None:
    """Print at once, so that a long command shows where it is."""
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

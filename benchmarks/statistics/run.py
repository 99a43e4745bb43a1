"""How often the statistics of Landscope are right, in simulated studies whose truth is known.

python benchmarks/statistics/run.py                              # print everything: about six minutes on one core
python benchmarks/statistics/run.py --only units slopes          # some of it
python benchmarks/statistics/run.py --write docs/statistics.md   # and put it into the page, each table between its marks
"""

from __future__ import annotations

import argparse
import re
import time
from pathlib import Path

import claims
import conditions
import orders
import partials

SIMULATIONS = {**claims.SIMULATIONS, **conditions.SIMULATIONS, **partials.SIMULATIONS, **orders.SIMULATIONS}


def main() -> None:
    """Run the simulations that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=SIMULATIONS, help="some of the simulations")
    parser.add_argument("--repeat", type=int, default=600, help="studies for each setting")
    parser.add_argument("--write", type=Path, metavar="FILE.md", help="put the tables into this page")
    options = parser.parse_args()
    for name in options.only or SIMULATIONS:
        start = time.process_time()
        text = SIMULATIONS[name](options.repeat).markdown()
        print(text, f"\n\n({name}: {time.process_time() - start:.0f} s)\n", flush=True)
        if options.write:
            put(options.write, name, text)


def put(page: Path, name: str, text: str) -> None:
    """Replace what stands between the marks of a table."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before = page.read_text(encoding="utf-8")
    if before.count(begin) != 1 or before.count(end) != 1:
        raise SystemExit(f"{page} needs {begin} and {end}, once each")
    pattern = f"{re.escape(begin)}.*?{re.escape(end)}"
    page.write_text(re.sub(pattern, lambda _: f"{begin}\n{text}\n{end}", before, flags=re.DOTALL), encoding="utf-8")


if __name__ == "__main__":
    main()

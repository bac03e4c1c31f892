"""Cut the power during commands: `python -m tests.power_cuts --count 1000 --seed 0`; exit 1 if anything is lost."""

from __future__ import annotations

import argparse
import os
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

from tests.power_cuts.run import COMMANDS, METHODS, cut, print_found


def main() -> int:
    """Print how many power cuts there were in each command, and every finding."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first power cut, to try one again")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--commands", default=";".join(COMMANDS), help="separated by semicolons")
    given = parser.parse_args()
    found = cut(given.count, given.seed, given.methods.split(","), given.commands.split(";"), given.first)
    print_found(found)
    return bool(found.findings)


if __name__ == "__main__":
    sys.exit(main())

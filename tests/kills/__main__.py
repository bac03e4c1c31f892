"""Kill commands by the thousand: `python -m tests.kills --count 1000 --seed 0`; exit 1 if any ends differently."""

from __future__ import annotations

import argparse
import json
import os
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

from tests.kills.run import kill
from tests.kills.scenarios import METHOD_NAMES, SCENARIOS


def main() -> int:
    """Print how many kills there were by method, command and moment, and every difference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--methods", default=",".join(METHOD_NAMES))
    parser.add_argument("--commands", default=";".join(SCENARIOS), help="separated by semicolons")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = kill(given.count, given.seed, given.workers, given.methods.split(","), given.commands.split(";"))
    tables = {"method": found.methods, "command": found.commands, "moment": found.moments}
    if given.json:
        print(json.dumps(tables | {"findings": found.findings}, indent=2))
        return bool(found.findings)
    for title, counts in tables.items():
        print(f"kills by {title}")
        for name, number in sorted(counts.items()):
            print(f"  {name:24} {number:6}")
    for finding in found.findings:
        print(finding)
    print(f"{found.kills} kills, {found.ends} ends compared, {len(found.findings)} different")
    return bool(found.findings)


if __name__ == "__main__":
    sys.exit(main())

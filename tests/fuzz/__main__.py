"""Read mutated files by the thousand: `python -m tests.fuzz --count 10000 --seed 0`; exit 1 if anything is found."""

from __future__ import annotations

import argparse
import json
import sys

from tests.fuzz.run import fuzz


def main() -> int:
    """Print how many files of each kind were read and refused, and every finding."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first file, to try one again")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = fuzz(given.count, given.seed, given.workers, given.first)
    if given.json:
        print(json.dumps({"counts": found.counts, "findings": found.findings}, indent=2))
        return bool(found.findings)
    for kind, counts in found.counts.items():
        print(f"{kind:12} {counts['refused']:6} refused {counts['read']:6} read {counts['finding']:6} findings")
    for row in found.findings:
        print(f"{row['kind']} {row['end']}: {row['detail']}")
    total = sum(sum(counts.values()) for counts in found.counts.values())
    print(f"{total} files, {len(found.findings)} findings")
    return bool(found.findings)


if __name__ == "__main__":
    sys.exit(main())

"""Run published runs again by their own command and compare every number, to the last bit.

    python -m experiments.reproduce results/prostate-lite/A-first/jm/seed-0 --data data/prostate

A run gets as many threads as its `results.json` names. Processor, compiler and torch must be of the same kind; a known
difference is printed before the run begins. The exit code is 1 if any number differs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from experiments.mistakes import in_one_line
from smg.learner.closing import versions_of_packages
from smg.learner.records import PackageVersions

NUMBERS = ("subjects", "matrix", "measures", "missing")
UNSEEN = "unseen.json"  # written by experiments.afterwards


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="folders with results.json and run.yaml")
    parser.add_argument("--data", type=Path, required=True, help="the folder of sites")
    options = parser.parse_args()
    differ = False
    for run in options.runs:
        then = json.loads((run / "results.json").read_text())
        if other := other_than(then["versions"], versions_of_packages()):
            print(f"{run}: {other}: numbers will differ by rounding and by what follows from it", flush=True)
        now, unseen = again(run, options.data, then["versions"]["threads"])
        apart = [key for key in NUMBERS if now[key] != then[key]]
        if (run / UNSEEN).exists() and json.loads((run / UNSEEN).read_text()) != unseen:
            apart.append(UNSEEN)
        print(f"{run}: {'differs in ' + ', '.join(apart) if apart else 'the same to the bit'}")
        differ |= bool(apart)
    sys.exit(differ)


def other_than(then: PackageVersions, now: PackageVersions) -> str:
    """Return what differs between two versions, as `cpu AVX512, here AVX2`; the threads are set by the run."""
    differ = [key for key in then if key != "threads" and then[key] != now[key]]
    return ", ".join(f"{key} {then[key]}, here {now[key]}" for key in differ)


def again(run: Path, data: Path, threads: int) -> tuple[dict[str, Any], list[Any]]:
    """Return the results of `smg run RUN/run.yaml` and those of experiments.afterwards, from a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "smg", "run", "--quiet", str(run / "run.yaml"), "--data", str(data)]
        command += ["--threads", str(threads), "--out", f"{folder}/run", "--split", str(run / "split.json")]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        more = [sys.executable, "-m", "experiments.afterwards", folder, "--data", str(data)]
        subprocess.run(more, check=True, stdout=subprocess.DEVNULL)
        results, unseen = (json.loads(Path(folder, "run", name).read_text()) for name in ("results.json", UNSEEN))
        return results, unseen


if __name__ == "__main__":
    with in_one_line():
        main()

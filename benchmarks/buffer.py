"""What runs chose their exemplars by, and how well they know them at the end; nothing is trained.

    python benchmarks/buffer.py runs/prostate-lite

A line a method, each number as the range over its runs: R and V of all candidates, of every site that had others
before it, and the DSC, after the stream's last round, on the earlier sites' exemplars and on the patients of those
sites that the run was evaluated on.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from friendly import in_one_line

from smg.cli.terminal import print_table
from smg.learner.store import Store
from smg.report.runs import Run, find_runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", type=Path, help="the bench's folder, models and all")
    runs = [run for run in find_runs([parser.parse_args().bench]) if (run.folder / "model").is_dir()]
    by_name: dict[str, list[Run]] = {}
    for run in runs:
        by_name.setdefault(run.name, []).append(run)
    heads = ("", "runs", "R", "V", "DSC of exemplars", "of others")
    print_table(heads, [(name, str(len(of)), *numbers(of)) for name, of in by_name.items()])


def numbers(runs: Sequence[Run]) -> list[str]:
    told: dict[str, list[float]] = {"R": [], "V": [], "kept": [], "others": []}
    for run in runs:
        order = run.results["stream"]["order"]
        records = [Store(run.folder / "model").read_round(number) for number in range(1, len(order) + 1)]
        for record in records[1:]:
            for score in "RV":
                told[score] += record["selection"][score]
        earlier = records[-1]["earlier"]
        told["kept"] += [dsc["after"] for dsc in earlier.values()]
        told["others"] += [run.results["matrix"]["dsc"][order[-1]][site] for site in earlier]
    return [*(_range(told[score], 1, 4) for score in "RV"), *(_range(told[who], 100, 1) for who in ("kept", "others"))]


def _range(values: Sequence[float], scale: float, digits: int) -> str:
    return f"{scale * min(values):.{digits}f} to {scale * max(values):.{digits}f}" if values else "-"


if __name__ == "__main__":
    with in_one_line():
        main()

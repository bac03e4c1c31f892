"""Print the selection scores of finished runs' exemplars, and the DSC on them at the end. Nothing is trained.

    python -m experiments.buffer runs/prostate-lite

One line per method; each number is the range over its runs. R and V are the scores of all candidates of every site but
the first. The DSC after the stream's last round is given for the earlier sites' exemplars and for the other patients of
those sites on which the run was evaluated.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from experiments.mistakes import in_one_line
from smg.learner.history import History
from smg.report.runs import Run, find_runs
from smg.report.text import print_table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", type=Path, help="the bench's folder, with the models")
    runs = [run for run in find_runs([parser.parse_args().bench]) if (run.folder / "model").is_dir()]
    by_name: dict[str, list[Run]] = {}
    for run in runs:
        by_name.setdefault(run.name, []).append(run)
    heads = ("", "runs", "R", "V", "DSC of exemplars", "of others")
    print_table(heads, [(name, str(len(of)), *numbers(of)) for name, of in by_name.items()])


def numbers(runs: Sequence[Run]) -> list[str]:
    """Return the cells of one method's row."""
    found: dict[str, list[float]] = {"R": [], "V": [], "kept": [], "others": []}
    for run in runs:
        order, matrix = run.order, run.results.matrix["dsc"]
        records = [History(run.folder / "model").record(number) for number in range(1, len(order) + 1)]
        for record in records[1:]:
            found["R"] += record.selection.R
            found["V"] += record.selection.V
        earlier = records[-1].earlier
        found["kept"] += [dsc.after for dsc in earlier.values() if dsc.after is not None]
        found["others"] += [dsc for site in earlier if (dsc := matrix[order[-1]][site]) is not None]
    scores = [_range(found[score], 1, 4) for score in "RV"]
    return scores + [_range(found[group], 100, 1) for group in ("kept", "others")]


def _range(values: Sequence[float], scale: float, digits: int) -> str:
    return f"{scale * min(values):.{digits}f} to {scale * max(values):.{digits}f}" if values else "-"


if __name__ == "__main__":
    with in_one_line():
        main()

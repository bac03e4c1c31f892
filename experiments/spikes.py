"""Count loss spikes in finished runs' logs, and the rounds that end in one. Nothing is trained.

    python -m experiments.spikes runs/prostate-lite-explanations runs/without-D

A spike is an iteration of a round's second half whose loss on the replay batch is over ten times the median of that
half. A round keeps its last weights, so a round that ends in a spike is evaluated with weights that 50 iterations
earlier or later would have been different. One line per method, from the second round on, over the logged iterations
(every 50th, and the last).
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from pathlib import Path

from experiments.mistakes import in_one_line
from smg.learner.events import StepReport, read_events
from smg.report.runs import Run, find_runs
from smg.report.text import print_json, print_table

TIMES = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benches", type=Path, nargs="+", help="benches' folders, with the runs' logs")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    found: dict[str, list[list[bool]]] = {}  # method -> its rounds -> whether each iteration is a spike
    for run in (run for bench in options.benches for run in find_runs([bench])):
        found.setdefault(run.name, []).extend(spikes(run))
    figures = {
        name: {
            "rounds": len(rounds),
            "spikes": sum(map(sum, rounds)) / sum(map(len, rounds)),
            "ending_in_one": sum(spiked[-1] for spiked in rounds),
        }
        for name, rounds in found.items()
        if rounds
    }
    if options.json:
        print_json(figures)
    else:
        rows = [(n, str(f["rounds"]), f"{f['spikes']:.1%}", str(f["ending_in_one"])) for n, f in figures.items()]
        print_table(("", "rounds", "spikes", "rounds that end in one"), rows)


def spikes(run: Run) -> Iterator[list[bool]]:
    """Yield, for each round with replay, which logged iterations of its second half are spikes."""
    half = run.results.config.iterations / 2
    losses: dict[int, dict[int, float]] = {}
    for event in read_events(run.folder):
        if isinstance(event, StepReport) and event.iteration > half and "replay" in event.losses:
            losses.setdefault(event.round, {})[event.iteration] = event.losses["replay"]
    for of_round in losses.values():
        usual = statistics.median(of_round.values())
        yield [of_round[iteration] > TIMES * usual for iteration in sorted(of_round)]


if __name__ == "__main__":
    with in_one_line():
        main()

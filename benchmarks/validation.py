"""Evaluates the rounds of finished runs on the validation parts: what settings may be chosen by.

    python benchmarks/validation.py runs/prostate-lite --data data/prostate --out runs/prostate-lite-validation

The networks are those of the runs; nothing is trained. OUT then holds a bench of the same runs with `part: validation`,
its tables and differences, and what was evaluated there before is not evaluated again.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import torch

from smg.cli.runs import print_bench
from smg.files import write_json
from smg.learner.config import LearnerConfig
from smg.learner.learner import Learner
from smg.learner.stream import Stream
from smg.report.runs import find_runs
from smg.sites.layouts import find_sites
from smg.sites.split import given_split, load_splits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", type=Path, help="the bench's folder, models and all")
    parser.add_argument("--data", type=Path, required=True, help="the folder of sites")
    parser.add_argument("--out", type=Path, required=True, help="where the numbers go")
    options = parser.parse_args()
    torch.set_num_threads(1)
    sites = find_sites(options.data)
    options.out.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(options.bench / "bench.json", options.out / "bench.json")
    for run in find_runs([options.bench]):
        place = options.out / run.folder.relative_to(options.bench) / "results.json"
        if place.exists():
            continue
        told, split = run.results["stream"], run.folder / "split.json"
        config = LearnerConfig.model_validate(run.results["config"])
        stream = Stream(sites, told["order"], told["unseen"], config, part="validation", name=run.name)
        splits = {name: given_split(sites[name], load_splits(split), split) for name in stream.rounds}
        learner = Learner(run.folder / "model")
        rows = [row for n in range(1, len(stream.rounds) + 1) for row in stream.evaluate(learner, n, splits)]
        write_json(place, stream.results(rows))
        print(place.parent.relative_to(options.out), flush=True)
    print_bench(options.out)


if __name__ == "__main__":
    main()

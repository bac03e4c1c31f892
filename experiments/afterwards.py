"""Evaluate finished runs beyond their test parts. Nothing is trained.

    python -m experiments.afterwards runs/prostate-lite --data data/prostate

Writes three files into each run's folder that does not have them yet:

    validation.json   as results.json, on the validation parts: settings may be chosen by it
    unseen.json       the network of the stream's last round on the held-out site's training and test parts, subject by
                      subject. None of them has been learned by then, so FM can be measured on all of them and not only
                      on the few of the test part. The validation part is left out.
    guard.json        the exemplars' DSC before and after each round, of each earlier site
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from experiments.mistakes import in_one_line
from smg.files import write_json
from smg.learner.config import LearnerConfig
from smg.learner.learner import Learner
from smg.learner.results import write_results
from smg.learner.stream import Stream
from smg.report.runs import Run, find_runs
from smg.sites.layouts import find_sites
from smg.sites.site import Site
from smg.sites.split import given_split, load_splits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", type=Path, help="the bench's folder, with the models")
    parser.add_argument("--data", type=Path, required=True, help="the folder of sites")
    options = parser.parse_args()
    torch.set_num_threads(1)
    sites = find_sites(options.data)
    for run in find_runs([options.bench]):
        done, of = run.folder / "unseen.json", run.folder / "results.json"
        if not done.exists() or done.stat().st_mtime < of.stat().st_mtime:
            evaluate(run, sites)
            print(run.folder, flush=True)


def evaluate(run: Run, sites: dict[str, Site]) -> None:
    """Evaluate one run and write its three files."""
    planned, split = run.results.stream, run.folder / "split.json"
    config = LearnerConfig.model_validate(run.results.config.tree())
    stream = Stream(sites, planned.order, planned.unseen, config, part="validation", name=run.name)
    splits = {name: given_split(sites[name], load_splits(split), split) for name in stream.rounds}
    learner, last = Learner(run.folder / "model"), len(stream.order)
    rows = [row for n in range(1, len(stream.rounds) + 1) for row in stream.evaluate(learner, n, splits)]
    write_results(run.folder, stream.results(rows), "validation.json")
    unseen = planned.unseen
    measured = (
        []
        if unseen is None
        else [
            {"site": unseen, "part": part, **row.as_json()}
            for part in ("train", "test")
            for row in learner.evaluate(sites[unseen], part, splits[unseen], number=last)
        ]
    )
    judged = [
        {"round": record.site, "site": site, "exemplars": one.exemplars}
        for record in learner.history.records()
        if record.guard
        for site, one in record.guard.sites.items()
    ]
    write_json(run.folder / "guard.json", judged)
    write_json(run.folder / "unseen.json", measured)  # last: where it is there, the run has been measured


if __name__ == "__main__":
    with in_one_line():
        main()

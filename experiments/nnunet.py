"""nnU-Net v2 beside a run of ours: the same training parts, the same processor time, the same evaluation.

    python -m experiments.nnunet runs/jm-HK-0 --data data/prostate
    python -m experiments.nnunet runs/jm-HK-0 --data data/prostate --seconds 2400 --plan small --json

nnU-Net's 2d configuration plans, preprocesses, augments, trains and predicts by its own code and defaults, on the
training parts of all learned sites pooled: what a user would do who may keep every scan. Three things are ours.

- The budget. Training ends when it has used the processor time that the rounds of our stream took, and nnU-Net's
  polynomial schedule falls to zero over that time instead of over 1000 epochs. Neither side's planning, preprocessing
  and evaluation count.
- The plan, where nnU-Net's own cannot take 1500 steps in that time: a smaller patch, batch and network. It is printed.
- The scores. `smg.evaluation` on the scan's own grid, of the same subjects that the run's results.json has after the
  last round of the stream; also of those in unseen.json, where `experiments.afterwards` has made one.

The first call installs nnU-Net into the user's cache folder. The result goes to nnunet.json in the run's folder;
converted scans go to a temporary folder (TMPDIR), removed at the end.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments.mistakes import in_one_line
from experiments.nnunet_peer import (
    DATASET,
    VERSION,
    Peer,
    in_words,
    make_importable,
    planned,
    seconds_a_step,
    smaller,
    write_dataset,
)
from smg.allocator import keep_freed_memory
from smg.errors import SmgError
from smg.evaluation.measures import measures
from smg.evaluation.predict import keep_largest
from smg.evaluation.subjects import Evaluated, by_class, mean_of
from smg.files import write_json
from smg.learner.config import LearnerConfig
from smg.learner.events import Event, StepReport, read_events
from smg.report.runs import Run, find_runs
from smg.sites.layouts import find_sites
from smg.sites.site import Site, Subject
from smg.sites.split import load_splits
from smg.sites.volume import read_volume

ENOUGH = 1500  # steps; a plan that takes fewer in the budget gives way to a smaller one
SMALL = {"patch": 128, "batch": 8, "features": 16}
EVERY = 60.0  # seconds of training between two lines of progress
METRICS = {"dsc": ("DSC %", 100, 1), "asd": ("ASD mm", 1, 2)}  # what its columns say, factor, decimals
Row = dict[str, Any]  # as in results.json: site, subject, classes
Identity = tuple[str, str]  # site and case
Scores = dict[str, dict[str, float | None]]  # metric -> measure -> value, if there is one


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the folder of a finished `smg run`")
    parser.add_argument("--data", type=Path, required=True, help="the folder of sites")
    parser.add_argument("--seconds", type=float, help="processor time of training; default: that of the run's rounds")
    parser.add_argument("--plan", choices=("own", "small"), help=f"default: own, if it takes {ENOUGH} steps")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads; processor time counts all of them")
    parser.add_argument("--json", action="store_true", help="print the figures last, as one line")
    options = parser.parse_args()
    run = the_run(options.run)
    seconds = options.seconds or seconds_trained(run, read_events(run.folder))
    torch.set_num_threads(options.threads)
    keep_freed_memory()  # as our own training does
    figures = compare(run, find_sites(options.data), seconds, options.plan)
    write_json(run.folder / "nnunet.json", figures)
    print("\n".join(table(figures["scores"])))
    if options.json:
        print(json.dumps({name: value for name, value in figures.items() if name != "subjects"}))


def compare(run: Run, sites: Mapping[str, Site], seconds: float, plan: str | None) -> dict[str, Any]:
    """Train nnU-Net on what the stream was trained on, and score both on what the run was tested on."""
    config = LearnerConfig.model_validate(run.results.config.tree())
    ours = [*last_rows(run), *unseen_rows(run)]
    tested = subjects_of(sites, [_of(row) for row in ours])
    training = pooled(run, sites, tested)
    with tempfile.TemporaryDirectory() as folder:
        make_importable(Path(folder))
        write_dataset(Path(folder, "raw", DATASET), training, config.preparation.labels)
        plans, why = choose(planned(), seconds, plan)
        print(f"{why}\n{len(training)} subjects to train on, {seconds:.0f} s of processor time", flush=True)
        random.seed(config.seed)
        np.random.seed(config.seed)
        torch.manual_seed(config.seed)
        peer = Peer.of(plans)
        steps = peer.train(seconds, Progress(seconds))
        print(f"{steps} steps, {seconds / steps:.2f} s a step", flush=True)
        theirs = {"mirrored": evaluate(peer, True, tested, config), "plain": evaluate(peer, False, tested, config)}
    scores = {f"ours, {run.name}": score(run, ours)} | {f"nnU-Net, {way}": score(run, of) for way, of in theirs.items()}
    figures = {"nnunet": VERSION, "plan": in_words(plans), "why": why, "seconds": seconds, "steps": steps}
    return figures | {"stream": run.stream, "seed": run.seed, "scores": scores, "subjects": theirs}


def choose(plans: dict[str, Any], seconds: float, plan: str | None) -> tuple[dict[str, Any], str]:
    """Return the plan to train by, and the sentence that says which and why."""
    if plan is None:
        each = seconds_a_step(plans)
        plan = "own" if seconds / each >= ENOUGH else "small"
        why = f"nnU-Net's own plan ({in_words(plans)}) takes {each:.2f} s a step: {seconds / each:.0f} steps fit"
    else:
        why = f"nnU-Net's own plan: {in_words(plans)}"
    if plan == "own":
        return plans, why
    plans = smaller(plans, **SMALL)
    return plans, f"{why}\nIt is given a smaller one: {in_words(plans)}"


class Progress:
    """Prints a line on standard error every minute of training."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.next = seconds, 0.0

    def __call__(self, steps: int, spent: float, loss: float) -> None:
        if spent >= self.next:
            print(f"step {steps}, {spent:.0f} of {self.seconds:.0f} s, loss {loss:.3f}", file=sys.stderr, flush=True)
            self.next = spent + EVERY


def evaluate(peer: Peer, mirroring: bool, tested: Sequence[Subject], config: LearnerConfig) -> list[Row]:
    """Predict and measure every subject, as `smg.evaluation` does with our networks."""
    predict, rows = peer.predictor(mirroring), []
    for count, subject in enumerate(tested, start=1):
        print(f"predicting subject {count} of {len(tested)}", file=sys.stderr, flush=True)
        mask = predict(read_volume(subject.image))
        mask = keep_largest(mask) if config.largest_component else mask
        found = Evaluated(subject.case, by_class(mask, read_volume(subject.mask), config.preparation))
        rows.append({"site": subject.site, **found.as_json()})
    return rows


def the_run(folder: Path) -> Run:
    runs = [run for run in find_runs([folder]) if run.folder.resolve() == folder.resolve()]
    if not runs:
        raise SmgError(f"{folder}: holds no finished run; make one with `smg run`")
    return runs[0]


def seconds_trained(run: Run, events: Iterable[Event]) -> float:
    """Return the processor time between the steps of the stream's rounds, at most: wall time by the run's threads.

    Evaluations lie between rounds and are not counted, nor is the time for which a run lay stopped.
    """
    rounds, total, before = len(run.order), 0.0, None
    for event in events:
        step = event if isinstance(event, StepReport) and event.round <= rounds else None
        if step and before and step.round == before.round:
            apart = datetime.fromisoformat(step.time) - datetime.fromisoformat(before.time)
            total += apart.total_seconds()
        before = step
    if not total:
        raise SmgError(f"{run.folder}: its log has no steps to tell the time from; give --seconds")
    return total * int(run.results.versions["threads"])


def last_rows(run: Run) -> list[Row]:
    """Return the rows after the stream's last round, from which BM and FM are read."""
    return [row.model_dump() for row in run.results.subjects if row.round == run.order[-1]]


def unseen_rows(run: Run) -> list[Row]:
    """Return the rows of more subjects of the unseen site than its test part's, where they were made."""
    path = run.folder / "unseen.json"
    return json.loads(path.read_text()) if path.exists() else []


def subjects_of(sites: Mapping[str, Site], wanted: Iterable[Identity]) -> list[Subject]:
    """Return the subjects of these sites and cases, each once."""
    there = {(s.site, s.case): s for site in sites.values() for s in site.subjects}
    for site, case in wanted:
        if (site, case) not in there:
            raise SmgError(f"{site}/{case}: is in the run but not in the data; give the data of the run")
    return [there[identity] for identity in dict.fromkeys(wanted)]


def pooled(run: Run, sites: Mapping[str, Site], tested: Iterable[Subject]) -> list[Subject]:
    """Return the training parts of all learned sites; nobody in them may be tested on."""
    path = run.folder / "split.json"
    splits = load_splits(path)
    together = subjects_of(sites, [(name, case) for name in run.order for case in splits[name]["train"]])
    for both in sorted({s.identity for s in together} & {s.identity for s in tested}):
        raise SmgError(f"{path}: {both} is in the training part but was tested in the run; the files do not fit")
    return together


def score(run: Run, rows: Iterable[Row]) -> Scores:
    """Return BM and FM of the first class, over the subjects that the run has them of.

    `FM all` is over those of the unseen site in unseen.json; `without` counts the subjects that have no value.
    """
    stream, found = run.results.stream, {_of(row): next(iter(row["classes"].values())) for row in rows}
    tested, everyone = ([_of(row) for row in of] for of in (last_rows(run), unseen_rows(run)))
    scores: Scores = {}
    for metric in METRICS:
        values = {of: math.nan if one[metric] is None else one[metric] for of, one in found.items()}
        sites = {site: mean_of(values[of] for of in tested if of[0] == site)[0] for site, _ in tested}
        made = measures({stream.order[-1]: sites}, stream.order, stream.unseen)
        means = {"BM": made["BM"], "FM": made["FM"], "FM all": mean_of(values[of] for of in everyone)[0]}
        scores[metric] = {name: None if math.isnan(mean) else mean for name, mean in means.items()}
        scores[metric]["without"] = sum(math.isnan(values[of]) for of in {*tested, *everyone})
    return scores


def table(scores: Mapping[str, Scores]) -> list[str]:
    """Return a head and a line for each way: DSC and ASD, and how many subjects have no ASD."""
    columns = [(metric, name) for metric in METRICS for name in ("BM", "FM", "FM all")]
    head = [f"{METRICS[metric][0]} {name}" for metric, name in columns]
    lines = [f"{'':20}" + "".join(f"{cell:>15}" for cell in [*head, "no ASD"])]
    for way, of in scores.items():
        cells = [_cell(of[metric][name], *METRICS[metric][1:]) for metric, name in columns]
        lines.append(f"{way:20}" + "".join(f"{cell:>15}" for cell in [*cells, of["asd"]["without"]]))
    return lines


def _cell(value: float | None, factor: int, digits: int) -> str:
    return "-" if value is None else f"{factor * value:.{digits}f}"


def _of(row: Row) -> Identity:
    return row["site"], row["subject"]


if __name__ == "__main__":
    with in_one_line():
        main()

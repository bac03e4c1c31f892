"""nnU-Net v2 beside a run of ours: the same training parts, the same processor time, the same evaluation.

    python -m experiments.nnunet results/prostate-recommended/A-first/jm/seed-0 --data DIR --out results/nnunet.md
    python -m experiments.nnunet runs/jm-HK-0 --data DIR --seconds 2400 --plan small --json

nnU-Net's 2d configuration plans, preprocesses, augments, trains and predicts by its own code and defaults, on the
training parts of all learned sites pooled: what a user would do who may keep every scan. Three things are ours.

- The budget. Training ends when it has used the processor time that the iterations of our stream take on this machine
  (a few steps of a later round are timed; the first round, without replay, would be shorter), and nnU-Net's polynomial
  schedule falls to zero over that time instead of over 1000 epochs. Its augmentation counts, as ours does. Neither
  side's planning, preprocessing and evaluation count.
- The plan, where nnU-Net's own cannot take 1500 steps in that time: a smaller patch, batch and network, the largest of
  two that can, or the smaller of them. It is printed.
- The scores. `smg.evaluation` on the scan's own grid, of the same subjects that the run's results.json has after the
  last round of the stream.

The first call installs nnU-Net into the user's cache folder. Converted scans go to a temporary folder (TMPDIR), removed
at the end. --out is a page with a table for each run compared so far; its figures are kept in the .json beside it.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
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
from smg.evaluation.subjects import Evaluated, by_class, mean_of
from smg.evaluation.whole_scan import keep_largest
from smg.files import replacing, write_json
from smg.learner.config import LearnerConfig
from smg.planning.machine import cost_of
from smg.report.runs import Run, find_runs
from smg.sites.layouts import find_sites
from smg.sites.site import Site, Subject
from smg.sites.split import load_splits
from smg.sites.volume import read_volume

ENOUGH = 1500  # steps; a plan that takes fewer in the budget gives way to a smaller one
SMALLER = tuple({"patch": 128, "batch": 8, "features": features} for features in (16, 8))
OURS = "ours"
EVERY = 60.0  # seconds of training between two lines of progress
METRICS = {"dsc": ("DSC %", 100, 1), "asd": ("ASD mm", 1, 2)}  # what its columns say, factor, decimals
ABOUT = f"""What a user would do who may keep every scan: nnU-Net v2 (2d) on the training parts of all sites of the
stream pooled, given as much processor time as the iterations of our stream take on the same machine. Our stream
learned the sites one after the other and kept two subjects of each. Both are scored on the same test subjects and on
the held-out site, by `smg.evaluation`. nnU-Net plans, preprocesses, augments, trains and predicts by its own code; it
is scored with mirrored passes, its default, and without. Where its own plan cannot take {ENOUGH} steps in that time,
it is given the largest of two smaller ones that can, or the smaller of them. Our time is computed from a few steps of
a later round, which are longer than those of the first, so nnU-Net has at least our processor time. Made by `python
-m experiments.nnunet RUN --data DIR --out results/nnunet.md`."""
Row = dict[str, Any]  # as in results.json: site, subject, classes
Identity = tuple[str, str]  # site and case
Scores = dict[str, dict[str, float | None]]  # metric -> measure -> value, if there is one


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the folder of a finished `smg run`")
    parser.add_argument("--data", type=Path, required=True, help="the folder of sites")
    parser.add_argument("--seconds", type=float, help="processor time of training; default: what the run takes here")
    parser.add_argument("--plan", choices=("own", "small"), help=f"default: own, if it takes {ENOUGH} steps")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads; processor time counts all of them")
    parser.add_argument("--out", type=Path, help="the page to write, or to add this run's table to")
    parser.add_argument("--json", action="store_true", help="print the figures last, as one line")
    options = parser.parse_args()
    run = the_run(options.run)
    torch.set_num_threads(options.threads)
    keep_freed_memory()  # as our own training does
    seconds = options.seconds or seconds_of_stream(run)
    figures = compare(run, find_sites(options.data), seconds, options.plan)
    print("\n".join(table(figures["scores"])))
    if options.out:
        write_page(options.out, figures)
    if options.json:
        print(json.dumps(figures))


def compare(run: Run, sites: Mapping[str, Site], seconds: float, plan: str | None) -> dict[str, Any]:
    """Train nnU-Net on what the stream was trained on, and score both on what the run was tested on."""
    config = LearnerConfig.model_validate(run.results.config.tree())
    ours = last_rows(run)
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
    scores = {f"{OURS}, {run.name}": score(run, ours)}
    scores |= {f"nnU-Net, {way}": score(run, of) for way, of in theirs.items()}
    figures = {"nnunet": VERSION, "plan": in_words(plans), "why": why, "seconds": seconds, "steps": steps}
    return figures | {"stream": run.stream, "seed": run.seed, "trained on": len(training), "scores": scores}


def choose(plans: dict[str, Any], seconds: float, plan: str | None) -> tuple[dict[str, Any], str]:
    """Return the plan to train by, and the sentences that say which and why."""
    each = seconds_a_step(plans)
    why = f"nnU-Net's own plan ({in_words(plans)}) takes {each:.2f} s a step: {seconds / each:.0f} steps fit"
    if plan == "own" or (plan is None and seconds / each >= ENOUGH):
        return plans, why
    for size in SMALLER:
        small = smaller(plans, **size)
        each = seconds_a_step(small)
        if seconds / each >= ENOUGH:
            break
    return small, f"{why}\nIt is given a smaller one: {in_words(small)}"


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


def seconds_of_stream(run: Run) -> float:
    """Return the processor time that the stream's iterations take on this machine, by a few timed steps."""
    config = LearnerConfig.model_validate(run.results.config.tree())
    step = cost_of(config, max(config.preparation.shape), time.process_time)
    return len(run.order) * config.iterations * step.seconds


def last_rows(run: Run) -> list[Row]:
    """Return the rows after the stream's last round, from which BM and FM are read."""
    return [row.model_dump() for row in run.results.subjects if row.round == run.order[-1]]


def subjects_of(sites: Mapping[str, Site], wanted: Iterable[Identity]) -> list[Subject]:
    """Return the subjects of these sites and cases, each once."""
    there = {(s.site, s.case): s for site in sites.values() for s in site.subjects}
    for site, case in wanted:
        if (site, case) not in there:
            raise SmgError(f"{site}/{case}: is in the run but not in the data; give the data of the run")
    return [there[identity] for identity in dict.fromkeys(wanted)]


def pooled(run: Run, sites: Mapping[str, Site], tested: Iterable[Subject]) -> list[Subject]:
    """Return the training parts of all learned sites; none of these subjects may be tested on."""
    path = run.folder / "split.json"
    splits = load_splits(path)
    together = subjects_of(sites, [(name, case) for name in run.order for case in splits[name]["train"]])
    for both in sorted({s.identity for s in together} & {s.identity for s in tested}):
        raise SmgError(f"{path}: {both} is in the training part but was tested in the run; the files do not fit")
    return together


def score(run: Run, rows: Iterable[Row]) -> Scores:
    """Return BM and FM of the first class; `without` counts the subjects that have no value."""
    stream, found = run.results.stream, [(row["site"], next(iter(row["classes"].values()))) for row in rows]
    scores: Scores = {}
    for metric in METRICS:
        values = [(site, math.nan if one[metric] is None else one[metric]) for site, one in found]
        sites = {name: mean_of(value for site, value in values if site == name)[0] for name, _ in values}
        made = measures({stream.order[-1]: sites}, stream.order, stream.unseen)
        scores[metric] = {name: None if math.isnan(made[name]) else made[name] for name in ("BM", "FM")}
        scores[metric]["without"] = sum(math.isnan(value) for _, value in values)
    return scores


def table(scores: Mapping[str, Scores]) -> list[str]:
    """Return a Markdown table, ours first: DSC and ASD, and how many subjects have no ASD."""
    columns = [(metric, name) for metric in METRICS for name in ("BM", "FM")]
    head = [f"{name} {METRICS[metric][0]}" for metric, name in columns]
    lines = [["", *head, "subjects without ASD"], ["---", *["---:"] * (len(head) + 1)]]
    for way, of in sorted(scores.items(), key=lambda row: not row[0].startswith(OURS)):
        cells = [_cell(of[metric][name], *METRICS[metric][1:]) for metric, name in columns]
        lines.append([way, *cells, str(of["asd"]["without"])])
    return [f"| {' | '.join(line)} |" for line in lines]


def write_page(path: Path, figures: dict[str, Any]) -> None:
    """Write the figures into the .json beside the page, instead of those of the same run, and the page of them all."""
    kept = path.with_suffix(".json")
    before = json.loads(kept.read_text()) if kept.exists() else []
    together = [other for other in before if _key(other) != _key(figures)] + [figures]
    together.sort(key=_key)
    write_json(kept, together)
    with replacing(path) as temporary:
        temporary.write_text(
            "\n".join(["# nnU-Net beside a stream of ours", "", ABOUT, *map(section, together)]) + "\n"
        )


def section(figures: dict[str, Any]) -> str:
    """Return what the page says of one run: the budget, the plan, the table."""
    said = (
        f"{figures['trained on']} subjects to train on, {figures['seconds']:.0f} s of processor time, "
        f"{figures['steps']} steps, {figures['seconds'] / figures['steps']:.2f} s a step, nnU-Net {figures['nnunet']}."
    )
    why = " ".join(f"{line}." for line in figures["why"].splitlines())
    return "\n".join([f"\n**{figures['stream']}**, seed {figures['seed']}. {said} {why}\n", *table(figures["scores"])])


def _key(figures: dict[str, Any]) -> tuple[str, int, int]:
    return figures["stream"], figures["seed"], round(figures["seconds"])


def _cell(value: float | None, factor: int, digits: int) -> str:
    return "-" if value is None else f"{factor * value:.{digits}f}"


def _of(row: Row) -> Identity:
    return row["site"], row["subject"]


if __name__ == "__main__":
    with in_one_line():
        main()

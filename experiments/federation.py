"""Learn a stream of real sites as a federation of hospitals, and the same stream with all data in one place.

    python -m experiments.federation --data DIR --out runs/federation
    python -m experiments.federation --data DIR --out runs/federation --methods jm --iterations 20

Each site is a hospital with a service of its own, and a relay hands on their messages: separate processes with NVFLARE
and mutual TLS on loopback, started by the commands that users type. The sites of the stream learn one after another,
the held-out one last. Afterwards the rounds of both runs are evaluated on the same test parts.

Both runs compute the same sums in another order, and training magnifies the difference. So a third run is the scale to
read it by: centralised, with a batch's rows passed three at a time (`micro_batch: 3`), which also changes the order of
sums and nothing else. The page is printed, and written to results/federation.md; a method whose runs are in `--out` is
not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from experiments.mistakes import in_one_line
from smg.errors import SmgError
from smg.evaluation.measures import MEASURES
from smg.evaluation.metrics import COMPARED, METRICS
from smg.federation.loopback import Loopback
from smg.files import write_json
from smg.learner.config import LearnerConfig
from smg.learner.learner import Learner
from smg.learner.results import RESULTS, Results, read_results, write_results
from smg.learner.stream import Stream
from smg.sites.layouts import find_sites
from smg.sites.split import Split, load_splits

ORDER, UNSEEN = ("RUNMC", "HCRUDB", "UCL", "BIDMC"), "HK"
METHODS = ("jm", "sga+c")
SETTINGS: dict[str, Any] = {
    "folds": 4,
    "preparation": {"size": 64, "spacing": 1.875, "field": 120},
    "network": {"width": 8, "depth": 3},
    "optimiser": {"rate": 2e-3, "schedule": "cosine"},
    "augment": "strong",
    "select": "average",
}
RUNS = {"federation": "over the federation", "central": "centralised", "turns": "centralised, other order of sums"}
TURN = 3  # rows at a time, of batches of five
PAGE = Path("results/federation.md")
ABOUT = """# A federation on the real sites

{hospitals} hospitals learn one model: {order}, then {unseen}, the held-out one. Each is a process of its own with its
own scans; a relay hands on their messages, with NVFLARE and mutual TLS on loopback. Beside it stands the centralised
run: the same settings, seed, parts and draws in one process that has all exemplars. The two compute the same sums in
another order, and training magnifies the difference of rounding. The third run shows how much: it is centralised, too,
and passes a batch's rows {turn} at a time.

A small setting, which shows what the federation changes, not how well the sites can be learned: {iterations} iterations
a round, {size} x {size} pixels of {spacing} mm, width {width}, depth {depth}, one seed, test parts. Seconds of a round
over the federation include the start of its processes; all processes shared a busy machine of two cores. Weights differ
by so much of the length of the centralised ones. Made by `python -m experiments.federation --data DIR`.
"""


@dataclass(frozen=True)
class Round:
    """What a round cost, and how far its weights are from the centralised round's."""

    site: str
    seconds: float
    central_seconds: float
    answers: int  # of gradients, by all other hospitals
    megabytes: float  # of these answers
    distance: float  # of the weights, of the length of the centralised ones
    turns_distance: float  # of the run with another order of sums
    first_loss: float  # relative difference of the losses in the first iteration


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the sites")
    parser.add_argument("--out", type=Path, default=Path("runs/federation"), help="folder for models and results")
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--order", nargs="+", default=list(ORDER), help="sites to learn")
    parser.add_argument("--unseen", default=UNSEEN, help="site to learn last")
    parser.add_argument("--iterations", type=int, default=100, help="of a round")
    parser.add_argument("--page", type=Path, default=PAGE, help=f"file to write; default: {PAGE}")
    options = parser.parse_args()
    torch.set_num_threads(int(os.environ.setdefault("OMP_NUM_THREADS", "1")))  # as many in every process
    sites = find_sites(options.data)
    parts = []
    for method in options.methods:
        made = SETTINGS | {"method": method, "iterations": options.iterations, "validate_every": options.iterations}
        config = LearnerConfig.model_validate(made)
        stream = Stream(sites, options.order, options.unseen, config)
        folder = options.out / method
        run(folder, options.data, stream, made)
        parts.append(section(folder, method))
    page = "\n".join([head(options.order, options.unseen, options.iterations), *parts])
    options.page.write_text(page)
    print(page)


def run(folder: Path, data: Path, stream: Stream, settings: dict[str, object]) -> None:
    """Make the three runs of a method in a folder, except those that are there."""
    stream.run(folder / "central")
    if not (folder / "federation" / RESULTS).exists():
        federate(folder / "federation", data, stream, settings, load_splits(folder / "central" / "split.json"))
    turns = stream.config.model_copy(update={"micro_batch": TURN})
    Stream(stream.sites, stream.order, stream.unseen, turns).run(folder / "turns")
    rounds = [measured(folder, stream, number) for number in range(1, 1 + len(stream.rounds))]
    write_json(folder / "rounds.json", [vars(one) for one in rounds])


def federate(
    folder: Path, data: Path, stream: Stream, settings: dict[str, object], splits: dict[str, Split]
) -> Results:
    """Learn the stream over hospitals, evaluate every round at every site, and write `results.json`."""
    if folder.exists():
        raise SmgError(f"{folder}: holds a federation that did not finish; delete the folder to begin again")
    folder.mkdir(parents=True)
    chosen = folder / "settings.yaml"
    chosen.write_text(yaml.safe_dump(settings))
    seconds = {}
    with Loopback(folder, stream.rounds) as land:
        for name in stream.rounds:
            begun = time.monotonic()
            land.learn(name, data / name, chosen)
            seconds[name] = time.monotonic() - begun
            print(f"{settings['method']}: hospital {name} has learned, {seconds[name]:.0f} s", flush=True)
    write_json(folder / "seconds.json", seconds)
    refuse_other_parts(land, stream, splits)
    last = Learner(land.model(stream.rounds[-1]))  # every hospital has every round
    rows = [row for number in range(1, 1 + len(stream.rounds)) for row in stream.evaluate(last, number, splits)]
    results = stream.results(rows)
    write_results(folder, results)
    return results


def refuse_other_parts(land: Loopback, stream: Stream, splits: dict[str, Split]) -> None:
    """Raise an error if a hospital drew other parts than the centralised run: a training subject would be tested."""
    for name in stream.rounds:
        parts = Learner(land.model(name)).parts_of(stream.sites[name])
        wrong = [case for part, cases in splits[name].items() for case in cases if parts.get(case) != part]
        if wrong:
            raise SmgError(f"hospital {name}: {len(wrong)} subjects are in another part than in the centralised run")


def measured(folder: Path, stream: Stream, number: int) -> Round:
    """Return the costs of a round, and its distance from the centralised one."""
    name = stream.rounds[number - 1]
    at = {"central": folder / "central" / "model", "turns": folder / "turns" / "model"}
    far = folder / "federation" / "hospitals" / name / "model"
    learners = {run: Learner(where) for run, where in (at | {"federation": far}).items()}
    weights = {run: flat(learner, number) for run, learner in learners.items()}
    logs = {run: learner.store.read_round(number).log[0].losses for run, learner in learners.items()}
    others = [one for one in stream.rounds if one != name]
    logged = [line for other in others for line in answers(folder / "federation" / "federation" / other)]
    given = [line for line in logged if line["kind"] == "gradients" and line["caller"] == name]
    length = weights["central"].norm()
    return Round(
        name,
        json.loads((folder / "federation" / "seconds.json").read_text())[name],
        learners["central"].store.read_round(number).seconds,
        len(given),
        sum(line["bytes"] for line in given) / 1e6,
        float((weights["federation"] - weights["central"]).norm() / length),
        float((weights["turns"] - weights["central"]).norm() / length),
        max(abs(loss - logs["central"][key]) / abs(logs["central"][key]) for key, loss in logs["federation"].items()),
    )


def answers(kit: Path) -> list[dict[str, Any]]:
    """Return the lines of a hospital's audit log that were answered."""
    lines = [json.loads(line) for line in (kit / "answers.jsonl").read_text().splitlines()]
    return [line for line in lines if line["answered"]]


def flat(learner: Learner, number: int) -> torch.Tensor:
    """Return the weights of a round as one vector."""
    return torch.cat([tensor.double().flatten() for tensor in learner.network(number).state_dict().values()])


# --- as text ----------------------------------------------------------------------------------------------------------


def head(order: Sequence[str], unseen: str, iterations: int) -> str:
    """Return the page's beginning."""
    return ABOUT.format(
        hospitals=1 + len(order),
        order=", ".join(order),
        unseen=unseen,
        iterations=iterations,
        turn=TURN,
        **SETTINGS["preparation"],
        **SETTINGS["network"],
    )


def points_apart(one: Results, other: Results, round_site: str) -> float:
    """Return the mean over sites of the difference of two runs' DSC after a round, without its sign, in points."""
    pairs = [(one.matrix["dsc"][round_site][site], other.matrix["dsc"][round_site][site]) for site in one.stream.sites]
    return 100 * statistics.mean(abs(a - b) for a, b in pairs if a is not None and b is not None)


def section(folder: Path, method: str) -> str:
    """Return the tables of a method."""
    results = {run: read_results(folder / run) for run in RUNS}
    rounds = [Round(**one) for one in json.loads((folder / "rounds.json").read_text())]
    columns = [(metric, measure) for metric in COMPARED for measure in MEASURES]
    lines = [
        f"## {method}",
        "",
        "| | " + " | ".join(f"{measure} {METRICS[metric].head}" for metric, measure in columns) + " |",
        "|---|" + "---:|" * len(columns),
    ]
    for name, label in RUNS.items():
        cells = [METRICS[metric].text(results[name].measures[metric][measure]) for metric, measure in columns]
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    lines += [
        "",
        "| round | seconds | centralised | answers with gradients | MB answered | weights differ by "
        "| other order of sums | DSC of a site differs by, mean | other order of sums |",
        "|---|" + "---:|" * 8,
    ]
    for number, one in enumerate(rounds, start=1):
        apart = [points_apart(results[name], results["central"], one.site) for name in ("federation", "turns")]
        lines.append(
            f"| {number} {one.site} | {one.seconds:.0f} | {one.central_seconds:.0f} | {one.answers:,} | "
            f"{one.megabytes:.0f} | {one.distance:.2f} | {one.turns_distance:.2f} | {apart[0]:.1f} | {apart[1]:.1f} |"
        )
    second = next((one for one in rounds if one.answers), None)
    if second:
        equal = f"differ by {second.first_loss:.0e} of their value" if second.first_loss else "are equal to the bit"
        lines += [
            "",
            f"In the first iteration with others' answers (round {second.site}) the two runs' losses {equal}.",
        ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    with in_one_line():
        main()

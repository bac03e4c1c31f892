"""Measure how far a U-Net's DSC falls outside the site it was trained on: phantom A -> E, F, or real sites.

python -m experiments.phantom_shift
python -m experiments.phantom_shift --data data/prostate --source RUNMC --targets BIDMC,HK
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
from torch import nn

from smg.evaluation.subjects import evaluate_subjects
from smg.learner.config import LearnerConfig
from smg.learner.round import Training
from smg.networks import build_network
from smg.prepare.cache import Prepared
from smg.prepare.prepared_site import prepare_site
from smg.sites.site import Site
from smg.sites.split import split_site


def trained(subjects: list[Prepared], config: LearnerConfig) -> nn.Module:
    """Return a new network after one round of plain training."""
    network = build_network(config.network, config.seed)
    Training(network, config, 1, "source", subjects, validation=[], replay=[]).run(save=lambda: None)
    return network


def mean_dsc(network: nn.Module, subjects: list[Prepared], config: LearnerConfig) -> float:
    """Return the mean DSC over subjects, in per cent, on the scans' own grids."""
    rows = evaluate_subjects(network, subjects, config.preparation, largest=False)
    return 100 * float(np.mean([row.classes["foreground"].dsc for row in rows]))


def measure(args: argparse.Namespace, root: Path, cache: Path) -> dict[str, float]:
    """Return the DSC on the source's test subjects and on all subjects of each target, and the drop, over trainings."""
    targets = args.targets.split(",")
    scores: dict[str, list[float]] = {}
    for repeat in range(args.repeats):
        config = LearnerConfig.model_validate(
            {
                "method": "finetune",
                "iterations": args.iterations,
                "preparation": {"size": args.size},
                "network": {"width": args.width},
                "seed": 1000 * args.seed + repeat,
            }
        )
        sites = {name: Site.find(root, name) for name in (args.source, *targets)}
        subjects = {name: prepare_site(site, config.preparation, cache=cache) for name, site in sites.items()}
        split = split_site(sites[args.source], config.seed)
        network = trained([p for p in subjects[args.source] if p.subject.case in split["train"]], config)
        subjects[args.source] = [p for p in subjects[args.source] if p.subject.case in split["test"]]
        for name, those in subjects.items():
            scores.setdefault(f"{args.source}->{name}", []).append(mean_dsc(network, those, config))
        print(f"training {repeat + 1}: " + "  ".join(f"{key} {values[-1]:.1f}" for key, values in scores.items()))
    figures = {key: float(np.mean(values)) for key, values in scores.items()}
    home = figures[f"{args.source}->{args.source}"]
    drops = {f"drop {args.source}->{name}": home - figures[f"{args.source}->{name}"] for name in targets}
    return {key: round(value, 2) for key, value in (figures | drops).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="seed of the phantoms and of the training; default 0")
    parser.add_argument("--iterations", type=int, default=400)
    parser.add_argument(
        "--repeats", type=int, default=3, help="trainings to average over; single short ones vary; default 3"
    )
    parser.add_argument("--size", type=int, default=96, help="height and width of a slice in pixels; default 96")
    parser.add_argument("--width", type=int, default=8, help="channels of the U-Net's first level; default 8")
    parser.add_argument("--data", type=Path, help="folder of sites to use instead of phantoms")
    parser.add_argument("--source", default="A")
    parser.add_argument("--targets", default="E,F")
    parser.add_argument("--json", action="store_true", help="print the figures last, as one line of JSON")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        if args.data is None:
            from smg.phantom.phantom import write_phantom_sites

            began = time.perf_counter()
            write_phantom_sites(Path(made, "sites"), args.seed, letters=(args.source, *args.targets.split(",")))
            print(f"phantom written in {time.perf_counter() - began:.0f} s")
        figures = measure(args, args.data or Path(made, "sites"), Path(made, "cache"))
    for name, value in figures.items():
        print(f"{name:>16}  {value:6.2f}")
    if args.json:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()

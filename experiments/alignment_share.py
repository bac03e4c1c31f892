"""Measure how much of SGA's update is alignment: its direction with and without inner steps, along a real round.

    python -m experiments.alignment_share --data data/prostate

Each variant learns RUNMC and then HCRUDB at the settings of `prostate`, or of `--config`. At every iteration of the
second round

    share = |d(γ, β) - d(0, 0)| / |d(0, 0)|

where d(0, 0) is joint minimisation over the same slices. Prints the median over the round and the quartiles.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from experiments.mistakes import in_one_line
from smg.gradients.oracle import Gradient
from smg.learner.config_layers import configuration
from smg.learner.stream import Stream
from smg.methods import register
from smg.methods.sga import SGA
from smg.prepare.batches import Iteration
from smg.settings_file import read_settings
from smg.sites.layouts import find_sites

VARIANTS = (
    {"inner": "sgd", "gamma": 5e-4, "beta": 5e-4},
    {"inner": "sgd", "gamma": 5e-2, "beta": 5e-2},
    {"inner": "adam", "gamma": 5e-4, "beta": 5e-4},
)


@register("sga watched")
@dataclass(frozen=True)
class Watched(SGA):
    """SGA that records how much its inner steps change."""

    shares: ClassVar[list[float]] = []

    def direction(self, theta: Tensor, grad: Gradient, batches: Iteration) -> Tensor:
        aligned = super().direction(theta, grad, batches)
        plain = SGA.direction(replace(self, gamma=0.0, beta=0.0), theta, grad, batches)
        self.shares.append(float((aligned - plain).norm() / plain.norm()))
        return aligned


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder of sites")
    parser.add_argument("--config", default="prostate", help="a settings file or ready configuration; default prostate")
    parser.add_argument("--iterations", type=int, default=500, help="iterations of each round; default 500")
    options = parser.parse_args()
    torch.set_num_threads(1)
    sites, settings = find_sites(options.data), read_settings(options.config).settings
    for variant in VARIANTS:
        given = {"method": "sga watched", "options": variant, "iterations": options.iterations}
        config = configuration(settings, given)
        Watched.shares.clear()
        with tempfile.TemporaryDirectory() as folder:
            Stream(sites, ["RUNMC", "HCRUDB"], None, config).run(Path(folder) / "run")
        low, middle, high = (100 * cut for cut in statistics.quantiles(Watched.shares, n=4))
        label = ", ".join(f"{name} {value}" for name, value in variant.items())
        print(f"{label}: alignment is {middle:.3g} % of the update [quartiles {low:.3g}, {high:.3g}]", flush=True)


if __name__ == "__main__":
    with in_one_line():
        main()

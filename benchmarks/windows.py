"""What windows cost: drawing a batch beside a step, and laying them over slices beside the network's own passes.

    python benchmarks/windows.py [--size 96] [--width 8] [--depth 4] [--json]

Prints, from one run, as CPU time in one thread and as medians with quartiles over repeats: a joint-minimisation step's
batches (drawn, cut and stacked; and with mild augmentation) over the step's two passes, and sliding-window prediction
over the bare passes of the same windows, for slices that need nine windows and for slices that need one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from smg.evaluation.whole_scan import WINDOWS_AT_ONCE, class_scores
from smg.gradients.oracle import Oracle
from smg.networks import NetworkConfig, build_network
from smg.networks.features import undisturbed
from smg.prepare.augment import Augmentation
from smg.prepare.batches import Iteration
from smg.prepare.cache import Prepared
from smg.prepare.grid import Grid
from smg.prepare.prepare_options import Preparation
from smg.prepare.slices import Slices, passes
from smg.sites.site import Subject


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=96, help="pixels of a window's side")
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    given = parser.parse_args()
    torch.set_num_threads(1)
    options = Preparation(size=given.size, spacing=1.0)
    oracle = Oracle(build_network(NetworkConfig(width=given.width, depth=given.depth), 0))
    figures = {
        **batches(oracle, options, given.repeats),
        **sliding(oracle.network, options, given.repeats),
    }
    if given.json:
        print(json.dumps(figures))
        return
    for name, (low, median, high) in figures.items():
        print(f"{name:<58} {100 * median:6.1f} %  [{100 * low:.1f}, {100 * high:.1f}]")


def batches(oracle: Oracle, options: Preparation, repeats: int) -> dict[str, tuple[float, float, float]]:
    """Return the cost of a step's batches over that of its passes."""
    sources = [Slices([subject(2 * options.size, seed) for seed in (n, n + 1)], options) for n in (0, 2)]
    plain, mild = Augmentation.preset("none"), Augmentation.preset("mild")

    def iteration(number: int, augmentation: Augmentation) -> Iteration:
        return Iteration(sources[0], [sources[1]], 5, 0, 1, number, augmentation, window=options.size)

    def loaded(number: int, augmentation: Augmentation) -> None:
        made = iteration(number, augmentation)
        made.load((*made.incoming.rows, *made.replay.rows))  # type: ignore[union-attr]

    def stepped(number: int) -> None:
        made = iteration(number, plain)
        oracle.at(0, 1, number)
        for batch in (made.incoming, made.replay):
            oracle(oracle.theta, batch)  # type: ignore[arg-type]

    rows = []
    for number in range(repeats + 1):
        draw, augmented, step = (
            seconds(lambda n=number: loaded(n, plain)),  # type: ignore[misc]
            seconds(lambda n=number: loaded(n, mild)),  # type: ignore[misc]
            seconds(lambda n=number: stepped(n)),  # type: ignore[misc]
        )
        rows.append((draw / (step - draw), augmented / (step - draw)))
    names = ("a step's windows over its passes", "the same with mild augmentation")
    return {name: spread(column) for name, column in zip(names, zip(*rows[1:], strict=True), strict=True)}


def sliding(network: torch.nn.Module, options: Preparation, repeats: int) -> dict[str, tuple[float, float, float]]:
    """Return the cost of prediction beyond the network's own passes over the same windows."""
    found = {}
    for name, side in (("nine windows a slice", 2 * options.size), ("one window a slice", options.size)):
        images, rows = torch.randn(8, 1, side, side), []

        made = [windows for _, windows in passes(images, options, WINDOWS_AT_ONCE)]

        def bare(made: list[torch.Tensor] = made) -> None:
            with undisturbed(network):
                for windows in made:
                    network(windows)

        for _ in range(repeats + 1):
            whole = seconds(lambda i=images: class_scores(network, i, options))  # type: ignore[misc]
            rows.append(whole / seconds(bare) - 1)
        found[f"prediction beyond its passes, {name}"] = spread(rows[1:])
    return found


def subject(side: int, seed: int) -> Prepared:
    """Make up a prepared subject."""
    rng = np.random.default_rng(seed)
    images = torch.from_numpy(rng.standard_normal((12, 1, side, side), np.float32))
    labels = torch.zeros(12, side, side, dtype=torch.uint8)
    labels[:, side // 3 : side // 2, side // 3 : side // 2] = 1
    grid = Grid((12, side, side), np.eye(4), side, spacing=1.0)
    return Prepared(Subject("", str(seed), (Path(),), Path()), images, labels, (True,) * 12, grid, str(seed))


def seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def spread(values: list[float] | tuple[float, ...]) -> tuple[float, float, float]:
    """Return quartiles: low, median, high."""
    low, median, high = statistics.quantiles(values, n=4)
    return low, median, high


if __name__ == "__main__":
    main()

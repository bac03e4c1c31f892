"""What a method's step costs beyond the passes it is made of: time, and memory over fine-tuning's.

    python benchmarks/step_cost.py               # `higher` joins in where it is installed
    python benchmarks/step_cost.py --json        # the figures, last, as one line

`share` is the step with that setting, as `smg plan` chooses it: rows that are asked for at one Θ are passed once, and
together where that is faster. Its results differ in rounding.

A step is `take_step`: batches, gradients, optimiser and report. Beside it stand the forward and backward passes it
needs, written by hand with nothing around them, over batches already in memory. The two take turns, and a ratio is the
median over turns of processor time over processor time, so that a busy machine does not blur it.

Memory is the peak of the resident set over what was resident before the first step, each method in a process of its
own in which freed memory goes back to the kernel (SMG_MALLOC=0): what is alive at once, without an allocator's slack.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from smg.gradients.optimiser import Optimiser
from smg.gradients.oracle import Oracle
from smg.methods import METHODS, take_step
from smg.networks import NetworkConfig, build_network
from smg.networks.loss import segmentation_loss
from smg.prepare.augment import Augmentation
from smg.prepare.batches import Batch, Iteration
from smg.prepare.cache import Prepared
from smg.prepare.grid import Grid
from smg.prepare.prepare_options import Preparation
from smg.prepare.slices import Slices
from smg.sites.site import Subject

BATCH, PREVIOUS, INNER_RATE = 5, 2, 5e-4
SETTINGS = {"96 x 96, width 8": (96, 8, 1), "192 x 192, width 16": (192, 16, 3)}  # the last: turns are fewer by it
TIMED = ("finetune", "jm", "c-meta", "g-meta", "sga", "gem", "isgm", "pooled", "sga-direct")
TARGETS = {"sga": 0.90, "any other": 1.00}  # with `share`, of the bare passes
Work = Callable[[], object]
Passes = Callable[[Iteration], list[Batch]]


# Slices in memory


def subject(seed: int, size: int, slices: int = 8) -> Prepared:
    """Return a subject with a bright disc in noise."""
    rng = np.random.default_rng(seed)
    yy, xx = np.mgrid[:size, :size]
    centre, radius = rng.uniform(0.4, 0.6, 2) * size, rng.uniform(0.15, 0.25) * size
    disc = ((yy - centre[0]) ** 2 + (xx - centre[1]) ** 2 < radius**2).astype(np.uint8)
    labels = np.repeat(disc[None], slices, axis=0)
    images = (rng.normal(size=labels.shape) + labels).astype(np.float32)
    about = Subject(f"site {seed}", f"Case{seed:02d}", (Path("image"),), Path("mask"))
    grid = Grid(labels.shape, np.eye(4), size)
    array = torch.from_numpy(images)[:, None]
    return Prepared(about, array, torch.from_numpy(labels), (True,) * slices, grid, str(seed))


@dataclass
class Rig:
    """A network, its oracle and optimiser, and an incoming site after two learned ones."""

    size: int
    width: int
    compile: bool = False
    share: bool = False
    numbers: count[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        self.network = build_network(NetworkConfig(width=self.width), 0)
        self.oracle = Oracle(self.network, compile=self.compile, share=self.share)
        self.optimiser = Optimiser(self.oracle.theta)
        options = Preparation(size=self.size)
        self.sites = [Slices([subject(2 * site + k, self.size) for k in range(2)], options) for site in range(3)]

    def iteration(self) -> Iteration:
        incoming, *previous = self.sites
        return Iteration(incoming, previous, BATCH, 0, 1, next(self.numbers), Augmentation.preset("none"))

    def step(self, name: str, **options: bool) -> Work:
        method = METHODS[name](**options)
        return lambda: take_step(method, self.oracle, self.optimiser, self.iteration())


# The same by hand


def halves(it: Iteration) -> list[Batch]:
    assert it.replay is not None
    return list(it.split(it.incoming, it.replay))


def both(it: Iteration) -> list[Batch]:
    assert it.replay is not None
    return [it.incoming, it.replay]


PASSES: dict[str, Passes] = {
    "finetune": lambda it: [it.incoming],
    "jm": both,
    "c-meta": both,
    "g-meta": halves,
    "sga": lambda it: both(it) + halves(it),
    "gem": lambda it: [it.incoming, *it.exemplars],
    "isgm": lambda it: [it.incoming, *it.exemplars],
    "pooled": lambda it: [it.pooled],
    "sga-direct": lambda it: both(it) + halves(it),
}

Pair = tuple[Tensor, Tensor]


def in_memory(batches: Sequence[Batch]) -> list[Pair]:
    return [(samples.images, samples.labels) for samples in (batch.load() for batch in batches)]


def bare(network: nn.Module, pairs: Sequence[Pair]) -> Work:
    """Run a forward and a backward pass for each batch."""

    def work() -> None:
        network.zero_grad()
        for images, labels in pairs:
            segmentation_loss(network(images), labels).mean().backward()

    return work


def bare_direct(network: nn.Module, pairs: Sequence[Pair]) -> Work:
    """Compute Eq. 4 as it is written, and its backward by autograd."""
    parameters = list(network.parameters())

    def work() -> None:
        network.zero_grad()
        for a, b in (pairs[:2], pairs[2:]):
            losses = [segmentation_loss(network(images), labels).mean() for images, labels in (a, b)]
            g_a, g_b = (torch.autograd.grad(loss, parameters, create_graph=True) for loss in losses)
            product = torch.stack([(x * y).sum() for x, y in zip(g_a, g_b, strict=True)]).sum()
            (losses[0] + losses[1] - INNER_RATE * product).backward()

    return work


def by_higher(rig: Rig, passes: Passes) -> Work:
    """Take the same update with `higher`: a virtual step of gradient descent, first order, and Adam outside.

    Its callback hands out the gradient of the virtual step, so it needs no more passes than ours.
    """
    import higher

    network = build_network(NetworkConfig(width=rig.width), 0)
    inner = torch.optim.SGD(network.parameters(), lr=INNER_RATE)
    outer = torch.optim.Adam(network.parameters(), lr=5e-4, fused=True)
    parameters = list(network.parameters())

    def add(gradients: Sequence[Tensor]) -> None:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient

    def first(gradients: list[Tensor]) -> list[Tensor]:
        add(gradients)
        return gradients

    def work() -> None:
        network.zero_grad()
        batches = passes(rig.iteration())
        for a, b in zip(batches[::2], batches[1::2], strict=True):
            with higher.innerloop_ctx(network, inner, track_higher_grads=False) as (virtual, step):
                (images, labels), (others, truth) = in_memory([a, b])
                step.step(segmentation_loss(virtual(images), labels).mean(), grad_callback=first)
                loss = segmentation_loss(virtual(others), truth).mean()
                add(torch.autograd.grad(loss, list(virtual.parameters())))
        outer.step()

    return work


# Measuring


def in_turns(works: dict[str, Work], turns: int) -> dict[str, list[float]]:
    """Return processor time in milliseconds of each, turn by turn, after a warm-up; every other turn is reversed."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(turns + 1):
        for name in list(works)[:: 1 if turn % 2 else -1]:
            start = time.process_time()
            works[name]()
            if turn:
                times[name].append(1000 * (time.process_time() - start))
    return times


def ratio(above: list[float], below: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def quartiles(above: list[float], below: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles([a / b for a, b in zip(above, below, strict=True)], n=4)
    return dict(zip(("low", "median", "high"), cuts, strict=True))


def time_of(size: int, width: int, turns: int, names: Sequence[str] = TIMED) -> dict[str, dict[str, Any]]:
    """Time every method's step beside its bare passes and beside a library's step."""
    rig = Rig(size, width)
    plain = build_network(NetworkConfig(width=width), 0)
    works: dict[str, Work] = {}
    sharing = Rig(size, width, share=True)
    for name in names:
        pairs = in_memory(PASSES[name](rig.iteration()))
        works[f"bare {name}"] = (bare_direct if name == "sga-direct" else bare)(plain, pairs)
        works[name] = rig.step(name)
        works[f"shared {name}"] = sharing.step(name)
        if name in ("c-meta", "sga") and has_higher():
            works[f"higher {name}"] = by_higher(rig, PASSES[name])
    if "sga" in names:
        works["symmetric sga"] = rig.step("sga", symmetric=True)
        works["compiled sga"] = Rig(size, width, compile=True).step("sga")
    times = in_turns(works, turns)
    figures: dict[str, dict[str, Any]] = {
        "milliseconds": {name: statistics.median(values) for name, values in times.items()},
        "over_bare": {name: quartiles(times[name], times[f"bare {name}"]) for name in names},
        "shared_over_bare": {name: quartiles(times[f"shared {name}"], times[f"bare {name}"]) for name in names},
        "higher_over_ours": {
            name: ratio(times[f"higher {name}"], times[name]) for name in names if f"higher {name}" in times
        },
    }
    if "sga" in names:
        figures["compiled_over_plain"] = {"sga": ratio(times["compiled sga"], times["sga"])}
    if {"sga", "sga-direct"} <= set(names):
        figures["sga_over_direct"] = quartiles(times["sga"], times["sga-direct"])
        figures["symmetric_over_direct"] = quartiles(times["symmetric sga"], times["sga-direct"])
    return figures


def has_higher() -> bool:
    try:
        import higher  # noqa: F401
    except ImportError:
        return False
    return True


def peak_of(name: str, size: int, width: int, share: bool, steps: int = 3) -> float:
    """Return by how many MB this process's resident set rises at most, over a few steps of one method."""
    step = Rig(size, width, share=share).step(name)
    before = resident("VmRSS")
    for _ in range(steps):
        step()
    return resident("VmHWM") - before


def resident(which: str) -> float:
    """Return resident MB, now or at most; getrusage's peak would include memory of the parent process."""
    status = Path("/proc/self/status").read_text().split()
    return int(status[status.index(f"{which}:") + 1]) * 1024 / 1e6


def memory_of(size: int, width: int, names: Sequence[str], share: bool) -> dict[str, float]:
    """Return the same for every method, each in a process of its own."""
    peaks = {}
    for name in names:
        command = [sys.executable, __file__, "--peak", name, str(size), str(width), *(["--share"] if share else [])]
        measured = subprocess.run(
            command, env=os.environ | {"SMG_MALLOC": "0"}, capture_output=True, check=True, text=True
        )
        peaks[name] = float(measured.stdout)
    return peaks


def show(setting: str, figures: dict[str, dict[str, Any]]) -> None:
    print(f"\n{setting}, 5 levels, batches of {BATCH}, {PREVIOUS} previous sites")
    heads = f"{'bare ms':>9s} {'step ms':>9s} {'of bare [quartiles]':>22s} {'with share':>22s}"
    print(f"{'method':12s} {heads} {'peak MB':>9s} {'with share':>12s}")
    took, peak, shared_peak = (figures[key] for key in ("milliseconds", "peak_megabytes", "shared_peak_megabytes"))
    for name in figures["over_bare"]:
        memory = f"{peak[name]:9.0f} {shared_peak[name]:12.0f}" if peak else ""
        low, middle, high = figures["over_bare"][name].values()
        shares = "{1:.3f} [{0:.3f}, {2:.3f}]".format(*figures["shared_over_bare"][name].values())
        ratios = f"{f'{middle:.3f} [{low:.3f}, {high:.3f}]':>22s} {shares:>22s}"
        print(f"{name:12s} {took[f'bare {name}']:9.1f} {took[name]:9.1f} {ratios} {memory}")
    for name, value in figures["higher_over_ours"].items():
        print(f"{name} with higher: {took[f'higher {name}']:.1f} ms, {value:.3f} of ours")
    for name, value in figures.get("compiled_over_plain", {}).items():
        print(f"{name} compiled: {took[f'compiled {name}']:.1f} ms, {value:.3f} of plain")
    for which, note in (("sga", " (the paper reports 3.31 %)"), ("symmetric", "")):
        if f"{which}_over_direct" in figures:
            low, middle, high = (100 * value for value in figures[f"{which}_over_direct"].values())
            print(f"{which} takes {middle:.1f} % [quartiles {low:.1f}, {high:.1f}] of sga-direct's time{note}")


def are_met(figures: dict[str, dict[str, dict[str, Any]]]) -> bool:
    """Return whether the medians with `share` are at most their targets, at every size."""
    found = [item for each in figures.values() for item in each["shared_over_bare"].items()]
    return all(value["median"] <= TARGETS.get(name, TARGETS["any other"]) for name, value in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=21, help="turns at the small size; a third of it at the large")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print the figures last, as one line of JSON")
    parser.add_argument("--small", action="store_true", help="the small size only")
    parser.add_argument("--methods", help="some of the methods, by commas [default: all]")
    parser.add_argument("--no-memory", action="store_true", help="times only")
    parser.add_argument("--peak", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--share", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.peak:
        print(peak_of(given.peak[0], int(given.peak[1]), int(given.peak[2]), given.share))
        return

    if not has_higher():
        print("higher       not installed")
    names = given.methods.split(",") if given.methods else TIMED
    figures: dict[str, dict[str, dict[str, Any]]] = {}
    for setting, (size, width, fewer) in list(SETTINGS.items())[: 1 if given.small else None]:
        figures[setting] = time_of(size, width, max(given.repeats // fewer, 2), names)
        for key, share in (("peak_megabytes", False), ("shared_peak_megabytes", True)):
            measures = sys.platform == "linux" and not given.no_memory
            figures[setting][key] = memory_of(size, width, names, share) if measures else {}
        show(setting, figures[setting])
    if given.json:
        print(json.dumps({"settings": figures, "targets": TARGETS, "met": are_met(figures), "threads": given.threads}))


if __name__ == "__main__":
    main()

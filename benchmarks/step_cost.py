"""What a method's step costs beyond the passes it is made of: time, and memory over fine-tuning's.

    python benchmarks/step_cost.py               # `higher` joins in where it is installed
    python benchmarks/step_cost.py --json        # the figures, last, as one line

`sga with share` is the step with the setting `share`: rows that it asks for twice at one Θ are passed once.

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
from smg.prepare.options import Preparation
from smg.prepare.slices import Slices
from smg.sites.site import Subject

BATCH, PREVIOUS, INNER_RATE = 5, 2, 5e-4
SETTINGS = {"96 x 96, width 8": (96, 8, 1), "192 x 192, width 16": (192, 16, 3)}  # the last: turns are fewer by it
TIMED = ("finetune", "jm", "c-meta", "g-meta", "sga", "gem", "isgm", "pooled", "sga-direct")
TARGET, TARGETED = 1.05, ("jm", "c-meta", "g-meta", "sga")
Work = Callable[[], object]
Passes = Callable[[Iteration], list[Batch]]


# Slices in memory


def subject(seed: int, size: int, slices: int = 8) -> Prepared:
    """A bright disc in noise."""
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
    """A forward and a backward pass for each batch."""

    def work() -> None:
        network.zero_grad()
        for images, labels in pairs:
            segmentation_loss(network(images), labels).mean().backward()

    return work


def bare_direct(network: nn.Module, pairs: Sequence[Pair]) -> Work:
    """Eq. 4 as it is written, and autograd's backward of it."""
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
    """The same update with `higher`: a virtual step of plain gradient descent, first order, the outer step Adam's.

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
    """Milliseconds of processor time of each, turn by turn; every other turn in reverse, after one to warm up."""
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


def time_of(size: int, width: int, turns: int) -> dict[str, dict[str, float]]:
    """Every method's step, its bare passes, and a library's, each pair side by side."""
    rig = Rig(size, width)
    plain = build_network(NetworkConfig(width=width), 0)
    works: dict[str, Work] = {}
    for name in TIMED:
        pairs = in_memory(PASSES[name](rig.iteration()))
        works[f"bare {name}"] = (bare_direct if name == "sga-direct" else bare)(plain, pairs)
        works[name] = rig.step(name)
        if name in ("c-meta", "sga") and has_higher():
            works[f"higher {name}"] = by_higher(rig, PASSES[name])
    works["shared sga"] = Rig(size, width, share=True).step("sga")
    works["symmetric sga"] = rig.step("sga", symmetric=True)
    works["compiled sga"] = Rig(size, width, compile=True).step("sga")
    times = in_turns(works, turns)
    return {
        "milliseconds": {name: statistics.median(values) for name, values in times.items()},
        "over_bare": {name: ratio(times[name], times[f"bare {name}"]) for name in TIMED},
        "shared_over_bare": quartiles(times["shared sga"], times["bare sga"]),
        "shared_over_plain": quartiles(times["shared sga"], times["sga"]),
        "higher_over_ours": {
            name: ratio(times[f"higher {name}"], times[name]) for name in TIMED if f"higher {name}" in times
        },
        "sga_over_direct": quartiles(times["sga"], times["sga-direct"]),
        "symmetric_over_direct": quartiles(times["symmetric sga"], times["sga-direct"]),
        "compiled_over_plain": {"sga": ratio(times["compiled sga"], times["sga"])},
    }


def has_higher() -> bool:
    try:
        import higher  # noqa: F401
    except ImportError:
        return False
    return True


def peak_of(name: str, size: int, width: int, steps: int = 3) -> float:
    """MB that this process's resident set rises by at most, over a few steps of one method."""
    step = Rig(size, width).step(name)
    before = resident("VmRSS")
    for _ in range(steps):
        step()
    return resident("VmHWM") - before


def resident(which: str) -> float:
    """MB, now or at most; getrusage's peak would count what the parent process had before it started this one."""
    status = Path("/proc/self/status").read_text().split()
    return int(status[status.index(f"{which}:") + 1]) * 1024 / 1e6


def memory_of(size: int, width: int) -> dict[str, float]:
    """The same for every method, each in a process of its own."""
    peaks = {}
    for name in TIMED:
        command = [sys.executable, __file__, "--peak", name, str(size), str(width)]
        measured = subprocess.run(
            command, env=os.environ | {"SMG_MALLOC": "0"}, capture_output=True, check=True, text=True
        )
        peaks[name] = float(measured.stdout)
    return peaks


def show(setting: str, figures: dict[str, dict[str, float]]) -> None:
    print(f"\n{setting}, 5 levels, batches of {BATCH}, {PREVIOUS} previous sites")
    print(f"{'method':12s} {'bare ms':>9s} {'step ms':>9s} {'ratio':>7s} {'peak MB':>9s} {'of finetune':>12s}")
    took, over, peak = figures["milliseconds"], figures["over_bare"], figures["peak_megabytes"]
    for name in TIMED:
        memory = f"{peak[name]:9.0f} {peak[name] / peak['finetune']:12.2f}" if peak else ""
        print(f"{name:12s} {took[f'bare {name}']:9.1f} {took[name]:9.1f} {over[name]:7.3f} {memory}")
    for name, value in figures["higher_over_ours"].items():
        print(f"{name} with higher: {took[f'higher {name}']:.1f} ms, {value:.3f} of ours")
    for which, than in (("bare", "of its four bare passes"), ("plain", "of sga without")):
        low, middle, high = figures[f"shared_over_{which}"].values()
        print(f"sga with share: {took['shared sga']:.1f} ms, {middle:.3f} [quartiles {low:.3f}, {high:.3f}] {than}")
    print(f"sga compiled: {took['compiled sga']:.1f} ms, {figures['compiled_over_plain']['sga']:.3f} of plain")
    for which, note in (("sga", " (the paper reports 3.31 %)"), ("symmetric", "")):
        low, middle, high = (100 * value for value in figures[f"{which}_over_direct"].values())
        print(f"{which} takes {middle:.1f} % [quartiles {low:.1f}, {high:.1f}] of sga-direct's time{note}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=21, help="turns at the small size; a third of it at the large")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print the figures last, as one line of JSON")
    parser.add_argument("--small", action="store_true", help="the small size only")
    parser.add_argument("--peak", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.peak:
        print(peak_of(given.peak[0], int(given.peak[1]), int(given.peak[2])))
        return

    if not has_higher():
        print("higher       not installed")
    figures: dict[str, dict[str, dict[str, float]]] = {}
    for setting, (size, width, fewer) in list(SETTINGS.items())[: 1 if given.small else None]:
        figures[setting] = time_of(size, width, max(given.repeats // fewer, 1))
        figures[setting]["peak_megabytes"] = memory_of(size, width) if sys.platform == "linux" else {}
        show(setting, figures[setting])
    if given.json:
        met = all(each["over_bare"][name] <= TARGET for each in figures.values() for name in TARGETED)
        print(json.dumps({"settings": figures, "target": TARGET, "met": met, "threads": given.threads}))


if __name__ == "__main__":
    main()

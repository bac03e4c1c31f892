"""Measure the cost of a step on this machine: real steps of a candidate, timed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from smg.learner.config import LearnerConfig
from smg.learner.round import Training, device_of_choice
from smg.networks import build_network
from smg.prepare.cache import Prepared
from smg.prepare.grid import Grid
from smg.sites.site import Subject

STEPS = 5  # timed; one more goes before them


@dataclass(frozen=True)
class Cost:
    """Of one step with a replay batch."""

    seconds: float
    parameters: int


def cost_of(config: LearnerConfig, side: int, clock: Callable[[], float] = time.perf_counter) -> Cost:
    """Time steps of a second round with slices of `side` x `side` made-up pixels, and take the fastest.

    The others tell what else the machine was doing.
    clock: returns seconds. Default: real time; `time.process_time` counts processor time, of all threads.
    """
    with torch.random.fork_rng(devices=[]):
        network = build_network(config.network).to(device_of_choice())
        site = [_made_up(config, side, number) for number in range(2)]
        replayed = [_with_outputs(one, config) for one in site] if config.recipe().method.stores_outputs else site
        training = Training(network, config, number=2, site="", train=site, validation=[], replay=[replayed])
        seconds = []
        for iteration in range(STEPS + 1):
            before = clock()
            training.step(iteration)
            if training.oracle.theta.device.type == "cuda":
                torch.cuda.synchronize()
            seconds.append(clock() - before)
    return Cost(min(seconds[1:]), training.oracle.theta.numel())


def here() -> str:
    """Name the machine as a plan's first line does."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    threads = torch.get_num_threads()
    return f"{threads} CPU thread{'s' * (threads > 1)} ({torch.backends.cpu.get_cpu_capability()})"


def _made_up(config: LearnerConfig, side: int, number: int) -> Prepared:
    rng = np.random.default_rng(number)
    images = rng.standard_normal((4, config.preparation.n_channels, side, side), np.float32)
    labels = np.zeros((4, side, side), np.uint8)
    labels[:, side // 3 : 2 * side // 3, side // 3 : 2 * side // 3] = 1
    grid = Grid((4, side, side), np.eye(4), side, spacing=1.0)
    about = Subject("", str(number), (Path(),), Path())
    return Prepared(about, torch.from_numpy(images), torch.from_numpy(labels), (True,) * 4, grid, content=str(number))


def _with_outputs(subject: Prepared, config: LearnerConfig) -> Prepared:
    """Return a made-up subject as an exemplar with stored outputs."""
    slices, rows, columns = subject.labels.shape
    return replace(subject, outputs=torch.zeros((slices, config.network.classes, rows, columns), dtype=torch.float16))

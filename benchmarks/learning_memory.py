"""Peak memory of a learner for 10 and for 80 subjects a site, and after one round and after four.

    python benchmarks/learning_memory.py

Anonymous memory is what a process needs; pages of mapped files, which the system takes back when it likes, are apart.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from smg.sites.volume import Volume, write_volume

SIZE, SLICES = 96, 24


def write_subjects(folder: Path, count: int, first: int) -> None:
    rng = np.random.default_rng(first)
    mask = np.zeros((SLICES, SIZE, SIZE), np.uint8)
    mask[3:-3, 30:60, 30:65] = 1
    for number in range(count):
        image = (rng.normal(100, 20, mask.shape) + 60 * mask).astype(np.int16)
        write_volume(folder / f"Case{number:03d}.nii", Volume(image, np.diag([0.5, 0.5, 3.0, 1.0])))
        write_volume(folder / f"Case{number:03d}_segmentation.nii", Volume(mask, np.diag([0.5, 0.5, 3.0, 1.0])))


def anonymous() -> float:
    """Return the anonymous memory of this process in MiB."""
    status = Path("/proc/self/status").read_text()
    return float(status.split("RssAnon:")[1].split()[0]) / 1024


def learn(data: Path, iterations: int, encrypt: bool) -> None:
    """Learn every site, in a process of its own, and print the largest anonymous memory after each round."""
    from smg.learner.config import LearnerConfig
    from smg.learner.learner import Learner
    from smg.sites.layouts import find_sites
    from smg.vault.key import Key

    config = LearnerConfig.model_validate(
        {"method": "sga+c", "iterations": iterations, "preparation": {"size": SIZE}, "network": {"width": 8}}
    )
    key = Key(os.urandom(32), False, "a new key") if encrypt else None
    learner = Learner.create(data / "model", config, encrypt=key)
    peak, peaks = 0.0, []

    def watch(*_: object) -> None:
        nonlocal peak
        peak = max(peak, anonymous())

    for site in find_sites(data / "sites").values():
        learner.learn(site, on_step=watch)
        watch()
        peaks.append(peak)
    print(json.dumps(peaks))


def measure(subjects: int, rounds: int, iterations: int, encrypt: bool) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            write_subjects(Path(folder, "sites", "ABCD"[number]), subjects, 1000 * number)
        environment = os.environ | {"SMG_CACHE": str(Path(folder, "cache"))}
        call = [sys.executable, __file__, "--learn", folder, "--iterations", str(iterations)]
        call += ["--encrypt"] if encrypt else []
        peaks: list[float] = json.loads(subprocess.check_output(call, env=environment, text=True).splitlines()[-1])
    return peaks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--encrypt", action="store_true", help="of an encrypted model")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--learn", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.learn:
        learn(arguments.learn, arguments.iterations, arguments.encrypt)
        return
    how = arguments.iterations, arguments.encrypt
    few, many = (measure(subjects, 1, *how)[0] for subjects in (10, 80))
    rounds = measure(10, 4, *how)
    print(f"peak anonymous memory: {few:.0f} MiB with 10 subjects, {many:.0f} with 80 (ratio {many / few:.2f})")
    print(f"after each of four rounds: {', '.join(f'{p:.0f}' for p in rounds)} MiB")
    if arguments.json:
        print(json.dumps({"10 subjects": few, "80 subjects": many, "ratio": many / few, "rounds": rounds}))


if __name__ == "__main__":
    main()

"""What encryption costs: a round of an encrypted model against the same round of a plain one, in one run.

    python benchmarks/encryption.py

The two rounds take turns in one process, each from the first scan to the last write: prepared scans are read from the
cache, slices drawn, checkpoints written, exemplars kept. It is processor time, since other work on the machine disturbs
the clock. Apart from that it prints what reading the encrypted cache adds, and the cost of encrypting a model again.
Memory: `python benchmarks/learning_memory.py --encrypt`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from smg.sites.volume import Volume, write_volume

SLICES = 24


def write_subjects(folder: Path, count: int, size: int, first: int) -> None:
    """Write subjects of noise with a brighter block in it."""
    rng = np.random.default_rng(first)
    mask = np.zeros((SLICES, size, size), np.uint8)
    mask[3:-3, size // 3 : size // 2, size // 3 : size // 2] = 1
    for number in range(count):
        image = (rng.normal(100, 20, mask.shape) + 60 * mask).astype(np.int16)
        write_volume(folder / f"Case{number:03d}.nii", Volume(image, np.diag([0.5, 0.5, 3.0, 1.0])))
        write_volume(folder / f"Case{number:03d}_segmentation.nii", Volume(mask, np.diag([0.5, 0.5, 3.0, 1.0])))


def measure(options: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Let both models learn one site, then measure the second site's round of each, turn by turn."""
    from smg.learner.config import LearnerConfig
    from smg.learner.learner import Learner
    from smg.sites.site import Site
    from smg.vault.key import Key

    for place, name in enumerate("AB"):
        write_subjects(folder / "sites" / name, options.subjects, options.size, 1000 * place)
    config = LearnerConfig.model_validate(
        {
            "method": "sga+c",
            "iterations": options.iterations,
            "preparation": {"size": options.size},
            "network": {"width": options.width},
        }
    )
    keys = {"plain": None, "encrypted": Key(os.urandom(32), False, "a new key")}
    sites = {name: Site.find(folder / "sites", name) for name in "AB"}
    for name, key in keys.items():
        learner = Learner.create(folder / name, config, encrypt=key, iterations=2)
        learner.learn(sites["A"], unguarded=True)
        learner.prepare(sites["B"])  # the cache is warm for both
    seconds: dict[str, list[float]] = {name: [] for name in keys}
    for turn in range(options.turns):
        for name in list(keys)[:: -1 if turn % 2 else 1]:
            model = folder / "turn"
            shutil.copytree(folder / name, model)
            begun = time.process_time()
            learner = Learner(model, config, key=keys[name])
            learner.learn(sites["B"], unguarded=True, checkpoint_seconds=options.checkpoint_seconds)
            seconds[name].append(time.process_time() - begun)
            shutil.rmtree(model)
    begun = time.process_time()
    Learner(folder / "encrypted", key=keys["encrypted"]).change_key(Key(os.urandom(32), False, "another"), again=True)
    rekey = time.process_time() - begun
    pairs = [e / p for e, p in zip(seconds["encrypted"], seconds["plain"], strict=True)]
    plain = statistics.median(seconds["plain"])
    return {
        "plain": plain,
        "encrypted": statistics.median(seconds["encrypted"]),
        "ratio": statistics.median(pairs),
        "least ratio": min(pairs),
        "largest ratio": max(pairs),
        "encrypting again": rekey / plain,
    }


def extra_work(options: argparse.Namespace, folder: Path) -> float:
    """Return the processor seconds that encryption adds to reading and writing what a round reads and writes."""
    from smg.learner.learner import Learner
    from smg.prepare.prepared_site import prepare_site
    from smg.prepare.slices import Slices, draw_indices
    from smg.sites.site import Site
    from smg.vault.key import Key

    learner = Learner.create(folder / "fresh", encrypt=Key(os.urandom(32), False, "a new key"))
    preparation = learner.config.preparation.model_copy(update={"size": options.size})
    site, taken = Site.find(folder / "sites", "B"), []
    for vault in (None, learner.store.vault):
        prepare_site(site, preparation, vault=vault)
        begun = time.process_time()
        slices = Slices(prepare_site(site, preparation, vault=vault), preparation)
        for iteration in range(options.iterations):
            slices.gather(draw_indices(len(slices), learner.config.batch, "incoming", 0, 1, iteration))
        taken.append(time.process_time() - begun)
    return taken[1] - taken[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--subjects", type=int, default=10)
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--iterations", type=int, default=40)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument(
        "--checkpoint-seconds", type=float, default=10.0, help="far more often than a round writes them"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"SMG_CACHE": f"{folder}/cache", "SMG_SECRET": f"{folder}/secret"}
        found = measure(options, Path(folder))
        found["reading"] = extra_work(options, Path(folder))
    print(
        f"a round, median of {options.turns} turns: {found['plain']:.2f} CPU s plain, "
        f"{found['encrypted']:.2f} encrypted"
    )
    print(
        f"encrypted over plain: {found['ratio']:.4f} "
        f"(turns: {found['least ratio']:.4f} to {found['largest ratio']:.4f})"
    )
    print(
        f"reading the cache and {options.iterations} batches: {1000 * found['reading']:+.1f} CPU ms by encryption, "
        f"{100 * found['reading'] / found['plain']:.2f} % of a round"
    )
    print(f"encrypting a model of one round again: {100 * found['encrypting again']:.1f} % of a round")
    if options.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()

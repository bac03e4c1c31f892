"""How much faster `smg predict --precision bfloat16` is than float32, and how much its masks differ.

    python benchmarks/precision.py

A network of the paper's width learns phantom scans for some iterations, so that its masks have a shape; then the same
scans are predicted in both precisions by turns in one process. Times are those of the whole prediction of a scan in
memory, CPU time of all threads; masks are compared by DSC on the scan's grid.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from predict import SLICES, write_scans

from smg.learner.learner import Learner
from smg.learner.predictor import Predictor, has_bfloat16
from smg.sites.formats import Array
from smg.sites.site import Site
from smg.sites.volume import Volume, read_volume


def make_model(folder: Path, width: int, size: int, iterations: int) -> None:
    write_scans(folder / "site" / "A", 6, 12, masks=True)
    learner = Learner.create(
        folder / "model",
        iterations=iterations,
        batch=4,
        preparation={"size": size},
        network={"width": width},
        method="finetune",
    )
    learner.learn(Site.find(folder / "site" / "A"))


def dsc(one: Array, other: Array) -> float:
    total = np.count_nonzero(one) + np.count_nonzero(other)
    return 2 * np.count_nonzero((one != 0) & (other != 0)) / total if total else 1.0


def timed(predictor: Predictor, scan: Volume) -> tuple[float, Array]:
    begun = time.process_time()
    mask = predictor.predict(scan).mask.array
    return time.process_time() - begun, mask


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--size", type=int, default=384)
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--scans", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if not has_bfloat16(torch.device("cpu")):
        print("this processor has no instructions for bfloat16")
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["SMG_CACHE"] = str(folder / "cache")
        make_model(folder, arguments.width, arguments.size, arguments.iterations)
        write_scans(folder / "scans", arguments.scans, SLICES)
        scans = [read_volume(path) for path in sorted((folder / "scans").glob("*.nii.gz"))]
        exact, rough = (Learner(folder / "model").predictor() for _ in range(2))
        rough.use("bfloat16")
        for predictor in (exact, rough):
            predictor.predict(scans[0])  # to be warm
        ratios, agreement, volumes = [], [], []
        for _ in range(arguments.repeats):
            for scan in scans:
                (slow, one), (fast, other) = timed(exact, scan), timed(rough, scan)
                ratios.append(slow / fast)
                agreement.append(dsc(one, other))
                volumes.append(int(np.count_nonzero(one)))
    figures = {
        "float32_over_bfloat16": statistics.median(ratios),
        "dsc_mean": statistics.fmean(agreement),
        "dsc_least": min(agreement),
        "foreground_voxels": statistics.fmean(volumes),
        "threads": torch.get_num_threads(),
    }
    print(
        f"width {arguments.width}, {arguments.size} x {arguments.size}, {figures['threads']} threads: bfloat16 is "
        f"{figures['float32_over_bfloat16']:.2f} x as fast as float32; DSC of their masks {figures['dsc_mean']:.4f}, "
        f"least {figures['dsc_least']:.4f}"
    )
    if arguments.json:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()

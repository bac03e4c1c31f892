"""What `smg predict` costs beside the bare network on the same slices, and its memory for few and for many scans.

    python benchmarks/predict.py

Phantom scans of 384 x 384, packed, are read, prepared, predicted, put back, cut to their largest component, measured
against the sites learned and written; then the network alone passes over the same prepared slices. CPU time of all
threads, the two taking turns in one process. Peak memory is that of `predict` in processes of its own, with a small
network, from as many scans on as fill its pipeline.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from smg.phantom.phantom import PROTOCOLS, draw
from smg.sites.volume import Volume, write_volume

SIZE, SLICES = 384, 20
FEW, MANY = 8, 24  # scans: the few fill the pipeline already


def write_scans(folder: Path, count: int, slices: int, masks: bool = False) -> None:
    """Write phantoms, cut or repeated to a number of slices; every other one is 320 x 320, which is resized."""
    for number in range(count):
        made = draw(PROTOCOLS["BA"[number % 2]], np.random.default_rng(number))
        for volume, suffix in zip(made, ("", "_segmentation")[: 1 + masks], strict=False):
            array = volume.array[np.arange(slices) % len(volume.array)]
            write_volume(folder / f"Case{number:02d}{suffix}.nii.gz", Volume(array, volume.affine))


def make_model(folder: Path, width: int) -> None:
    """Make a model of the real width and size; one iteration is enough, since only its cost is measured."""
    from smg.learner.learner import Learner
    from smg.sites.site import Site

    write_scans(folder / "site" / "A", 5, 8, masks=True)
    learner = Learner.create(
        folder / "model", iterations=1, batch=1, preparation={"size": SIZE}, network={"width": width}, method="finetune"
    )
    learner.learn(Site.find(folder / "site" / "A"))


def seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def predict(folder: Path, count: int) -> None:
    """Predict as the command does, from files to files."""
    from smg.learner.learner import Learner
    from smg.learner.predictor import Prediction

    def write(path: Path, made: Prediction) -> None:
        write_volume(folder / "masks" / path.name, made.mask)

    scans = sorted((folder / "scans").glob("*.nii.gz"))[:count]
    for path, made in Learner(folder / "model").predict_all(scans, write):
        assert isinstance(made, Prediction), (path, made)


def beside_the_network(folder: Path, count: int, repeats: int) -> dict[str, float]:
    import torch

    from smg.evaluation.whole_scan import AT_ONCE
    from smg.learner.learner import Learner
    from smg.networks.features import undisturbed
    from smg.prepare.prepared_site import prepare_scan
    from smg.sites.volume import read_volume

    learner = Learner(folder / "model")
    network = learner.network()
    scans = [read_volume(path) for path in sorted((folder / "scans").glob("*.nii.gz"))[:count]]
    prepared = [torch.from_numpy(prepare_scan([s], learner.config.preparation)[0]) for s in scans]

    def bare() -> None:
        with undisturbed(network):
            for images in prepared:
                for start in range(0, len(images), AT_ONCE):
                    network(images[start : start + AT_ONCE])

    prepared, every = [images[:AT_ONCE] for images in prepared], prepared
    bare()  # to be warm
    prepared = every
    turns = [(seconds(lambda: predict(folder, count)), seconds(bare)) for _ in range(repeats)]
    whole, alone = (statistics.median(times) for times in zip(*turns, strict=True))
    ratio = statistics.median(a / b for a, b in turns)
    return {"predict_seconds": whole / count, "network_seconds": alone / count, "predict_over_network": ratio}


def peak(folder: Path, count: int) -> float:
    """Return the peak memory in MiB of a process that predicts a number of scans."""
    call = [sys.executable, __file__, "--predict", str(folder), "--scans", str(count)]
    return float(subprocess.check_output(call, text=True).splitlines()[-1])


def memory(folder: Path) -> tuple[float, float]:
    """Print peak memory with few and with many scans; the network is small, so that scans in flight would show."""
    make_model(folder, width=8)
    write_scans(folder / "scans", FEW, SLICES)
    for path in sorted((folder / "scans").glob("*.nii.gz")):
        for copy in range(1, MANY // FEW):
            os.link(path, path.with_name(f"copy{copy}-{path.name}"))
    return peak(folder, FEW), peak(folder, MANY)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--scans", type=int, default=2, help="of each turn")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--predict", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.predict:
        predict(arguments.predict, arguments.scans)
        # Not getrusage, whose maximum a process takes over from the one that started it.
        print(float(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["SMG_CACHE"] = str(folder / "cache")
        make_model(folder, arguments.width)
        write_scans(folder / "scans", arguments.scans, SLICES)
        few, many = memory(folder / "small")
        print(
            f"peak memory: {few:.0f} MiB with {FEW} scans, {many:.0f} with {MANY} (ratio {many / few:.2f})", flush=True
        )
        costs = beside_the_network(folder, arguments.scans, arguments.repeats)
    shape = f"{SIZE} x {SIZE} x {SLICES}, width {arguments.width}"
    print(f"{shape}: the network {costs['network_seconds']:.2f} CPU s a scan, predict {costs['predict_seconds']:.2f}: "
          f"{100 * (costs['predict_over_network'] - 1):+.1f} %")  # fmt: skip
    if arguments.json:
        print(json.dumps(costs | {f"{FEW} scans": few, f"{MANY} scans": many, "memory_ratio": many / few}))


if __name__ == "__main__":
    main()

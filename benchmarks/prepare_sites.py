"""Preparing sites, cold and warm, against a plain loop over nibabel and scikit-image that does the same.

    python benchmarks/prepare_sites.py data/prostate

Every measurement is a process of its own; cold, warm and plain alternate, so that the machine's mood meets all alike.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np


def ours(data: Path, size: int, subjects: int | None, store: Path) -> None:
    from smg.prepare.prepare_options import Preparation
    from smg.prepare.prepared_site import prepare_site
    from smg.sites.layouts import find_sites

    left = subjects or 10**9
    for site in find_sites(data).values():
        kept = site.keep({s.case for s in site.subjects[:left]})
        left -= len(kept.subjects)
        prepare_site(kept, Preparation(size=size), cache=store)


def plain(data: Path, size: int, subjects: int | None, store: Path) -> None:
    """Prepare without this package: closest canonical axes, slice by slice, zero mean and unit variance."""
    import nibabel as nib
    from skimage.transform import resize

    images = [p for p in sorted(data.glob("*/*.nii.gz")) if not p.name.lower().endswith("_segmentation.nii.gz")]
    for path in images[:subjects]:
        arrays = []
        for file, order in ((path, 1), (path.with_name(path.name[:-7] + "_segmentation.nii.gz"), 0)):
            volume = nib.as_closest_canonical(nib.load(file)).get_fdata(dtype=np.float32)
            slices = volume.transpose(2, 1, 0)[:, ::-1, ::-1]
            arrays.append(np.stack([resize(s, (size, size), order=order, anti_aliasing=order == 1) for s in slices]))
        image, mask = arrays
        image = (image - image.mean()) / image.std()
        np.save(store / f"{path.parent.name}-{path.name}.npy", image)
        np.save(store / f"{path.parent.name}-{path.name}-mask.npy", (mask > 0).astype(np.uint8))


def measure(way: str, arguments: argparse.Namespace, subjects: int | None, store: str) -> tuple[float, float, float]:
    """Return wall seconds, CPU seconds, and the process's peak memory in MiB."""
    call = [
        sys.executable,
        __file__,
        str(arguments.data),
        "--size",
        str(arguments.size),
        "--way",
        way,
        "--store",
        store,
    ]
    call += ["--subjects", str(subjects)] if subjects else []
    wall, cpu, peak = map(float, subprocess.check_output(call, text=True).split())
    return wall, cpu, peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?", default=os.environ.get("SMG_TEST_DATA"))
    parser.add_argument("--size", type=int, default=192)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--way", choices=("ours", "plain"), help=argparse.SUPPRESS)
    parser.add_argument("--store", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--subjects", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.data is None:
        parser.error("name the folder of sites, or set SMG_TEST_DATA")
    if arguments.way:
        for module in ("nibabel", "skimage.transform", "torch", "safetensors.numpy", "smg.prepare.prepared_site"):
            importlib.import_module(module)  # no part of the work, on either side
        wall, cpu = time.perf_counter(), time.process_time()
        {"ours": ours, "plain": plain}[arguments.way](
            arguments.data, arguments.size, arguments.subjects, arguments.store
        )
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        print(wall, cpu, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        return

    rows: dict[str, list[tuple[float, float, float]]] = {"plain": [], "cold": [], "warm": [], "cold, 10 subjects": []}
    for _ in range(arguments.repeats):
        with tempfile.TemporaryDirectory() as store:
            rows["cold"].append(measure("ours", arguments, None, store))
            rows["warm"].append(measure("ours", arguments, None, store))
        with tempfile.TemporaryDirectory() as store:
            rows["plain"].append(measure("plain", arguments, None, store))
        with tempfile.TemporaryDirectory() as store:
            rows["cold, 10 subjects"].append(measure("ours", arguments, 10, store))
    median = {name: [statistics.median(column) for column in zip(*r, strict=True)] for name, r in rows.items()}
    print(f"{'':>18}{'seconds':>10}{'CPU s':>8}{'peak MiB':>10}")
    for name, (wall, cpu, peak) in median.items():
        print(f"{name:>18}{wall:10.2f}{cpu:8.2f}{peak:10.0f}")
    figures = {
        "plain_over_cold": median["plain"][0] / median["cold"][0],
        "plain_over_cold_cpu": median["plain"][1] / median["cold"][1],
        "warm_seconds": median["warm"][0],
        "peak_all_over_10_subjects": median["cold"][2] / median["cold, 10 subjects"][2],
    }
    print(f"cold: {figures['plain_over_cold']:.1f} times faster; peak memory of all subjects over that of 10: "
          f"{figures['peak_all_over_10_subjects']:.2f}")  # fmt: skip
    if arguments.json:
        print(json.dumps(figures | {"rows": median}))


if __name__ == "__main__":
    main()

"""Reading scans in processes that may die, against reading them in the process itself: the ratio of their times.

    python benchmarks/reading.py

Phantom-like scans of 24 x 384 x 384 voxels in every format that is read apart (MetaImage, NRRD, DICOM), 16 of each;
the two ways alternate scan by scan in one process, and the start of the reader is in its time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from smg.sites import in_process, readers
from smg.sites.volume import Volume, write_volume

LIMIT = 2 << 30


def write_scans(folder: Path, count: int) -> dict[str, list[Path]]:
    """Write the same kind of scan in every format."""
    from tests.dicom.made import write_series

    scans: dict[str, list[Path]] = {"mha": [], "nrrd": [], "dicom": []}
    for number in range(count):
        rng = np.random.default_rng(number)
        smooth = rng.normal(300, 60, (24, 384, 384)).cumsum(axis=2) / 20 + 500
        image = np.clip(smooth, 0, 4000).astype(np.int16)
        for suffix in ("mha", "nrrd"):
            write_volume(folder / f"{number}.{suffix}", Volume(image, np.diag([0.5, 0.5, 3.0, 1.0])))
            scans[suffix].append(folder / f"{number}.{suffix}")
        scans["dicom"].append(write_series(folder / f"series{number}", image))
    return scans


def seconds(read: Callable[[Path, int], object], path: Path) -> float:
    begun = time.perf_counter()
    array = read(path, LIMIT)[0]  # type: ignore[index]
    float(array.max())  # every voxel is touched, as whoever reads a scan does
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scans", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind, paths in write_scans(Path(folder), arguments.scans).items():
            readers._readers.end()  # its start counts below
            start = seconds(readers.read_voxels, paths[0]) - seconds(readers.read_voxels, paths[0])
            apart: list[float] = []
            inside: list[float] = []
            for path in paths:
                pairs = [(seconds(in_process.read_voxels, path), seconds(readers.read_voxels, path))
                         for _ in range(arguments.repeats)]  # fmt: skip
                inside.append(statistics.median(one for one, _ in pairs))
                apart.append(statistics.median(other for _, other in pairs))
            figures[f"{kind}_ratio"] = sum(apart) / sum(inside)
            figures[f"{kind}_ms"] = 1000 * sum(inside) / len(inside)
            figures[f"{kind}_start_s"] = start
            print(f"{kind:6} {figures[f'{kind}_ms']:7.1f} ms a scan; apart {figures[f'{kind}_ratio']:.3f} times that; "
                  f"first scan {start:.2f} s more")  # fmt: skip
    if arguments.json:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()

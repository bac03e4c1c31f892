"""What evaluation costs beyond the network: the way back to the scan's grid, the largest component, the metrics.

    python benchmarks/evaluation.py [data/prostate]

Prints, from one run, that share for a 384 x 384 x 24 volume, and the surface distance against MONAI's and MedPy's.
With real sites, their masks are measured; without, made-up ones.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from scipy.ndimage import gaussian_filter

from smg.evaluation.metrics import measure, surface_distances
from smg.evaluation.whole_scan import class_scores, keep_largest
from smg.networks import NetworkConfig, build_network
from smg.prepare.grid import Grid
from smg.prepare.prepare_options import Preparation
from smg.sites.layouts import find_sites
from smg.sites.volume import read_volume

Masks = tuple[np.ndarray, np.ndarray, tuple[float, float, float]]


def gland(shape: tuple[int, int, int], shift: int = 0) -> np.ndarray:
    """Return a mask about the size and place of a prostate."""
    k, j, i = (np.linspace(-1, 1, n) for n in shape)
    noise = gaussian_filter(np.random.default_rng(shift).normal(size=shape), (2, 8, 8))
    radius = (k[:, None, None] / 0.8) ** 2 + (j[:, None] / 0.25) ** 2 + ((i - shift / shape[2]) / 0.3) ** 2
    return radius + 4 * noise < 1


def seconds(work: Callable[[], object], repeats: int) -> float:
    """Return the median CPU time in seconds, over all threads."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return statistics.median(times)


def beyond_the_network(width: int, repeats: int) -> dict[str, float]:
    shape = (24, 384, 384)
    network = build_network(NetworkConfig(width=width), 0)
    images = torch.randn(shape)[:, None]
    grid = Grid(shape, np.diag([0.5, 0.5, 3.0, 1.0]), 384)
    truth = gland(shape)
    drawn = gland(shape, shift=20).astype(np.float32)
    scores = np.stack([1 - drawn, drawn], axis=1)  # as good as a trained network's; its size decides the cost

    def rest() -> None:
        mask = keep_largest(grid.back(scores))
        measure(mask == 1, truth, (3.0, 0.5, 0.5))

    net = seconds(lambda: class_scores(network, images, Preparation()), 1 if width > 8 else repeats)
    own = seconds(rest, repeats)
    return {"network_seconds": net, "rest_seconds": own, "rest_over_network": own / net}


def against_others(masks: list[Masks], repeats: int) -> dict[str, float]:
    """Return our time for surface distances, other libraries' times over ours, and the largest disagreement."""
    from medpy.metric import binary as medpy
    from monai.metrics import compute_average_surface_distance

    def monai(a: np.ndarray, b: np.ndarray, spacing: tuple[float, float, float]) -> float:
        x, y = (torch.from_numpy(m)[None, None].float() for m in (a, b))
        options = {"include_background": True, "symmetric": True, "spacing": list(spacing)}
        return float(compute_average_surface_distance(x, y, **options))

    ours = seconds(lambda: [surface_distances(*m) for m in masks], repeats)
    theirs = {
        "monai": seconds(lambda: [monai(*m) for m in masks], repeats),
        "medpy": seconds(lambda: [medpy.assd(*m) for m in masks], repeats),
    }
    apart = max(abs(measure(*m).asd - other(*m)) for m in masks for other in (monai, medpy.assd))
    return {"ours_ms": 1000 * ours / len(masks), "largest_disagreement_mm": apart} | {
        f"{name}_over_ours": value / ours for name, value in theirs.items()
    }


def masks_of(data: Path | None) -> list[Masks]:
    if data is None:
        return [(gland((24, 384, 384), 15 * n), gland((24, 384, 384)), (3.0, 0.5, 0.5)) for n in range(1, 4)]
    pairs = []
    for site in find_sites(data).values():
        volume = read_volume(site.subjects[0].mask)
        i, j, k = volume.spacing
        truth = volume.array != 0
        pairs.append((np.roll(truth, (1, 3, -2), axis=(0, 1, 2)), truth, (k, j, i)))
    return pairs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?", default=os.environ.get("SMG_TEST_DATA"))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", category=FutureWarning)
    data = Path(arguments.data) if arguments.data else None
    figures: dict[str, dict[str, float]] = {}
    for width in (8, 32):
        figures[f"width {width}"] = measured = beyond_the_network(width, arguments.repeats)
        print(f"384 x 384 x 24, width {width}: network {measured['network_seconds']:.2f} CPU s, the rest "
              f"{measured['rest_seconds']:.3f}: {100 * measured['rest_over_network']:.1f} %")  # fmt: skip
    figures["surface distance"] = measured = against_others(masks_of(data), arguments.repeats)
    print(f"surface distance of {'real' if data else 'made-up'} masks: {measured['ours_ms']:.1f} ms; MONAI takes "
          f"{measured['monai_over_ours']:.1f} times as long, MedPy {measured['medpy_over_ours']:.1f}; "
          f"they differ by at most {measured['largest_disagreement_mm']:.1e} mm")  # fmt: skip
    if arguments.json:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()

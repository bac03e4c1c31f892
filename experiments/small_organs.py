"""Are small classes that most slices lack learned with Dice of the classes that a slice does not have, or without it?

    python -m experiments.small_organs --iterations 5000

Draws eight subjects with five ellipsoids of fixed grey values in a body, of which the smallest fill a hundredth of a
slice and are in a third of the slices. Learns them twice with the settings that a plan has for several classes, with
`loss_options.absent` true and false, and prints the DSC of each class on the test part.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch

from experiments.mistakes import in_one_line
from smg.evaluation.subjects import Evaluated
from smg.learner.config import LearnerConfig
from smg.learner.learner import Learner
from smg.report.text import print_table
from smg.sites.site import Site
from smg.sites.volume import Volume, write_volume

SHAPE, STEP = (24, 64, 72), np.array((5.0, 3.0, 3.0))  # slices, rows, columns, and mm between them
ORGANS = {  # name -> centre from the middle of the scan, half axes, both in mm, and grey value
    "large": ((0, 10, -45), (28, 28, 25), 90),
    "middle": ((5, 10, 45), (22, 20, 18), 140),
    "left": ((0, -40, 35), (22, 12, 12), 200),
    "right": ((0, -40, -35), (22, 12, 12), 200),  # differs from `left` in its place alone
    "small": ((0, 30, 0), (20, 10, 10), 260),
}
BODY, NOISE, MOVES = ((0, 0, 0), (500, 75, 95), 30), 15, 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=5000, help="iterations of the round; default 5000")
    parser.add_argument("--seeds", type=int, default=1, help="seeds; default 1")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        site = drawn(Path(folder) / "site")
        for seed in range(options.seeds):
            for absent in (True, False):
                model = Path(folder) / f"{seed} {absent}"
                found = learned(model, site, options.iterations, seed, absent)
                means = [np.mean([row.classes[name].dsc for row in found]) for name in ORGANS]
                rows.append((str(seed), str(absent).lower(), *(f"{100 * mean:.1f}" for mean in means)))
    print_table(("seed", "absent", *ORGANS), rows)


def learned(model: Path, site: Site, iterations: int, seed: int, absent: bool) -> list[Evaluated]:
    """Return the test subjects' metrics after one round."""
    config = LearnerConfig.model_validate({
        "method": "finetune",
        "iterations": iterations,
        "validate_every": iterations,
        "seed": seed,
        "preparation": {"size": 64, "spacing": 3.0, "foreground": 0.5, "even_classes": True,
                        "labels": {"classes": {name: [n] for n, name in enumerate(ORGANS, start=1)}}},
        "network": {"width": 8, "depth": 3},
        "optimiser": {"rate": 2e-3, "schedule": "cosine"},
        "select": "average",
        "loss_options": {"absent": absent},
    })  # fmt: skip
    learner = Learner.create(model, config)
    learner.learn(site)
    return learner.evaluate(site, "test")


def drawn(folder: Path) -> Site:
    """Write eight subjects and return them as a site."""
    rng = np.random.default_rng(0)
    affine = np.diag([STEP[2], STEP[1], STEP[0], 1.0])
    for number in range(8):
        image, mask = np.full(SHAPE, -1000.0), np.zeros(SHAPE, np.uint8)
        image[within(*BODY[:2])] = BODY[2]
        for label, (centre, axes, grey) in enumerate(ORGANS.values(), start=1):
            here = within(np.array(centre) + rng.normal(0, MOVES, 3), axes)
            image[here], mask[here] = grey, label
        image += rng.normal(0, NOISE, SHAPE)
        write_volume(folder / f"Case{number}.nii.gz", Volume(image.astype(np.int16), affine))
        write_volume(folder / f"Case{number}_segmentation.nii.gz", Volume(mask, affine))
    return Site.find(folder)


def within(centre: object, axes: object) -> np.ndarray:
    """Return the voxels of an ellipsoid; both arguments in mm, the centre from the middle of the scan."""
    places = (np.indices(SHAPE).T - (np.array(SHAPE) - 1) / 2) * STEP
    return np.asarray((((places - np.asarray(centre)) / np.asarray(axes)) ** 2).sum(axis=-1).T < 1)


if __name__ == "__main__":
    with in_one_line():
        main()

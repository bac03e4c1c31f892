"""A small nnU-Net model trained by nnU-Net itself, as tests and docs/nnunet.md compare with.

    python -m experiments.nnunet_trained nnunet-model --site sites/A --steps 300

nnU-Net plans, preprocesses, augments, trains and saves by its own code (`experiments.nnunet_peer`), all subjects of the
site as one fold, `fold_all`. Only the size of the 2d plan and the number of steps are ours. The first call installs
nnU-Net into the user's cache folder.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from experiments.mistakes import in_one_line
from experiments.nnunet_peer import DATASET, Peer, in_words, make_importable, planned, smaller, write_dataset
from smg.errors import SmgError
from smg.sites.labels import Labels
from smg.sites.site import Site


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="the folder to make, as nnU-Net's results have it")
    parser.add_argument("--site", type=Path, required=True, help="the folder of a site")
    parser.add_argument("--labels", nargs="*", default=[], help="classes of the masks, as zone=1; default: one")
    parser.add_argument("--steps", type=int, default=300, help="of training")
    parser.add_argument("--patch", type=int, nargs="+", default=[64], help="longest sides of the patch")
    parser.add_argument("--spacing", type=float, nargs=2, help="mm between rows and columns; default: nnU-Net's own")
    parser.add_argument("--features", type=int, default=8, help="of the first stage")
    options = parser.parse_args()
    labels = Labels.parse(options.labels) if options.labels else Labels()
    site = Site.find(options.site)
    said = train(options.out, site, labels, options.steps, options.patch, options.features, options.spacing)
    print(f"{options.out}: {said}, {options.steps} steps")


def train(
    out: Path,
    site: Site,
    labels: Labels,
    steps: int,
    patch: Sequence[int],
    features: int,
    spacing: Sequence[float] | None = None,
) -> str:
    """Train nnU-Net on a site, write its results folder to `out`, and return its plan in words."""
    if out.exists():
        raise SmgError(f"{out}: is there already; give a new folder")
    with tempfile.TemporaryDirectory() as folder:
        make_importable(Path(folder))
        channels = site.channels if len(site.channels) > 1 else ("MRI",)
        write_dataset(Path(folder, "raw", DATASET), site.subjects, labels, channels)
        plans = smaller(planned(spacing), (patch[0], patch[-1]), batch=8, features=features)
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)
        peer = Peer.of(plans)
        peer.train_steps(steps)
        shutil.copytree(peer.save(), out)
    return in_words(plans)


if __name__ == "__main__":
    with in_one_line():
        main()

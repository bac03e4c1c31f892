"""Processor seconds until a validation DSC of 0.80 on one site: our loop, a plain MONAI loop, and nnU-Net's trainer.

    python benchmarks/time_to_dice.py              # a phantom site; a real one where SMG_TEST_DATA names the data
    python benchmarks/time_to_dice.py --nnunet     # nnU-Net too, which is installed into the cache folder first
    python benchmarks/time_to_dice.py --json       # the figures, last, as one line

All have the same training and validation subjects, slices resampled to 1.25 mm, of which they see 96 x 96 pixels,
batches of 5 and a U-Net of the same first width and depth, and train on one thread. Ours and MONAI's have the central
120 mm, Adam at 2e-3, and rotations, scaling, flips, contrast and noise of about the same strength; nnU-Net has its own
patches, augmentation and optimiser. Ours passes as `smg plan` sets it (`share`). Counted is what a user waits for:
reading and preparing the scans, and training. The DSC is taken on the scans' own grids every few steps, and its time is
not counted. Each loop runs in a process of its own; seeds change weights and batches.
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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from smg.evaluation.metrics import dice
from smg.sites.layouts import find_sites
from smg.sites.site import Site, Subject
from smg.sites.split import split_site
from smg.sites.volume import read_volume

TARGET, SIDE, WIDTH, LEVELS, BATCH, RATE, EVERY = 0.80, 96, 8, 5, 5, 2e-3, 50
SPACING = 1.25  # mm
MM = (SPACING, SPACING, -1.0)  # as MONAI has it: slices stay where they are
REAL = "RUNMC"
Step = Callable[[], None]
Predict = Callable[[Subject], np.ndarray]


@dataclass(frozen=True)
class Reached:
    """When a loop reached the target, or gave up."""

    seconds: float | None  # of processor time, preparation included; None if the limit came first
    preparing: float
    steps: int
    dsc: float  # last


def follow(prepare: Callable[[], tuple[Step, Predict]], validation: Sequence[Subject], limit: float) -> Reached:
    """Train until the target is reached; the time of measuring is left out."""
    began = time.process_time()
    step, predict = prepare()
    spent = preparing = time.process_time() - began
    steps, reached = 0, 0.0
    truths = [read_volume(subject.mask).array > 0 for subject in validation]
    while spent < limit:
        began = time.process_time()
        for _ in range(EVERY):
            step()
        spent += time.process_time() - began
        steps += EVERY
        found = [dice(predict(one), truth) for one, truth in zip(validation, truths, strict=True)]
        reached = sum(found) / len(found)
        if reached >= TARGET:
            return Reached(spent, preparing, steps, reached)
    return Reached(None, preparing, steps, reached)


# The loops


def ours(train: Sequence[Subject], site: Site, seed: int, compile: bool = False) -> tuple[Step, Predict]:
    from smg.evaluation.whole_scan import predict_mask
    from smg.learner.config import LearnerConfig
    from smg.learner.round import Training
    from smg.networks import build_network
    from smg.prepare.prepared_site import prepare_site

    config = LearnerConfig.model_validate(
        {"method": "finetune", "batch": BATCH, "seed": seed, "iterations": 10**6, "augment": "mild", "share": True,
         "preparation": {"size": SIDE, "spacing": SPACING, "field": SIDE * SPACING},
         "network": {"width": WIDTH, "depth": LEVELS - 1}, "optimiser": {"rate": RATE}, "compile": compile}
    )  # fmt: skip
    options = config.preparation
    prepared = {one.subject.case: one for one in prepare_site(site, options)}
    training = Training(
        build_network(config.network, seed), config, 1, site.name, [prepared[one.case] for one in train], (), ()
    )
    numbers = iter(range(10**6))

    def predict(subject: Subject) -> np.ndarray:
        one = prepared[subject.case]
        mask = predict_mask(training.network, one.images, one.grid, options, False) > 0
        training.network.train()
        return mask

    return lambda: training.step(next(numbers)) and None, predict


def monai(train: Sequence[Subject], site: Site, seed: int) -> tuple[Step, Predict]:
    from monai import transforms as t
    from monai.data import CacheDataset, DataLoader, MetaTensor
    from monai.losses import DiceCELoss
    from monai.networks.nets import UNet
    from monai.utils import set_determinism

    set_determinism(seed)
    keys = ["image", "label"]
    first = [
        t.LoadImaged(keys), t.EnsureChannelFirstd(keys), t.Spacingd(keys, MM, mode=["bilinear", "nearest"]),
        t.ResizeWithPadOrCropd(keys, (SIDE, SIDE, -1)), t.NormalizeIntensityd("image"),
        t.AsDiscreted("label", threshold=0.5),
    ]  # fmt: skip
    drawn = [
        t.RandSpatialCropd(keys, (SIDE, SIDE, 1), random_size=False), t.SqueezeDimd(keys, dim=-1),
        t.RandAffined(
            keys, prob=0.75, rotate_range=0.26, translate_range=5, scale_range=0.15, mode=["bilinear", "nearest"]
        ),
        t.RandFlipd(keys, 0.5, 0), t.RandAdjustContrastd("image", 0.5, (0.7, 1.5)), t.RandBiasFieldd("image", prob=0.5),
        t.RandGaussianNoised("image", 0.3, std=0.1),
    ]  # fmt: skip
    files = [{"image": str(subject.image), "label": str(subject.mask)} for subject in train]
    loader = DataLoader(
        CacheDataset(files * BATCH, t.Compose(first + drawn), progress=False),
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
    )
    channels = tuple(WIDTH * 2**level for level in range(LEVELS))
    network = UNet(2, 1, 2, channels, (2,) * (LEVELS - 1), norm="instance", num_res_units=2)
    loss, optimiser = DiceCELoss(to_onehot_y=True, softmax=True), torch.optim.Adam(network.parameters(), RATE)

    def endless() -> Iterator[Any]:
        while True:
            yield from loader

    batches = endless()

    def step() -> None:
        batch = next(batches)
        optimiser.zero_grad()
        loss(network(batch["image"]), batch["label"]).backward()
        optimiser.step()

    look = t.Compose(
        [t.LoadImaged("image"), t.EnsureChannelFirstd("image"), t.Spacingd("image", MM),
         t.ResizeWithPadOrCropd("image", (SIDE, SIDE, -1)), t.NormalizeIntensityd("image")]
    )  # fmt: skip
    inverse = t.Invertd("pred", look, orig_keys="image", nearest_interp=False)

    def predict(subject: Subject) -> np.ndarray:
        network.eval()
        with torch.no_grad():
            seen = look({"image": str(subject.image)})
            logits = network(seen["image"].as_tensor().permute(3, 0, 1, 2))
            seen["pred"] = MetaTensor(logits.softmax(1)[:, 1:].permute(1, 2, 3, 0), meta=seen["image"].meta)
        network.train()
        return (
            (inverse(seen)["pred"][0] > 0.5).numpy().transpose(2, 1, 0)
        )  # MONAI's arrays are [x, y, z], ours [z, y, x]

    return step, predict


def nnunet(train: Sequence[Subject], site: Site, seed: int) -> tuple[Step, Predict]:
    from experiments import nnunet_peer as peer
    from smg.sites.labels import Labels

    folder = Path(tempfile.mkdtemp())
    peer.make_importable(folder)
    torch.manual_seed(seed)
    np.random.seed(seed)
    peer.write_dataset(folder / "raw" / peer.DATASET, train, Labels())
    plans = peer.smaller(peer.planned((SPACING, SPACING)), SIDE, BATCH, WIDTH)
    running = peer.Peer.of(plans)
    trainer = running.trainer
    trainer.network.train()

    def step() -> None:
        trainer.train_step(next(trainer.dataloader_train))

    def predict(subject: Subject) -> np.ndarray:
        mask = running.predictor(mirroring=False)(read_volume(subject.image))
        trainer.set_deep_supervision_enabled(True)
        trainer.network.train()
        return np.asarray(mask) > 0

    return step, predict


LOOPS = {
    "ours": ours,
    "ours, compiled": lambda *given: ours(*given, compile=True),
    "MONAI": monai,
    "nnU-Net": nnunet,
}


# Measuring


def the_site(data: Path) -> Site:
    sites = find_sites(data)
    return sites.get(REAL) or next(iter(sites.values()))


def run(name: str, data: Path, seed: int, limit: float) -> Reached:
    torch.set_num_threads(1)
    site = the_site(data)
    parts = split_site(site, 0)
    train, validation = ([s for s in site.subjects if s.case in parts[part]] for part in ("train", "validation"))
    with tempfile.TemporaryDirectory() as cache:  # what was prepared before is not there
        os.environ["SMG_CACHE"] = cache if name != "nnU-Net" else os.environ.get("SMG_CACHE", "")
        return follow(lambda: LOOPS[name](train, site, seed), validation, limit)


def in_a_process(name: str, data: Path, seed: int, limit: float) -> Reached | None:
    words = [sys.executable, __file__, "--only", name, str(data), str(seed), "--limit", str(limit)]
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    if done.returncode:
        print(f"{name}: could not be run: {(done.stderr.strip() or 'no message').splitlines()[-1]}", file=sys.stderr)
        return None
    return Reached(**json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of sites [default: SMG_TEST_DATA, or phantoms]")
    parser.add_argument("--phantoms", action="store_true", help="phantoms, even where SMG_TEST_DATA is set")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=300, help="processor seconds after which a loop is given up")
    parser.add_argument(
        "--nnunet", action="store_true", help="also nnU-Net, installed into the cache folder if need be"
    )
    parser.add_argument("--json", action="store_true", help="print the figures last, as one line of JSON")
    parser.add_argument("--only", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.only:
        print(json.dumps(asdict(run(given.only[0], Path(given.only[1]), int(given.only[2]), given.limit))))
        return
    with tempfile.TemporaryDirectory() as folder:
        data = given.data or Path(os.environ.get("SMG_TEST_DATA") or folder)
        if given.phantoms or data == Path(folder):
            from smg.phantom.phantom import write_phantom_sites

            data = Path(folder)
            write_phantom_sites(data, letters=["A"], subjects=20)
        names = [name for name in LOOPS if given.nnunet or name != "nnU-Net"]
        if not given.nnunet:
            print("nnU-Net      not asked for: --nnunet installs and runs it")
        print(f"{the_site(data).name}: processor seconds until a validation DSC of {TARGET:.2f}, {given.seeds} seeds")
        figures: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
        for seed in range(given.seeds):  # in turns, so that a machine that becomes busy is busy for all
            for name in names:
                reached = in_a_process(name, data, seed, given.limit)
                figures[name] += [asdict(reached)] if reached else []
    for name, found in figures.items():
        times = [one["seconds"] for one in found if one["seconds"] is not None]
        if times:
            steps, prepared = (statistics.median(one[key] for one in found) for key in ("steps", "preparing"))
            spread = f"{min(times):.1f} to {max(times):.1f}"
            note = f"{statistics.median(times):6.1f} s ({spread}), {steps:.0f} steps, {prepared:.1f} s of it preparing"
            print(f"{name:15s} {note}; reached in {len(times)} of {len(found)}")
        elif found:
            print(
                f"{name:15s} not reached in {given.limit:g} s: DSC {statistics.median(one['dsc'] for one in found):.2f}"
            )
    if given.json:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()

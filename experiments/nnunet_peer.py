"""nnU-Net v2 as `experiments.nnunet` uses it: installed, given data and a plan, trained for a time, and predicting.

It is installed without its dependencies into the user's cache folder, and found after our own packages: left to pip, it
would bring torchvision and gigabytes of GPU libraries, none of which its 2d U-Net imports. The list below is what it
does import. All of it runs in this process and on its threads, so that processor time is what nnU-Net used.
"""

from __future__ import annotations

import copy
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from smg.errors import SmgError
from smg.files import folder_in
from smg.prepare.cache import cache_folder
from smg.sites.formats import Array
from smg.sites.labels import Labels
from smg.sites.nnunet_channels import numbered, write_description
from smg.sites.site import Subject
from smg.sites.volume import Volume, read_volume, write_volume

VERSION = "2.8.1"
REQUIREMENTS = f"""nnunetv2=={VERSION} batchgenerators==0.25.5 batchgeneratorsv2==0.3.6 acvl-utils==0.2.6
    dynamic-network-architectures==0.4.4 blosc2==4.14.1 connected-components-3d==4.1.1 numexpr==2.14.2
    msgpack==1.2.4 ndindex==1.10.1 httpx==0.28.1 cloudpickle==3.1.2 scikit-learn==1.9.1 joblib==1.6.0
    threadpoolctl==3.8.0 narwhals==2.28.0 pandas==3.1.1 seaborn==0.13.2 tqdm==4.70.1"""
DATASET = "Dataset001_pooled"
FARTHEST = 10.0  # mm between slices, where a spacing is given: the axis of slices is the one with the largest
PROBE = 4  # slices of the batch by which a step of a plan is timed
Plans = dict[str, Any]  # nnU-Net's plans.json


def install() -> Path:
    """Return the folder of nnU-Net's packages; the first call fills it."""
    folder = cache_folder() / f"nnunet-{VERSION}"
    if not folder.exists():
        print(f"installing nnU-Net {VERSION} into {folder}", file=sys.stderr)
        with folder_in(folder.parent) as temporary:
            pip = [sys.executable, "-m", "pip", "install", "-qq", "--no-deps"]
            done = subprocess.run([*pip, "--target", str(temporary / "packages"), *REQUIREMENTS.split()], check=False)
            if done.returncode:
                raise SmgError(f"{folder}: nnU-Net cannot be installed there: pip failed, see above; try again online")
            os.replace(temporary / "packages", folder)
    return folder


def make_importable(folder: Path) -> None:
    """Make nnU-Net importable in this process, with its working folders inside `folder`."""
    sys.path.append(str(install()))
    for kind in ("raw", "preprocessed", "results"):
        (folder / kind).mkdir()
        os.environ[f"nnUNet_{kind}"] = str(folder / kind)
    os.environ.update(nnUNet_def_n_proc="1", nnUNet_n_proc_DA="1")  # 0 for training, but its planner refuses it


def write_dataset(
    folder: Path, subjects: Sequence[Subject], labels: Labels, channels: Sequence[str] = ("MRI",)
) -> None:
    """Write nnU-Net's raw format: imagesTr, labelsTr with the classes' indices, and dataset.json."""
    for subject in subjects:
        name, images = f"{subject.site}_{subject.case}", [read_volume(path) for path in subject.images]
        mask = Volume(labels.index(read_volume(subject.mask).array), images[0].affine)
        for number, image in enumerate(images):
            write_volume(folder / "imagesTr" / f"{name}_{numbered(number)}.nii.gz", image)
        write_volume(folder / "labelsTr" / f"{name}.nii.gz", mask)
    indices = {"background": 0} | {name: index for index, name in enumerate(labels.names, start=1)}
    write_description(folder / "dataset.json", channels, indices, len(subjects))


def smaller(plans: Plans, patch: int | tuple[int, int], batch: int, features: int) -> Plans:
    """Return the plans with a 2d configuration no larger than this; spacing and preprocessing stay nnU-Net's.

    features: of the first stage; the others keep their ratio to it. As in nnU-Net's planner, a stage has maps of whole
    edges of at least 4 pixels; those that would not are dropped.
    """
    plans = copy.deepcopy(plans)
    configuration = plans["configurations"]["2d"]
    network = configuration["architecture"]["arch_kwargs"]
    longest = patch if isinstance(patch, tuple) else (patch, patch)
    sides = [min(most, side) for most, side in zip(longest, configuration["patch_size"], strict=True)]
    edges = np.array(sides) / np.cumprod(network["strides"], axis=0)
    stages = int(((edges >= 4) & (edges % 1 == 0)).all(axis=1).sum())
    first = network["features_per_stage"][0]
    network["features_per_stage"] = [min(features, first) * n // first for n in network["features_per_stage"]]
    for name in ("features_per_stage", "kernel_sizes", "strides", "n_conv_per_stage"):
        network[name] = network[name][:stages]
    network["n_conv_per_stage_decoder"] = network["n_conv_per_stage_decoder"][: stages - 1]
    network["n_stages"] = stages
    configuration["patch_size"], configuration["batch_size"] = sides, min(batch, configuration["batch_size"])
    return plans


def in_words(plans: Plans) -> str:
    """Describe the 2d configuration: what decides its cost."""
    configuration = plans["configurations"]["2d"]
    features = configuration["architecture"]["arch_kwargs"]["features_per_stage"]
    patch = " x ".join(str(side) for side in configuration["patch_size"])
    spacing = " x ".join(f"{mm:.2f}" for mm in configuration["spacing"])
    return (
        f"patch {patch} at {spacing} mm, batch {configuration['batch_size']}, "
        f"{features[0]} to {features[-1]} features in {len(features)} stages"
    )


def planned(spacing: Sequence[float] | None = None) -> Plans:
    """Plan and preprocess by nnU-Net's own defaults, but for the mm between rows and columns where they are given."""
    from nnunetv2.experiment_planning import plan_and_preprocess_api as api

    with silence():
        api.extract_fingerprint_dataset(1, num_processes=1, verbose=False, show_progress_bar=False)
        wanted = (FARTHEST, *map(float, spacing)) if spacing else None
        plans, _ = api.plan_experiment_dataset(1, overwrite_target_spacing=wanted)
        api.preprocess_dataset(1, configurations=("2d",), num_processes=(1,), show_progress_bar=False)
    return plans


@dataclass(frozen=True)
class Peer:
    """nnU-Net's trainer with a plan, on all of the dataset."""

    trainer: Any

    @classmethod
    def of(cls, plans: Plans) -> Peer:
        from nnunetv2.paths import nnUNet_raw
        from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

        os.environ.update(nnUNet_n_proc_DA="0")  # batches are made in this process, where their time is counted
        dataset = json.loads(Path(nnUNet_raw, DATASET, "dataset.json").read_text())
        with silence():
            given = copy.deepcopy(plans) | {"continue_training": False}
            trainer = nnUNetTrainer(given, "2d", "all", dataset, torch.device("cpu"))
            trainer.on_train_start()
        return cls(trainer)

    def train(self, seconds: float, on_step: Callable[[int, float, float], None]) -> int:
        """Train for this processor time, as `nnUNetTrainer.run_training` does, and return the number of steps.

        The rate falls with the time spent as it does over nnU-Net's 1000 epochs. Validation passes are left out: they
        have no effect on the last weights, which nnU-Net predicts with.

        on_step: given the number of steps, the seconds spent, and the loss.
        """
        from nnunetv2.training.lr_scheduler.polylr import PolyLRScheduler

        trainer, steps = self.trainer, 0
        schedule = PolyLRScheduler(trainer.optimizer, trainer.initial_lr, max_steps=seconds)
        trainer.network.train()
        began = time.process_time()
        while (spent := time.process_time() - began) < seconds:
            schedule.step(spent)
            loss = trainer.train_step(next(trainer.dataloader_train))["loss"]
            steps += 1
            on_step(steps, spent, float(loss))
        return steps

    def train_steps(self, steps: int) -> None:
        """Train for a number of steps, over which the rate falls as over nnU-Net's 1000 epochs."""
        from nnunetv2.training.lr_scheduler.polylr import PolyLRScheduler

        trainer = self.trainer
        schedule = PolyLRScheduler(trainer.optimizer, trainer.initial_lr, max_steps=steps)
        trainer.network.train()
        for step in range(steps):
            schedule.step(step)
            trainer.train_step(next(trainer.dataloader_train))

    def save(self) -> Path:
        """Save as at the end of training, and return the folder with plans.json, dataset.json and the fold."""
        with silence():
            self.trainer.save_checkpoint(str(Path(self.trainer.output_folder, "checkpoint_final.pth")))
        return Path(self.trainer.output_folder_base)

    def predictor(self, mirroring: bool) -> Callable[[Volume], Array]:
        """Return nnU-Net's prediction by the last weights: a scan to class indices on its own grid."""
        from nnunetv2.inference.predict_from_raw_data import nnUNetPredictor

        trainer = self.trainer
        trainer.set_deep_supervision_enabled(False)
        trainer.network.eval()
        with silence():
            predictor = nnUNetPredictor(use_mirroring=mirroring, device=torch.device("cpu"), allow_tqdm=False)
        predictor.manual_initialization(
            trainer.network,
            trainer.plans_manager,
            trainer.configuration_manager,
            [trainer.network.state_dict()],
            trainer.dataset_json,
            type(trainer).__name__,
            trainer.inference_allowed_mirroring_axes,
        )

        def predict(scan: Volume) -> Array:
            with silence():
                image = scan.array[None].astype(np.float32)
                return predictor.predict_single_npy_array(image, {"spacing": scan.spacing[::-1]}).astype(np.uint8)

        return predict


def seconds_a_step(plans: Plans) -> float:
    """Time a step of a plan, by a small part of its batch: nearly all of a step grows with the batch."""
    probe = copy.deepcopy(plans)
    configuration = probe["configurations"]["2d"]
    share = min(1.0, PROBE / configuration["batch_size"])
    configuration["batch_size"] = min(PROBE, configuration["batch_size"])
    trainer = Peer.of(probe).trainer
    trainer.network.train()
    times = []
    for _ in range(3):
        began = time.process_time()
        trainer.train_step(next(trainer.dataloader_train))
        times.append(time.process_time() - began)
    return min(times) / share


def entry_point(module: str, function: str) -> list[str]:
    """Return the command that runs an entry point of nnU-Net, such as nnUNetv2_predict_from_modelfolder, with ours."""
    code = f"import sys; sys.path.append({str(install())!r}); from {module} import {function}; {function}()"
    return [sys.executable, "-c", code]


@contextmanager
def silence() -> Iterator[None]:
    """Drop what nnU-Net prints: pages of settings."""
    with redirect_stdout(io.StringIO()):
        yield

"""Models to and from nnU-Net, against nnU-Net itself: trained by it, predicted by it, and its own network.

The first test installs nnU-Net into the user's cache folder (`experiments.nnunet_peer.install` says how).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from experiments.nnunet_peer import entry_point, install
from smg.evaluation.metrics import dice
from smg.learner.origin import read_origin
from smg.networks.plainconv import PlainConvUNet
from smg.sites.volume import Volume, read_volume, write_volume
from tests.cli.commands import smg
from tests.nnunet_folders import state_of

pytestmark = pytest.mark.long
ROOT = Path(__file__).parents[2]
AGREE = 0.99  # DSC, of masks by two programs
FEW = 3  # voxels, where a mask has hardly any


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with phantom sites and `trained`, a model that nnU-Net has trained on site A, on a rectangular patch."""
    folder = tmp_path_factory.mktemp("nnunet")
    assert smg("sites", "synth", "sites", "--small", cwd=folder).returncode == 0
    words = "--site sites/A --steps 300 --patch 96 128 --spacing 1.0 1.25"
    command = [sys.executable, "-m", "experiments.nnunet_trained", "trained", *words.split()]
    subprocess.run(command, cwd=folder, env=_environment(folder), check=True)
    _write_scans(folder)
    return folder


def _environment(results: Path) -> dict[str, str]:
    folders = {f"nnUNet_{kind}": str(results) for kind in ("raw", "preprocessed", "results")}
    return {**os.environ, **folders, "nnUNet_def_n_proc": "1", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def _write_scans(folder: Path) -> None:
    """Write scans of another site: as it has them, stored upside down, with zeros around, and cut smaller."""
    image = read_volume(folder / "sites/B/Case00.nii.gz")
    few = Volume(image.array[6:14], image.affine)
    zeros = few.array.copy()
    zeros[:, :70], zeros[0] = 0, 0
    scans = {
        "plain": few,
        "flipped": Volume(np.ascontiguousarray(few.array[:, ::-1]), few.affine @ np.diag([1.0, -1.0, 1.0, 1.0])),
        "zeros": Volume(zeros, few.affine),
        "small": Volume(np.ascontiguousarray(few.array[:, 100:285, 40:335]), few.affine),
    }
    for name, scan in scans.items():
        write_volume(folder / "scans" / f"{name}.nii.gz", scan)
        write_volume(folder / "in" / f"{name}_0000.nii.gz", scan)


@cache
def _command(module: str, function: str) -> list[str]:
    """Return the command of an entry point; once, since every test has a cache folder of its own."""
    return entry_point(module, function)


def _nnunet(folder: Path, results: Path, out: str, *words: str) -> None:
    module = "nnunetv2.inference.predict_from_raw_data"
    function = "predict_entry_point_modelfolder" if "-m" in words else "predict_entry_point"
    command = [*_command(module, function), "-i", "in", "-o", out, *words]
    ran = subprocess.run([*command, "-device", "cpu", "-npp", "1", "-nps", "1"], cwd=folder, env=_environment(results),
                         check=False, capture_output=True, text=True)  # fmt: skip
    assert ran.returncode == 0, ran.stderr


def _compare(ours: Path, theirs: Path) -> None:
    """Hold the masks of two programs equal, and print how far they are from it; a few voxels are rounding."""
    foreground = 0
    for path in sorted(theirs.glob("*.nii.gz")):
        mine, other = read_volume(ours / path.name).array, read_volume(path).array
        share, differ = dice(mine == 1, other == 1), int((mine != other).sum())
        print(f"{path.name}: DSC {share:.5f}, {differ} of {int((other == 1).sum())} foreground voxels differ")
        assert share >= AGREE or differ <= FEW
        foreground += int((other == 1).sum())
    assert foreground > 10_000


def test_the_network_is_nnunets_own() -> None:
    sys.path.append(str(install()))
    try:
        from dynamic_network_architectures.architectures.unet import PlainConvUNet as Theirs
    finally:
        sys.path.remove(str(install()))
    features, kernels, strides = [4, 6, 8, 8], [[1, 3], [3, 3], [5, 3], [3, 3]], [[1, 1], [2, 2], [2, 1], [2, 2]]
    options = {"conv_bias": True, "norm_op": nn.InstanceNorm2d, "norm_op_kwargs": {"eps": 1e-5, "affine": True}}
    options |= {"nonlin": nn.LeakyReLU, "nonlin_kwargs": {"inplace": True}}
    theirs = Theirs(2, 4, features, nn.Conv2d, kernels, strides, [1, 2, 3, 2], 3, [2, 1, 2], **options).double()
    ours = PlainConvUNet(2, 3, features, kernels, strides, [1, 2, 3, 2], [2, 1, 2]).double()
    for parameter in ours.parameters():
        nn.init.normal_(parameter)
    theirs.load_state_dict(state_of(ours))
    images = torch.randn(2, 2, 32, 24, dtype=torch.float64)
    torch.testing.assert_close(ours(images), theirs.eval()(images), rtol=1e-9, atol=1e-9)


def test_round_0_predicts_what_nnunet_predicts(desk: Path) -> None:
    made = smg("learn", "model", "--from", "nnunet:trained", cwd=desk)
    assert made.returncode == 0, made.stderr
    assert smg("predict", "model", "scans", "--out", "ours", cwd=desk).returncode == 0
    _nnunet(desk, desk, "theirs", "-m", "trained", "-f", "all", "--disable_tta")
    _compare(desk / "ours", desk / "theirs")


def test_a_model_that_has_learned_on_is_run_by_nnunet(desk: Path) -> None:
    words = ("--iterations", "30", "--set", "batch=4", "--set", "optimiser.rate=1e-3")
    learned = smg("learn", "further", "sites/B", "--from", "nnunet:trained", *words, cwd=desk)
    assert learned.returncode == 0, learned.stderr
    exported = smg("export", "further", "--as", "nnunet", "--out", "results", cwd=desk)
    assert exported.returncode == 0, exported.stderr
    shutil.rmtree(desk / "ours", ignore_errors=True)
    assert smg("predict", "further", "scans", "--out", "ours", cwd=desk).returncode == 0
    _nnunet(desk, desk / "results", "exported", "-d", "Dataset001_pooled", "-c", "2d", "-f", "0")
    _compare(desk / "ours", desk / "exported")
    folder = next((desk / "results").glob("Dataset*/nnUNetTrainer__nnUNetPlans__2d"))
    again, first = read_origin(f"nnunet:{folder}"), read_origin("nnunet:" + str(desk / "trained"))
    assert again.settings["preparation"] == first.settings["preparation"]
    assert not torch.equal(again.weights["decoder.seg_layers.3.weight"], first.weights["decoder.seg_layers.3.weight"])

"""Exports against the programs they are for: MONAI and onnxruntime, in an environment without smg."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from smg.export.bundle import metadata
from smg.export.release import release
from smg.export.write import export
from smg.learner.config import LearnerConfig
from smg.learner.learner import Learner
from smg.learner.origin import read_origin
from smg.sites.nifti import RAS_TO_LPS
from smg.sites.site import Site
from smg.sites.volume import Volume, read_volume, write_volume
from tests.cli.commands import smg
from tests.conftest import affine, scan, write_site
from tests.export import outside

COMMON = {"iterations": 20, "batch": 4, "optimiser": {"rate": 5e-3}, "validate_every": 20, "method": "finetune"}
UNET = {"width": 4, "depth": 2}
RESIZED = {"preparation": {"size": 16}, "network": {"width": 4, "depth": 1}}
MODES: dict[str, dict[str, Any]] = {
    "resized": RESIZED,
    "clipped": {
        "preparation": {"size": 22, "clip": [2, 98], "normalise": "slice"},
        "network": UNET | {"norm": "batch"},
        "mirror": True,
        "largest_component": False,
    },
    "field": {"preparation": {"size": 17, "spacing": 0.7, "field": 10.5}, "network": {"width": 4, "depth": 1}},
    "windows": {"preparation": {"size": 16, "spacing": 0.4, "clip": [0, 99.5]}, "network": UNET, "mirror": True},
    "adjacent": {"preparation": {"size": 16, "spacing": 0.6, "adjacent": 3}, "network": {"width": 4, "depth": 1}},
    "classes": {
        "preparation": {
            "size": 20,
            "adjacent": 3,
            "labels": {"classes": {"outer": [1], "inner": [300]}, "background": [2, 0]},
        },
        "network": {"width": 6, "depth": 1},
        "iterations": 80,
        "optimiser": {"rate": 2e-2},
    },
    "monai": {
        "preparation": {"size": 32},
        "network": {"name": "BasicUNet", "arguments": {"features": [4, 4, 8, 8, 8, 4]}},
    },
}
ONNX = ("resized", "windows")


@dataclass(frozen=True)
class Made:
    """Models, their exports, the scans, and what the other environment found."""

    folder: Path
    found: dict[str, Any]

    def model(self, mode: str) -> Path:
        return self.folder / "models" / mode

    def bundle(self, mode: str) -> Path:
        return self.folder / "bundles" / mode

    def masks(self, where: str) -> dict[str, np.ndarray]:
        return {path.name: read_volume(path).array for path in sorted((self.folder / where).iterdir())}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """One model for each way of preparing scans, exported, and every export run once without smg."""
    folder = tmp_path_factory.mktemp("export")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SMG_CACHE", str(folder / "cache"))
        write_site(folder / "sites" / "plain")
        _two_channels(folder / "sites" / "zones")
        _scans(folder / "scans" / "plain")
        _scans(folder / "scans" / "zones", channels=2)
        jobs = []
        for mode, settings in MODES.items():
            site = Site.find(folder / "sites" / _kind(mode))
            config = LearnerConfig.model_validate(COMMON | settings).with_channels(site.channels)
            Learner.create(folder / "models" / mode, config).learn(site)
            export(release(folder / "models" / mode), "monai-bundle", folder / "bundles" / mode)
            jobs.append(_job(folder, mode, "bundles", monai=mode in ("resized", "windows")))
        for mode in ONNX:
            export(release(folder / "models" / mode), "onnx", folder / "onnx" / f"{mode}-onnx")
            jobs.append(_job(folder, f"{mode}-onnx", "onnx"))
        for mode in MODES:
            words = (folder / "models" / mode, folder / "scans" / _kind(mode), "--out", folder / "expected" / mode)
            result = smg("predict", *words, "--quiet")
            assert result.returncode == 0, result.stderr
    (folder / "without" / "smg").mkdir(parents=True)
    (folder / "without" / "smg" / "__init__.py").write_text('raise ImportError("smg is not here")\n')
    (folder / "jobs.json").write_text(json.dumps(jobs))
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", Path(outside.__file__), folder / "jobs.json"],
        env=os.environ | {"PYTHONPATH": str(folder / "without")},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return Made(folder, json.loads(ran.stdout.splitlines()[-1]))


def _kind(mode: str) -> str:
    return "zones" if mode == "classes" else "plain"


def _job(folder: Path, name: str, place: str, monai: bool = False) -> dict[str, str]:
    mode = name.removesuffix("-onnx")
    by_monai = str(folder / "by-monai" / name) if monai else ""
    paths = {"export": folder / place / name, "scans": folder / "scans" / _kind(mode), "out": folder / "made" / name}
    return {key: str(path) for key, path in paths.items()} | {"monai": by_monai}


def _two_channels(folder: Path) -> None:
    for number in range(4):
        images, mask = _zones(number)
        for channel, image in enumerate(images):
            write_volume(folder / "imagesTr" / f"c{number}_{channel:04d}.nii.gz", image)
        write_volume(folder / "labelsTr" / f"c{number}.nii.gz", mask)


def _zones(seed: int, shape: tuple[int, int, int] = (6, 20, 24)) -> tuple[list[Volume], Volume]:
    """An outer zone that the first channel shows, with an inner one that the second shows."""
    image, outer = scan(seed, shape)
    zones = outer.array.astype(np.int16)
    zones[1:-1, 5:14, 7:13] = 300
    second = np.where(zones == 300, 200, image.array / 2).astype(np.float32)
    return [image, Volume(second, image.affine)], Volume(zones, image.affine)


def _scans(folder: Path, channels: int = 1) -> None:
    """Scans as they come: other sizes, turned, oblique, scaled, in metres, without a place."""
    folder.mkdir(parents=True)
    turn = np.eye(4)
    turn[:2, :2] = [[0.96, -0.28], [0.28, 0.96]]
    sagittal = np.array([[0, 0, 3.0, 0], [0.5, 0, 0, 0], [0, -0.5, 0, 0], [0, 0, 0, 1.0]])
    kinds: dict[str, tuple[tuple[int, int, int], np.ndarray]] = {
        "plain": ((6, 20, 24), affine()),
        "large": ((5, 37, 30), affine((0.45, 0.62, 2.0))),
        "oblique": ((4, 23, 21), turn @ affine((-0.5, 0.6, 3.0))),
        "sagittal": ((21, 19, 22), sagittal),
    }
    for name, (shape, place) in kinds.items():
        for channel, image in enumerate(_zones(len(name), shape)[0][:channels]):
            number = f"_{channel:04d}" if channels > 1 else ""
            write_volume(folder / f"{name}{number}.nii.gz", Volume(image.array, place))
    if channels > 1:
        return
    voxels = scan(60)[0].array.transpose()
    scaled = nib.Nifti1Image(voxels, RAS_TO_LPS @ affine())
    scaled.header.set_slope_inter(0.37, -12.5)
    scaled.to_filename(folder / "scaled.nii")
    metres = nib.Nifti1Image(voxels.astype(np.float32), RAS_TO_LPS @ np.diag([1e-3, 1e-3, 1e-3, 1.0]) @ affine())
    metres.header.set_xyzt_units("meter")
    metres.to_filename(folder / "metres.nii.gz")
    nowhere = nib.Nifti1Image(voxels, None)
    nowhere.header["pixdim"][1:4] = (0.6, 0.5, 3.0)
    nowhere.header["sform_code"] = nowhere.header["qform_code"] = 0
    nowhere.to_filename(folder / "nowhere.nii.gz")


@pytest.mark.parametrize("mode", MODES)
def test_the_bundles_script_gives_the_masks_of_smg_predict(made: Made, mode: str) -> None:
    expected, found = made.masks(f"expected/{mode}"), made.masks(f"made/{mode}")
    assert made.found[mode]["exit"] == 0
    assert list(found) == list(expected)
    assert len(expected) >= 4
    for name, mask in expected.items():
        assert np.array_equal(found[name], mask), f"{name}: {(found[name] != mask).sum()} voxels differ"
        assert found[name].dtype == mask.dtype
        scan_file = next(made.folder.glob(f"scans/{_kind(mode)}/{name.split('.')[0]}*"))
        assert np.allclose(read_volume(made.folder / "made" / mode / name).affine, read_volume(scan_file).affine)
    shares = [np.count_nonzero(mask) / mask.size for mask in expected.values()]
    assert 0.01 < np.mean(shares) < 0.9  # something is drawn, and not everything
    if mode == "classes":
        assert {0, 1, 300} <= set(np.unique(np.concatenate([mask.ravel() for mask in expected.values()])))


def test_the_bundles_script_replaces_no_mask_and_goes_on_after_a_truncated_file(
    made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scan_file = sorted((made.folder / "scans" / "plain").glob("*.nii.gz"))[0]
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
        shutil.copy(scan_file, tmp_path / place / "t2.nii.gz")
    cut = tmp_path / "cut.nii.gz"
    cut.write_bytes(scan_file.read_bytes()[:-200])
    words = [str(place) for place in (cut, tmp_path / "one", tmp_path / "two")]
    segment = outside.script_of(made.bundle("resized"))
    assert segment.main([*words, "--out", str(tmp_path / "masks"), "--device", "cpu"]) == 1
    assert [path.name for path in (tmp_path / "masks").iterdir()] == ["t2.nii.gz"]
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(f"{cut}: ")
    assert second == f"{words[2]}/t2.nii.gz: its mask would be the file of {words[1]}/t2.nii.gz; give another --out"


def test_the_bundles_script_replaces_no_scan(made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scan_file = sorted((made.folder / "scans" / "plain").glob("*.nii.gz"))[0]
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
        shutil.copy(scan_file, tmp_path / place / "t2.nii.gz")
    one, two = (str(tmp_path / place) for place in ("one", "two"))
    segment = outside.script_of(made.bundle("resized"))
    assert segment.main([one, two, "--out", two, "--device", "cpu"]) == 1
    assert (tmp_path / "two/t2.nii.gz").read_bytes() == scan_file.read_bytes()
    reason = f"its mask would replace the scan {two}/t2.nii.gz; give another --out"
    assert capsys.readouterr().err.splitlines() == [f"{one}/t2.nii.gz: {reason}", f"{two}/t2.nii.gz: {reason}"]


@pytest.mark.parametrize("mode", ["resized", "windows"])
def test_monai_runs_the_bundle_and_gives_the_same_masks(made: Made, mode: str) -> None:
    found = made.found[mode]
    assert found["missing"] == []  # properties that MONAI asks of a bundle for inference
    assert found["loaded"]  # monai.bundle.load
    assert found["same_from_loadimaged"]
    expected, by_monai = made.masks(f"expected/{mode}"), made.masks(f"by-monai/{mode}")
    assert list(by_monai) == list(expected)
    assert all(np.array_equal(by_monai[name], mask) for name, mask in expected.items())


@pytest.mark.parametrize("mode", ONNX)
def test_onnxruntime_gives_the_logits_of_torch_and_the_same_masks(made: Made, mode: str) -> None:
    import onnxruntime

    path = made.folder / "onnx" / f"{mode}-onnx" / "models" / "model.onnx"
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    version = release(made.model(mode))
    for batch in (1, 3, 7):  # any number at once
        images = torch.randn(batch, 1, 16, 16, generator=torch.Generator().manual_seed(batch))
        with torch.no_grad():
            expected = version.network(images).numpy()
        (logits,) = session.run(["logits"], {"images": images.numpy()})
        assert np.abs(logits - expected).max() < 1e-4
    expected_masks, found = made.masks(f"expected/{mode}"), made.masks(f"made/{mode}-onnx")
    assert all(np.array_equal(found[name], mask) for name, mask in expected_masks.items())


def test_an_onnx_file_says_nothing_of_the_machine(made: Made) -> None:
    import onnx

    path = made.folder / "onnx" / "resized-onnx" / "models" / "model.onnx"
    onnx.checker.check_model(str(path), full_check=True)
    data = path.read_bytes()
    for secret in (b".py", b"/lib/", str(Path(sys.prefix)).encode(), b"smg", b"stack_trace"):
        assert secret not in data


def test_weights_are_plain_tensors_under_the_networks_own_names(made: Made) -> None:
    from monai.networks.nets import BasicUNet

    for mode in MODES:
        weights = torch.load(made.bundle(mode) / "models" / "model.pt", weights_only=True)
        stored = load_file(made.bundle(mode) / "models" / "model.safetensors")
        assert all(torch.equal(stored[name], tensor) for name, tensor in weights.items())
    network = BasicUNet(2, 1, 2, features=(4, 4, 8, 8, 8, 4))
    network.load_state_dict(torch.load(made.bundle("monai") / "models" / "model.pt", weights_only=True))


def test_an_exports_weights_start_another_model(made: Made, tmp_path: Path) -> None:
    for mode in ("resized", "monai"):
        config = LearnerConfig.model_validate(COMMON | MODES[mode])
        origin = read_origin(made.bundle(mode) / "models" / "model.safetensors")
        again = Learner.create(tmp_path / mode, config, origin).network()
        expected = Learner(made.model(mode)).network().state_dict()
        assert all(torch.equal(t, expected[name]) for name, t in again.state_dict().items())


def test_the_metadata_have_what_monais_schema_demands(made: Made) -> None:
    """Its schema is fetched from the network, so its demands are written out here."""
    for mode in MODES:
        about = json.loads((made.bundle(mode) / "configs" / "metadata.json").read_text())
        assert about == json.loads(json.dumps(metadata(release(made.model(mode)))))
        for key in ("version", "monai_version", "pytorch_version", "numpy_version", "task", "description", "authors"):
            assert isinstance(about[key], str)
        assert re.fullmatch(r"\d+\.\d+\.\d+", about["version"])
        assert isinstance(about["required_packages_version"], dict)
        config = Learner(made.model(mode)).config
        formats = about["network_data_format"]
        given, answer = formats["inputs"]["image"], formats["outputs"]["pred"]
        keys = {"type", "format", "modality", "num_channels", "spatial_shape", "dtype", "value_range", "is_patch_data"}
        for tensor, channels in ((given, config.network.channels), (answer, config.network.classes)):
            assert set(tensor) == keys | {"channel_def"}
            assert tensor["num_channels"] == len(tensor["channel_def"]) == channels
            assert tensor["spatial_shape"] == [config.preparation.size] * 2


KEPT = ("exemplars.safetensors", "sentinels.safetensors", "optimiser.safetensors")


def test_nothing_of_a_patient_is_in_an_export(made: Made, tmp_path: Path) -> None:
    """Neither bytes of exemplars and scans nor any alias, feature or hash of the records."""
    folder = tmp_path / "model"
    config = LearnerConfig.model_validate(COMMON | RESIZED | {"method": "sga+c", "keep_optimiser": True})
    learner = Learner.create(folder, config)
    learner.learn(Site.find(made.folder / "sites" / "plain"))
    learner.learn(Site.find(write_site(tmp_path / "other", 8, first_seed=20)))
    secrets: set[bytes] = {b"Case0", b"plain/", str(made.folder).encode(), str(Path.home()).encode()}
    for number in (1, 2):
        record = learner.store.read_round(number)
        aliases = [name for _, names in record.parts for name in names]
        assert len(aliases) > 3
        assert record.selection.chosen
        secrets |= {word.encode() for word in (*aliases, *record.selection.candidates, *record.scans)}
        secrets |= {row.subject.encode() for row in record.test}
        secrets |= {record.files[name].encode() for name in KEPT}
        for numbers in (
            *record.selection.features,
            record.familiar.spread,
            record.familiar.validation,
        ):
            secrets |= {repr(value).encode() for value in numbers if len(repr(value)) > 10}
            secrets |= {np.array(numbers, kind).tobytes() for kind in (np.float32, np.float64)}
        for name in ("exemplars", "sentinels"):
            for tensor in learner.store.read_tensors(number, name).values():
                for slice_ in tensor.reshape(len(tensor), -1):
                    if slice_.is_floating_point():
                        secrets.add(slice_.numpy()[:32].tobytes())
    assert len(secrets) > 100
    for kind in ("monai-bundle", "onnx", "torch"):
        files = export(release(folder), kind, tmp_path / kind)  # type: ignore[arg-type]
        assert files
        for path in files:
            content = (tmp_path / kind / path).read_bytes()
            for secret in secrets:
                assert secret not in content, f"{kind}/{path}"


def test_a_network_of_the_users_own_goes_out_as_a_graph_alone(tmp_path: Path) -> None:
    config = LearnerConfig.model_validate(
        COMMON | {"preparation": {"size": 16}, "network": {"name": "tests.learner.test_shared_tensors:PlainConvUNet"}}
    )
    Learner.create(tmp_path / "model", config).learn(Site.find(write_site(tmp_path / "A")))
    refused = smg("export", "model", "--trust-code", "--as", "torch", "--out", "out", cwd=tmp_path)
    assert refused.returncode == 1
    assert "is a program of your own, which an export cannot hold; --as onnx has its graph" in refused.stderr
    assert not (tmp_path / "out").exists()
    result = smg("export", "model", "--trust-code", "--as", "onnx", "--out", "out", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    script = outside.script_of(tmp_path / "out")
    settings = script.read_settings(tmp_path / "out" / "preparation.json")
    network = script.load_network(tmp_path / "out", settings)
    item = script.PrepareScand("image", settings)({"image": str(tmp_path / "A" / "Case00.nii.gz")})
    finish = script.RestoreMaskd("pred", settings)
    (found,) = script.Segmenter([item], network, script.inferer_of(settings), finish).run()
    expected = Learner(tmp_path / "model").predict(read_volume(tmp_path / "A" / "Case00.nii.gz")).mask.array
    assert np.array_equal(np.asarray(found["pred"][0]).transpose(), expected)

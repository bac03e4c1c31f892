"""NaN and infinity never become a mask or a number: a scan or a model that leads to them is an error in one line."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from smg.files import append_line, write_json
from smg.report.text import print_json
from smg.sites.volume import Volume, write_volume
from tests.cli.commands import TINY, assert_line, smg
from tests.conftest import affine, scan, write_site


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("finite")
    write_site(made / "A", 6)
    assert smg("learn", "model", "A", *TINY, cwd=made).returncode == 0
    write_volume(made / "good.nii.gz", scan(40)[0])
    return made


def with_voxel(path: Path, value: float, kind: type = np.float32) -> None:
    """Write a scan of which one voxel has this value."""
    array = scan(30)[0].array.astype(kind)
    array[2, 3, 4] = value
    write_volume(path, Volume(array, affine()))


@pytest.mark.parametrize(
    ("value", "kind"), [(3e38, np.float32), (-1e30, np.float32), (1e300, np.float64), (np.nan, np.float32)]
)
def test_one_voxel_that_cannot_be_computed_with_is_an_error_of_that_scan(
    folder: Path, tmp_path: Path, value: float, kind: type
) -> None:
    with_voxel(tmp_path / "bad.nii.gz", value, kind)
    scans = tmp_path / "bad.nii.gz", folder / "good.nii.gz"
    result = smg("predict", folder / "model", *scans, "--out", tmp_path / "masks")
    assert_line(result, 1, "bad.nii.gz: ", "export the scan again")
    assert [mask.name for mask in (tmp_path / "masks").iterdir()] == ["good.nii.gz"]
    write_site(tmp_path / "B", 4, first_seed=20)
    with_voxel(tmp_path / "B/Case02.nii.gz", value, kind)
    for command in ("learn", "evaluate"):
        assert_line(smg(command, folder / "model", tmp_path / "B"), 1, "Case02.nii.gz: ", "export the scan again")


@pytest.mark.parametrize("scale", [1e-30, 1e-16])
def test_values_too_close_to_each_other_are_an_error_too(folder: Path, tmp_path: Path, scale: float) -> None:
    array = scan(30)[0].array.astype(np.float64) * scale
    offset = 0.0 if scale < 1e-20 else 1e3
    write_volume(tmp_path / "flat.nii", Volume(array + offset, affine()))
    result = smg("predict", folder / "model", tmp_path / "flat.nii", "--out", tmp_path / "masks")
    assert_line(result, 1, "flat.nii: ", "export the scan again")
    assert not (tmp_path / "masks/flat.nii").exists()


def with_weights(model: Path, value: float) -> None:
    """Put a value into the model's weights, and the file's new hash into its record."""
    file, record = model / "rounds/001/weights.safetensors", model / "rounds/001/round.json"
    tensors = load_file(file)
    for tensor in tensors.values():
        if tensor.is_floating_point():
            tensor.fill_(value)
    save_file(tensors, file)
    about = json.loads(record.read_text())
    about["files"]["weights.safetensors"] = hashlib.sha256(file.read_bytes()).hexdigest()
    record.write_text(json.dumps(about))
    smg("verify", model, "--adopt")  # as an attacker would


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 3e38])
def test_weights_that_give_no_numbers_give_no_mask(folder: Path, tmp_path: Path, value: float) -> None:
    """Of 3e38 every weight is finite, and the scores are not."""
    shutil.copytree(folder / "model", tmp_path / "model")
    with_weights(tmp_path / "model", value)
    masks = tmp_path / "masks"
    result = smg("predict", tmp_path / "model", folder / "good.nii.gz", "--out", masks)
    assert_line(result, 1, "weights.safetensors: " if value > 3e38 or value != value else "good.nii.gz: ")
    assert not list(masks.glob("*"))
    assert_line(smg("evaluate", tmp_path / "model", folder / "A"), 1, "NaN or infinite")


def test_json_is_strict(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    value = {"a": [1.5, float("nan")], "b": {"c": float("-inf")}, "d": (2, None)}
    print_json(value)
    write_json(tmp_path / "v.json", value)
    append_line(tmp_path / "v.jsonl", value)

    def refuse(word: str) -> None:
        raise AssertionError(word)

    for text in (capsys.readouterr().out, (tmp_path / "v.json").read_text(), (tmp_path / "v.jsonl").read_text()):
        assert json.loads(text, parse_constant=refuse) == {"a": [1.5, None], "b": {"c": None}, "d": [2, None]}

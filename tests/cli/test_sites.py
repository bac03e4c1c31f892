"""The commands as a user types them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from smg.phantom.phantom import write_phantom_sites
from tests.cli.commands import SMG, assert_line, smg
from tests.conftest import write_site


def test_the_installed_command_is_this_one(tmp_path: Path) -> None:
    result = subprocess.run([SMG, "sites", "check", str(tmp_path)], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr.startswith(f"smg: {tmp_path}: no site found")


def test_check_prints_a_table_and_exits_0(tmp_path: Path) -> None:
    write_site(tmp_path / "HK", 4)
    result = smg("sites", "check", tmp_path)
    assert result.returncode == 0
    assert "HK" in result.stdout
    assert "24 x 20" in result.stdout
    assert "1 sites, 4 subjects, no faults" in result.stdout
    assert "checking 4/4" in result.stderr


def test_check_names_the_channels_and_the_subject_that_lacks_one(tmp_path: Path) -> None:
    write_phantom_sites(tmp_path, letters="F", subjects=2, workers=1, channels=2)
    result = smg("sites", "check", tmp_path)
    assert result.returncode == 0
    assert "T2, ADC" in result.stdout
    missing = tmp_path / "F" / "imagesTr" / "Case01_0001.nii.gz"
    missing.unlink()
    result = smg("sites", "check", tmp_path)
    assert result.returncode == 1
    assert f"F Case01: {missing}: no such file: case Case01 lacks channel ADC" in result.stdout
    (fault,) = json.loads(smg("sites", "check", tmp_path, "--json").stdout)["faults"]
    assert (fault["site"], fault["subject"], fault["file"]) == ("F", "Case01", str(missing))


def test_synth_takes_a_number_of_channels(tmp_path: Path) -> None:
    write_phantom_sites(tmp_path, letters="F", subjects=1, workers=1)
    result = smg("sites", "synth", tmp_path, "--channels", 2)  # so that it need not draw 116 subjects
    assert result.returncode == 1
    assert "of another seed or number of channels; give a new folder" in result.stderr
    assert smg("sites", "synth", tmp_path, "--channels", 3).returncode == 2


def test_check_names_each_fault_and_exits_1(tmp_path: Path) -> None:
    write_site(tmp_path / "HK", 3)
    (tmp_path / "HK" / "Case01_segmentation.nii.gz").unlink()
    result = smg("sites", "check", tmp_path)
    assert result.returncode == 1
    assert f"HK Case01: {tmp_path}/HK/Case01.nii.gz: image without mask" in result.stdout
    assert "Traceback" not in result.stderr


def test_check_as_json(tmp_path: Path) -> None:
    write_site(tmp_path / "HK", 3)
    (tmp_path / "HK" / "Case01.nii.gz").write_bytes(b"no scan")
    result = smg("sites", "check", tmp_path, "--json")
    assert result.returncode == 1
    found = json.loads(result.stdout)
    assert found["sites"]["HK"]["subjects"] == 3
    assert found["sites"]["HK"]["slices"] == 12
    (fault,) = found["faults"]
    assert "too short for a NIfTI header" in fault.pop("reason")
    assert fault == {"site": "HK", "subject": "Case01", "file": str(tmp_path / "HK" / "Case01.nii.gz")}


@pytest.mark.parametrize(
    ("words", "code", "facts"),
    [
        (("sites", "check", "nowhere"), 1, "smg: nowhere: | no such"),
        (("sites", "check", "."), 1, "smg: .: | no site"),
        (("sites", "check", "HK", "--labels", "one"), 2, "smg: labels 'one' | 'any'"),
        (("sites", "show", "HK", "--out", "x.jpeg"), 2, "smg: x.jpeg: | .png"),
        (("sites", "show", "HK", "--augment", "wild"), 1, "wild"),
        (("sites", "show", "HK", "--out", "/proc/x.png"), 1, "smg: /proc"),
        (("sites", "chekc", "HK"), 2, "No such command"),
        (("sites", "check"), 2, "Missing argument"),
    ],
)
def test_mistakes_get_one_line(tmp_path: Path, words: tuple[str, ...], code: int, facts: str) -> None:
    write_site(tmp_path / "elsewhere" / "HK", 1)
    here = tmp_path / "elsewhere" if "HK" in words else tmp_path
    (tmp_path / "empty").mkdir()
    result = smg(*words, cwd=tmp_path / "empty" if "." in words else here)
    assert_line(result, code, *facts.split(" | "))
    if code == 1:
        assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("words", [("show",), ("show", "--augment", "mild", "--subjects", "3")])
def test_show_draws_a_picture(tmp_path: Path, words: tuple[str, ...]) -> None:
    write_site(tmp_path / "HK", 3)
    result = smg("sites", words[0], tmp_path, "--out", tmp_path / "s.png", *words[1:])
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "s.png").read_bytes()[:4] == b"\x89PNG"


def test_output_cut_off_by_head_is_no_error(tmp_path: Path) -> None:
    write_site(tmp_path / "HK", 2)
    line = f"{SMG} sites check {tmp_path} --json | head -1"
    result = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in result.stderr


def test_a_folder_that_cannot_be_read(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root reads everything")
    (tmp_path / "HK").mkdir(mode=0o000)
    result = smg("sites", "check", tmp_path / "HK")
    assert result.returncode == 1
    assert "Permission denied" in result.stderr

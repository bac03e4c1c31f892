"""DICOM as a user meets it: series in, SEG and RTSTRUCT out and in again, no patient's name on the way."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pydicom
import pytest
from pydicom.uid import generate_uid

from smg.dicom.codes import STRUCTURE
from smg.dicom.dicom_masks import read_mask
from smg.dicom.outgoing import Origin, Structure
from smg.dicom.rtstruct import write_rtstruct
from smg.dicom.seg import write_seg
from smg.dicom.series import read_series
from smg.sites.volume import read_volume
from tests.cli.commands import TINY, smg
from tests.conftest import scan, write_site
from tests.dicom.made import PATIENT, oblique, write_series

ORIGIN = Origin("0", 1, "ab" * 32, None)
SECRETS = ("ROSENKRANTZ", "GUILDEN", PATIENT)


def pixels(seed: int) -> np.ndarray:
    return scan(seed)[0].array.clip(0)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, series to predict, and a site of series with SEG and RTSTRUCT masks of two structures."""
    made = tmp_path_factory.mktemp("dicom")
    write_site(made / "A", 14)
    result = smg("learn", "model", "A", *TINY, cwd=made)
    assert result.returncode == 0, result.stderr
    write_series(made / "series" / "one", pixels(50), oblique())
    write_series(made / "series" / "two", pixels(51))
    stripes = np.zeros((6, 20, 24), np.int16)
    stripes[:, ::2, ::2] = 100
    write_series(made / "series" / "unlike", stripes)
    structures = [Structure("Prostate", STRUCTURE), Structure("Bladder", STRUCTURE)]
    for number in range(6):
        folder = write_series(made / "site" / f"Case{number}", pixels(60 + number), oblique())
        series = read_series(folder)
        mask = scan(60 + number)[1].array.copy()
        mask[1:3, 0:3, 0:3] = 2
        write = write_seg if number % 2 else write_rtstruct
        write(made / "site" / f"Case{number}_segmentation.dcm", series, mask, structures, ORIGIN)
    return made


def silent_about_patients(folder: Path, *results: object) -> None:
    said = "".join(f"{r.stdout}{r.stderr}" for r in results)  # type: ignore[attr-defined]
    assert not any(secret in said for secret in SECRETS)
    assert not any(secret in str(path) for path in folder.rglob("*") for secret in SECRETS)


def test_masks_as_seg_rtstruct_and_nifti_are_the_same(desk: Path) -> None:
    words = ("--as", "seg", "--as", "rtstruct", "--as", "nifti", "--code", "foreground=SCT:41216001:Prostate")
    result = smg("predict", "model", "series", "--out", "masks", *words, "--json", cwd=desk)
    assert result.returncode == 0, result.stderr
    silent_about_patients(desk / "masks", result)
    rows = json.loads(result.stdout)
    assert [row["masks"] for row in rows] == [
        [f"masks/{name}{end}" for end in (".seg.dcm", ".rtstruct.dcm", ".nii.gz")] for name in ("one", "two", "unlike")
    ]
    assert rows[2]["unlike"]
    assert rows[0]["volume_ml"] > 0
    for row in rows:
        nifti = read_volume(desk / row["masks"][2]).array
        series = read_series(desk / row["scan"])
        for file in row["masks"][:2]:
            assert np.array_equal(read_mask(desk / file, series), nifti)
            data = pydicom.dcmread(desk / file)
            assert data.PatientID == PATIENT
            assert ("UNLIKE" in data.SeriesDescription) == row["unlike"]
    seg = pydicom.dcmread(desk / "masks/one.seg.dcm")
    assert seg.SegmentSequence[0].SegmentedPropertyTypeCodeSequence[0].CodeValue == "41216001"
    algorithm = seg.SegmentSequence[0].SegmentationAlgorithmIdentificationSequence[0]
    record = json.loads((desk / "model/rounds/001/round.json").read_text())
    assert record["files"]["weights.safetensors"] in algorithm.AlgorithmParameters


def test_a_series_is_nifti_unless_asked_otherwise(desk: Path) -> None:
    result = smg("predict", "model", "series/one", "--out", "plain", "--json", cwd=desk)
    assert result.returncode == 0, result.stderr
    (row,) = json.loads(result.stdout)
    assert row["mask"] == "plain/one.nii.gz"
    assert "masks" not in row


def test_one_series_of_several(desk: Path) -> None:
    one, other = generate_uid(), generate_uid()
    write_series(desk / "study", pixels(52), series=one)
    write_series(desk / "study", pixels(53), series=other)
    refused = smg("predict", "model", "study", "--out", "study-masks", cwd=desk)
    assert refused.returncode == 1
    assert one in refused.stderr
    assert other in refused.stderr
    assert "--series UID" in refused.stderr
    for words in (("study", "--series", other), (f"study/{other}",)):
        out = f"study-{len(words)}"
        result = smg("predict", "model", *words, "--out", out, "--as", "seg", cwd=desk)
        assert result.returncode == 0, result.stderr
        made = pydicom.dcmread(desk / out / "study.seg.dcm")
        assert made.ReferencedSeriesSequence[0].SeriesInstanceUID == other
    silent_about_patients(desk / "study-2", refused, result)
    wrong = smg("predict", "model", "study", "--series", "1.2.3", "--out", "no", cwd=desk)
    assert wrong.returncode == 1
    assert "no series of that UID" in wrong.stderr


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("A/Case00.nii.gz", "--as", "seg"), 1, "no DICOM series, to which a SEG would refer"),
        (("series/one", "--as", "dcm"), 2, "no such format; give nifti, seg, rtstruct"),
        (("series/one", "--as", "seg", "--code", "zone=SCT:1:x"), 2, "no such class; the model has foreground"),
        (("series/one", "--as", "seg", "--code", "foreground=1"), 2, "SCHEME:VALUE:MEANING"),
        (("series/one", "--series", "first"), 2, "no UID"),
        (("A/Case00.nii.gz", "--series", "1.2.3"), 1, "no folder of DICOM series"),
        (("site/Case0_segmentation.dcm",), 1, "is the mask of a scan beside it"),
    ],
)
def test_mistakes_of_predict(desk: Path, words: tuple[str, ...], code: int, sentence: str) -> None:
    result = smg("predict", "model", *words, "--out", "none", cwd=desk)
    assert (result.returncode, sentence in result.stderr) == (code, True), result.stderr
    assert not (desk / "none").exists()


def test_one_slice_in_the_place_of_its_folder(desk: Path) -> None:
    file = next((desk / "series/one").iterdir())
    result = smg("predict", "model", str(file), "--out", "none", cwd=desk)
    assert result.returncode == 1
    assert "give the folder that holds all files of its series" in result.stderr


def test_a_site_with_seg_and_rtstruct_masks(desk: Path) -> None:
    listed = smg("sites", "check", "site", cwd=desk)
    assert listed.returncode == 1
    assert "site: structures in its masks: Prostate (6 of 6), Bladder (6 of 6)" in listed.stdout
    assert "choose with --roi NAME" in listed.stdout
    checked = smg("sites", "check", "site", "--roi", "Prostate", "--json", cwd=desk)
    assert checked.returncode == 0, checked.stdout
    facts = json.loads(checked.stdout)["sites"]["site"]
    assert facts["structures"] == {"Prostate": 6, "Bladder": 6}
    assert facts["foreground_slices"] == 6 * 4
    both = smg("sites", "check", "site", "--roi", "Prostate", "--roi", "bladder", "--labels", "1", cwd=desk)
    assert "label values that were not expected: 2" in both.stdout
    wrong = smg("sites", "check", "site", "--roi", "Gland", cwd=desk)
    assert "holds no structure 'Gland', but Prostate, Bladder" in wrong.stdout
    learned = smg("learn", "other", "site", "--roi", "Prostate", *TINY, cwd=desk)
    assert learned.returncode == 0, learned.stderr
    evaluated = smg("evaluate", "other", "site", "--roi", "Prostate", "--part", "all", "--json", cwd=desk)
    assert evaluated.returncode == 0, evaluated.stderr
    assert len(json.loads(evaluated.stdout)) == 6
    needless = smg("sites", "check", "A", "--roi", "Prostate", cwd=desk)
    assert "leave out --roi" in needless.stdout
    silent_about_patients(desk / "other", listed, checked, both, wrong, learned, evaluated)
    for file in (desk / "other").rglob("*.json*"):
        assert not any(secret in file.read_text() for secret in SECRETS)


def test_a_csv_names_one_series_of_a_folder(desk: Path) -> None:
    one, other = generate_uid(), generate_uid()
    folder = write_series(desk / "mixed" / "p1", pixels(70), series=one)
    write_series(folder, pixels(71), series=other)
    series = read_series(folder / one)
    write_seg(desk / "mixed/p1.dcm", series, scan(70)[1].array, [Structure("Prostate", STRUCTURE)], ORIGIN)
    (desk / "mixed/site.csv").write_text(f"image,mask\np1/{one},p1.dcm\n")
    result = smg("sites", "check", "mixed/site.csv", "--json", cwd=desk)
    assert result.returncode == 0, result.stdout
    (desk / "mixed/site.csv").write_text("image,mask\np1,p1.dcm\n")
    refused = smg("sites", "check", "mixed/site.csv", "--json", cwd=desk)
    assert refused.returncode == 1
    assert "holds 2 series" in json.loads(refused.stdout)["faults"][0]["reason"]

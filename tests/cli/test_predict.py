"""`smg predict` as a user types it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from smg.errors import Misuse
from smg.learner.outputs import MaskWriter
from smg.learner.store import Store
from smg.sites.labels import Labels
from smg.sites.volume import Volume, read_volume, write_volume
from tests.cli.commands import TINY, smg
from tests.conftest import affine, scan, write_site


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has learned two sites; scans in two folders, one name in both; a bad file; one like no other."""
    made = tmp_path_factory.mktemp("predict")
    for place, name in enumerate("AB"):
        write_site(made / "sites" / name, 8, first_seed=10 * place)
        result = smg("learn", "model", f"sites/{name}", *(TINY if not place else ()), "--tolerance", "100", cwd=made)
        assert result.returncode == 0, result.stderr
    write_volume(made / "scans" / "one.nii.gz", scan(50)[0])
    write_volume(made / "scans" / "two.mha", scan(51)[0])
    write_volume(made / "more" / "one.nii.gz", scan(52)[0])
    (made / "bad").mkdir()
    (made / "bad" / "bad.nii.gz").write_bytes(b"no scan")
    stripes = np.zeros((6, 20, 24), np.int16)
    stripes[:, ::2, ::2] = 100
    write_volume(made / "odd" / "stripes.nii", Volume(stripes, affine()))
    return made


def test_masks_lie_on_the_scans_grids_and_a_bad_file_in_the_middle_is_listed_last(folder: Path) -> None:
    result = smg("predict", "model", "scans/one.nii.gz", "bad", "scans", "--out", "masks", cwd=folder)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].startswith("smg: bad/bad.nii.gz: too short for a NIfTI header")
    assert "masks/two.mha" in result.stderr
    assert sorted(p.name for p in (folder / "masks").iterdir()) == ["one.nii.gz", "two.mha"]
    for name in ("one.nii.gz", "two.mha"):
        mask, image = read_volume(folder / "masks" / name), read_volume(folder / "scans" / name)
        assert mask.array.shape == image.array.shape
        assert np.allclose(mask.affine, image.affine)
    again = smg("predict", "model", "scans/o*.gz", "--out", "masks", cwd=folder)
    assert again.returncode == 1
    assert again.stderr.splitlines()[-1].endswith("masks/one.nii.gz exists already; --overwrite replaces it")
    assert smg("predict", "model", "scans/o*.gz", "--out", "masks", "--overwrite", cwd=folder).returncode == 0


def test_the_table_has_distances_and_marks_what_is_unlike(folder: Path) -> None:
    result = smg("predict", "model", "scans", "odd", "--out", "masks", "--overwrite", "--quiet", cwd=folder)
    assert (result.returncode, result.stderr) == (0, "")
    rows = {line.split("|")[1].strip(): line for line in result.stdout.splitlines() if line.startswith("|")}
    for column in ("ml", "to A", "to B", "nearest"):
        assert column in rows["scan"]
    assert "unlike" in rows["stripes.nii"]
    assert "unlike" not in rows["two.mha"]
    assert "at about 1" in " ".join(result.stdout.split())
    assert re.search(r"unlike: more than \d+\.\d\d .*validation subjects \(2\)", result.stdout)


def test_json(folder: Path) -> None:
    words = ("scans/one.nii.gz", "bad/bad.nii.gz", "odd/stripes.nii")
    result = smg("predict", "model", *words, "--out", "masks", "--overwrite", "--json", cwd=folder)
    assert result.returncode == 1
    rows = json.loads(result.stdout)
    assert [row["scan"] for row in rows] == list(words)
    keys = {"scan", "mask", "volume_ml", "volumes_ml", "distances", "nearest", "threshold", "unlike", "note", "error"}
    assert all(set(row) == keys for row in rows)
    assert rows[0]["mask"] == "masks/one.nii.gz"
    mask = read_volume(folder / rows[0]["mask"])
    assert rows[0]["volume_ml"] == pytest.approx(mask.array.sum() * np.prod(mask.spacing) / 1000, abs=1e-3)
    assert set(rows[0]["distances"]) == {"A", "B"}
    assert rows[1]["error"].startswith("bad/bad.nii.gz: too short for a NIfTI header")
    assert rows[1]["mask"] is None
    assert [row["unlike"] for row in rows] == [min(rows[0]["distances"].values()) > rows[0]["threshold"], None, True]


def test_masks_beside_their_scans_are_left_out(folder: Path) -> None:
    result = smg("predict", "model", "sites/A/Case0[01]*.nii.gz", "--out", "only", cwd=folder)
    assert result.returncode == 0, result.stderr
    assert re.search(r"left out 2 of 4 files.*masks.*Case00_segmentation.nii.gz", result.stderr)
    assert sorted(path.name for path in (folder / "only").iterdir()) == ["Case00.nii.gz", "Case01.nii.gz"]
    alone = smg("predict", "model", "sites/A/Case00_segmentation.nii.gz", "--out", "none", cwd=folder)
    assert alone.returncode == 1
    assert re.search(r"Case00_segmentation.nii.gz: .*mask of a scan.*name the scans", alone.stderr)


def test_two_scans_of_one_name_keep_their_folders(folder: Path) -> None:
    result = smg("predict", "model", "scans/one.nii.gz", "more/one.nii.gz", "--out", "apart", cwd=folder)
    assert result.returncode == 0
    for name in ("scans", "more"):
        assert (folder / "apart" / name / "one.nii.gz").exists()
        assert f"{name}/one.nii.gz" in result.stdout


def test_a_model_of_an_older_version_says_that_it_knows_no_distance(folder: Path) -> None:
    records = [folder / "model" / "rounds" / number / "round.json" for number in ("001", "002")]
    kept = [path.read_text() for path in records]
    try:
        for path in records:
            record = json.loads(path.read_text())
            path.write_text(json.dumps({k: v for k, v in record.items() if k not in ("familiar", "format")}))
        Store(folder / "model").adopt()
        result = smg("predict", "model", "scans", "--out", "masks", "--overwrite", cwd=folder)
    finally:
        for path, text in zip(records, kept, strict=True):
            path.write_text(text)
        Store(folder / "model").adopt()
    assert result.returncode == 0
    assert "distances are not known" in result.stdout
    assert "unlike" not in result.stdout


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("predict", "model", "nothing.nii.gz", "--out", "m"), "nothing.nii.gz: no such file"),
        (("predict", "model", "sites/A/Case00.nii.gz", "--out", "sites/A"), "the mask would overwrite the scan"),
        (("predict", "model", "sites", "--out", "m"), "sites: no scan in this folder"),
        (("predict", "nowhere", "scans", "--out", "m"), "nowhere: no model there"),
    ],
)
def test_mistakes_get_one_line_and_exit_1(folder: Path, words: tuple[str, ...], sentence: str) -> None:
    result = smg(*words, cwd=folder)
    assert result.returncode == 1
    assert sentence in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not (folder / "m").exists()


def test_contact_sheets_and_probabilities(folder: Path) -> None:
    from PIL import Image

    words = ("--qc", "qc", "--probabilities", "--json")
    result = smg("predict", "model", "scans", "--out", "with-maps", *words, cwd=folder)
    assert result.returncode == 0, result.stderr
    assert sorted(p.name for p in (folder / "qc").iterdir()) == ["one.png", "two.png"]
    assert {p.name for p in (folder / "with-maps").iterdir()} == {
        "one.nii.gz", "one.foreground.probability.nii.gz", "two.mha", "two.foreground.probability.nii.gz",
    }  # fmt: skip
    mask = read_volume(folder / "with-maps/one.nii.gz")
    likely = read_volume(folder / "with-maps/one.foreground.probability.nii.gz")
    assert likely.array.shape == mask.array.shape
    assert np.allclose(likely.affine, mask.affine)
    assert not (mask.array.astype(bool) & (likely.array < 0.5)).any()  # a component may be missing, none is added
    sheet = np.asarray(Image.open(folder / "qc/one.png")).astype(int)
    coloured = np.ptp(sheet, axis=2) > 40  # a scan is grey, its contours are not
    assert coloured.any() == bool(mask.array.any())
    refused = smg("predict", "model", "scans", "--out", "x", "--qc", "scans/one.nii.gz", cwd=folder)
    assert refused.returncode == 2
    assert "--qc scans/one.nii.gz: is a file" in refused.stderr


def test_sheets_and_maps_of_equal_names_are_kept_apart_and_replace_nothing(folder: Path) -> None:
    words = ("predict", "model", "scans/one.nii.gz", "more/one.nii.gz", "--out", "kept", "--qc", "sheets")
    assert smg(*words, "--probabilities", cwd=folder).returncode == 0
    for name in ("scans", "more"):
        assert (folder / "sheets" / name / "one.png").exists()
        assert (folder / "kept" / name / "one.foreground.probability.nii.gz").exists()
    there = (folder / "sheets/more/one.png").stat().st_mtime_ns
    again = smg(*words[:4], "--out", "elsewhere", "--qc", "sheets", cwd=folder)
    assert again.returncode == 1
    assert "sheets/more/one.png exists already; --overwrite replaces it" in again.stderr
    assert (folder / "sheets/more/one.png").stat().st_mtime_ns == there
    write_volume(folder / "two-formats" / "x.nii", scan(53)[0])
    write_volume(folder / "two-formats" / "x.nii.gz", scan(54)[0])
    both = smg("predict", "model", "two-formats", "--out", "both", "--qc", "sheets", "--json", cwd=folder)
    assert both.returncode == 1
    assert "its contact sheet would be the same file as that of" in both.stderr
    assert len(list((folder / "both").iterdir())) == 1


def test_maps_of_two_classes_are_never_one_file() -> None:
    labels = Labels.model_validate({"a b": 1, "a-b": 2})
    with pytest.raises(Misuse, match="two classes would have the file name 'a-b'"):
        _ = MaskWriter(labels, (), 1, "").probability_suffixes


def test_bfloat16_where_the_processor_has_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from smg.learner.learner import Learner
    from smg.learner.predictor import has_bfloat16

    monkeypatch.setattr("smg.learner.predictor.has_bfloat16", lambda device: True)  # slower elsewhere, and the same
    image, one, other = scan(50)[0], Learner(folder / "model").predictor(), Learner(folder / "model").predictor()
    one.keeps_probabilities = other.keeps_probabilities = True
    other.use("bfloat16")
    exact, rough = one.predict(image).probabilities, other.predict(image).probabilities
    assert exact is not None
    assert rough is not None
    assert rough.dtype == exact.dtype == np.float32
    assert 0 < np.abs(exact - rough).max() < 0.05
    monkeypatch.setattr("smg.learner.predictor.has_bfloat16", lambda device: False)
    refused = smg("predict", "model", "scans", "--out", "none", "--precision", "bfloat16", cwd=folder)
    assert refused.returncode == 1
    assert "has no instructions for it" in refused.stderr
    assert smg("predict", "model", "scans", "--out", "none", "--precision", "half", cwd=folder).returncode == 2
    assert isinstance(has_bfloat16(torch.device("cpu")), bool)

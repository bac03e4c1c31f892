"""Scans and subjects that were seen before: no scan is tested that was trained on."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from smg.learner.admission import parts_before, split_as_before
from smg.learner.exemplars import alias
from smg.learner.learner import Learner
from smg.sites.site import Site
from smg.sites.split import load_splits, split_site
from smg.sites.volume import Volume, read_volume, write_volume
from tests.conftest import write_site
from tests.learner.streams import fingerprint, refused, tiny_learner, tiny_stream, write_sites


def test_a_scan_at_two_sites_is_not_tested_as_if_unseen(data: Path, tmp_path: Path) -> None:
    """Also if one of the two was mirrored and stored with another data type."""
    sites = write_sites(tmp_path / "sites")
    for suffix in ("", "_segmentation"):
        source = read_volume(sites / "A" / f"Case01{suffix}.nii.gz")
        turned = source.affine.copy()
        turned[:3, 3] += turned[:3, 0] * (source.array.shape[2] - 1)
        turned[:3, 0] *= -1
        kind = np.float32 if not suffix else np.uint8
        write_volume(sites / "C" / f"Case02{suffix}.nii.gz", Volume(source.array[:, :, ::-1].astype(kind), turned))
    with refused("C/Case02.nii.gz", "A/Case01.nii.gz", "--leave-out"):
        tiny_stream(sites).run(tmp_path / "run")
    assert not (tmp_path / "run" / "model").exists()
    stream = tiny_stream(sites)
    stream.leave_out = True
    results = stream.run(tmp_path / "run")
    split = load_splits(tmp_path / "run" / "split.json")
    assert sorted(case for part in split["C"].values() for case in part) == ["Case00", "Case01", "Case03"]
    assert results.measures["dsc"]["FM"] is not None


def test_a_scan_learned_at_another_site_is_not_learned_again_under_this_one(taught: Learner, data: Path) -> None:
    """As when a folder is given again under another name; its new scans can be learned."""
    folder = taught.store.folder.parent / "Other"
    shutil.copytree(data / "C", folder)
    for suffix in ("", "_segmentation"):
        again = read_volume(data / "A" / f"Case02{suffix}.nii.gz")
        lost = np.diag([-1.0, -1.0, 1.0, 1.0])  # what its header said of its orientation
        write_volume(folder / f"again{suffix}.nii.gz", Volume(again.array, lost))
    before = fingerprint(taught.store.folder)
    with refused("Other/again.nii.gz", "site A", "--leave-out"):
        taught.learn(Site.find(folder))
    assert fingerprint(taught.store.folder) == before
    assert sum(taught.learn(Site.find(folder), leave_out=True).subjects.model_dump().values()) == 4
    assert taught.learn(Site.find(data, "A"), again=True).round == 4  # at its own site a scan may be learned again


def test_subjects_that_are_left_out_take_no_place_in_a_part(tmp_path: Path) -> None:
    sites = write_sites(tmp_path / "sites")
    whole = Site.find(sites, "B")
    bad = split_site(whole, 0)["test"][0]
    mask = read_volume(sites / "B" / f"{bad}_segmentation.nii.gz")
    write_volume(sites / "B" / f"{bad}_segmentation.nii.gz", Volume(np.zeros_like(mask.array), mask.affine))
    replace(tiny_stream(sites, method="finetune", iterations=1), leave_out=True).run(tmp_path / "run")
    split = load_splits(tmp_path / "run" / "split.json")
    assert split["B"] == split_site(whole.keep({s.case for s in whole.subjects} - {bad}), 0)
    assert split["A"] == split_site(Site.find(sites, "A"), 0)  # the split of a site without faults does not change


def test_a_part_without_any_subject_is_reported_before_a_round(tmp_path: Path) -> None:
    for place, name in enumerate("ABC"):
        write_site(tmp_path / "sites" / name, 2, first_seed=10 * place)
    stream = tiny_stream(tmp_path / "sites")
    stream.part = "validation"
    with refused("validation"):
        stream.run(tmp_path / "run")
    assert not (tmp_path / "run" / "model").exists()


def test_a_subject_that_was_trained_on_stays_in_the_training_part(taught: Learner, data: Path) -> None:
    """Also if a split of the user's own says otherwise: neither tests nor the guard may use it."""
    site, number = Site.find(data, "A"), taught.current
    split = split_site(site, taught.config.seed)
    case, other = split["train"]
    for part in ("validation", "test"):
        swapped = split | {"train": (other, *split[part]), part: (case,)}
        with refused("site A: round 1 trained on", case, "put it in the training part"):
            taught.learn(site, swapped, again=True)
    assert taught.current == number
    more = split | {"train": (case, other, *split["validation"]), "validation": ()}
    assert set(taught.sentinels()) >= {"A"}
    assert taught.learn(site, more, again=True).subjects.train == 3
    assert "A" not in taught.sentinels()  # its sentinel was a validation subject of round 1


def test_a_subject_trained_on_and_tested_on_later_counts_as_trained_on(
    taught: Learner, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As older versions allowed. A split drawn here puts it right, and is not refused."""
    site = Site.find(data, "A")
    split = split_site(site, taught.config.seed)
    case, other = split["train"]
    swapped = split | {"train": (other, *split["test"]), "test": (case,)}
    with monkeypatch.context() as older:
        older.setattr("smg.learner.opening.check_trained", lambda *given: None)
        taught.learn(site, swapped, again=True)
    assert parts_before(taught.history, site)[case] == "train"
    taught.learn(site, again=True)
    now = parts_before(taught.history, site)
    assert {now[one] for one in (case, other, *split["test"])} == {"train"}
    assert not {case, other, *split["test"]} & set(split_as_before(taught.history, site, taught.config)["test"])


def test_a_split_without_the_secret_of_earlier_rounds_is_a_note(
    taught: Learner, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, notes = Site.find(data, "A"), list[str]()
    monkeypatch.setenv("SMG_SECRET", str(tmp_path / "another"))
    taught.learn(site, split_site(site, 0), again=True, say=notes.append)
    assert [note for note in notes if "round 1" in note and "not known who was trained on" in note and "\n" not in note]


def test_a_case_name_that_is_not_utf8_is_learned_like_any_other(tmp_path: Path) -> None:
    site = write_site(tmp_path / "A", 5)
    for suffix in ("", "_segmentation"):
        (site / f"Case03{suffix}.nii.gz").rename(
            Path(os.fsdecode(os.fsencode(site) + b"/Mu\xf1oz" + suffix.encode() + b".nii.gz"))
        )
    made = tiny_learner(tmp_path / "model")
    assert sum(made.learn(Site.find(site)).subjects.model_dump().values()) == 5
    assert len(made.evaluate(Site.find(site), "all")) == 5


def test_subjects_stay_in_their_part_when_a_site_has_grown(taught: Learner, data: Path, tmp_path: Path) -> None:
    """Otherwise subjects that were trained on would be tested."""
    grown = tmp_path / "grown" / "A"
    shutil.copytree(data / "A", grown)
    write_site(tmp_path / "more", 9, first_seed=90)
    for path in (tmp_path / "more").iterdir():
        path.rename(grown / path.name.replace("Case0", "Case9"))
    before = taught.store.read_round(1).parts
    after = taught.learn(Site.find(grown), again=True).parts
    assert {part: len(names) for part, names in after} == {"train": 8, "validation": 2, "test": 3}
    assert all(set(names) <= set(dict(after)[part]) for part, names in before)
    tested = {alias(0, "A", row.case) for row in taught.evaluate(Site.find(grown))}
    assert tested == set(after.test)


def test_a_version_is_tested_on_none_that_it_was_trained_on(data: Path, tmp_path: Path) -> None:
    """Also if a version that was rolled back had them in another part."""
    made, site = tiny_learner(tmp_path / "model"), Site.find(data, "A")
    first = made.learn(site).parts
    made.rollback(0)
    cases = {alias(0, "A", s.case): s.case for s in site.subjects}
    train, validation, test = first.train, first.validation, first.test
    turned = {"train": test + validation, "validation": train[1:], "test": train[:1]}
    made.learn(site, split={part: tuple(cases[name] for name in names) for part, names in turned.items()})
    for number, own in ((2, turned["test"]), (1, test)):
        made.rollback(number)
        for asked in (None, 1, 2):
            tested = [alias(0, "A", row.case) for row in made.evaluate(site, number=asked)]
            assert sorted(tested) == sorted({None: own, 1: test, 2: turned["test"]}[asked])

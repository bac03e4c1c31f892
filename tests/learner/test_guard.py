"""The guard: rounds are judged by subjects that no gradient has seen, or not at all."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from smg.errors import SmgError
from smg.evaluation.subjects import prepared_dice, prepared_score
from smg.learner.config import LearnerConfig
from smg.learner.exemplars import alias
from smg.learner.guard import SPREAD, WORTH, Judged, best_so_far, judge, reasons_to_hold
from smg.learner.history import History
from smg.learner.learner import Learner
from smg.prepare.prepared_site import prepare_site
from smg.sites.layouts import find_sites
from smg.sites.site import Site
from tests.learner.streams import TINY, write_sites


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sites(tmp_path_factory.mktemp("sites"))


def learner(folder: Path, data: Path, *sites: str, **changes: object) -> Learner:
    made = Learner.create(folder, LearnerConfig.model_validate(TINY | changes))
    for name in sites:
        made.learn(Site.find(data, name))
    return made


# --- the rule ---------------------------------------------------------------------------------------------------------


def test_a_fall_is_from_the_round_before_and_small_falls_add_up() -> None:
    alone = judge("sentinels", [0.8], [0.78])
    assert (alone.fall, alone.below_best) == (pytest.approx(0.02), pytest.approx(0.02))
    slow = judge("sentinels", [0.8], [0.78], best=[0.89])  # two points now, nine in the rounds before
    assert (slow.fall, slow.below_best) == (pytest.approx(0.02), pytest.approx(0.11))
    assert slow.lost(5)
    assert "11.0 points of DSC below its best" in reasons_to_hold({"UCL": slow}, 5)[0]
    assert not alone.lost(5)
    assert not judge("sentinels", [0.8], [0.78], best=[0.87]).lost(5)
    assert not judge("sentinels", [0.8], [0.9], best=[0.8]).lost(0)


def test_a_record_of_an_older_smg_is_judged_by_its_fall() -> None:
    old = Judged(evidence="sentinels", subjects=1, before=0.8, after=0.78, best=0.84, fall=0.06, error=0.05)
    assert old.lost(5)
    assert not old.lost(7)


def test_the_error_is_held_near_what_is_assumed_and_shrinks_with_subjects() -> None:
    one = judge("sentinels", [0.8], [0.7])
    assert one.error == pytest.approx(SPREAD)
    falls = np.array([0.0, 0.1, 0.2])
    three = judge("sentinels", [0.8] * 3, list(0.8 - falls))
    expected = math.sqrt((WORTH * SPREAD**2 + ((falls - 0.1) ** 2).sum()) / (WORTH + 2) / 3)
    assert three.error == pytest.approx(expected)
    assert three.fall == pytest.approx(0.1)


def test_slices_are_compared_in_pairs_and_hold_nothing() -> None:
    pairs = [(0.9, 0.5), (0.8, 0.6), (0.7, 0.7)]
    judged = judge("sentinels", [0.8], [0.79], slices=pairs)
    falls = np.array([0.4, 0.2, 0.0])
    assert judged.slices is not None
    assert (judged.slices.count, judged.slices.fall) == (3, pytest.approx(0.2))
    assert judged.slices.error == pytest.approx(falls.std(ddof=1) / math.sqrt(3))
    assert not judged.lost(5)
    assert judge("sentinels", [0.8], [0.79], slices=pairs[:1]).slices is None


def test_what_is_no_number_is_not_measured_and_not_small() -> None:
    nothing = judge("sentinels", [math.nan], [0.8])
    assert not nothing.measured
    assert reasons_to_hold({"UCL": nothing}, 100) == [
        "UCL was not measured: nothing of it is kept that the round did not train on; give held-out scans of it by "
        "--guard DIR"
    ]
    assert reasons_to_hold({"UCL": judge("sentinels", [], [])}, 100)


def test_each_reason_names_the_site_and_the_points() -> None:
    judged = {"UCL": judge("sentinels", [0.677], [0.58]), "HK": judge("sentinels", [0.8], [0.79])}
    (reason,) = reasons_to_hold(judged, 5)
    assert reason.startswith("UCL fell by 9.7 points of DSC")
    assert reasons_to_hold(judged, 10) == []


def test_the_best_of_each_sentinel_over_rounds() -> None:
    records = [
        {"A": {"x": 0.7}},
        {"A": {"x": 0.9}, "B": {"y": 0.5}},
        {},
        {"A": {"x": 0.8}},
    ]
    assert best_so_far(records) == {"A": {"x": 0.9}, "B": {"y": 0.5}}


# --- in a model -------------------------------------------------------------------------------------------------------


def test_a_sentinel_is_a_validation_subject_and_its_numbers_are_those_of_the_networks(
    data: Path, tmp_path: Path
) -> None:
    model = learner(tmp_path / "model", data, "A", "B")
    records = [model.store.read_round(number) for number in (1, 2)]
    (kept,) = model.sentinels()["A"]
    assert kept.subject.case in records[0].parts.validation
    assert kept.subject.case not in records[0].selection.chosen
    case = next(s for s in Site.find(data, "A").subjects if alias(0, "A", s.case) == kept.subject.case).case
    (prepared,) = [p for p in prepare_site(Site.find(data, "A"), model.config.preparation) if p.subject.case == case]
    assert torch.equal(prepared.images, kept.images)
    before, after = (prepared_dice(model.network(n), prepared, model.config.preparation) for n in (1, 2))
    judged = Judged.model_validate(records[1].guard.sites["A"])
    assert (judged.before, judged.after) == (pytest.approx(before), pytest.approx(after))
    assert judged.fall == pytest.approx(before - after)
    scores = [prepared_score(model.network(n), prepared, model.config.preparation) for n in (1, 2)]
    assert judged.slices is not None
    assert judged.slices.count == sum(prepared.foreground)
    assert judged.slices.fall == pytest.approx(np.mean(scores[0].slices) - np.mean(scores[1].slices))
    assert records[1].sentinels["A"] == {kept.subject.case: pytest.approx(after)}
    assert records[0].sentinels["A"] == {kept.subject.case: pytest.approx(before)}


def test_where_nothing_is_kept_a_round_is_held_unless_it_is_unguarded(data: Path, tmp_path: Path) -> None:
    model = learner(tmp_path / "model", data, "A", guard={"subjects": 0, "tolerance": 100})
    assert model.sentinels() == {}
    record = model.learn(Site.find(data, "B"))
    assert record.held
    assert "not measured" in record.guard.reasons[0]
    assert not model.learn(Site.find(data, "B"), unguarded=True).held
    assert model.sites == ["A", "B"]


def test_held_out_scans_judge_in_place_of_sentinels_without_those_trained_on(data: Path, tmp_path: Path) -> None:
    model = learner(tmp_path / "model", data, "A", guard={"subjects": 0, "tolerance": 100})
    trained = model.store.read_round(1).subjects.train
    record = model.learn(Site.find(data, "B"), held_out=find_sites(data))
    judged = Judged.model_validate(record.guard.sites["A"])
    assert judged.evidence == "held-out scans"
    assert judged.subjects == len(Site.find(data, "A").subjects) - trained
    assert not record.held


def test_a_held_out_scan_that_was_trained_on_under_another_name_does_not_judge(data: Path, tmp_path: Path) -> None:
    model, notes = learner(tmp_path / "model", data, "A", guard={"subjects": 0, "tolerance": 100}), list[str]()
    kept_apart = tmp_path / "apart" / "A"
    kept_apart.mkdir(parents=True)
    for path in (data / "A").iterdir():
        shutil.copy(path, kept_apart / path.name.replace("Case", "patient"))
    for suffix in ("", "_segmentation"):
        shutil.copy(data / "C" / f"Case00{suffix}.nii.gz", kept_apart / f"new{suffix}.nii.gz")
    record = model.learn(Site.find(data, "B"), held_out=find_sites(tmp_path / "apart"), say=notes.append)
    assert Judged.model_validate(record.guard.sites["A"]).subjects == 1
    count = len(Site.find(data, "A").subjects)
    assert f"site A: {count} of {count + 1} held-out scans may have been trained on, and do not judge" in notes


def test_held_out_scans_of_no_learned_site_are_refused(data: Path, tmp_path: Path) -> None:
    model = learner(tmp_path / "model", data, "A", guard={"subjects": 0, "tolerance": 100})
    shutil.copytree(data / "A", tmp_path / "reference-scans")
    with pytest.raises(SmgError, match=r"of reference-scans: no such site was learned; .* names its sites: A"):
        model.learn(Site.find(data, "B"), held_out=find_sites(tmp_path / "reference-scans"))
    assert model.current == 1


def test_fine_tuning_is_guarded_too(data: Path, tmp_path: Path) -> None:
    model = learner(tmp_path / "model", data, "A", method="finetune")
    record = model.learn(Site.find(data, "B"), tolerance=-100)
    assert record.held
    assert record.guard.sites["A"].exemplars is None
    assert record.guard.sites["A"].subjects == 1


def test_networks_of_their_own_cannot_be_harmed(data: Path, tmp_path: Path) -> None:
    model = learner(tmp_path / "model", data, "A", method="per-site")
    record = model.learn(Site.find(data, "B"), tolerance=-100)
    assert not record.held
    assert record.guard.sites == {}


def test_dropping_a_site_removes_its_sentinels_and_the_next_round_says_so(data: Path, tmp_path: Path) -> None:
    model = learner(tmp_path / "model", data, "A")
    model.drop("A")
    assert model.sentinels() == {}
    fine_tuning = Learner(tmp_path / "model", LearnerConfig.model_validate(TINY | {"method": "finetune"}))
    assert "not measured" in fine_tuning.learn(Site.find(data, "B")).guard.reasons[0]


def test_a_site_that_an_accepted_round_lost_is_not_known(data: Path, tmp_path: Path) -> None:
    model = learner(tmp_path / "model", data, "A")
    model.learn(Site.find(data, "B"), tolerance=-100)
    model.accept(2)
    assert set(History(tmp_path / "model").lost()) == {"A"}
    model.rollback(1)
    assert History(tmp_path / "model").lost() == {}


def test_nothing_of_a_sentinel_but_its_alias_is_in_a_record(data: Path, tmp_path: Path) -> None:
    model = learner(tmp_path / "model", data, "A", "B")
    text = model.store.read_round(2).model_dump_json()
    assert not any(subject.case in text for subject in Site.find(data, "A").subjects)

"""Versions of a model: opening with other settings, rollback, held rounds, and dropping exemplars."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from smg.errors import Misuse, SmgError
from smg.evaluation.subjects import PreparedScore
from smg.evaluation.whole_scan import mask_of, scores_and_moments
from smg.learner.config import LearnerConfig
from smg.learner.learner import Learner
from smg.networks.features import find_bottleneck
from smg.prepare.prepare_options import Preparation
from smg.prepare.prepared_site import prepare_scan
from smg.sites.site import Site
from smg.sites.volume import Volume, read_volume
from tests.learner.streams import TINY, fingerprint, refused


def test_another_preparation_is_refused_unless_asked_for_and_another_network_always(taught: Learner) -> None:
    folder = taught.store.folder
    other = LearnerConfig.model_validate(TINY | {"preparation": {"size": 24}})
    with refused("size 16, not 24", "--other-preparation"):
        Learner(folder, other)
    assert Learner(folder, other, other_preparation=True).config.preparation.size == 24
    with refused("network", "width 4, not 5"):
        Learner(folder, LearnerConfig.model_validate(TINY | {"network": {"width": 5, "depth": 1}}))
    assert Learner(folder, LearnerConfig.model_validate(TINY | {"method": "jm"})).config.method == "jm"


def test_a_version_is_used_with_the_preparation_it_was_learned_with(taught: Learner, data: Path) -> None:
    folder, scan = taught.store.folder, read_volume(data / "C" / "Case00.nii.gz")
    changes = {"preparation": {"size": 16, "normalise": "slice", "labels": {"gland": [1]}}, "largest_component": False}
    other = LearnerConfig.model_validate(TINY | {"method": "sga+c"} | changes)
    record = Learner(folder, other, other_preparation=True).learn(Site.find(data, "C"))
    opened = Learner(folder)
    assert opened.config.preparation == other.preparation
    assert opened.config.largest_component  # the next round's: the last one's was for that round alone
    measured = [row.metrics() for row in opened.evaluate(Site.find(data, "C"))]
    assert measured == [row.classes for row in record.test]
    assert list(measured[0]) == ["gland"]
    masks = {}
    for number, options in ((2, taught.config), (3, other)):
        network = opened.network(number)
        slices, grid = prepare_scan([scan], options.preparation)
        images = torch.from_numpy(slices)
        bottleneck = find_bottleneck(network, images[:1])
        scores, _ = scores_and_moments(network, images, bottleneck, options.preparation)
        masks[number] = mask_of(scores, grid, options.largest_component)
    assert np.array_equal(opened.predict(scan).mask.array, masks[3])
    opened.rollback(2)
    assert np.array_equal(opened.predict(scan).mask.array, masks[2])
    assert not np.array_equal(masks[2], masks[3])
    assert opened.config.preparation == taught.config.preparation  # and so would the next round be
    assert opened.learn(Site.find(data, "C")).config.tree()["preparation"]["normalise"] == "volume"
    smaller = other.model_copy(update={"preparation": Preparation(size=24)})
    with refused("exemplars of A", "16 rows", "`smg replay drop"):
        Learner(folder, smaller, other_preparation=True).learn(Site.find(data, "C"), again=True)


def test_a_model_whose_current_round_is_damaged_can_be_rolled_back(taught: Learner) -> None:
    (taught.store.round_folder(2) / "round.json").write_text("{")
    opened = Learner(taught.store.folder)
    with refused("round.json", "damaged", "JSON"):
        opened.predict(Volume(np.random.default_rng(0).random((4, 16, 16)), np.eye(4)))
    opened.rollback(1)
    assert Learner(taught.store.folder).sites == ["A"]


def test_what_happened_since_a_model_was_opened_is_seen(taught: Learner, data: Path) -> None:
    """Exemplars that another process learned meanwhile are dropped too."""
    Learner(taught.store.folder).learn(Site.find(data, "A"), again=True)
    assert taught.drop("A") == 4
    assert [one.kept.subjects for one in Learner(taught.store.folder).stored()] == [0, 2, 0]


def test_rollback_and_a_round_that_starts_from_there(taught: Learner, data: Path) -> None:
    taught.rollback(1)
    assert taught.sites == ["A"]
    record = taught.learn(Site.find(data, "C"))
    assert (record.round, record.parent) == (3, 1)
    assert taught.sites == ["A", "C"]
    assert set(taught.replay()) == {"A", "C"}
    taught.rollback(2)
    assert taught.sites == ["A", "B"]
    with refused("round 9", "1, 2, 3"):
        taught.rollback(9)
    assert [event.event for event in taught.store.journal()].count("rolled back") == 2


def test_a_round_that_harms_an_earlier_site_is_held_until_it_is_accepted(taught: Learner, data: Path) -> None:
    record = taught.learn(Site.find(data, "C"), tolerance=-100.0)  # below zero, so that any change is too large
    assert record.held
    assert (taught.current, taught.sites) == (2, ["A", "B"])
    assert taught.store.journal()[-1].event == "held"
    taught.accept(3)
    assert taught.sites == ["A", "B", "C"]
    assert not taught.learn(Site.find(data, "C"), again=True, tolerance=100.0).held


def test_a_nan_tolerance_is_refused_and_a_nan_score_holds_the_round(
    taught: Learner, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = fingerprint(taught.store.folder)
    with refused("tolerance", kind=Misuse):
        taught.learn(Site.find(data, "C"), tolerance=math.nan)
    assert fingerprint(taught.store.folder) == before
    nothing = PreparedScore(math.nan, ())
    monkeypatch.setattr("smg.learner.closing.prepared_dice", lambda *_: math.nan)
    monkeypatch.setattr("smg.learner.closing.prepared_score", lambda *_: nothing)
    assert taught.learn(Site.find(data, "C"), tolerance=100.0).held


def test_a_held_round_is_held_until_it_is_accepted_and_no_longer(taught: Learner, data: Path) -> None:
    taught.learn(Site.find(data, "C"), tolerance=-100.0)
    assert taught.held(3)
    with refused("round 3", "`smg accept`"):
        taught.rollback(3)
    taught.accept(3)
    assert not taught.held(3)
    taught.rollback(2)
    with refused("round 3", "`smg rollback`"):
        taught.accept(3)
    taught.rollback(3)  # it was accepted once
    before = taught.store.journal()
    taught.accept(3)  # current already
    assert taught.store.journal() == before
    with refused("round 2", "is not held"):
        taught.accept(2)


def test_the_guard_follows_the_largest_component_setting(
    taught: Learner, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def noting(network: Any, subject: Any, options: Any, largest_component: bool = True) -> float:
        asked.append(largest_component)
        return 0.5

    def noting_slices(*args: Any) -> PreparedScore:
        return PreparedScore(noting(*args), (0.5,))

    monkeypatch.setattr("smg.learner.closing.prepared_dice", noting)
    monkeypatch.setattr("smg.learner.closing.prepared_score", noting_slices)
    monkeypatch.setattr("smg.learner.round.prepared_dice", noting)
    config = taught.config.model_copy(update={"largest_component": False})
    Learner(taught.store.folder, config).learn(Site.find(data, "C"))
    assert asked
    assert not any(asked)


def test_dropping_exemplars_is_done_and_noted(taught: Learner, data: Path) -> None:
    assert taught.drop("A") == 2
    assert set(taught.replay()) == {"B"}
    assert taught.store.journal()[-1].event == "dropped exemplars"
    assert taught.learn(Site.find(data, "C")).round == 3
    with refused("site Z"):
        taught.drop("Z")


def test_a_drop_killed_halfway_is_a_drop(taught: Learner, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("smg.learner.store.write_record", killed)  # the exemplars are gone, the record does not say so
    with pytest.raises(KeyboardInterrupt):
        taught.drop("A")
    monkeypatch.undo()
    again = Learner(taught.store.folder)
    assert again.kept()["A"].subjects == 0
    assert again.drop("A") == 0
    again.learn(Site.find(data, "C"))


def test_exemplars_that_no_round_uses_are_listed_too(taught: Learner, data: Path) -> None:
    taught.learn(Site.find(data, "A"), again=True)
    stored = [(one.site, one.round, one.kept.subjects, one.in_use) for one in taught.stored()]
    assert stored == [("A", 1, 2, False), ("B", 2, 2, True), ("A", 3, 2, True)]
    assert taught.drop("A") == 4


def test_a_damaged_round_off_the_line_hinders_no_other(taught: Learner, data: Path) -> None:
    taught.rollback(1)
    path = taught.store.round_folder(2) / "exemplars.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    taught.learn(Site.find(data, "C"))
    with pytest.raises(SmgError, match="cut short or altered"):
        taught.stored()

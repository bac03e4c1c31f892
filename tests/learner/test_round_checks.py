"""Rounds that are refused before they are trained: no foreground, no slice to draw, no validation part."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from smg.learner.config import LearnerConfig
from smg.learner.exemplars import alias
from smg.learner.learner import Learner
from smg.sites.site import Site
from smg.sites.split import Split, split_site
from tests.learner.streams import TINY, refused, tiny_learner, write_small

NO_EMPTY = {"size": 16, "empty_slices": False}


@pytest.fixture
def some(data: Path, tmp_path: Path) -> tuple[Site, Split, str]:
    """Return a site, its split, and the one of its two training cases whose foreground vanishes."""
    folder = shutil.copytree(data / "A", tmp_path / "A")
    split = split_site(Site.find(folder), 0)
    case = split["train"][0]
    write_small(folder, [int(case.removeprefix("Case"))])
    return Site.find(folder), split, case


@pytest.mark.parametrize("preparation", [{"size": 16}, NO_EMPTY])
def test_a_site_whose_foreground_vanishes(preparation: dict[str, Any], tmp_path: Path) -> None:
    site = Site.find(write_small(tmp_path / "S"))
    made = tiny_learner(tmp_path / "model", preparation=preparation)
    with refused("site S: no foreground is left in any training mask at this size; set a larger preparation.size"):
        made.learn(site)
    assert made.current == 0
    whole = tiny_learner(tmp_path / "whole", preparation=preparation | {"size": 128}, iterations=1)
    assert whole.learn(site).round == 1


def test_subjects_whose_foreground_vanishes_are_named_once(some: tuple[Site, Split, str], tmp_path: Path) -> None:
    site, _, case = some
    notes: list[str] = []
    tiny_learner(tmp_path / "model").learn(site, say=notes.append)
    found = [note for note in notes if "no foreground" in note]
    assert len(found) == 1
    assert f"site A: no foreground is left in 1 of 2 training masks ({case})" in found[0]


def test_a_subject_without_a_slice_to_draw_is_no_exemplar(
    some: tuple[Site, Split, str], data: Path, tmp_path: Path
) -> None:
    site, split, case = some
    made = tiny_learner(tmp_path / "model", preparation=NO_EMPTY, replay={"subjects": 1}, method="gem")
    selection = made.learn(site).selection
    others = tuple(alias(0, "A", one) for one in split["train"] if one != case)
    assert selection.candidates == selection.chosen == others
    assert made.learn(Site.find(data, "B")).round == 2


def test_exemplars_without_a_slice_to_draw(some: tuple[Site, Split, str], data: Path, tmp_path: Path) -> None:
    """As those that an older version kept, or that were kept when empty slices were drawn."""
    site, _, case = some
    first = tiny_learner(tmp_path / "model")
    first.learn(site)
    kept = first.store.read_tensors(1, "exemplars")
    lost = {name: tensor.clone() for name, tensor in kept.items() if alias(0, "A", case) in name}
    first.store.replace_tensors(1, "exemplars", lost)
    changed = LearnerConfig.model_validate(TINY | {"preparation": NO_EMPTY, "method": "gem"})
    model = Learner(tmp_path / "model", changed, other_preparation=True)
    with refused("exemplars of A have no slice with foreground", f"`smg replay drop {tmp_path / 'model'} A`"):
        model.learn(Site.find(data, "B"))


@pytest.mark.parametrize("select", ["best", "last"])
def test_the_best_weights_need_a_validation_part(select: str, data: Path, tmp_path: Path) -> None:
    site = Site.find(data, "A")
    split = split_site(site, 0)
    without = split | {"train": split["train"] + split["validation"], "validation": ()}
    made = tiny_learner(tmp_path / "model", select=select)
    if select == "last":
        assert made.learn(site, without).round == 1
        return
    with refused("site A: no subject in the validation part", "select=last"):
        made.learn(site, without, on_step=lambda iteration, step: pytest.fail("it began"))

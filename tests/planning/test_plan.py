"""`smg plan`: what it finds in the scans, what it chooses, and that its file is read back as it was meant."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import smg.planning.plan
from smg.errors import SmgError
from smg.learner.config_layers import configuration, from_yaml
from smg.planning.facts import Facts, SubjectFacts, look_at
from smg.planning.machine import Cost, cost_of
from smg.planning.plan import CANDIDATES, ENOUGH, FEWEST, PLENTY, make_plan
from smg.prepare.augment import Augmentation
from smg.sites.labels import Labels
from smg.sites.site import Site
from smg.sites.volume import Volume, write_volume
from tests.conftest import affine, write_site

SUBJECT = SubjectFacts(pixel=0.6, view=190.0, needed=70.0, organ=50.0, slices=20, outlying=False)
FACTS = Facts(("HK",), ("image",), Labels(), (SUBJECT,) * 5)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A machine on which a step takes as long as its window has pixels and the network filters; its candidates."""
    tried: list[int] = []

    def cost(config: object, side: int) -> Cost:
        tried.append(side // 2)
        return Cost((side / 2) ** 2 * config.network.width / 1e6, 1000)  # type: ignore[attr-defined]

    monkeypatch.setattr(smg.planning.plan, "cost_of", cost)
    return tried


def test_what_is_seen_in_the_scans(tmp_path: Path) -> None:
    """Rows of 0.5 mm and columns of 0.6 mm, 20 and 24 of them; the mask lies at rows 5 to 14, columns 7 to 18."""
    facts = look_at([Site.find(write_site(tmp_path / "HK", 3))], Labels())
    assert (facts.sites, len(facts.subjects), facts.slices) == (("HK",), 3, 18)
    assert facts.pixel == pytest.approx(0.6)
    assert facts.view == pytest.approx(10.0)
    assert facts.needed == pytest.approx(2 * 0.6 * 6)  # to the columns' edge: 18 - 12 of 24
    assert facts.organ == pytest.approx(0.6 * 10)


def test_a_few_bright_voxels_ask_for_clipping(tmp_path: Path, machine: list[int]) -> None:
    write_site(tmp_path / "HK", 2)
    array = np.random.default_rng(0).normal(100, 20, (6, 20, 24)).astype(np.float32)
    array[3, 3, 3] = 32000
    write_volume(next(p for p in (tmp_path / "HK").iterdir() if "seg" not in p.name), Volume(array, affine()))
    facts = look_at([Site.find(tmp_path / "HK")], Labels())
    assert facts.outlying == 1
    assert make_plan(facts).configuration().preparation.clip == (0.5, 99.5)


def test_the_largest_candidate_that_makes_enough_iterations(machine: list[int]) -> None:
    made = make_plan(FACTS, minutes=10)
    config = made.configuration()
    assert ENOUGH <= config.iterations <= PLENTY
    place = CANDIDATES.index((config.preparation.size, config.network.width))
    size, width = CANDIDATES[place + 1]
    assert 600 / (size**2 * width / 1e6) < ENOUGH  # the next one would not
    assert machine == [size for size, _ in CANDIDATES[: place + 2]]  # and no dearer one was tried
    assert made.expected <= 10


def test_a_slow_machine_still_gets_a_plan(machine: list[int]) -> None:
    config = make_plan(FACTS, minutes=0.01).configuration()
    assert (config.preparation.size, config.network.width) == CANDIDATES[0]
    assert config.iterations == FEWEST


def test_a_window_is_never_finer_than_the_scans(machine: list[int]) -> None:
    coarse = replace(FACTS, subjects=(replace(SUBJECT, pixel=1.5),) * 3)
    config = make_plan(coarse, minutes=1e6).configuration()
    assert config.preparation.spacing >= 0.9 * 1.5
    assert config.iterations == PLENTY


def test_foreground_near_the_centre_gets_a_field_with_room_for_the_next_patient(machine: list[int]) -> None:
    alone = make_plan(FACTS).configuration().preparation
    several = make_plan(replace(FACTS, sites=("HK", "UCL", "BIDMC"))).configuration().preparation
    assert alone.field == 110
    assert several.field == 90
    assert alone.size * alone.spacing >= alone.field


def test_a_narrow_view_gets_the_field_that_it_has(machine: list[int]) -> None:
    """All foreground is central, but half as much room again would be more than there is."""
    narrow = replace(FACTS, subjects=(replace(SUBJECT, view=148.0, needed=100.0),) * 3)
    assert make_plan(narrow).configuration().preparation.field == 140
    needed = replace(FACTS, subjects=(replace(SUBJECT, view=128.0, needed=101.0),) * 3)
    assert make_plan(needed).configuration().preparation.field == 120


@pytest.mark.parametrize(("minutes", "augment"), [(0.01, "mild"), (60, "strong")])
def test_augmentation_is_strong_in_rounds_as_long_as_those_it_was_tried_in(
    machine: list[int], minutes: float, augment: str
) -> None:
    made = make_plan(FACTS, minutes)
    assert made.configuration().augment == Augmentation.preset(augment)
    assert made.configuration().mirror
    given = make_plan(FACTS, minutes, given={"augment": "none", "mirror": False}).configuration()
    assert (given.augment, given.mirror) == (Augmentation.preset("none"), False)


def test_foreground_far_out_gets_windows(machine: list[int]) -> None:
    far = replace(FACTS, subjects=(replace(SUBJECT, needed=170.0),) * 3)
    preparation = make_plan(far).configuration().preparation
    assert preparation.field is None
    assert preparation.size * preparation.spacing >= 1.5 * SUBJECT.organ


def test_the_file_is_read_back_as_it_was_meant(machine: list[int]) -> None:
    facts = replace(FACTS, channels=("T2", "ADC"), labels=Labels.parse(["gland=1", "background=0,2"]))
    made = make_plan(facts, given={"method": "jm"})
    assert configuration(from_yaml(made.as_file())) == made.configuration()
    assert made.configuration().network.channels == 2
    assert made.configuration().method == "jm"
    for line in made.as_file().splitlines()[2:]:
        assert "  # " in line or line.endswith(":")
    assert len(made.in_short()) == 5


def test_sites_with_other_channels_cannot_share_a_plan(tmp_path: Path) -> None:
    one = Site.find(write_site(tmp_path / "A", 2))
    with pytest.raises(SmgError, match="site B: has the channels T2, ADC"):
        look_at([one, replace(one, name="B", channels=("T2", "ADC"))], Labels())


def test_faults_are_refused_or_left_out(tmp_path: Path) -> None:
    site = Site.find(write_site(tmp_path / "A", 3))
    site.subjects[0].mask.write_bytes(b"no scan")
    with pytest.raises(SmgError, match="--leave-out"):
        look_at([site], Labels())
    assert len(look_at([site], Labels(), leave_out=True).subjects) == 2


def test_steps_are_timed_for_real() -> None:
    config = configuration(
        {"preparation": {"size": 16, "spacing": 1.0}, "network": {"width": 4, "depth": 2}, "batch": 2}
    )
    cost = cost_of(config, 32)
    assert cost.seconds > 0
    assert cost.parameters > 1000

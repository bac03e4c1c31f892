"""`smg plan`: what it finds in the scans, what it chooses, and that its file is read back as it was meant."""

from __future__ import annotations

import multiprocessing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch.distributed as distributed

import smg.planning.plan
from smg.errors import SmgError
from smg.learner.config_layers import configuration, from_yaml
from smg.methods import METHODS
from smg.planning.classes import ClassFacts
from smg.planning.facts import Facts, SubjectFacts, look_at
from smg.planning.looks import CANDIDATES, SMALLEST
from smg.planning.machine import Cost, cost_of
from smg.planning.plan import ENOUGH, FEWEST, PLENTY, make_plan
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


def _plan_as(rank: int, folder: Path) -> None:
    """Plan as one of two processes, of which the second takes twice as long for a step."""
    distributed.init_process_group("gloo", f"file://{folder}/group", rank=rank, world_size=2)
    smg.planning.plan.cost_of = lambda config, side: Cost((1 + rank) * side**2 / 1e6, 1000)
    (folder / f"plan-{rank}").write_text(make_plan(FACTS, minutes=2).as_file())
    distributed.destroy_process_group()


def test_all_processes_of_a_job_make_the_first_ones_plan(tmp_path: Path) -> None:
    spawned = multiprocessing.get_context("fork")
    both = [spawned.Process(target=_plan_as, args=(rank, tmp_path)) for rank in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join(60)
        assert one.exitcode == 0
    assert (tmp_path / "plan-0").read_text() == (tmp_path / "plan-1").read_text()


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
    assert from_yaml(made.as_file()) == made.tree()
    assert configuration(from_yaml(made.as_file())) == made.configuration()
    assert made.configuration().network.channels == 2
    assert (made.configuration().method, made.configuration().merge) == ("jm", None)
    for line in made.as_file().splitlines()[2:]:
        assert "  # " in line or line.endswith(":")
    assert len(made.in_short()) == 5


def test_several_classes_are_judged_where_they_are(machine: list[int]) -> None:
    several = replace(FACTS, labels=Labels.parse(["liver=1", "spleen=2"]))
    assert make_plan(several).configuration().loss_options == {"absent": False}
    mine = make_plan(several, given={"loss_options": {"smooth": 0.1}}).configuration()
    assert mine.loss_options == {"absent": False, "smooth": 0.1}
    assert make_plan(several, given={"loss": "TverskyLoss"}).configuration().loss_options == {}
    for given in ({"loss": "dice+focal"}, {"loss": "dice+ce"}, {"loss": "dice+focal", "loss_options": {"gamma": 1.0}}):
        made = make_plan(several, given=given)
        expected = {"absent": False} | given.get("loss_options", {})
        assert made.configuration().loss_options == from_yaml(made.as_file())["loss_options"] == expected
    windows = replace(several, subjects=(replace(SUBJECT, needed=170.0),) * 3)
    assert make_plan(windows).configuration().preparation.even_classes
    assert not make_plan(several).configuration().preparation.even_classes  # the field shows all of them
    assert make_plan(FACTS).configuration().loss_options == {}


def test_the_method_is_the_recommended_one_with_all_that_belongs_to_it(machine: list[int]) -> None:
    config = make_plan(FACTS).configuration()
    assert (config.method, config.merge, config.select) == ("jm", 0.7, "average")
    mine = make_plan(FACTS, given={"merge": 0.9}).configuration()
    assert (mine.method, mine.merge) == ("jm", 0.9)
    assert make_plan(FACTS, given={"method": "sga"}).configuration().merge is None


def test_names_and_numbers_keep_their_meaning_in_the_file(machine: list[int]) -> None:
    labels = Labels(classes={"a, b": (1,), "no": (2,), "c: d # e": (3,), "two\nlines": (4,)})
    facts = replace(FACTS, sites=("HK\nmethod: jm",), channels=("0000", "0001"), labels=labels)
    made = make_plan(facts, given={"method": "der++", "options": {"alpha": 1.25e-5}})
    read = from_yaml(made.as_file())
    assert read == made.tree()
    assert read["preparation"]["channels"] == ["0000", "0001"]
    assert list(read["preparation"]["labels"]["classes"]) == list(labels.names)
    assert read["options"]["alpha"] == 1.25e-5
    assert configuration(read) == made.configuration()


def test_settings_that_a_plan_does_not_choose_are_in_its_file(machine: list[int]) -> None:
    given = {"seed": 3, "replay": {"subjects": 4, "policy": "random"}, "preparation": {"adjacent": 3}, "merge": 0.7}
    made = make_plan(FACTS, given=given)
    assert from_yaml(made.as_file()) == made.tree()
    assert configuration(made.tree()) == configuration(made.tree(), given)
    assert made.as_file().count("# as given") == 5


def test_effects_that_are_given_change_the_preset_of_a_plan(machine: list[int]) -> None:
    given = {"augment": {"flip": {"probability": 0}}}
    made = make_plan(FACTS, minutes=1e6, given=given)
    strong = Augmentation.preset("strong")
    assert configuration(made.tree(), given) == made.configuration()
    assert made.configuration().augment.rotation == strong.rotation
    assert not made.configuration().augment.flip.active


# (pixel, view, needed, organ) in mm
SITUATIONS = [
    (0.6, 190, 70, 50),  # a prostate
    (0.6, 190, 180, 50),  # foreground far out
    (0.8, 192, 192, 190),  # foreground all over the view
    (1.0, 400, 380, 300),  # a thorax
    (0.8, 400, 380, 10),  # a small lesion far out
    (2.0, 190, 40, 30),  # a field of 30 pixels
    (4.0, 190, 40, 30),  # a field of 15 pixels in a view of 47
    (3.0, 240, 100, 60),  # a field of 50 pixels
    (4.0, 192, 180, 60),  # a view of 48 pixels
    (6.0, 150, 100, 60),  # a view of 25 pixels, fewer than the smallest window
    (6.0, 150, 140, 60),
    (0.05, 8.0, 4.0, 3.0),  # a small animal
    (0.05, 30.0, 28.0, 3.0),
]


@pytest.mark.parametrize(("pixel", "view", "needed", "organ"), SITUATIONS)
@pytest.mark.parametrize("minutes", [0.01, 10, 1e6])
def test_a_window_is_about_what_it_looks_at(
    machine: list[int], pixel: float, view: float, needed: float, organ: float, minutes: float
) -> None:
    subject = replace(SUBJECT, pixel=pixel, view=view, needed=needed, organ=organ)
    made = make_plan(replace(FACTS, subjects=(subject,) * 3), minutes)
    preparation = made.configuration().preparation
    window, smallest = preparation.size * preparation.spacing, SMALLEST[0] * pixel
    assert window <= 1.1 * max(preparation.field or view, smallest)
    assert preparation.spacing >= 0.9 * pixel
    if preparation.field:
        assert needed <= preparation.field <= view
        assert window >= 0.99 * preparation.field
        filled = window <= 1.1 * preparation.field
        assert (f"{preparation.field:g} mm in {preparation.size} pixels" in made.as_file()) == filled


def test_windows_grow_until_they_show_the_view(machine: list[int]) -> None:
    far = replace(FACTS, subjects=(replace(SUBJECT, pixel=0.8, view=192.0, needed=190.0),) * 3)
    preparation = make_plan(far, minutes=1e6).configuration().preparation
    assert preparation.field is None
    assert preparation.size * preparation.spacing == pytest.approx(192, rel=0.01)


@pytest.mark.parametrize("iterations", [5, 321, 9000])
def test_iterations_and_batch_are_taken_as_given(machine: list[int], iterations: int) -> None:
    made = make_plan(FACTS, minutes=10, given={"iterations": iterations, "batch": 3, "share": False})
    config = made.configuration()
    assert (config.iterations, config.batch, config.share) == (iterations, 3, False)
    assert config.validate_every == max(1, iterations // 4)
    assert made.expected == pytest.approx(iterations * made.cost.seconds / 60)
    assert made.expected <= 10  # a smaller candidate where there are many
    assert f"{iterations} iterations of 3 slices" in "\n".join(made.in_short())
    assert "# as given; " in next(line for line in made.as_file().splitlines() if line.startswith("iterations"))


def test_a_plan_looks_only_at_the_cases_it_may(tmp_path: Path) -> None:
    """A fault of another subject is still found, and a case is left out before the parts are drawn."""
    site = Site.find(write_site(tmp_path / "A", 5))
    wide = np.ones((6, 20, 24), np.uint8)
    write_volume(site.subjects[4].mask, Volume(wide, affine()))
    asked: list[list[str]] = []

    def without_last(kept: Site) -> set[str]:
        asked.append([subject.case for subject in kept.subjects])
        return set(asked[-1][:-1])

    facts = look_at([site], Labels(), cases_of=without_last)
    assert asked == [[subject.case for subject in site.subjects]]
    assert len(facts.subjects) == 4
    assert facts.needed < look_at([site], Labels()).needed
    site.subjects[1].mask.write_bytes(b"no mask")
    with pytest.raises(SmgError, match="--leave-out"):
        look_at([site], Labels(), cases_of=without_last)
    site.subjects[2].image.write_bytes(site.subjects[0].image.read_bytes())
    assert len(look_at([site], Labels(), leave_out=True, cases_of=without_last).subjects) == 2
    assert asked[-1] == [site.subjects[n].case for n in (0, 3, 4)]


def _write_masks(folder: Path, masks: list[np.ndarray], matrix: np.ndarray | None = None) -> Site:
    """Write a site with these masks, whose images are noise."""
    write_site(folder, len(masks))
    matrix = affine() if matrix is None else matrix
    site = Site.find(folder)
    for seed, (subject, mask) in enumerate(zip(site.subjects, masks, strict=True)):
        image = np.random.default_rng(seed).normal(100, 20, mask.shape).astype(np.float32)
        write_volume(subject.image, Volume(image, matrix))
        write_volume(subject.mask, Volume(mask, matrix))
    return site


def _two_blocks(first: int, second: int) -> np.ndarray:
    """Return a mask with a block on either side, the first at the lower columns: the patient's right."""
    mask = np.zeros((6, 20, 24), np.uint8)
    mask[1:5, 8:14, 3:8] = first
    mask[1:5, 8:14, 15:21] = second
    return mask


LEFT_RIGHT = Labels.parse(["right=1", "left=2"])


def test_several_pieces_of_a_class_are_kept(tmp_path: Path, machine: list[int]) -> None:
    facts = look_at([_write_masks(tmp_path / "A", [_two_blocks(1, 1)] * 2)], Labels())
    assert facts.in_pieces is not None
    assert facts.in_pieces.share == pytest.approx(6 / 11)
    made = make_plan(facts)
    assert made.configuration().largest_component is False
    assert "its largest holds 55 % of it" in made.as_file()
    assert make_plan(facts, given={"largest_component": True}).configuration().largest_component
    apart = look_at([_write_masks(tmp_path / "B", [_two_blocks(1, 2)] * 2)], LEFT_RIGHT)
    assert apart.in_pieces is None
    assert make_plan(apart).configuration().largest_component


def test_a_few_stray_voxels_are_not_a_second_piece(tmp_path: Path) -> None:
    stray = _two_blocks(1, 0)
    stray[2, 2, 20] = 1
    assert look_at([_write_masks(tmp_path / "A", [stray] * 2)], Labels()).in_pieces is None


@pytest.mark.parametrize("turned", [False, True])
def test_left_and_right_classes_are_never_mirrored(tmp_path: Path, machine: list[int], turned: bool) -> None:
    """Also if the files store columns from left to right."""
    masks, matrix = [_two_blocks(1, 2)] * 3, affine()
    if turned:
        masks, matrix = [mask[:, :, ::-1] for mask in masks], matrix @ np.diag([-1.0, 1.0, 1.0, 1.0])
    made = make_plan(look_at([_write_masks(tmp_path / "A", masks, matrix)], LEFT_RIGHT), minutes=1e6)
    config = made.configuration()
    assert config.mirror is False
    assert not config.augment.flip.active
    assert config.augment.rotation == Augmentation.preset("strong").rotation
    assert "left lies to the left of right in 3 of 3 subjects" in made.as_file()
    assert configuration(from_yaml(made.as_file())) == config
    given = make_plan(made.facts, given={"augment": "mild", "mirror": True}).configuration()
    assert given.mirror
    assert given.augment == Augmentation.preset("mild")


def test_classes_in_either_order_or_inside_each_other_may_be_mirrored(tmp_path: Path) -> None:
    either = [_two_blocks(1, 2)] * 8 + [_two_blocks(2, 1)]
    assert look_at([_write_masks(tmp_path / "A", either)], LEFT_RIGHT).on_two_sides is None
    inside = _two_blocks(0, 0)
    inside[1:5, 5:15, 6:18], inside[2:4, 8:12, 10:15] = 1, 2
    assert look_at([_write_masks(tmp_path / "B", [inside] * 3)], LEFT_RIGHT).on_two_sides is None


def test_a_side_counts_by_the_subjects_that_have_both_classes() -> None:
    right, left = ClassFacts(1.0, 50.0, 10.0), ClassFacts(1.0, 150.0, 10.0)
    classes = [{"right": right, "left": left}] * 19 + [{"right": left, "left": right}, {"left": left}]
    facts = Facts(("A",), ("image",), LEFT_RIGHT, tuple(replace(SUBJECT, classes=of) for of in classes))
    sides = facts.on_two_sides
    assert sides is not None
    assert (sides.left, sides.right, sides.subjects, sides.both) == ("left", "right", 19, 20)


def test_a_class_that_few_subjects_have_has_no_side() -> None:
    gland, lesion = ClassFacts(1.0, 50.0, 10.0), ClassFacts(1.0, 150.0, 10.0)
    classes = [{"right": gland, "left": lesion}] * 2 + [{"right": gland}] * 3
    facts = Facts(("A",), ("image",), LEFT_RIGHT, tuple(replace(SUBJECT, classes=of) for of in classes))
    assert facts.on_two_sides is None


def test_scans_of_another_plane_get_a_warning(tmp_path: Path, machine: list[int]) -> None:
    """Sagittal slices 4 mm apart, in the order that files store them: columns back, rows down, slices to the left."""
    sagittal = np.array([[0, 0, 4.0, 0], [0.5, 0, 0, 0], [0, -0.5, 0, 0], [0, 0, 0, 1.0]])
    masks = [_two_blocks(1, 0)] * 2
    axial, other = _write_masks(tmp_path / "A", masks), _write_masks(tmp_path / "B", masks, sagittal)
    facts = look_at([axial, other], Labels())
    assert facts.slices == 2 * 6 + 2 * 20
    (warning,) = facts.warnings()
    assert warning.startswith("site B: pixels of axial slices are 4 x 0.5 mm")
    assert "export them as axial series" in warning
    made = make_plan(facts)
    assert made.in_short()[5:] == [f"warning:  {warning}"]
    assert f"# Warning: {warning}\n" in made.as_file()
    assert from_yaml(made.as_file()) == made.tree()


def test_values_that_the_site_does_not_list_are_faults(tmp_path: Path) -> None:
    site = replace(_write_masks(tmp_path / "A", [_two_blocks(1, 2)] * 2), label_values=frozenset((0, 1)))
    with pytest.raises(SmgError, match="label values that were not expected: 2"):
        look_at([site], Labels())


def test_bright_voxels_of_any_channel_ask_for_clipping(tmp_path: Path) -> None:
    site = Site.find(write_site(tmp_path / "A", 2))
    subject = site.subjects[0]
    array = np.random.default_rng(0).normal(100, 20, (6, 20, 24)).astype(np.float32)
    array[3, 3, 3] = 32000
    write_volume(tmp_path / "second.nii.gz", Volume(array, affine()))
    both = replace(subject, images=(subject.image, tmp_path / "second.nii.gz"))
    assert look_at([replace(site, subjects=(subject,))], Labels()).outlying == 0
    assert look_at([replace(site, subjects=(both,), channels=("T2", "ADC"))], Labels()).outlying == 1


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


@pytest.mark.parametrize("method", METHODS)
def test_the_steps_of_every_method_can_be_timed(method: str) -> None:
    given = {"preparation": {"size": 16, "spacing": 1.0}, "network": {"width": 2, "depth": 1}, "batch": 2}
    assert cost_of(configuration(given, {"method": method}), 16).seconds > 0

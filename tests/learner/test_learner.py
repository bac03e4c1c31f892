"""A model that learns round by round: what it keeps, what it refuses, what it survives."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save

from smg.errors import Misuse, SmgError
from smg.evaluation.predict import mask_of, scores_and_moments
from smg.evaluation.subjects import prepared_dice
from smg.learner.config import LearnerConfig
from smg.learner.exemplars import alias
from smg.learner.learner import Learner
from smg.learner.records import Kept
from smg.learner.results import StreamRecord
from smg.learner.round import Stopped
from smg.learner.store import Store
from smg.networks.features import find_bottleneck
from smg.prepare.options import Preparation
from smg.prepare.site import prepare_scan, prepare_site
from smg.replay.features import foreground_features
from smg.replay.selection import select
from smg.sites.site import Site
from smg.sites.split import load_splits, split_site
from smg.sites.volume import Volume, read_volume, write_volume
from tests.conftest import write_site
from tests.learner.streams import TINY, at_checkpoint, fingerprint, noted, tiny_stream, write_sites
from tests.toys import OPTIONS, subject


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sites(tmp_path_factory.mktemp("sites"))


def learner(folder: Path, **changes: Any) -> Learner:
    return Learner.create(folder, LearnerConfig.model_validate(TINY | {"method": "sga+c"} | changes))


@pytest.fixture
def taught(data: Path, tmp_path: Path) -> Learner:
    made = learner(tmp_path / "model")
    for name in "AB":
        made.learn(Site.find(data, name))
    return made


def test_a_round_leaves_its_record(taught: Learner) -> None:
    record = taught.store.read_round(2)
    assert (record.round, record.parent, record.site) == (2, 1, "B")
    assert record.subjects.model_dump() == {"train": 2, "validation": 1, "test": 1}
    assert [point.iteration for point in record.curve] == [2, 4]
    assert [entry.iteration for entry in record.log] == [1, 2, 3, 4]
    assert set(record.log[0].cosines) == {"cos_incoming_replay", "cos_train_test"}
    assert record.kept == {site: Kept(subjects=2, bytes=2 * 6 * 16 * 16 * 5) for site in "AB"}
    assert record.selection.policy == "comprehensive"
    assert len(record.selection.R) == 2
    assert set(record.earlier) == {"A"}
    assert record.config.tree()["network"]["width"] == 4
    assert taught.sites == ["A", "B"]
    assert taught.current == 2


def test_the_folder_names_no_patient_no_file_and_no_path(taught: Learner, data: Path) -> None:
    for path in taught.store.folder.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            for secret in (b"Case0", str(data).encode(), b".nii", str(Path.home()).encode()):
                assert secret not in content, path


def test_after_a_round_the_sites_data_may_be_deleted(data: Path, tmp_path: Path) -> None:
    copy = tmp_path / "sites"
    shutil.copytree(data, copy)
    made = learner(tmp_path / "model")
    made.learn(Site.find(copy, "A"))
    shutil.rmtree(copy / "A")
    shutil.rmtree(os.environ["SMG_CACHE"])
    again = Learner(tmp_path / "model")
    again.learn(Site.find(copy, "B"))
    assert {site: len(kept) for site, kept in again.replay().items()} == {"A": 2, "B": 2}


def test_a_learned_site_is_refused_unless_asked_for(taught: Learner, data: Path) -> None:
    with pytest.raises(SmgError, match=r"site B was learned before \(round 2\)"):
        taught.learn(Site.find(data, "B"))
    assert taught.learn(Site.find(data, "B"), again=True).round == 3


def test_another_preparation_is_refused_unless_asked_for_and_another_network_always(taught: Learner) -> None:
    folder = taught.store.folder
    other = LearnerConfig.model_validate(TINY | {"preparation": {"size": 24}})
    with pytest.raises(SmgError, match="scans were prepared in another way before"):
        Learner(folder, other)
    assert Learner(folder, other, other_preparation=True).config.preparation.size == 24
    with pytest.raises(SmgError, match=r"the model's network cannot be changed \(width 4, not 5\)"):
        Learner(folder, LearnerConfig.model_validate(TINY | {"network": {"width": 5, "depth": 1}}))
    assert Learner(folder, LearnerConfig.model_validate(TINY | {"method": "jm"})).config.method == "jm"


def test_a_version_is_used_with_the_preparation_it_was_learned_with(taught: Learner, data: Path) -> None:
    folder, scan = taught.store.folder, read_volume(data / "C" / "Case00.nii.gz")
    changes = {"preparation": {"size": 16, "normalise": "slice", "labels": {"gland": [1]}}, "largest_component": False}
    other = LearnerConfig.model_validate(TINY | {"method": "sga+c"} | changes)
    record = Learner(folder, other, other_preparation=True).learn(Site.find(data, "C"))
    opened = Learner(folder)
    assert (opened.config.preparation, opened.config.largest_component) == (other.preparation, False)
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
    with pytest.raises(SmgError, match=r"exemplars of A have 16 rows.*`smg replay drop"):
        Learner(folder, smaller, other_preparation=True).learn(Site.find(data, "C"), again=True)


def test_a_model_whose_current_round_is_damaged_can_be_rolled_back(taught: Learner) -> None:
    (taught.store.round_folder(2) / "round.json").write_text("{")
    opened = Learner(taught.store.folder)
    with pytest.raises(SmgError, match=r"round.json: damaged \(not JSON\)"):
        opened.predict(Volume(np.random.default_rng(0).random((4, 16, 16)), np.eye(4)))
    opened.rollback(1)
    assert Learner(taught.store.folder).sites == ["A"]


def test_what_happened_since_a_model_was_opened_is_seen(taught: Learner, data: Path) -> None:
    """Exemplars learned by another process are dropped too; a model made by another is not overwritten."""
    Learner(taught.store.folder).learn(Site.find(data, "A"), again=True)
    assert taught.drop("A") == 4
    assert [one.kept.subjects for one in Learner(taught.store.folder).stored()] == [0, 2, 0]


def test_a_model_made_in_the_meantime_is_not_overwritten(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def another_is_faster() -> None:
        if not made:
            made.append(True)
            learner(tmp_path / "model").learn(Site.find(data, "A"))

    monkeypatch.setattr("smg.learner.learner.meet", another_is_faster)
    with pytest.raises(SmgError, match="a model is there already"):
        learner(tmp_path / "model")
    assert Learner(tmp_path / "model").sites == ["A"]


KINDS = (torch.bool, torch.int8, torch.int16, torch.int32, torch.float16, torch.bfloat16, torch.float64)


def test_a_scan_at_two_sites_is_not_tested_as_if_unseen(data: Path, tmp_path: Path) -> None:
    """Also where one of the two was turned round and stored as other numbers."""
    sites = write_sites(tmp_path / "sites")
    for suffix in ("", "_segmentation"):
        source = read_volume(sites / "A" / f"Case01{suffix}.nii.gz")
        turned = source.affine.copy()
        turned[:3, 3] += turned[:3, 0] * (source.array.shape[2] - 1)
        turned[:3, 0] *= -1
        kind = np.float32 if not suffix else np.uint8
        write_volume(sites / "C" / f"Case02{suffix}.nii.gz", Volume(source.array[:, :, ::-1].astype(kind), turned))
    with pytest.raises(SmgError, match=r"C/Case02.nii.gz: the same scan twice.*A/Case01.nii.gz.*--leave-out"):
        tiny_stream(sites).run(tmp_path / "run")
    assert not (tmp_path / "run" / "model").exists()
    stream = tiny_stream(sites)
    stream.leave_out = True
    results = stream.run(tmp_path / "run")
    split = load_splits(tmp_path / "run" / "split.json")
    assert sorted(case for part in split["C"].values() for case in part) == ["Case00", "Case01", "Case03"]
    assert results.measures["dsc"]["FM"] is not None


def test_a_scan_learned_at_another_site_is_not_learned_again_under_this_one(taught: Learner, data: Path) -> None:
    """As when a folder is given a second time under another name; what is new in it can be learned."""
    folder = taught.store.folder.parent / "Other"
    shutil.copytree(data / "C", folder)
    for suffix in ("", "_segmentation"):
        again = read_volume(data / "A" / f"Case02{suffix}.nii.gz")
        lost = np.diag([-1.0, -1.0, 1.0, 1.0])  # what its header said of its orientation
        write_volume(folder / f"again{suffix}.nii.gz", Volume(again.array, lost))
    before = fingerprint(taught.store.folder)
    with pytest.raises(SmgError, match=r"Other/again.nii.gz: the same scan was learned at site A; --leave-out"):
        taught.learn(Site.find(folder))
    assert fingerprint(taught.store.folder) == before
    assert sum(taught.learn(Site.find(folder), leave_out=True).subjects.model_dump().values()) == 4
    assert taught.learn(Site.find(data, "A"), again=True).round == 4  # at its own site, as often as one likes


def test_whoever_is_left_out_takes_no_place_in_a_part(tmp_path: Path) -> None:
    sites = write_sites(tmp_path / "sites")
    whole = Site.find(sites, "B")
    bad = split_site(whole, 0)["test"][0]
    mask = read_volume(sites / "B" / f"{bad}_segmentation.nii.gz")
    write_volume(sites / "B" / f"{bad}_segmentation.nii.gz", Volume(np.zeros_like(mask.array), mask.affine))
    replace(tiny_stream(sites, method="finetune", iterations=1), leave_out=True).run(tmp_path / "run")
    split = load_splits(tmp_path / "run" / "split.json")
    assert split["B"] == split_site(whole.keep({s.case for s in whole.subjects} - {bad}), 0)
    assert split["A"] == split_site(Site.find(sites, "A"), 0)  # where nobody is left out, nothing changes


def test_a_part_without_any_subject_is_reported_before_a_round(tmp_path: Path) -> None:
    for place, name in enumerate("ABC"):
        write_site(tmp_path / "sites" / name, 2, first_seed=10 * place)
    stream = tiny_stream(tmp_path / "sites")
    stream.part = "validation"
    with pytest.raises(SmgError, match="no site has a subject in its validation part"):
        stream.run(tmp_path / "run")
    assert not (tmp_path / "run" / "model").exists()


def test_a_case_whose_name_is_no_text_is_learned_like_any_other(tmp_path: Path) -> None:
    site = write_site(tmp_path / "A", 5)
    for suffix in ("", "_segmentation"):
        (site / f"Case03{suffix}.nii.gz").rename(
            Path(os.fsdecode(os.fsencode(site) + b"/Mu\xf1oz" + suffix.encode() + b".nii.gz"))
        )
    made = learner(tmp_path / "model")
    assert sum(made.learn(Site.find(site)).subjects.model_dump().values()) == 5
    assert len(made.evaluate(Site.find(site), "all")) == 5


class Masked(torch.nn.Module):
    """A network with buffers of every kind that a state may have."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.bottleneck = torch.nn.Conv2d(in_channels, 4, 3, padding=1, stride=2)
        self.head = torch.nn.ConvTranspose2d(4, out_channels, 2, stride=2)
        for number, kind in enumerate(KINDS):
            self.register_buffer(f"buffer{number}", torch.ones(3, dtype=kind))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.bottleneck(x))
        return out


def test_a_network_with_buffers_of_any_kind_is_stored_and_opened(data: Path, tmp_path: Path) -> None:
    made = learner(tmp_path / "model", network={"name": f"{__name__}:Masked"})
    made.learn(Site.find(data, "A"))
    made.learn(Site.find(data, "B"))
    stored = Learner(tmp_path / "model").store.read_tensors(2, "weights")
    assert [t.dtype for name, t in sorted(stored.items()) if "buffer" in name] == list(KINDS)


@pytest.mark.parametrize("method", ["sga+c", "gem"])
def test_nan_stops_the_round_and_leaves_the_model(taught: Learner, data: Path, method: str) -> None:
    before = fingerprint(taught.store.folder)
    diverging = TINY | {"optimiser": {"rate": 1e30}, "method": method}
    broken = Learner(taught.store.folder, LearnerConfig.model_validate(diverging))
    message = r"round 3, iteration \d+, site C: the \w+ of the [\w ]+ batch is (nan|inf)"
    with pytest.raises(SmgError, match=message) as error:
        broken.learn(Site.find(data, "C"))
    assert "\n" not in str(error.value)
    assert fingerprint(taught.store.folder) == before
    assert not (taught.store.folder / "progress").exists()
    Learner(taught.store.folder).learn(Site.find(data, "C"))


def test_a_round_that_harms_an_earlier_site_is_held_until_it_is_accepted(taught: Learner, data: Path) -> None:
    record = taught.learn(Site.find(data, "C"), tolerance=-100.0)  # less than nothing is always too much
    assert record.held
    assert (taught.current, taught.sites) == (2, ["A", "B"])
    assert taught.store.journal()[-1].event == "held"
    taught.accept(3)
    assert taught.sites == ["A", "B", "C"]
    assert not taught.learn(Site.find(data, "C"), again=True, tolerance=100.0).held


def test_what_is_no_number_lets_no_round_pass(taught: Learner, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint(taught.store.folder)
    with pytest.raises(Misuse, match="a tolerance that is not a number"):
        taught.learn(Site.find(data, "C"), tolerance=math.nan)
    assert fingerprint(taught.store.folder) == before
    monkeypatch.setattr("smg.learner.closing.prepared_dice", lambda *_: math.nan)
    assert taught.learn(Site.find(data, "C"), tolerance=100.0).held


def test_rollback_and_going_on_from_there(taught: Learner, data: Path) -> None:
    taught.rollback(1)
    assert taught.sites == ["A"]
    record = taught.learn(Site.find(data, "C"))
    assert (record.round, record.parent) == (3, 1)
    assert taught.sites == ["A", "C"]
    assert set(taught.replay()) == {"A", "C"}
    taught.rollback(2)
    assert taught.sites == ["A", "B"]
    with pytest.raises(SmgError, match="no round 9; it has 1, 2, 3"):
        taught.rollback(9)
    assert [event.event for event in taught.store.journal()].count("rolled back") == 2


def test_exemplars_can_be_chosen_by_their_foreground(data: Path, tmp_path: Path) -> None:
    made = learner(tmp_path / "model", replay={"features": "foreground"})
    for name in "AB":
        selection = made.learn(Site.find(data, name)).selection
    prepared = {alias(0, "B", p.subject.case): p for p in prepare_site(Site.find(data, "B"), made.config.preparation)}
    candidates = [prepared[name] for name in selection.candidates]
    features = foreground_features(made.network(), candidates, made.config.preparation)
    previous = foreground_features(made.network(), made.replay()["A"], made.config.preparation)
    choice = select("comprehensive", features, [previous])
    assert tuple(selection.candidates[i] for i in choice.chosen) == selection.chosen
    torch.testing.assert_close(torch.tensor(selection.H, dtype=torch.float64), choice.scores.hybrid)


def test_dropping_exemplars_is_done_and_noted(taught: Learner, data: Path) -> None:
    assert taught.drop("A") == 2
    assert set(taught.replay()) == {"B"}
    assert taught.store.journal()[-1].event == "dropped exemplars"
    assert taught.learn(Site.find(data, "C")).round == 3
    with pytest.raises(SmgError, match="site Z was never learned"):
        taught.drop("Z")


def test_prediction_is_a_mask_on_the_scans_grid_and_evaluation_tells_it(taught: Learner, data: Path) -> None:
    subject = Site.find(data, "A").subjects[0]
    scan = read_volume(subject.image)
    mask = taught.predict(scan).mask
    assert mask.array.shape == scan.array.shape
    assert np.array_equal(mask.affine, scan.affine)
    rows = taught.evaluate(Site.find(data, "C"), part="all")
    assert [row.case for row in rows] == ["Case00", "Case01", "Case02", "Case03"]
    assert taught.evaluate(Site.find(data, "C")) == rows  # never learned: all of it
    assert len(taught.evaluate(Site.find(data, "C"), part="test")) == 1


def test_a_model_that_has_learned_nothing_answers_nothing(data: Path, tmp_path: Path) -> None:
    made, site = learner(tmp_path / "model"), Site.find(data, "A")
    unlearned = "model: has learned nothing yet; `smg learn .*model SITE`"
    with pytest.raises(SmgError, match=unlearned):
        made.evaluate(site)
    with pytest.raises(SmgError, match=unlearned):
        made.predict(read_volume(site.subjects[0].image))
    assert made.evaluate(site, number=0)  # the first weights, asked for by number


def test_the_mean_of_the_second_half(data: Path, tmp_path: Path) -> None:
    def weights(iterations: int, select: str = "last") -> list[torch.Tensor]:
        network = {"width": 4, "depth": 1, "norm": "batch"}
        made = learner(tmp_path / f"{select} {iterations}", iterations=iterations, network=network, select=select)
        made.learn(Site.find(data, "A"))
        return [tensor.double() for tensor in _weights(made) if tensor.is_floating_point()]

    trajectory = [weights(iterations) for iterations in (3, 4, 5)]  # a round that stops earlier has the same steps
    for ours, passed in zip(weights(5, "average"), zip(*trajectory, strict=True), strict=True):
        assert torch.allclose(ours, torch.stack(passed).mean(dim=0), rtol=1e-5, atol=1e-7)
        assert not torch.equal(ours, passed[-1])


def test_the_best_weights_by_validation(data: Path, tmp_path: Path) -> None:
    last = learner(tmp_path / "last", iterations=12, validate_every=1, optimiser={"rate": 0.05})
    best = learner(tmp_path / "best", iterations=12, validate_every=1, optimiser={"rate": 0.05}, select="best")
    curves = [made.learn(Site.find(data, "A")).curve for made in (last, best)]
    assert curves[0] == curves[1]
    peak = max(curves[0], key=lambda point: point.dsc).iteration
    same = all(torch.equal(a, b) for a, b in zip(_weights(last), _weights(best), strict=True))
    assert same == (peak == 12)


def _weights(made: Learner) -> list[torch.Tensor]:
    return list(made.store.read_tensors(1, "weights").values())


def test_the_optimiser_is_fresh_in_every_round_unless_kept(data: Path, tmp_path: Path) -> None:
    weights = []
    for keep in (False, True):
        made = learner(tmp_path / str(keep), keep_optimiser=keep)
        for name in "AB":
            made.learn(Site.find(data, name))
        weights.append(torch.cat([t.reshape(-1) for t in made.store.read_tensors(2, "weights").values()]))
    assert not torch.equal(*weights)


def test_a_process_that_died_between_entering_its_round_and_tidying_up(taught: Learner, data: Path) -> None:
    taught.store.checkpoint({"x": torch.zeros(3)}, at_checkpoint("B", 2, 4))
    assert taught.learn(Site.find(data, "B")).round == 2  # it was learned: nothing is done again
    assert not (taught.store.folder / "progress").exists()
    assert noted(taught.store.folder) == [("learned", 1), ("learned", 2)]


def test_per_site_has_a_network_for_every_site_and_pooled_keeps_all(data: Path, tmp_path: Path) -> None:
    apart = learner(tmp_path / "apart", method="per-site")
    whole = learner(tmp_path / "whole", method="pooled")
    for made in (apart, whole):
        for name in "AB":
            made.learn(Site.find(data, name))
    own = apart.network_for("A").state_dict()
    assert all(torch.equal(a, b) for a, b in zip(own.values(), apart.network(1).state_dict().values(), strict=True))
    assert {site: len(kept) for site, kept in whole.replay().items()} == {"A": 2, "B": 2}
    assert apart.replay() == {}


# --- what can go wrong with a folder ----------------------------------------------------------------------------------


@pytest.mark.parametrize("harm", ["cut short", "altered", "gone"])
def test_a_harmed_file_is_noticed(taught: Learner, harm: str) -> None:
    path = taught.store.round_folder(2) / "weights.safetensors"
    whole = path.read_bytes()
    if harm == "gone":
        path.unlink()
    else:
        path.write_bytes(whole[:-9] if harm == "cut short" else whole[:-9] + bytes(9))
    with pytest.raises(SmgError, match=r"weights.safetensors: (cut short or altered|No such file)"):
        taught.network()
    assert taught.network(1) is not None  # the other versions are whole


def test_a_harmed_checkpoint_is_noticed(taught: Learner, data: Path) -> None:
    taught.store.checkpoint({"x": torch.zeros(3)}, at_checkpoint("C", 3, 1))
    (path,) = (taught.store.folder / "progress").iterdir()
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(SmgError, match="cut short or altered since it was written; delete it to begin"):
        taught.learn(Site.find(data, "C"))


def _stopped(made: Learner, site: Site) -> None:
    """A round that was begun, and left a checkpoint."""

    def stop(iteration: int, step: object) -> None:
        raise Stopped("after one iteration")

    with pytest.raises(Stopped):
        made.learn(site, on_step=stop)


def test_another_round_under_way_is_not_thrown_away(taught: Learner, data: Path) -> None:
    folder, site = taught.store.folder, Site.find(data, "C")
    _stopped(taught, site)
    with pytest.raises(SmgError, match=r"a round on site C is under way there; go on .*smg abandon"):
        taught.learn(Site.find(data, "B"), again=True)
    other = taught.config.model_copy(update={"iterations": 3})
    with pytest.raises(SmgError, match="on site C is under way there, with another configuration; go on"):
        Learner(folder, other).learn(site)
    cases = [subject.case for subject in site.subjects]
    with pytest.raises(SmgError, match="under way there, with another split; go on"):
        taught.learn(site, split={"train": tuple(cases), "validation": (), "test": ()})
    taught.rollback(1)
    with pytest.raises(SmgError, match="with another round before it and other exemplars; it goes on from round 2"):
        taught.learn(site)
    taught.rollback(2)
    assert taught.learn(site).round == 3


@pytest.mark.parametrize("what", ["scans", "masks"])
def test_a_round_is_not_gone_on_with_when_its_site_was_changed(taught: Learner, data: Path, what: str) -> None:
    copy = taught.store.folder.parent / "C"
    shutil.copytree(data / "C", copy)
    _stopped(taught, Site.find(copy))
    path = copy / ("Case00.nii.gz" if what == "scans" else "Case00_segmentation.nii.gz")
    volume = read_volume(path)
    write_volume(path, Volume(np.roll(volume.array, 1, axis=1), volume.affine))
    with pytest.raises(SmgError, match=f"is under way there, with other {what}; go on with it as it was begun"):
        taught.learn(Site.find(copy))


def test_a_round_is_not_gone_on_with_when_its_exemplars_were_dropped(
    taught: Learner, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even by a process that died before it had said so."""
    _stopped(taught, Site.find(data, "C"))
    with monkeypatch.context() as patch:
        patch.setattr(Store, "replace_tensors", _only_the_arrays)
        taught.drop("A")
    with pytest.raises(SmgError, match="is under way there, with other exemplars; go on"):
        taught.learn(Site.find(data, "C"))
    taught.drop("A")
    with pytest.raises(SmgError, match="is under way there, with other exemplars; go on"):
        taught.learn(Site.find(data, "C"))


def _only_the_arrays(store: Store, number: int, name: str, tensors: dict[str, torch.Tensor]) -> None:
    (store.round_folder(number) / f"{name}.safetensors").write_bytes(save(tensors))


def test_a_checkpoint_of_an_older_smg_is_refused(taught: Learner, data: Path) -> None:
    taught.store.checkpoint({"x": torch.zeros(3)}, at_checkpoint("C", 3, 1))
    with pytest.raises(SmgError, match=r"site C is under way there, begun by an older smg .*smg abandon"):
        taught.learn(Site.find(data, "C"))


def test_a_line_cut_short_in_the_journal_hides_no_other(taught: Learner) -> None:
    path = taught.store.folder / "journal.jsonl"
    path.write_bytes(path.read_bytes()[:-5])
    taught.rollback(1)
    assert [line.event for line in taught.store.journal()] == ["created", "learned", "rolled back"]


def test_models_of_other_times(taught: Learner, tmp_path: Path) -> None:
    path = taught.store.folder / "model.json"
    stored = json.loads(path.read_text())
    path.write_text(json.dumps(stored | {"format": 99}))
    with pytest.raises(SmgError, match="made by a newer version of smg"):
        Learner(taught.store.folder)
    path.write_text("{")
    with pytest.raises(SmgError, match=r"model.json: damaged"):
        Learner(taught.store.folder)
    with pytest.raises(SmgError, match="no model there"):
        Learner(tmp_path / "nowhere")
    path.write_text(json.dumps(stored))
    with pytest.raises(SmgError, match="a model is there already"):
        learner(taught.store.folder)


HOLD = """
import sys, time
from pathlib import Path
from smg.learner.records import Kept
from smg.learner.results import StreamRecord
from smg.learner.store import Store
with Store(Path(sys.argv[1])).locked():
    print("held", flush=True)
    time.sleep(60)
"""


def test_one_process_at_a_time_and_the_second_says_who_holds_it(taught: Learner, data: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(taught.store.folder)], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    holder.stdout.readline()
    with pytest.raises(SmgError, match=f"in use by process {holder.pid} on "):
        taught.learn(Site.find(data, "C"))
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert taught.learn(Site.find(data, "C")).round == 3  # a dead holder holds nothing


def test_a_full_disk_loses_nothing(taught: Learner, data: Path) -> None:
    before = fingerprint(taught.store.folder)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6000, hard))  # any file over 6 kB is refused, as by a full disk
    try:
        with pytest.raises(SmgError, match=r"(File too large|No space left).*nothing was lost|set SMG_CACHE"):
            taught.learn(Site.find(data, "C"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert fingerprint(taught.store.folder) == before
    assert taught.learn(Site.find(data, "C")).round == 3


def test_a_folder_that_may_not_be_written(taught: Learner, data: Path) -> None:
    before = fingerprint(taught.store.folder)
    site, outcome = Site.find(data, "C"), multiprocessing.get_context("fork").SimpleQueue()

    def as_nobody() -> None:
        for path in (taught.store.folder, *taught.store.folder.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        if os.geteuid() == 0:  # whom nothing forbids
            for folder in taught.store.folder.parents:
                folder.chmod(folder.stat().st_mode | 0o055)
            os.setuid(65534)
        try:
            Learner(taught.store.folder).learn(site)
        except SmgError as error:
            outcome.put(str(error))
        else:
            outcome.put("learned")

    process = multiprocessing.get_context("fork").Process(target=as_nobody)
    process.start()
    assert "Permission denied; nothing was lost" in outcome.get()
    process.join()
    assert fingerprint(taught.store.folder) == before


def test_a_model_in_the_place_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SmgError, match="Not a directory"):
        learner(tmp_path / "file" / "model")


# --- streams ----------------------------------------------------------------------------------------------------------


def test_a_stream_fills_the_matrix_and_reads_the_measures_off_it(data: Path, tmp_path: Path) -> None:
    results = tiny_stream(data, method="jm").run(tmp_path / "run")
    assert json.loads((tmp_path / "run" / "results.json").read_text()) == results.model_dump(mode="json")
    assert results.stream == StreamRecord(order=("A", "B"), unseen="C")
    matrix = results.matrix["dsc"]
    assert set(matrix) == set(matrix["A"]) == {"A", "B", "C"}
    found = results.measures["dsc"]
    assert found["BM"] == pytest.approx((matrix["B"]["A"] + matrix["B"]["B"]) / 2)
    assert found["BT"] == pytest.approx(matrix["B"]["A"] - matrix["A"]["A"])
    assert found["FM"] == pytest.approx(matrix["B"]["C"])
    unseen = [row for row in results.subjects if (row.round, row.site) == ("B", "C")]
    assert {row.part for row in unseen} == {"train", "test"}  # all of it that no setting was chosen by
    tested = [row.classes["foreground"]["dsc"] for row in unseen if row.part == "test"]
    assert found["FT"] == pytest.approx(np.mean(tested) - matrix["C"]["C"])
    rows = [row for row in results.subjects if (row.round, row.site) == ("B", "A")]
    assert matrix["B"]["A"] == pytest.approx(np.mean([row.classes["foreground"]["dsc"] for row in rows]))
    assert not any(math.isnan(v) for v in found.values() if v is not None)
    assert json.loads((tmp_path / "run" / "split.json").read_text())["seed"] == 0


@pytest.mark.parametrize("method", ["jm", "per-site"])
def test_rounds_are_evaluated_long_after_and_on_another_part(data: Path, tmp_path: Path, method: str) -> None:
    results = tiny_stream(data, method=method).run(tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "evaluations")
    assert tiny_stream(data, method=method).run(tmp_path / "run") == results
    other = tiny_stream(data, method=method)
    other.part = "validation"
    rows = other.run(tmp_path / "run").subjects
    assert not {(r.site, r.subject) for r in rows} & {(r.site, r.subject) for r in results.subjects}


def test_a_stream_with_zones(data: Path, tmp_path: Path) -> None:
    stream = tiny_stream(data, preparation={"size": 16, "labels": {"gland": 1, "other": 2}})
    results = stream.run(tmp_path / "run")
    assert set(results.classes) == {"gland", "other"}
    assert results.classes["other"]["asd"]["BM"] is None  # nobody has it, so no surface exists


def test_streams_that_make_no_sense(data: Path, tmp_path: Path) -> None:
    from smg.learner.stream import Stream

    config = LearnerConfig.model_validate(TINY)
    sites = tiny_stream(data).sites
    with pytest.raises(SmgError, match="no site 'Z' in the data; it holds A, B, C"):
        Stream(sites, ["A", "Z"], None, config)
    with pytest.raises(SmgError, match="names a site twice"):
        Stream(sites, ["A", "B"], "A", config)
    tiny_stream(data, method="jm").run(tmp_path / "run")
    with pytest.raises(SmgError, match="holds a run of another configuration"):
        tiny_stream(data, method="sga").run(tmp_path / "run")


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


def test_what_no_round_uses_is_listed_too(taught: Learner, data: Path) -> None:
    taught.learn(Site.find(data, "A"), again=True)
    stored = [(one.site, one.round, one.kept.subjects, one.in_use) for one in taught.stored()]
    assert stored == [("A", 1, 2, False), ("B", 2, 2, True), ("A", 3, 2, True)]
    assert taught.drop("A") == 4


def test_a_held_round_is_held_until_it_is_accepted_and_no_longer(taught: Learner, data: Path) -> None:
    taught.learn(Site.find(data, "C"), tolerance=-100.0)
    assert taught.held(3)
    with pytest.raises(SmgError, match="round 3 is held; `smg accept` takes it"):
        taught.rollback(3)
    taught.accept(3)
    assert not taught.held(3)
    taught.rollback(2)
    taught.rollback(3)  # it was accepted once
    with pytest.raises(SmgError, match="round 3 is not held"):
        taught.accept(3)


def test_subjects_stay_in_their_part_when_a_site_has_grown(taught: Learner, data: Path, tmp_path: Path) -> None:
    """Else what was trained with would be tested on."""
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
    """Whatever part they were in for another one, which was rolled back."""
    made, site = learner(tmp_path / "model"), Site.find(data, "A")
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


def test_a_model_with_a_method_of_ones_own_can_be_looked_at_and_asked_without_its_file(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "from smg.methods import JM, register\n\n@register('mine')\nclass Mine(JM):\n    pass\n"
    (tmp_path / "mine.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    learner(tmp_path / "model", method="mine.py:mine").learn(Site.find(data, "A"))
    (tmp_path / "mine.py").unlink()
    monkeypatch.setattr("smg.registry._FILES", {})
    there = Learner(tmp_path / "model")
    assert there.sites == ["A"]
    there.predict(read_volume(next((data / "B").glob("Case00.nii*"))))
    with pytest.raises(SmgError, match=r"mine\.py: no such Python file"):
        there.learn(Site.find(data, "B"))


def test_a_misfit_shows_before_a_round(data: Path, tmp_path: Path) -> None:
    small = {"init_filters": 8, "blocks_down": [1, 1], "blocks_up": [1]}
    made = learner(tmp_path / "model", network={"name": "SegResNet", "bottleneck": "nowhere", "arguments": small})
    with pytest.raises(SmgError, match="nowhere"):
        made.learn(Site.find(data, "A"), on_step=lambda iteration, step: pytest.fail("it began"))


class Tokens(torch.nn.Module):
    """A network whose bottleneck has no place in the slice, as a transformer's."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.bottleneck = torch.nn.Flatten(2)
        self.head = torch.nn.Conv2d(in_channels, out_channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.bottleneck(x)
        return self.head(tokens.reshape(x.shape))


def test_features_without_a_place_show_before_a_round(data: Path, tmp_path: Path) -> None:
    own = {"name": f"{__name__}:Tokens"}
    made = learner(tmp_path / "model", network=own, replay={"features": "foreground"})
    with pytest.raises(SmgError, match=r"tokens.*replay\.features=everywhere"):
        made.learn(Site.find(data, "A"), on_step=lambda iteration, step: pytest.fail("it began"))


def test_parts_are_counted_as_the_model_draws_them() -> None:
    """Without the rule of the largest component a second part counts, in the curve and for the guard as elsewhere."""
    one = subject(0)
    truth = one.labels.numpy()

    class Says(torch.nn.Linear):  # a network has parameters
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            mask = torch.from_numpy(truth[: len(images)]).float()[:, None]  # every slice has the same disc
            mask[:, :, :2, :2] = 1.0  # and a corner
            return torch.cat([1 - mask, mask], dim=1)

    with_rule, without = (prepared_dice(Says(1, 1), one, OPTIONS, largest) for largest in (True, False))
    assert with_rule == 1.0
    assert without < 1.0


def test_a_run_goes_on_only_with_the_split_it_began_with(data: Path, tmp_path: Path) -> None:
    stream = tiny_stream(data, method="finetune")
    stream.run(tmp_path / "run")
    before = (tmp_path / "run/split.json").read_text()
    (tmp_path / "run/results.json").unlink()
    splits = load_splits(tmp_path / "run/split.json")
    swapped = splits["A"] | {"train": splits["A"]["test"] + splits["A"]["train"][1:], "test": splits["A"]["train"][:1]}
    other = replace(stream, splits=splits | {"A": swapped})
    with pytest.raises(SmgError, match=r"split\.json: the run was begun with another split of site A"):
        other.run(tmp_path / "run")
    assert (tmp_path / "run/split.json").read_text() == before
    stream.run(tmp_path / "run")


def test_a_site_that_joins_a_finished_run_is_measured_after_every_round(data: Path, tmp_path: Path) -> None:
    stream = replace(tiny_stream(data, method="finetune"), unseen=None)
    stream.run(tmp_path / "run")
    longer = replace(stream, order=["A", "B", "C"])
    matrix = longer.run(tmp_path / "run").matrix["dsc"]
    assert all(matrix[learned][site] is not None for learned in "ABC" for site in "ABC")


def test_classes_listed_in_any_order_are_learned_and_measured_alike(data: Path, tmp_path: Path) -> None:
    rows = []
    for number, listed in enumerate(({"zone": 1, "area": 2}, {"area": 2, "zone": 1})):
        made = learner(tmp_path / str(number), preparation={"size": 16, "labels": listed})
        made.learn(Site.find(data, "A"))
        assert made.config.preparation.labels.names == ("zone", "area")
        rows.append([row.as_json() for row in Learner(tmp_path / str(number)).evaluate(Site.find(data, "A"), "all")])
    assert rows[0] == rows[1]


@pytest.mark.parametrize("background", [0, 9])
def test_a_mask_has_the_values_of_the_masks_learned_from(data: Path, tmp_path: Path, background: int) -> None:
    for path in (data / "A").iterdir():
        volume = read_volume(path)
        values = np.where(volume.array > 0, 7, background).astype(np.uint8)
        mask = "segmentation" in path.name
        write_volume(tmp_path / "A" / path.name, Volume(values, volume.affine) if mask else volume)
    labels = {"classes": {"zone": [7]}, "background": [background]}
    made = learner(tmp_path / "model", preparation={"size": 16, "labels": labels}, iterations=40)
    made.learn(Site.find(tmp_path / "A"))
    predicted = made.predict(read_volume(next((data / "A").glob("Case00.nii*"))))
    assert set(np.unique(predicted.mask.array)) == {background, 7}
    assert predicted.millilitres == pytest.approx(
        (predicted.mask.array == 7).sum() * np.prod(predicted.mask.spacing) / 1000
    )


def test_the_guard_counts_as_the_model_draws(taught: Learner, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def noting(network: Any, subject: Any, options: Any, largest_component: bool = True) -> float:
        asked.append(largest_component)
        return 0.5

    monkeypatch.setattr("smg.learner.closing.prepared_dice", noting)
    monkeypatch.setattr("smg.learner.round.prepared_dice", noting)
    config = taught.config.model_copy(update={"largest_component": False})
    Learner(taught.store.folder, config).learn(Site.find(data, "C"))
    assert asked
    assert not any(asked)


def test_a_damaged_round_off_the_line_hinders_no_other(taught: Learner, data: Path) -> None:
    taught.rollback(1)
    path = taught.store.round_folder(2) / "exemplars.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    taught.learn(Site.find(data, "C"))
    with pytest.raises(SmgError, match="cut short or altered"):
        taught.stored()


def test_a_model_that_numbered_its_classes_otherwise_is_refused(data: Path, tmp_path: Path) -> None:
    for number, labels in enumerate(({"a": 1, "b": 2}, {"b": 1, "a": 2})):
        learner(tmp_path / str(number), preparation={"size": 16, "labels": labels})
        path = tmp_path / str(number) / "model.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 1}))
        Store(path.parent).adopt()
    Learner(tmp_path / "0")
    with pytest.raises(SmgError, match="made by an older smg that numbered classes in another order"):
        Learner(tmp_path / "1")

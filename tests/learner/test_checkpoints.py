"""Checkpoints: a round resumes only with the inputs that it was begun with."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save

from smg.learner.learner import Learner
from smg.learner.round import Stopped
from smg.learner.store import Store
from smg.sites.site import Site
from smg.sites.volume import Volume, read_volume, write_volume
from tests.learner.streams import at_checkpoint, noted, refused


def test_a_harmed_checkpoint_is_noticed(taught: Learner, data: Path) -> None:
    taught.store.checkpoint({"x": torch.zeros(3)}, at_checkpoint("C", 3, 1))
    (path,) = (taught.store.folder / "progress").iterdir()
    path.write_bytes(path.read_bytes()[:-1])
    with refused(path.name, "delete it"):
        taught.learn(Site.find(data, "C"))


def _stopped(made: Learner, site: Site) -> None:
    """A round that was begun, and left a checkpoint."""

    def stop(iteration: int, step: object) -> None:
        raise Stopped("after one iteration")

    with pytest.raises(Stopped):
        made.learn(site, on_step=stop)


def test_another_round_under_way_is_not_discarded(taught: Learner, data: Path) -> None:
    folder, site = taught.store.folder, Site.find(data, "C")
    _stopped(taught, site)
    with refused("site C", "`smg abandon"):
        taught.learn(Site.find(data, "B"), again=True)
    other = taught.config.model_copy(update={"iterations": 3})
    with refused("site C", "another configuration"):
        Learner(folder, other).learn(site)
    cases = [subject.case for subject in site.subjects]
    with refused("site C", "another split"):
        taught.learn(site, split={"train": tuple(cases), "validation": (), "test": ()})
    taught.rollback(1)
    with refused("another round before it", "other exemplars", "round 2", "`smg rollback"):
        taught.learn(site)
    taught.rollback(2)
    assert taught.learn(site).round == 3


@pytest.mark.parametrize("what", ["scans", "masks"])
def test_a_round_does_not_resume_when_its_site_has_changed(taught: Learner, data: Path, what: str) -> None:
    copy = taught.store.folder.parent / "C"
    shutil.copytree(data / "C", copy)
    _stopped(taught, Site.find(copy))
    path = copy / ("Case00.nii.gz" if what == "scans" else "Case00_segmentation.nii.gz")
    volume = read_volume(path)
    write_volume(path, Volume(np.roll(volume.array, 1, axis=1), volume.affine))
    with refused("site C", f"other {what}"):
        taught.learn(Site.find(copy))


def test_a_round_does_not_resume_when_its_exemplars_were_dropped(
    taught: Learner, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the process that dropped them died before it noted it in the journal."""
    _stopped(taught, Site.find(data, "C"))
    with monkeypatch.context() as patch:
        patch.setattr(Store, "replace_tensors", _only_the_arrays)
        taught.drop("A")
    with refused("site C", "other exemplars"):
        taught.learn(Site.find(data, "C"))
    taught.drop("A")
    with refused("site C", "other exemplars"):
        taught.learn(Site.find(data, "C"))


def _only_the_arrays(store: Store, number: int, name: str, tensors: dict[str, torch.Tensor]) -> None:
    (store.round_folder(number) / f"{name}.safetensors").write_bytes(save(tensors))


def test_a_checkpoint_of_an_older_smg_is_refused(taught: Learner, data: Path) -> None:
    taught.store.checkpoint({"x": torch.zeros(3)}, at_checkpoint("C", 3, 1))
    with refused("site C", "older smg", "`smg abandon"):
        taught.learn(Site.find(data, "C"))


def test_a_process_that_died_between_entering_its_round_and_tidying_up(taught: Learner, data: Path) -> None:
    taught.store.checkpoint({"x": torch.zeros(3)}, at_checkpoint("B", 2, 4))
    assert taught.learn(Site.find(data, "B")).round == 2  # it was learned: nothing is done again
    assert not (taught.store.folder / "progress").exists()
    assert noted(taught.store.folder) == [("learned", 1), ("learned", 2)]

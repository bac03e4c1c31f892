"""A round that is no longer made of numbers ends, and leaves the model as it was."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import smg.learner.round
from smg.gradients.flat import flatten
from smg.learner.config import LearnerConfig
from smg.learner.learner import Learner
from smg.learner.round import Diverged
from smg.sites.site import Site
from tests.learner.streams import TINY, fingerprint, write_sites


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site learned, and the next one."""
    folder = tmp_path_factory.mktemp("taught")
    write_sites(folder / "sites")
    Learner.create(folder / "model", LearnerConfig.model_validate(TINY)).learn(Site.find(folder / "sites", "A"))
    return folder


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"method": "c-meta", "options": {"gamma": 1e38}}, "the loss of the replay batch is nan at shifted parameters"),
        (
            {"method": "sga", "options": {"symmetric": True, "gamma": 1e38}},
            "the loss of the replay batch is nan at shifted parameters",
        ),
        ({"method": "sga-direct", "options": {"gamma": 1e60}}, "the direction handed to the optimiser is"),
        ({"method": "isgm", "options": {"epsilon": 1e60}}, "the weight vector is"),
        ({"method": "jm", "optimiser": {"rate": 1e60}}, "the weight vector is"),
    ],
    ids=("a shifted pass", "a symmetric pass", "the direction", "past the optimiser", "the last update"),
)
def test_it_ends_before_anything_is_written(changes: dict[str, Any], what: str, taught: Path, tmp_path: Path) -> None:
    model = shutil.copytree(taught / "model", tmp_path / "model")
    before = fingerprint(model)
    once = LearnerConfig.model_validate(TINY | {"iterations": 1} | changes)  # no later pass would tell
    with pytest.raises(Diverged) as error:
        Learner(model, once).learn(Site.find(taught / "sites", "B"))
    assert str(error.value).startswith(f"round 2, iteration 1, site B: {what}")
    assert str(error.value).endswith("; the model is as it was. A lower rate may help")
    assert fingerprint(model) == before
    assert not (model / "progress").exists()


class Drifting(torch.nn.Module):
    """A network that keeps a statistic, as batch norm does, and loses it."""

    seen: torch.Tensor

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.bottleneck = torch.nn.Conv2d(in_channels, 4, 3, padding=1, stride=2)
        self.head = torch.nn.ConvTranspose2d(4, out_channels, 2, stride=2)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.seen.fill_(math.nan)
        out: torch.Tensor = self.head(self.bottleneck(x))
        return out


def test_statistics_that_no_pass_of_training_reads(taught: Path, tmp_path: Path) -> None:
    config = LearnerConfig.model_validate(TINY | {"network": {"name": f"{__name__}:Drifting"}})
    model = Learner.create(tmp_path / "model", config)
    with pytest.raises(Diverged, match=r"round 1, iteration 4, site A: network\.seen is nan; the model is as it was"):
        model.learn(Site.find(taught / "sites", "A"))
    assert Learner(tmp_path / "model").current == 0
    assert not (tmp_path / "model" / "progress").exists()


@pytest.mark.parametrize("method", ["sga+c", "gem"])
def test_batches_prepared_ahead_lead_to_the_same_weights(
    method: str, taught: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = LearnerConfig.model_validate(TINY | {"method": method, "iterations": 5, "augment": "strong"})
    weights = []
    for is_ahead in (False, True):
        monkeypatch.setattr(smg.learner.round, "pays", lambda device, pays=is_ahead: pays)  # as with a GPU
        learner = Learner(shutil.copytree(taught / "model", tmp_path / str(is_ahead)), config)
        learner.learn(Site.find(taught / "sites", "B"))
        weights.append(flatten(learner.network()))
    assert torch.equal(*weights)

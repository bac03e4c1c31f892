"""Rounds of a model: what each leaves behind, which weights close it, and what is refused before it begins."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch

from smg.errors import SmgError
from smg.learner.config import LearnerConfig
from smg.learner.exemplars import alias
from smg.learner.learner import Learner
from smg.learner.records import Kept
from smg.prepare.prepared_site import prepare_site
from smg.replay.selection import select
from smg.replay.subject_features import foreground_features
from smg.sites.site import Site
from tests.learner.streams import TINY, fingerprint, refused, tiny_learner


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
    made = tiny_learner(tmp_path / "model")
    made.learn(Site.find(copy, "A"))
    shutil.rmtree(copy / "A")
    shutil.rmtree(os.environ["SMG_CACHE"])
    again = Learner(tmp_path / "model")
    again.learn(Site.find(copy, "B"))
    assert {site: len(kept) for site, kept in again.replay().items()} == {"A": 2, "B": 2}


def test_a_learned_site_is_refused_unless_asked_for(taught: Learner, data: Path) -> None:
    with refused("site B", "round 2", "--again"):
        taught.learn(Site.find(data, "B"))
    assert taught.learn(Site.find(data, "B"), again=True).round == 3


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


def test_exemplars_can_be_chosen_by_their_foreground(data: Path, tmp_path: Path) -> None:
    made = tiny_learner(tmp_path / "model", replay={"features": "foreground"})
    for name in "AB":
        selection = made.learn(Site.find(data, name)).selection
    prepared = {alias(0, "B", p.subject.case): p for p in prepare_site(Site.find(data, "B"), made.config.preparation)}
    candidates = [prepared[name] for name in selection.candidates]
    features = foreground_features(made.network(), candidates, made.config.preparation)
    previous = foreground_features(made.network(), made.replay()["A"], made.config.preparation)
    choice = select("comprehensive", features, [previous])
    assert tuple(selection.candidates[i] for i in choice.chosen) == selection.chosen
    torch.testing.assert_close(torch.tensor(selection.H, dtype=torch.float64), choice.scores.hybrid)


def test_the_mean_of_the_second_half(data: Path, tmp_path: Path) -> None:
    def weights(iterations: int, select: str = "last") -> list[torch.Tensor]:
        network = {"width": 4, "depth": 1, "norm": "batch"}
        made = tiny_learner(tmp_path / f"{select} {iterations}", iterations=iterations, network=network, select=select)
        made.learn(Site.find(data, "A"))
        return [tensor.double() for tensor in _weights(made) if tensor.is_floating_point()]

    trajectory = [weights(iterations) for iterations in (3, 4, 5)]  # a round that stops earlier has the same steps
    for ours, passed in zip(weights(5, "average"), zip(*trajectory, strict=True), strict=True):
        assert torch.allclose(ours, torch.stack(passed).mean(dim=0), rtol=1e-5, atol=1e-7)
        assert not torch.equal(ours, passed[-1])


def test_the_best_weights_by_validation(data: Path, tmp_path: Path) -> None:
    last = tiny_learner(tmp_path / "last", iterations=12, validate_every=1, optimiser={"rate": 0.05})
    best = tiny_learner(tmp_path / "best", iterations=12, validate_every=1, optimiser={"rate": 0.05}, select="best")
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
        made = tiny_learner(tmp_path / str(keep), keep_optimiser=keep)
        for name in "AB":
            made.learn(Site.find(data, name))
        weights.append(torch.cat([t.reshape(-1) for t in made.store.read_tensors(2, "weights").values()]))
    assert not torch.equal(*weights)


def test_per_site_has_a_network_for_every_site_and_pooled_keeps_all(data: Path, tmp_path: Path) -> None:
    apart = tiny_learner(tmp_path / "apart", method="per-site")
    whole = tiny_learner(tmp_path / "whole", method="pooled")
    for made in (apart, whole):
        for name in "AB":
            made.learn(Site.find(data, name))
    own = apart.network_for("A").state_dict()
    assert all(torch.equal(a, b) for a, b in zip(own.values(), apart.network(1).state_dict().values(), strict=True))
    assert {site: len(kept) for site, kept in whole.replay().items()} == {"A": 2, "B": 2}
    assert apart.replay() == {}


KINDS = (torch.bool, torch.int8, torch.int16, torch.int32, torch.float16, torch.bfloat16, torch.float64)


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
    made = tiny_learner(tmp_path / "model", network={"name": f"{__name__}:Masked"})
    made.learn(Site.find(data, "A"))
    made.learn(Site.find(data, "B"))
    stored = Learner(tmp_path / "model").store.read_tensors(2, "weights")
    assert [t.dtype for name, t in sorted(stored.items()) if "buffer" in name] == list(KINDS)


def test_a_misfit_shows_before_a_round(data: Path, tmp_path: Path) -> None:
    small = {"init_filters": 8, "blocks_down": [1, 1], "blocks_up": [1]}
    made = tiny_learner(tmp_path / "model", network={"name": "SegResNet", "bottleneck": "nowhere", "arguments": small})
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
    made = tiny_learner(tmp_path / "model", network=own, replay={"features": "foreground"})
    with pytest.raises(SmgError, match=r"tokens.*replay\.features=everywhere"):
        made.learn(Site.find(data, "A"), on_step=lambda iteration, step: pytest.fail("it began"))

"""Merging at a round's end: against closed forms, and in a model."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from smg.federation.round_exchange import outgoing
from smg.learner.config import LearnerConfig
from smg.learner.learner import Learner
from smg.learner.merging import Merging, merge
from smg.methods.ewc import log_likelihood
from smg.prepare.batches import Batch
from smg.sites.site import Site
from tests.learner.streams import TINY, write_sites
from tests.toys import iteration, oracle


def config(**changes: Any) -> LearnerConfig:
    return LearnerConfig.model_validate(TINY | {"method": "finetune"} | changes)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sites(tmp_path_factory.mktemp("sites"))


def taught(folder: Path, data: Path, sites: str = "AB", **changes: Any) -> Learner:
    learner = Learner.create(folder, config(**changes))
    for site in sites:
        learner.learn(Site.find(data, site))
    return learner


def theta(learner: Learner, number: int) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in learner.network(number).parameters()])


class Quadratic:
    """Answers for samples whose log-likelihood is a quadratic: of sample k, gradients ±√curvature away from a minimum.

    Their mean square is the curvature, as that of a Gaussian likelihood's samples is.
    """

    def __init__(self, curvature: Tensor) -> None:
        self.curvature, self.sign = curvature, 1.0

    def __call__(self, at: Tensor, batch: Batch, loss: Callable[..., Tensor] | None = None) -> Tensor:
        assert loss is log_likelihood
        assert len(batch) == 1
        self.sign = -self.sign
        return self.sign * self.curvature.sqrt()


@pytest.mark.parametrize("share", [0.3, 0.5, 0.6, 0.9])
def test_fisher_merging_is_the_minimum_of_the_two_quadratics(share: float) -> None:
    """The minimum found by solving for a gradient of zero, in double precision."""
    rng = torch.Generator().manual_seed(1)
    a, b, p, q = torch.rand(4, 12, generator=rng, dtype=torch.float64).unbind()
    before = Merging(share, by_fisher=True)
    old = before.summed(before.looked(q, Quadratic(b), iteration()))["importance"]  # type: ignore[arg-type]
    merging = Merging(share, by_fisher=True, importance=old)
    found = merging.looked(p, Quadratic(a), iteration())  # type: ignore[arg-type]
    ours = merge(p, q, merging.shares(found))

    a, b = a / a.mean(), b / b.mean()

    def whole(x: Tensor) -> Tensor:
        return share * (a * (x - p) ** 2).sum() / 2 + (1 - share) * (b * (x - q) ** 2).sum() / 2

    at = torch.zeros(12, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(whole(at), at)
    curvature = torch.autograd.functional.hessian(whole, at.detach())
    torch.testing.assert_close(ours, torch.linalg.solve(curvature, -slope), rtol=1e-5, atol=1e-6)  # the floor is 1e-6


def test_importances_of_equal_size_merge_by_share_and_extreme_ones_take_a_side() -> None:
    even, one = torch.ones(4), Merging(0.7, True, torch.tensor([3.0, 3.0, 3.0, 3.0]))
    torch.testing.assert_close(one.shares(even), torch.full((4,), 0.7))
    lopsided = Merging(0.7, True, torch.tensor([4.0, 0.0, 0.0, 0.0]))
    shares = lopsided.shares(torch.tensor([0.0, 4.0, 0.0, 0.0]))
    assert isinstance(shares, Tensor)
    torch.testing.assert_close(shares, torch.tensor([0.0, 1.0, 0.7, 0.7]), rtol=0, atol=1e-5)


def test_the_importance_is_ewcs_of_a_real_network() -> None:
    ours = oracle()
    ours.at(0, 1, 0, report=False)
    found = Merging(0.5, by_fisher=True).looked(ours.theta.clone(), ours, iteration())
    total = sum(ours(ours.theta.clone(), one, log_likelihood).square() for one in iteration().each())
    assert found is not None
    assert isinstance(total, Tensor)
    torch.testing.assert_close(found, total / total.mean())


# --- in a model -------------------------------------------------------------------------------------------------------

BATCH_NORM = {"network": {"width": 4, "depth": 1, "norm": "batch"}}


@pytest.mark.parametrize("select", ["last", "best", "average"])
def test_the_second_round_closes_with_the_mean_and_the_first_as_ever(select: str, data: Path, tmp_path: Path) -> None:
    changes = {"select": select, "validate_every": 1, **BATCH_NORM}
    plain = taught(tmp_path / "plain", data, **changes)
    merged = taught(tmp_path / "merged", data, merge=0.6, **changes)
    files = [one.store.files_of(1)["weights.safetensors"] for one in (plain, merged)]
    assert files[0] == files[1]
    first, second, ours = (one.state_dict() for one in (plain.network(1), plain.network(2), merged.network(2)))
    moving = [name for name, tensor in ours.items() if tensor.is_floating_point()]
    assert any("running_mean" in name for name in moving)
    for name in moving:
        torch.testing.assert_close(ours[name], 0.6 * second[name] + 0.4 * first[name], rtol=1e-4, atol=1e-6)
    whole = taught(tmp_path / "whole", data, merge=1.0, **changes)
    for name in moving:
        torch.testing.assert_close(whole.network(2).state_dict()[name], second[name], rtol=1e-5, atol=1e-7)


def test_fisher_merging_keeps_importances_with_the_version(data: Path, tmp_path: Path) -> None:
    learner = taught(tmp_path / "model", data, merge=0.6, merge_by="fisher")
    plain = taught(tmp_path / "plain", data)
    kept = [learner.store.read_tensors(n, "merging")["importance"] for n in (1, 2)]
    assert [float(one.mean()) for one in kept] == pytest.approx([1, 2], rel=1e-4)
    found = kept[1] - kept[0]
    share = Merging(0.6, True, kept[0]).shares(found)
    torch.testing.assert_close(theta(learner, 2), merge(theta(plain, 2), theta(plain, 1), share), rtol=1e-3, atol=1e-5)
    assert not torch.allclose(theta(learner, 2), merge(theta(plain, 2), theta(plain, 1), 0.6), rtol=1e-3, atol=1e-5)
    row = learner.stored()[1]
    assert row.state.bytes == 4 * len(found)
    assert "mean squared gradients, for merging" in row.state.of_patients
    straight = Learner(shutil.copytree(tmp_path / "model", tmp_path / "copy")).learn(Site.find(data, "C"))
    learner.rollback(1)
    learner.rollback(2)
    assert learner.learn(Site.find(data, "C")).files == straight.files


def test_a_method_looks_at_the_merged_weights(data: Path, tmp_path: Path) -> None:
    learner = taught(tmp_path / "model", data, method="ewc", merge=0.6)
    assert torch.equal(learner.store.read_tensors(2, "state")["theta"], theta(learner, 2))


def test_after_a_round_without_importances_it_goes_by_share(data: Path, tmp_path: Path) -> None:
    taught(tmp_path / "model", data, "A")
    shutil.copytree(tmp_path / "model", tmp_path / "copy")
    rounds = []
    for name, by in (("model", "fisher"), ("copy", "share")):
        learner = Learner(tmp_path / name, config(merge=0.6, merge_by=by))
        learner.learn(Site.find(data, "B"))
        rounds.append(theta(learner, 2))
    assert torch.equal(*rounds)


def test_a_network_for_every_site_is_not_merged(data: Path, tmp_path: Path) -> None:
    folders = [taught(tmp_path / str(w), data, method="per-site", merge=w).store for w in (None, 0.5)]
    assert folders[0].read_round(2).files == folders[1].read_round(2).files


def test_in_a_federation_importances_travel_with_a_version_and_spectra_stay(data: Path, tmp_path: Path) -> None:
    learner = taught(tmp_path / "model", data, merge=0.6, merge_by="fisher", memory="style")
    message = outgoing(learner.store.folder, 2, rename=str)
    kinds = {name.partition("/")[0] for name in message.tensors}
    assert kinds == {"weights", "merging"}
    kept = learner.store.read_tensors(2, "merging")["importance"]
    assert torch.equal(message.tensors["merging/importance"], kept)

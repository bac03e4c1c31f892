"""R, V and H worked by hand, and each policy's choice."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from smg.errors import SmgError
from smg.networks import NetworkConfig, bottleneck_features, build_network
from smg.networks.features import bottleneck_map
from smg.replay.selection import POLICIES, score, select
from smg.replay.subject_features import foreground_features, subject_features
from tests.toys import OPTIONS, subject

EAST, NORTH, WEST = (1.0, 0.0), (0.0, 1.0), (-1.0, 0.0)
HALF = 0.5**0.5
FEATURES = torch.tensor([EAST, (2.0, 2.0), NORTH])  # μ points to the north-east


def test_scores_by_hand() -> None:
    previous = [torch.tensor([EAST]), torch.tensor([NORTH, WEST])]
    scores = score(FEATURES, previous, weight=2.0)
    assert scores.representativeness.tolist() == pytest.approx([HALF, 1.0, HALF])
    # east: against site 1 -1, against site 2 min(0, 1) = 0; the middle: -√½ and min(-√½, √½); north: 0 and min(-1, 0)
    assert scores.diversity.tolist() == pytest.approx([-0.5, -HALF, -0.5])
    assert scores.hybrid.tolist() == pytest.approx([HALF - 1.0, 1.0 - 2 * HALF, HALF - 1.0])


def test_with_no_previous_site_diversity_is_nothing_and_comprehensive_is_representative() -> None:
    assert score(FEATURES, []).diversity.tolist() == [0, 0, 0]
    assert select("comprehensive", FEATURES, []).chosen == select("representative", FEATURES, []).chosen == (1, 0)


def test_comprehensive_leaves_what_is_kept_already() -> None:
    previous = [torch.tensor([(2.0, 2.0)])]
    assert select("representative", FEATURES, previous, count=1).chosen == (1,)
    assert select("comprehensive", FEATURES, previous, count=1, weight=0.0).chosen == (1,)
    assert select("comprehensive", FEATURES, previous, count=1, weight=2.0).chosen == (0,)


def test_k_center_takes_the_farthest_next() -> None:
    features = torch.tensor([[0.0, 1.0], [0.1, 1.0], [3.0, 1.2], [0.0, 1.1], [1.5, 1.0]])
    first, second, third = select("k-center", features, [], count=3).chosen
    assert first == int(score(features, []).representativeness.argmax())
    distances = (features - features[first]).norm(dim=1)
    assert second == int(distances.argmax())
    assert third not in (first, second)


def test_random_depends_on_seed_and_round_alone() -> None:
    features = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    one = select("random", features, [], seed=1, round=2).chosen
    assert select("random", features * 7, [], seed=1, round=2).chosen == one
    assert len({select("random", features, [], seed=s, round=2).chosen for s in range(10)}) > 5


def test_asking_for_more_than_there_are() -> None:
    for name in ("random", "representative", "comprehensive", "k-center"):
        assert sorted(select(name, FEATURES, [], count=9).chosen) == [0, 1, 2]


def test_an_unknown_policy() -> None:
    with pytest.raises(SmgError, match="no replay policy 'best'; it is one of random, representative"):
        select("best", FEATURES, [])


def test_a_subjects_feature_is_the_bottleneck_averaged_over_space_and_slices() -> None:
    network = build_network(NetworkConfig(width=4, depth=1), 0)
    subjects = [subject(0, slices=21), subject(1, slices=3)]
    features = subject_features(network, subjects, OPTIONS)
    for row, one in zip(features, subjects, strict=True):
        alone = torch.stack([bottleneck_features(network, image[None])[0] for image in one.images])
        assert torch.allclose(row, alone.mean(0), atol=1e-6)


def test_a_feature_of_the_foreground_is_its_weighted_mean() -> None:
    """Against positions one by one: 16 x 16 pixels, a map of 8 x 8."""
    network = build_network(NetworkConfig(width=4, depth=1), 0)
    one = subject(0, slices=21)
    (row,) = foreground_features(network, [one], OPTIONS)
    total, weight = torch.zeros_like(row), 0.0
    for image, labels in zip(one.images, one.labels, strict=True):
        features = bottleneck_map(network, image[None])[0]
        step = image.shape[-1] // features.shape[-1]
        for y in range(features.shape[-2]):
            for x in range(features.shape[-1]):
                share = float((labels[step * y : step * (y + 1), step * x : step * (x + 1)] > 0).float().mean())
                total += share * features[:, y, x]
                weight += share
    assert torch.allclose(row, total / weight, atol=1e-5)
    empty = replace(one, labels=torch.zeros_like(one.labels))
    assert not foreground_features(network, [empty], OPTIONS).any()
    with pytest.raises(SmgError, match="tokens"):
        bottleneck_map(Tokens(), one.images[:1], "inner")


class Tokens(torch.nn.Module):
    """What a transformer looks like from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Flatten(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


@pytest.mark.parametrize("name", ["random", "representative", "comprehensive", "k-center"])
def test_none_is_none_and_nobody_is_kept_twice(name: str) -> None:
    assert select(name, FEATURES, [], count=0).chosen == ()
    assert sorted(select(name, torch.ones(3, 2), [], count=3).chosen) == [0, 1, 2]
    assert sorted(select(name, FEATURES, [], count=9).chosen) == [0, 1, 2]


def test_a_policy_of_ones_own_that_keeps_too_many_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES, "greedy", lambda candidates, count: list(range(len(candidates.features))))
    with pytest.raises(SmgError, match=r"policy 'greedy': chose \[0, 1, 2\]; return 2 different"):
        select("greedy", FEATURES, [], count=2)

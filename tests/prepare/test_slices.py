"""Slices are drawn as a function of (seed, round, iteration)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from smg.prepare.cache import Prepared
from smg.prepare.prepare_options import Preparation
from smg.prepare.prepared_site import prepare_site
from smg.prepare.slices import Samples, Slices, _permutation, draw_indices
from smg.randomness import digest, numpy_generator, torch_generator
from smg.sites.site import Site
from tests.conftest import write_site


@pytest.fixture
def prepared(tmp_path: Path) -> list[Prepared]:
    return prepare_site(Site.find(write_site(tmp_path / "HK", 3)), Preparation(size=16))


def test_the_batch_of_an_iteration_does_not_depend_on_those_before(prepared: list[Prepared]) -> None:
    def batch(slices: Slices, number: int) -> Samples:
        return slices.gather(draw_indices(len(slices), 5, "incoming", 0, 2, number))

    slices = Slices(prepared, Preparation(size=16))
    straight = [batch(slices, t) for t in range(40)]
    _permutation.cache_clear()  # as in a new process
    late = batch(Slices(prepared, Preparation(size=16)), 37)
    assert torch.equal(late.images, straight[37].images)
    assert torch.equal(late.labels, straight[37].labels)


@given(n=st.integers(1, 30), count=st.integers(1, 7))
def test_every_slice_once_before_any_twice(n: int, count: int) -> None:
    drawn = np.concatenate([draw_indices(n, count, "incoming", 0, 1, t) for t in range(3 * n)])
    for start in range(0, len(drawn) - n + 1, n):
        assert sorted(drawn[start : start + n]) == list(range(n))


def test_seed_round_and_purpose_all_matter() -> None:
    base = draw_indices(50, 20, "incoming", 0, 0, 0)
    for other in (("incoming", 1, 0, 0), ("incoming", 0, 1, 0), ("replay", 0, 0, 0), ("incoming", 0, 0, 1)):
        assert draw_indices(50, 20, *other) != base


def test_draws_are_the_same_on_every_machine() -> None:
    assert draw_indices(10, 5, "incoming", 0, 0, 0) == [1, 3, 4, 8, 0]
    assert digest("a", 1) == 13722700206037900931
    assert numpy_generator("x", 1, 2).integers(1000) == numpy_generator("x", 1, 2).integers(1000)
    assert torch_generator("x", 1).initial_seed() != torch_generator("x", 2).initial_seed()


def test_empty_slices_can_be_left_out(prepared: list[Prepared]) -> None:
    assert len(Slices(prepared, Preparation(size=16))) == 18
    without = Slices(prepared, Preparation(size=16, empty_slices=False))
    assert len(without) == 12
    assert without.gather(range(12)).labels.flatten(1).any(1).all()


def test_neighbours_as_channels(prepared: list[Prepared]) -> None:
    slices = Slices(prepared, Preparation(size=16, adjacent=3))
    batch = slices.gather([0, 7, 17])
    images = [p.images[:, 0] for p in prepared]
    assert batch.images.shape == (3, 3, 16, 16)
    assert torch.equal(batch.images[0], images[0][[0, 0, 1]])  # the first slice is its own neighbour
    assert torch.equal(batch.images[1], images[1][[0, 1, 2]])
    assert torch.equal(batch.images[2], images[2][[4, 5, 5]])
    assert torch.equal(batch.labels[1], prepared[1].labels[1])

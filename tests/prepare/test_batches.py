"""Batches of an iteration: D, P, P_k and the halves of D ∪ P."""

from __future__ import annotations

from collections import Counter

import torch

from smg.prepare.augment import Augmentation, augment
from tests.toys import iteration


def test_names_sizes_and_sources() -> None:
    batches = iteration(3, previous=3, size=5)
    assert {row[0] for row in batches.incoming.rows} == {0}
    assert batches.replay is not None
    assert len(batches.replay) == 5
    assert {row[0] for row in batches.replay.rows} <= {1, 2, 3}
    assert [{row[0] for row in batch.rows} for batch in batches.exemplars] == [{1}, {2}, {3}]
    assert [batch.name for batch in batches.exemplars] == ["site 1", "site 2", "site 3"]
    assert iteration(previous=0).replay is None
    assert iteration(previous=0).exemplars == ()


def test_replay_is_drawn_evenly_over_sites_and_their_slices() -> None:
    drawn = [row for number in range(30) for row in iteration(number, previous=3, size=4).replay.rows]  # type: ignore[union-attr]
    assert Counter(row[0] for row in drawn) == {1: 40, 2: 40, 3: 40}
    for site in (1, 2, 3):  # each of the ten slices of a site four times
        assert set(Counter(row[1] for row in drawn if row[0] == site).values()) == {4}


def test_the_replay_batch_can_have_a_size_of_its_own() -> None:
    batches = iteration(size=4, replay_size=2)
    assert batches.replay is not None
    assert (len(batches.incoming), len(batches.replay)) == (4, 2)
    train, test = batches.split(batches.incoming, batches.replay)
    assert (len(train), len(test)) == (3, 3)
    assert [len(p_k) for p_k in batches.exemplars] == [2, 2]
    assert len(batches.pooled) == 6  # as D and P together
    every = (batches.incoming, batches.replay, *batches.exemplars, batches.pooled)
    places = [row[2] for batch in every for row in batch.rows]
    assert len(set(places)) == len(places)  # no two rows share their augmentation


def test_halves_are_equal_disjoint_and_differ_between_iterations() -> None:
    halves = []
    for number in range(6):
        batches = iteration(number)
        assert batches.replay is not None
        train, test = batches.split(batches.incoming, batches.replay)
        assert len(train) == len(test) == 4
        assert set(train.rows) | set(test.rows) == set(batches.incoming.rows) | set(batches.replay.rows)
        halves.append(tuple(sorted(row[2] for row in train.rows)))
    assert len(set(halves)) > 3


def test_pooled_goes_evenly_over_every_slice_of_every_site() -> None:
    drawn = [row[:2] for number in range(5) for row in iteration(number, previous=2, size=4).pooled.rows]
    assert len(drawn) == len(set(drawn)) == 40  # four subjects and twice two, five slices each


def test_a_row_is_the_same_in_every_batch_and_read_once() -> None:
    strong = Augmentation.preset("strong")
    batches = iteration(2, augmentation=strong)
    d, p = batches.incoming, batches.replay
    assert p is not None
    whole = {row: image for b in (d, p) for row, image in zip(b.rows, b.load().images, strict=True)}
    for half in batches.split(d, p):
        for row, image in zip(half.rows, half.load().images, strict=True):
            assert torch.equal(image, whole[row])
    assert len(batches._loaded) == 8


def test_a_share_of_a_batch_is_augmented_as_in_the_whole() -> None:
    strong = Augmentation.preset("strong")
    whole = iteration(2, augmentation=strong).incoming.load()
    for share in (slice(0, 2), slice(2, 4), slice(1, 2)):
        part = iteration(2, augmentation=strong).incoming.load(share)
        assert torch.equal(part.images, whole.images[share])
        assert torch.equal(part.labels, whole.labels[share])


def test_augmentation_is_that_of_the_iteration() -> None:
    mild = Augmentation.preset("mild")
    plain, augmented = iteration(4).incoming.load(), iteration(4, augmentation=mild).incoming.load()
    images, labels = augment(plain.images, plain.labels, mild, 0, 1, 4)
    assert torch.equal(augmented.images, images)
    assert torch.equal(augmented.labels, labels)

"""Batches that a thread prepares for the next iteration are those that would have been made without it."""

from __future__ import annotations

import threading

import pytest
import torch

from smg.prepare.ahead import Ahead
from smg.prepare.augment import Augmentation
from smg.prepare.batches import Iteration
from tests.toys import iteration

STRONG = Augmentation.preset("strong")


def made(number: int) -> Iteration:
    return iteration(number, augmentation=STRONG)


def test_batches_are_the_same_and_there_before_they_are_asked_for() -> None:
    ahead = Ahead(made, last=4)
    for number in range(4):
        taken, alone = ahead.take(number), made(number)
        assert bool(taken._loaded) == (number > 1)  # the first step shows which batches a method uses
        for ours, theirs in ((taken.incoming, alone.incoming), *zip(taken.exemplars, alone.exemplars, strict=True)):
            assert torch.equal(ours.load().images, theirs.load().images)
            assert torch.equal(ours.load().labels, theirs.load().labels)
        assert "replay" not in vars(taken)  # which this method does not use
        ahead.note(taken)
    ahead.close()


def test_another_iteration_than_the_next_is_made_when_it_is_asked_for() -> None:
    ahead = Ahead(made, last=9)
    first = ahead.take(0)
    first.incoming.load()
    ahead.note(first)
    ahead.take(1)
    again = ahead.take(1)  # as after a source of gradients that changed
    assert (again.number, again._loaded) == (1, {})
    ahead.close()


def test_an_error_of_the_thread_is_raised_where_the_iteration_is_taken() -> None:
    def broken(number: int) -> Iteration:
        if threading.current_thread() is not threading.main_thread():
            raise OSError("the cache cannot be read")
        return made(number)

    ahead = Ahead(broken, last=9)
    first = ahead.take(0)
    first.incoming.load()
    ahead.note(first)
    ahead.take(1)
    with pytest.raises(OSError, match="cache"):
        ahead.take(2)
    ahead.close()

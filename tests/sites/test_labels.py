"""Mask values to classes."""

from __future__ import annotations

import numpy as np
import pytest

from smg.errors import SmgError
from smg.sites.labels import Labels

MASK = np.array([[0, 1], [2, 3]], np.uint8)


@pytest.mark.parametrize(
    ("given", "index", "unexpected"),
    [
        ("any", [[0, 1], [1, 1]], []),
        ([1, 2], [[0, 1], [1, 0]], [3]),
        (2, [[0, 0], [1, 0]], [1, 3]),
        ({"central": 1, "peripheral": [2, 3]}, [[0, 1], [2, 2]], []),
        ({"classes": {"gland": [1, 2]}, "background": [0, 3]}, [[0, 1], [1, 0]], []),
    ],
)
def test_forms(given: object, index: list[list[int]], unexpected: list[float]) -> None:
    labels = Labels.model_validate(given)
    assert labels.index(MASK).tolist() == index
    assert labels.unexpected(MASK) == unexpected
    assert Labels.model_validate(labels.model_dump(mode="json")) == labels


def test_words_of_the_command_line() -> None:
    assert Labels.parse([]) == Labels.parse(["any"]) == Labels()
    assert Labels.parse(["1,2"]) == Labels.model_validate([1, 2])
    assert Labels.parse(["central=1", "peripheral=2"]).names == ("central", "peripheral")
    for words in (["one"], ["1", "2"], ["a=1", "2"]):
        with pytest.raises(SmgError, match="give 'any', values such as '1,2', or classes"):
            Labels.parse(words)


def test_where_any_value_will_do_it_must_still_be_a_label() -> None:
    assert Labels().unexpected(np.array([0, 0.5, -1, 2])) == [-1, 0.5]
    assert Labels().unexpected(MASK, frozenset({0, 1, 2})) == [3]

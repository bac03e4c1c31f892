"""Mask values are mapped to classes and back."""

from __future__ import annotations

import json

import numpy as np
import pytest

from smg.errors import SmgError
from smg.sites.labels import Labels, first_class

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
        with pytest.raises(SmgError, match="give 'any'"):
            Labels.parse(words)


def test_any_foreground_value_has_to_be_a_whole_number() -> None:
    assert Labels().unexpected(np.array([0, 0.5, -1, 2])) == [-1, 0.5]
    assert Labels().unexpected(MASK, frozenset({0, 1, 2})) == [3]


def test_the_index_of_a_class_depends_on_its_value_and_not_on_the_order_given() -> None:
    """Files keep keys sorted, so that learning and measuring would have different indices if order counted."""
    one, other = (
        Labels.model_validate(given) for given in ({"prostate": 1, "bladder": 2}, {"bladder": 2, "prostate": 1})
    )
    assert one.names == other.names == ("prostate", "bladder")
    assert one.index(MASK).tolist() == other.index(MASK).tolist()
    again = Labels.model_validate(json.loads(json.dumps(one.model_dump(mode="json"), sort_keys=True)))
    assert again.names == one.names
    assert first_class({"preparation": {"labels": other.model_dump(mode="json")}}) == "prostate"
    assert first_class({}) == "foreground"


def test_class_indices_as_the_data_sets_own_values() -> None:
    index = np.array([0, 1, 2], np.uint8)
    assert Labels.model_validate({"bladder": [7, 8], "prostate": 3}).values(index).tolist() == [0, 3, 7]
    assert Labels.model_validate([5]).values(index[:2]).tolist() == [0, 5]
    assert Labels().values(index[:2]).tolist() == [0, 1]
    zero = Labels.parse(["gland=1", "background=2,0"])
    assert zero.values(index[:2]).tolist() == list(zero.written) == [0, 1]
    assert Labels.parse(["gland=1", "background=3,2"]).values(index[:2]).tolist() == [3, 1]
    assert Labels.model_validate([300]).values(index[:2]).tolist() == [0, 300]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["a=1,2", "b=2"], "value 2 means two things"),
        (["a=0"], "value 0 means two things"),
        (["a=1", "a=2"], "named twice"),
    ],
)
def test_a_value_means_one_thing(words: list[str], sentence: str) -> None:
    with pytest.raises(SmgError, match=sentence):
        Labels.parse(words)

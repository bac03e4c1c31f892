"""The guard's table: worked by hand on runs whose falls are known."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.guard import RULES, SiteRound, by_exemplars, by_sentinels, table

FALLEN = SiteRound(12.0, np.array([[0.80, 0.90], [0.70, 0.89]]), (0.95, 0.97))  # ten points of one, one of the other
CREPT = SiteRound(4.0, np.array([[0.90, 0.90], [0.85, 0.85], [0.79, 0.81]]), None)  # eleven and nine in two rounds
SOUND = SiteRound(-1.0, np.array([[0.80, 0.90], [0.80, 0.90]]), (0.95, 0.80))


def test_each_rule_holds_what_it_sees() -> None:
    assert by_exemplars(FALLEN) == 0.0  # the round trained on them
    assert by_exemplars(SOUND) == 1.0
    assert by_sentinels(1)(FALLEN) == 0.5  # by one of the two
    assert by_sentinels(None)(FALLEN) == 1.0  # 5.5 points on average
    assert by_sentinels(1, "before")(CREPT) == 0.5
    assert by_sentinels(1, "best")(CREPT) == 1.0
    assert by_sentinels(1)(CREPT) == 0.5
    assert by_sentinels(2)(SOUND) == 0.0


def test_the_table_counts_site_rounds_by_their_true_fall() -> None:
    text = table("bench", [FALLEN, CREPT, SOUND])
    assert "true fall > 5 (1)" in text
    assert "fall < 2 (1)" in text
    cells = {line.split("|")[1].strip(): line.split("|")[2:-1] for line in text.splitlines() if line.startswith("| ")}
    assert [float(cell) for cell in cells["one sentinel, against the round before"] if cell.strip() != "-"] == [
        50, 50, 0, 25,
    ]  # fmt: skip
    assert cells["exemplars (first stage)"][0].strip() == "0"
    assert set(RULES) < set(cells)


def test_more_subjects_than_there_are_is_all_of_them() -> None:
    one = SiteRound(0.0, np.array([[0.8], [0.7]]), None)
    assert by_sentinels(2)(one) == by_sentinels(1)(one) == pytest.approx(1.0)

"""BM, BT, FM and FT of a matrix computed by hand."""

from __future__ import annotations

import math

import pytest

from smg.evaluation.measures import COSTS, FORMULAS, MEASURES, measures, plasticity

MATRIX = {
    "A": {"A": 0.90, "B": 0.50, "C": 0.40, "X": 0.30},
    "B": {"A": 0.80, "B": 0.85, "C": 0.45, "X": 0.35},
    "C": {"A": 0.60, "B": 0.75, "C": 0.95, "X": 0.50},
    "X": {"A": 0.55, "B": 0.70, "C": 0.90, "X": 0.80},
}


def test_by_hand() -> None:
    found = measures(MATRIX, ["A", "B", "C"], "X")
    assert found["BM"] == pytest.approx((0.60 + 0.75 + 0.95) / 3)
    assert found["BT"] == pytest.approx(((0.60 - 0.90) + (0.75 - 0.85)) / 2)
    assert found["FM"] == pytest.approx(0.50)
    assert found["FT"] == pytest.approx(0.50 - 0.80)


def test_a_measure_that_was_not_evaluated_is_nan() -> None:
    without = {name: row for name, row in MATRIX.items() if name != "X"}
    assert math.isnan(measures(without, ["A", "B", "C"], "X")["FT"])
    assert math.isnan(measures(MATRIX, ["A", "B", "C"], None)["FM"])
    assert math.isnan(measures(MATRIX, ["A"], "X")["BT"])
    broken = MATRIX | {"C": {"A": math.nan, "B": 0.75, "C": 0.95, "X": 0.5}}
    assert math.isnan(measures(broken, ["A", "B", "C"], "X")["BM"])


def test_plasticity_by_hand() -> None:
    alone = {"A": 0.7, "B": 0.7, "C": 0.8}
    own = [MATRIX[site][site] for site in "ABC"]
    assert plasticity(MATRIX, ["A", "B", "C"], alone) == pytest.approx((sum(own) - 2.2) / 3)
    assert math.isnan(plasticity(MATRIX, ["A", "B", "C"], {"A": 0.7}))


def test_the_table_names_every_measure_once() -> None:
    assert list(MEASURES) == list(measures(MATRIX, ["A", "B", "C"], "X")) == ["BM", "BT", "FM", "FT"]
    assert list(FORMULAS) == [*MEASURES, *COSTS]
    sites = {name: list(measure.sites(["A", "B", "C"], "X")) for name, measure in MEASURES.items()}
    assert sites == {"BM": ["A", "B", "C"], "BT": ["A", "B"], "FM": ["X"], "FT": ["X"]}
    assert [name for name, measure in MEASURES.items() if measure.is_transfer] == ["BT", "FT"]

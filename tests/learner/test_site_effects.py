"""What rounds did to every site, and which sites a version still knows: from records made by hand."""

from __future__ import annotations

import pytest

from smg.learner.guard import Judged, judge
from smg.learner.records import RoundRecord
from smg.learner.site_effects import Standing, effects_of, standings

CONFIG = {"method": "jm", "iterations": 3, "seed": 0, "guard": {"subjects": 1, "tolerance": 5.0}}


def record(number: int, site: str, dsc: float, tolerance: float | None = 5.0, **judged: Judged) -> RoundRecord:
    """Return the record of a round whose guard has judged earlier sites."""
    rows = [{"subject": "x", "classes": {"foreground": {"dsc": dsc}}}]
    guard = {"tolerance": tolerance, "sites": {s: j.model_dump() for s, j in judged.items()}, "reasons": []}
    tree = {
        "format": 3, "round": number, "parent": number - 1, "site": site, "config": CONFIG, "test": rows,
        "guard": guard, "subjects": {"train": 2, "validation": 1, "test": 1}, "parts": {}, "scans": [], "versions": {},
        "keeps_of_patients": "", "seconds": 1.0, "curve": [], "log": [], "familiar": None, "kept": {}, "earlier": {},
        "files": {}, "sentinels": {}, "held": False,
        "selection": {"policy": "random", "chosen": [], "candidates": [], "R": [], "V": [], "H": []},
    }  # fmt: skip
    return RoundRecord.model_validate(tree, strict=False)


def states(*records: RoundRecord) -> dict[str, str]:
    return {one.site: one.state for one in standings(records)}


def test_a_round_s_own_site_comes_first_and_has_no_before() -> None:
    own, earlier = effects_of(record(2, "B", 0.8, A=judge("sentinels", [0.7], [0.6])), ["A"])
    assert (own.site, own.before, own.after, own.grounds) == ("B", None, 0.8, "test part (1)")
    assert (earlier.grounds, earlier.change, earlier.lost) == ("1 sentinel", pytest.approx(-0.1), True)
    scans = effects_of(record(2, "B", 0.8, A=judge("held-out scans", [0.7] * 3, [0.7] * 3)), ["A"])[1]
    assert (scans.grounds, scans.lost) == ("3 held-out scans", False)


def test_what_was_not_measured_has_no_number() -> None:
    effect = effects_of(record(2, "B", 0.8, A=judge("sentinels", [], [])), ["A"])[1]
    assert (effect.grounds, effect.change, effect.lost) == ("not measured", None, False)
    assert effect.as_json()["evidence"] == "not measured"
    assert effects_of(record(2, "B", 0.8), ["A"])[1].grounds == "has its own network"
    before_the_guard = record(2, "B", 0.8).model_copy(update={"guard": None})
    assert effects_of(before_the_guard, ["A"])[1].grounds == "not measured"


def test_a_lost_site_is_lost_until_a_round_restores_it() -> None:
    first = record(1, "A", 0.8)
    harmed = record(2, "B", 0.8, A=judge("sentinels", [0.8], [0.5]))
    assert states(first, harmed) == {"A": "lost", "B": "known"}
    unmeasured = record(3, "C", 0.8, A=judge("sentinels", [], []), B=judge("sentinels", [], []))
    assert states(first, harmed, unmeasured) == {"A": "lost", "B": "not measured", "C": "known"}
    restored = record(3, "C", 0.8, A=judge("sentinels", [0.5], [0.8], [0.8]), B=judge("sentinels", [0.8], [0.8]))
    assert set(states(first, harmed, restored).values()) == {"known"}
    assert states(first, harmed, record(3, "A", 0.8, B=judge("sentinels", [0.8], [0.8])))["A"] == "known"


def test_an_unguarded_round_loses_a_site_too() -> None:
    harmed = record(2, "B", 0.8, tolerance=None, A=judge("sentinels", [0.8], [0.5]))
    assert states(record(1, "A", 0.8), harmed)["A"] == "lost"


def test_a_standing_is_a_sentence_with_its_numbers() -> None:
    assert "70.0 % at its best, 43.2 % when it was last measured (round 3)" in str(
        Standing("RUNMC", "lost", 3, 0.7, 0.432)
    )
    assert "not measured since round 2" in str(Standing("HK", "not measured", 2))


def test_several_classes_are_named_at_the_round_s_own_site() -> None:
    rows = [{"subject": "x", "classes": {"gland": {"dsc": 0.8}, "tumour": {"dsc": 0.4}}}]
    tree = record(1, "A", 0.8).model_dump() | {"test": rows}
    (own,) = effects_of(RoundRecord.model_validate(tree, strict=False), [])
    assert own.after == pytest.approx(0.6)
    assert own.grounds == "test part (1): gland 80.0, tumour 40.0"

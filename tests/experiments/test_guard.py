"""The guard's table: worked by hand on runs whose falls are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from experiments.guard import RULES, SiteRound, area, by_exemplars, by_sentinels, signals_table, table
from experiments.signals import measured, seen, signals
from smg.learner.history import History
from smg.learner.learner import Learner
from smg.prepare.prepared_site import prepare_site
from smg.report.runs import find_runs
from smg.sites.site import Site
from tests.learner.streams import tiny_stream, write_sites

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


def row(run: str, fall: float, sentinel: float, **signals: float) -> dict[str, object]:
    """Return a row as experiments.signals writes it."""
    before = 0.8
    about = {"bench": "b", "run": run, "method": run, "round": "B", "site": "A"}
    return about | {"fall": fall, "sentinels": [[before], [before - sentinel]], "signals": signals}


def test_a_signal_that_only_tells_runs_apart_tells_nothing_within_them() -> None:
    rows = [
        row("finetune", 9.0, 0.09, apart=0.9),
        row("finetune", 1.0, 0.00, apart=0.9),
        row("jm", 1.0, 0.01, apart=0.1),
        row("jm", 6.0, 0.06, apart=0.1),
    ]
    assert area(rows, lambda one: one["signals"]["apart"], within=False) == pytest.approx(0.5)
    assert area(rows[:3], lambda one: one["signals"]["apart"], within=False) == pytest.approx(0.75)
    assert area(rows[:3], lambda one: one["signals"]["apart"], within=True) == pytest.approx(0.5)
    cells = {line.split("|")[1].strip(): [c.strip() for c in line.split("|")[2:-1]] for line in
             signals_table(rows).splitlines() if line.startswith("| ")}  # fmt: skip
    assert cells["**fall of the sentinel's DSC (labels)**"] == ["4 (2)", "1.00", "1.00", "-"]
    assert cells["apart"] == ["4 (2)", "0.50", "0.50", "-"]


def test_the_signals_of_a_run(tmp_path: Path) -> None:
    tiny_stream(write_sites(tmp_path / "sites")).run(tmp_path / "run")
    (run,) = find_runs([tmp_path / "run"])
    rows = list(measured(run))
    assert [(one["round"], one["site"]) for one in rows] == [
        (after, site) for place, after in enumerate(run.sites) for site in run.sites[:place]
    ]
    records = {record.site: record for record in History(tmp_path / "run/model").records()}
    for one in rows:
        assert one["sentinels"][-1] == pytest.approx(
            list(records[one["round"]].sentinels[one["site"]].values()), abs=1e-4
        )
        assert {"disagreement, sentinel", "disagreement, augmented exemplars"} <= set(one["signals"])
    subject = prepare_site(Site.find(tmp_path / "sites", "A"), Learner(tmp_path / "run/model").config.preparation)[0]
    learner = Learner(tmp_path / "run/model")
    same = [[seen(learner.network(1), one, learner.config)] for one in (subject, subject, subject)]
    assert all(value == 0 for value in signals(same, same).values())

"""The sentences of the page say what its table shows, and no more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from smg.report.answer import Verdict, verdict
from smg.report.runs import Run
from smg.report.table import paper_tables


def run(name: str, seed: int, bm: float | None, bt: float | None, fm: float | None, **more: Any) -> Run:
    """Return a run of the stream A B C with these measures; F is held out if there is an FM."""
    dsc = {"BM": bm, "BT": bt, "FM": fm, "FT": None}
    stream = {"order": ["A", "B", "C"], "unseen": "F" if fm is not None else None}
    results = {"name": name, "method": name, "seed": seed, "stream": stream, "measures": {"dsc": dsc, "asd": dsc}}
    return Run(Path(name), results | more)


def answer(*runs: Run) -> Verdict:
    return verdict(paper_tables(runs)[0], runs)


def test_one_method_best_on_learned_and_held_out_sites() -> None:
    found = answer(run("finetune", 0, 0.60, -0.30, 0.70), run("sga+c", 0, 0.80, -0.05, 0.75))
    assert found.summary.startswith("sga+c remembers the learned sites best: mean DSC 80.0 %.")
    assert "also best at a new site: 75.0 % on the held-out site F" in found.summary
    assert "one seed only" in found.summary
    assert found.forgot == "sga+c lost 5.0 points of DSC on the earlier sites; finetune lost 30.0 points."
    assert found.forgot_figure == "−5.0 points"
    assert found.new_site_figure == "75.0 % DSC"


def test_another_method_best_on_the_held_out_site_is_named() -> None:
    found = answer(run("jm", 0, 0.60, -0.30, 0.79), run("sga+c", 0, 0.80, -0.05, 0.75))
    assert "At a new site, jm is best: 79.0 %" in found.summary
    assert found.new_site.endswith("jm is better there: 79.0 %.")


def test_methods_equal_in_the_digits_shown_are_named_together() -> None:
    even = [run(name, s, 0.8 + tiny, -0.1, 0.7) for s in (0, 1) for name, tiny in (("jm", 0.0), ("sga", 0.0001))]
    found = answer(*even, *(run("gem", s, 0.6, -0.1, 0.6) for s in (0, 1)))
    assert found.summary.startswith("jm and sga remember the learned sites best: mean DSC 80.0 %.")
    assert "They are also best at a new site: 70.0 % on the held-out site F" in found.summary
    assert "leads" not in found.summary


def test_a_lead_within_the_spread_is_pointed_out() -> None:
    near = [run("jm", s, 0.78 + 0.04 * s, -0.1, 0.7) for s in (0, 1)]
    far = [run("jm", s, 0.58 + 0.001 * s, -0.1, 0.7) for s in (0, 1)]
    ours = [run("sga", s, 0.81 + 0.001 * s, -0.1, 0.7) for s in (0, 1)]
    summary = answer(*near, *ours).summary
    assert "smaller than the standard deviation over seeds: sga leads jm by 1.1 points on the learned sites." in summary
    assert "standard deviation" not in answer(*far, *ours).summary


def test_so_is_a_lead_on_the_held_out_site() -> None:
    ours = [run("sga", s, 0.81, -0.1, 0.7 + 0.04 * s) for s in (0, 1)]
    near = [run("jm", s, 0.78, -0.1, 0.71) for s in (0, 1)]
    assert ": sga leads jm by 1.0 point at the new site." in answer(*near, *ours).summary
    both = [run("gem", s, 0.80 + 0.03 * s, -0.1, 0.5) for s in (0, 1)]
    leads = "gem leads sga by 0.5 points on the learned sites; sga leads jm by 1.0 point at the new site."
    assert leads in answer(*both, *near, *ours).summary


def test_reference_methods_are_not_ranked() -> None:
    found = answer(run("pooled", 0, 0.95, 0.0, 0.9), run("sga", 0, 0.8, -0.05, 0.75), run("jm", 0, 0.7, -0.1, 0.6))
    assert found.summary.startswith("sga remembers the learned sites best")
    assert found.summary.endswith("not ranked: pooled (keeps every scan) 95.0 %.")


def test_without_a_held_out_site_nothing_is_claimed_about_one() -> None:
    found = answer(run("jm", 0, 0.7, -0.1, None), run("sga", 0, 0.8, -0.05, None))
    assert "new site" not in found.summary
    assert "--unseen" in found.new_site


def test_a_gain_is_called_a_gain() -> None:
    found = answer(run("sga", 0, 0.8, 0.02, 0.7))
    assert "sga gained 2.0 points" in found.forgot
    assert found.forgot_figure == "+2.0 points"


def test_a_method_that_gained_is_not_said_to_have_lost() -> None:
    found = answer(run("a", 0, 0.8, 0.02, 0.7), run("b", 0, 0.7, 0.005, 0.6), run("c", 0, 0.6, 0.01, 0.6))
    assert found.forgot == "a gained 2.0 points of DSC on the earlier sites; b gained 0.5 points."
    assert "forgets most" not in found.summary
    found = answer(run("a", 0, 0.8, 0.005, 0.7), run("b", 0, 0.7, 0.02, 0.6))
    assert found.forgot == "a gained 0.5 points of DSC on the earlier sites; b gained 2.0 points."
    found = answer(run("a", 0, 0.8, -0.03, 0.7), run("b", 0, 0.7, 0.02, 0.6))
    assert "a lost 3.0 points of DSC on the earlier sites, more than any other" in found.forgot
    assert "b gained 2.0 points" in found.forgot


def test_sites_without_a_test_subject_make_an_answer_unknown() -> None:
    found = answer(run("jm", 0, None, None, 0.7))  # a learned site has no test subject
    assert found.forgot.startswith("Unknown: not every earlier site")
    assert "70.0 % on site F" in found.new_site
    held_out = run("jm", 0, 0.8, -0.1, None)
    held_out.results["stream"]["unseen"] = "F"
    assert answer(held_out).new_site.startswith("Unknown: the held-out site F")

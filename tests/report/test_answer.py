"""What the page says in words must be what its table shows, and no more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from smg.report.answer import verdict
from smg.report.runs import Run
from smg.report.table import paper_tables


def run(name: str, seed: int, bm: float | None, bt: float | None, fm: float | None, **more: Any) -> Run:
    dsc = {"BM": bm, "BT": bt, "FM": fm, "FT": None}
    stream = {"order": ["A", "B", "C"], "unseen": "F" if fm is not None else None}
    told = {"name": name, "method": name, "seed": seed, "stream": stream, "measures": {"dsc": dsc, "asd": dsc}}
    return Run(Path(name), told | more)


def said(*runs: Run) -> Any:
    return verdict(paper_tables(runs)[0], runs)


def test_one_method_best_at_both() -> None:
    told = said(run("finetune", 0, 0.60, -0.30, 0.70), run("sga+c", 0, 0.80, -0.05, 0.75))
    assert told.sentence.startswith("In memory sga+c has the highest mean, a DSC of 80.0 %")
    assert "and elsewhere too: 75.0 % on F" in told.sentence
    assert "One seed each" in told.sentence
    assert told.forgot == "sga+c lost 5.0 points of DSC on the earlier sites; finetune lost 30.0 points."
    assert told.forgot_figure == "−5.0 points"
    assert told.elsewhere_figure == "75.0 % DSC"


def test_another_best_elsewhere_is_named() -> None:
    told = said(run("jm", 0, 0.60, -0.30, 0.79), run("sga+c", 0, 0.80, -0.05, 0.75))
    assert "; elsewhere jm has: 79.0 %" in told.sentence
    assert told.elsewhere.endswith("jm does better there: 79.0 %.")


def test_who_is_equal_as_printed_is_named_together() -> None:
    even = [run(name, s, 0.8 + tiny, -0.1, 0.7) for s in (0, 1) for name, tiny in (("jm", 0.0), ("sga", 0.0001))]
    told = said(*even, *(run("gem", s, 0.6, -0.1, 0.6) for s in (0, 1)))
    assert told.sentence.startswith("In memory jm and sga have the highest mean, a DSC of 80.0 % over")
    assert "and elsewhere too: 70.0 % on F" in told.sentence
    assert "leads" not in told.sentence


def test_a_lead_within_the_spread_is_called_so() -> None:
    near = [run("jm", s, 0.78 + 0.04 * s, -0.1, 0.7) for s in (0, 1)]
    far = [run("jm", s, 0.58 + 0.001 * s, -0.1, 0.7) for s in (0, 1)]
    ours = [run("sga", s, 0.81 + 0.001 * s, -0.1, 0.7) for s in (0, 1)]
    assert "In memory sga leads jm by 1.1 points: within the spread over seeds." in said(*near, *ours).sentence
    assert "within the spread" not in said(*far, *ours).sentence


def test_so_is_a_lead_elsewhere() -> None:
    ours = [run("sga", s, 0.81, -0.1, 0.7 + 0.04 * s) for s in (0, 1)]
    near = [run("jm", s, 0.78, -0.1, 0.71) for s in (0, 1)]
    assert "Elsewhere sga leads jm by 1.0 point: within the spread over seeds." in said(*near, *ours).sentence
    both = [run("gem", s, 0.80 + 0.03 * s, -0.1, 0.5) for s in (0, 1)]
    told = "In memory gem leads sga by 0.5 points; elsewhere sga leads jm by 1.0 point: within the spread over seeds."
    assert told in said(*both, *near, *ours).sentence


def test_bounds_are_no_rivals() -> None:
    told = said(run("pooled", 0, 0.95, 0.0, 0.9), run("sga", 0, 0.8, -0.05, 0.75), run("jm", 0, 0.7, -0.1, 0.6))
    assert told.sentence.startswith("In memory sga has the highest mean")
    assert told.sentence.endswith("pooled (keeps every scan) is a scale, no rival: pooled 95.0 %.")


def test_without_an_unseen_site_it_does_not_claim_one() -> None:
    told = said(run("jm", 0, 0.7, -0.1, None), run("sga", 0, 0.8, -0.05, None))
    assert "elsewhere" not in told.sentence
    assert "--unseen" in told.elsewhere


def test_a_gain_is_called_a_gain() -> None:
    told = said(run("sga", 0, 0.8, 0.02, 0.7))
    assert "sga gained 2.0 points" in told.forgot
    assert told.forgot_figure == "+2.0 points"


def test_who_gained_is_not_said_to_have_lost() -> None:
    told = said(run("a", 0, 0.8, 0.02, 0.7), run("b", 0, 0.7, 0.005, 0.6), run("c", 0, 0.6, 0.01, 0.6))
    assert told.forgot == "a gained 2.0 points of DSC on the earlier sites; b gained 0.5 points."
    assert "forgets most" not in told.sentence
    told = said(run("a", 0, 0.8, 0.005, 0.7), run("b", 0, 0.7, 0.02, 0.6))
    assert told.forgot == "a gained 0.5 points of DSC on the earlier sites; b gained 2.0 points."
    told = said(run("a", 0, 0.8, -0.03, 0.7), run("b", 0, 0.7, 0.02, 0.6))
    assert told.forgot == "a lost 3.0 points of DSC on the earlier sites, more than any other; b gained 2.0 points."


def test_what_has_no_test_subject_is_said_so() -> None:
    told = said(run("jm", 0, None, None, 0.7))  # a site that was learned has none
    assert told.forgot == "This cannot be told: not every earlier site has a test subject."
    assert told.elsewhere == "jm has a DSC of 70.0 % on site F, which it never saw."
    unseen = run("jm", 0, 0.8, -0.1, None)
    unseen.results["stream"]["unseen"] = "F"
    assert said(unseen).elsewhere == "This cannot be told: site F has no test subject."

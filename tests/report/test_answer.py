"""The sentences of the page say what its table and its paired differences show, and no more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smg.errors import SmgError
from smg.report.answer import Verdict, verdict
from smg.report.focus import choose_baseline, choose_focus
from smg.report.runs import Run
from smg.report.table import paper_tables
from tests.report.random_runs import as_results, changed


def run(name: str, seed: int, bm: float | None, bt: float | None, fm: float | None, **more: Any) -> Run:
    """Return a run of the stream A B C with these measures; F is held out if there is an FM."""
    dsc = {"BM": bm, "BT": bt, "FM": fm, "FT": None}
    stream = {"order": ["A", "B", "C"], "unseen": "F" if fm is not None else None}
    results = {"name": name, "method": name, "seed": seed, "stream": stream, "measures": {"dsc": dsc, "asd": dsc}}
    return Run(Path(name), as_results(**(results | more)))


def with_subjects(name: str, seed: int, bm: float, fm: float, spread: float = 0.0) -> Run:
    """Return a run whose four subjects of every site have these means, apart from a part of their own."""
    rng, rows = np.random.default_rng([seed, *map(ord, name)]), []
    for learned in "ABCF":
        for site in "ABCF":
            for case in range(4):
                value = (fm if site == "F" else bm) + spread * rng.normal()
                rows.append(
                    {"round": learned, "site": site, "subject": f"{case}", "classes": {"foreground": {"dsc": value}}}
                )
    return run(name, seed, bm, 0.0, fm, subjects=rows)


def answer(*runs: Run, baseline: str | None = None) -> Verdict:
    return verdict(paper_tables(runs)[0], runs, choose_focus(runs, baseline))


def test_the_headline_is_of_one_method_and_the_baseline_whoever_leads() -> None:
    runs = [run("finetune", 0, 0.60, -0.30, 0.70), run("jm", 0, 0.82, -0.04, 0.71), run("gem", 0, 0.95, 0.1, 0.95)]
    found = answer(*runs, run("sga+c", 0, 0.80, -0.05, 0.75))
    assert found.summary.startswith(
        "sga+c ends with a mean DSC of 80.0 % over the learned sites, jm with 82.0 %: −2.0 points. "
        "On the held-out site F it reaches 75.0 %, jm 71.0 %: +4.0 points."
    )
    assert "gem" not in found.summary + found.forgot + found.new_site
    assert found.forgot == (
        "sga+c lost 5.0 points of DSC on the earlier sites; jm lost 4.0 points. Difference: −1.0 point."
    )
    assert (found.forgot_figure, found.new_site_figure) == ("−5.0 points", "75.0 % DSC")
    assert "one seed only" in found.summary


def test_the_baseline_can_be_chosen_and_must_be_there() -> None:
    runs = [run("finetune", 0, 0.60, -0.30, 0.70), run("jm", 0, 0.82, -0.04, 0.71), run("pooled", 0, 0.9, 0, 0.8)]
    assert "finetune with 60.0 %: +22.0 points" in answer(*runs, baseline="finetune").summary
    assert "pooled with 90.0 %" in answer(*runs, baseline="pooled").summary
    with pytest.raises(SmgError, match=r"--baseline ewc: no finished run of that method; choose from finetune, jm"):
        choose_focus(runs, "ewc")
    assert choose_baseline([]) is None


def test_which_method_and_baseline_are_named_by_default() -> None:
    def chosen(*names: str) -> tuple[str, str | None]:
        focus = choose_focus([run(name, 0, 0.8, -0.1, 0.7) for name in names])
        return focus.method, focus.baseline

    assert chosen("finetune", "sga+c", "jm", "recommended") == ("recommended", "jm")
    assert chosen("finetune", "sga+c") == ("sga+c", "finetune")
    assert chosen("gem", "sga+c") == ("gem", "sga+c")
    assert chosen("mine", "finetune") == ("mine", "finetune")
    assert chosen("mine", "yours") == ("yours", "mine")
    assert chosen("pooled", "mine", "jm") == ("mine", "jm")
    assert chosen("pooled", "jm") == ("pooled", "jm")
    assert chosen("mine") == ("mine", None)


def test_a_variant_under_another_name_is_the_headline_and_fine_tuning_the_last_resort() -> None:
    def chosen(**methods: str) -> str:
        return choose_focus([run(name, 0, 0.8, -0.1, 0.7, method=method) for name, method in methods.items()]).method

    assert chosen(finetune="finetune", jm="jm", adam="sga") == "adam"
    assert chosen(adam="sga+c", jm="jm", sga="sga") == "sga"  # a name is preferred to a variant
    assert chosen(finetune="finetune", jm="jm", mine="mine") == "mine"
    assert chosen(finetune="finetune", jm="jm") == "finetune"


def test_intervals_are_those_of_the_paired_differences_and_chance_is_named() -> None:
    far = [
        with_subjects(name, s, bm, fm, 0.005)
        for s in (0, 1, 2)
        for name, bm, fm in (("jm", 0.7, 0.7), ("sga", 0.8, 0.6))
    ]
    focus = choose_focus(far)
    (bm,) = [d for d in focus.differences if (d.method, d.measure) == ("sga", "BM")]
    found = answer(*far).summary
    assert f"[+{bm.low:.1f}, +{bm.high:.1f}]" in found
    assert "The differences are certain (95 % intervals, paired over subjects and seeds)." in found
    near = [with_subjects(name, s, 0.7, 0.7, 0.05) for s in (0, 1, 2) for name in ("jm", "sga")]
    assert "No difference is certain" in answer(*near).summary
    one = [with_subjects(name, 0, 0.7, 0.7, 0.05) for name in ("jm", "sga")]
    assert "one seed only" in answer(*one).summary
    assert "the intervals cover chance among patients only" in answer(*one).summary


def test_reference_methods_are_not_ranked() -> None:
    found = answer(run("pooled", 0, 0.95, 0.0, 0.9), run("sga", 0, 0.8, -0.05, 0.75), run("jm", 0, 0.7, -0.1, 0.6))
    assert found.summary.startswith("sga ends with a mean DSC of 80.0 % over the learned sites, jm with 70.0 %")
    assert found.summary.endswith("not ranked: pooled (keeps every scan) 95.0 %.")


def test_without_a_held_out_site_nothing_is_claimed_about_one() -> None:
    found = answer(run("jm", 0, 0.7, -0.1, None), run("sga", 0, 0.8, -0.05, None))
    assert "held-out" not in found.summary
    assert "--unseen" in found.new_site


def test_a_single_method_is_compared_with_nothing() -> None:
    found = answer(run("sga", 0, 0.8, 0.02, 0.7))
    assert found.summary == (
        "sga ends with a mean DSC of 80.0 % over the learned sites, and of 70.0 % on the held-out site F."
    )
    assert found.forgot == "sga gained 2.0 points of DSC on the earlier sites."
    assert found.forgot_figure == "+2.0 points"


def test_sites_without_a_test_subject_make_an_answer_unknown() -> None:
    found = answer(run("jm", 0, None, None, 0.7))  # a learned site has no test subject
    assert found.forgot.startswith("Unknown: not every earlier site")
    assert "70.0 % on site F" in found.new_site
    held_out = run("jm", 0, 0.8, -0.1, None)
    held_out = changed(held_out, stream={"order": ["A", "B", "C"], "unseen": "F"})
    assert answer(held_out).new_site.startswith("Unknown: the held-out site F")


def test_a_stream_that_the_method_did_not_run_on_says_so() -> None:
    runs = [run("jm", 0, 0.7, -0.1, 0.6), run("gem", 0, 0.7, -0.1, 0.6)]
    focus = choose_focus([*runs, run("sga", 1, 0.8, -0.05, 0.7)])
    assert verdict(paper_tables(runs)[0], runs, focus).summary == "sga has no run on this stream."

"""The claims' numbers and verdicts, and that the published pages say what the published runs do."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from experiments import claims, evidence, explanations
from experiments.spikes import spikes
from smg.learner.config import LearnerConfig
from smg.learner.results import write_results
from smg.report.paired import interval
from smg.report.runs import Run
from tests.report.random_runs import as_results, changed, run

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("low", "high", "papers", "said"),
    [
        (0.1, 2.0, 1.0, "**holds**"),
        (0.1, 2.0, None, "**holds**"),
        (0.1, 2.0, 9.0, "**holds**; smaller than in the paper"),
        (-2.0, -0.1, None, "**does not hold**"),
        (-2.0, -0.1, 1.0, "**does not hold**; smaller than in the paper"),
        (-1.0, 2.0, 3.0, "undecided; smaller than in the paper"),
        (-1.0, 4.0, 3.0, "undecided"),
        (-1.0, 4.0, None, "undecided"),
    ],
)
def test_a_verdict(low: float, high: float, papers: float | None, said: str) -> None:
    assert claims.Found(0.0, low, high, papers, 3).verdict == said
    assert claims.Found(0.0, low, high, papers, 2).verdict == "2 seeds only"


def on(stream: str, made: Run) -> Run:
    return replace(made, folder=Path(stream, made.name, f"seed-{made.seed}"))


def bench(rng: np.random.Generator, among_runs: float, uneven: float = 1.0) -> list[Run]:
    """A bench of the methods with replay, none better than another: chance among patients and among runs."""
    return [
        on(stream, run(name, seed, rng, shift=rng.normal(0, among_runs * (uneven if name == "sga+c" else 1))))
        for stream in claims.STREAMS
        for seed in range(3)
        for name in claims.REPLAY
    ]


@pytest.mark.parametrize(("among_runs", "uneven"), [(0.0, 1.0), (0.1, 1.0), (0.1, 2.0)])
def test_a_claims_interval_covers_the_truth_about_as_often_as_it_says(
    among_runs: float, uneven: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the method that is judged has more noise than those it borrows from."""
    monkeypatch.setattr(claims, "interval", partial(interval, draws=2000))
    claim = claims.Claim("", claims.over(["sga+c"], ["jm", "gem", "c-meta"], "BM", "BT", "FT"))
    covered, narrower = 0, []
    for trial in range(60):
        runs = bench(np.random.default_rng(trial), among_runs, uneven)
        both = claims.placed(claim, *claims.STREAMS)
        one = claims.find(both, runs, "dsc", {})
        covered += one.low <= 0 <= one.high
        alone = claims.find(both, [r for r in runs if r.name != "isgm"], "dsc", {})  # no common noise without it
        narrower.append((one.high - one.low) / (alone.high - alone.low))
    assert covered >= 54  # of 60, where 57 are meant
    assert np.median(narrower) < 0.9


def test_the_common_noise_is_the_variance_of_the_number() -> None:
    """Against the number's own variance over very many seeds."""
    rng = np.random.default_rng(7)
    runs = [on("A-first", run(m, seed, rng)) for seed in range(150) for m in claims.REPLAY]
    pairs = [("A-first", one) for one in claims.over(["sga+c", "sga"], ["jm", "gem"], "BM", "BT")]
    numbers = [
        np.mean([mean([one.by_seed([r for r in runs if r.seed == seed], "dsc")[seed]]) for _, one in pairs])
        for seed in range(150)
    ]
    noise = claims.common_noise(pairs, {"A-first": runs}, "dsc")
    assert noise == pytest.approx(np.var(numbers, ddof=1), rel=0.2)
    assert (
        claims.common_noise([("A-first", claims.over(["jm"], ["finetune"], "BM")[0])], {"A-first": runs}, "dsc") is None
    )


def test_what_goes_beyond_is_better_by_both_measures_on_both_streams(tmp_path: Path) -> None:
    """And a lead on one of them alone is none."""

    def unseen(made: Run, dsc: float) -> Run:
        folder = tmp_path / made.folder
        folder.mkdir(parents=True)
        rows = [{"site": "F", "subject": str(n), "classes": {"foreground": {"dsc": dsc + n / 100}}} for n in range(5)]
        (folder / "unseen.json").write_text(json.dumps(rows))
        return replace(changed(made, method="jm"), folder=folder)

    rng = np.random.default_rng(0)
    runs = [unseen(made, 0.5) for made in bench(rng, 0.0)]
    ahead = {"good": (0.3, 0.8), "at home": (0.3, 0.5), "elsewhere": (0.0, 0.8)}
    more = [
        unseen(on(stream, run(name, seed, rng, shift=shift)), dsc)
        for name, (shift, dsc) in ahead.items()
        for stream in claims.STREAMS
        for seed in range(3)
    ]
    lines = claims.beyond(runs, more).splitlines()[2:]
    assert [line.split(" | ")[0] for line in lines] == ["| good", "| at home", "| elsewhere"]
    assert [line.endswith("| **better** |") for line in lines] == [True, False, False]
    assert lines[0].split(" | ")[4].startswith("+30.0 [")
    assert not claims.beyond(runs, [r for r in more if r.seed < 2]).count("better")


def test_what_the_paper_has_is_the_mean_of_its_comparisons() -> None:
    paper = claims.read_paper(ROOT / "results/paper.csv")
    runs = bench(np.random.default_rng(0), 0.0)
    claim = claims.Claim("", claims.over(["sga+c"], ["c-meta"], "BT"))
    found = claims.find(claims.placed(claim, *claims.STREAMS), runs, "dsc", paper)
    assert found.papers == pytest.approx((2.34 + 1.50) / 2, abs=0.02)  # the paper's own sentence
    assert claims.find(claims.placed(claim, "A-first"), runs, "dsc", paper).papers == pytest.approx(2.34)


def mean(seeds: list[dict[str, dict[str, float]]]) -> float:
    return float(np.mean([np.mean([np.mean(list(site.values())) for site in values.values()]) for values in seeds]))


def test_a_comparisons_number_is_what_it_says() -> None:
    rng = np.random.default_rng(4)
    runs = [run(name, seed, rng) for seed in (0, 1) for name in ("sga", "jm")]

    def found(comparison: object, metric: str = "dsc") -> float:
        return mean(list(comparison.by_seed(runs, metric).values()))  # type: ignore[attr-defined]

    def of(name: str, which: str) -> float:
        return float(np.mean([r.results.measures["dsc"][which] for r in runs if r.name == name]))

    for which in ("BM", "BT", "FT"):  # FM is another file's
        (ahead,) = claims.over(["sga"], ["jm"], which)
        assert found(ahead) == pytest.approx(of("sga", which) - of("jm", which))
        assert found(ahead, "asd") == pytest.approx(-10 * found(ahead))  # less is better
    assert found(claims.Comparison("jm", claims.measure("BT"), falls=True)) == pytest.approx(-of("jm", "BT"))

    def after(one: Run, round: str, site: str) -> float:
        rows = one.results.subjects
        here = [r.classes["foreground"]["dsc"] for r in rows if r.round == round and r.site == site]
        return float(np.mean(here))

    jms = [r for r in runs if r.name == "jm"]
    fall = np.mean([after(r, "A", "A") - after(r, "B", "A") for r in jms])
    assert found(claims.Comparison("jm", claims.change(0, 1), falls=True)) == pytest.approx(fall)
    rise = np.mean([after(r, "B", "F") - after(r, "A", "F") for r in jms])
    assert found(claims.Comparison("jm", claims.change(-1, 1))) == pytest.approx(rise)
    ahead = np.mean([after(s, "B", "F") - after(j, "B", "F") for s, j in zip(runs[::2], runs[1::2], strict=True)])
    assert found(claims.Comparison("sga", claims.after(-1, 2), "jm")) == pytest.approx(ahead)


def test_fm_is_over_every_unseen_subject_that_has_a_value(tmp_path: Path) -> None:
    rows = [
        {"site": "F", "subject": case, "classes": {"foreground": {"dsc": v}}} for case, v in [("a", 0.5), ("b", None)]
    ]
    (tmp_path / "unseen.json").write_text(json.dumps(rows))
    assert claims.measure("FM").values(Run(tmp_path, as_results()), "dsc") == {"F": {"a": 0.5}}


def test_a_lead_is_measured_again_with_one_thing_made_otherwise(tmp_path: Path) -> None:
    """By its own bench and rival; and what has not been run has no line."""
    rng = np.random.default_rng(5)

    def publish(bench: str, name: str, seed: int, dsc: float) -> float:
        made, folder = run(name, seed, rng), tmp_path / bench / "A-first" / name / f"seed-{seed}"
        folder.mkdir(parents=True)
        rows = [{"site": "F", "subject": str(n), "classes": {"foreground": {"dsc": dsc}}} for n in range(3)]
        (folder / "unseen.json").write_text(json.dumps(rows))
        write_results(folder, made.results)
        return 100 * float(made.results.measures["dsc"]["BM"] or 0)

    bm = {
        (bench, name, seed): publish(bench, name, seed, dsc)
        for bench, seeds, ahead in (("prostate-lite", (0, 1), 0.1), ("without-D", (0,), 0.3))
        for seed in seeds
        for name, dsc in (("jm", 0.5), ("sga+c", 0.5 + ahead))
    }
    lines = [line.split(" | ") for line in explanations.leads(tmp_path).splitlines()[2:]]
    assert [(line[0], line[1]) for line in lines] == [
        ("| as it is", "2"),
        ("| as it is, seed 0 alone", "1"),
        ("| site B: without D, too", "1"),
    ]
    for line, bench, seeds in zip(
        lines, ("prostate-lite", "prostate-lite", "without-D"), ([0, 1], [0], [0]), strict=True
    ):
        ahead = np.mean([bm[bench, "sga+c", k] - bm[bench, "jm", k] for k in seeds])
        assert line[2].startswith(f"{ahead:+.1f} [")
    assert [line[4].split()[0] for line in lines] == ["+10.0", "+10.0", "+30.0"]
    assert [line[3] for line in lines] == ["", "", ""]  # F-first has no run


def test_a_spike_is_a_replay_loss_of_ten_times_the_usual_in_a_rounds_second_half(tmp_path: Path) -> None:
    rounds = {1: None, 2: [9.0, 0.1, 0.1, 0.1, 0.3, 3.0], 3: [0.1, 0.1, 0.1, 5.0, 0.1, 0.1]}
    events: list[dict[str, object]] = []
    for number, losses in rounds.items():
        for place, loss in enumerate(losses or [0.1] * 6):
            both = {"incoming": 1.0} | ({"replay": loss} if losses else {})  # the first round has none
            at = {"event": "step", "round": number, "site": "A", "iteration": 1 + place}
            events.append(at | {"losses": both})
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    found = list(spikes(Run(tmp_path, as_results(config=LearnerConfig(iterations=4).model_dump(mode="json")))))
    assert found == [[False, False, False, True], [False, True, False, False]]


def test_the_published_pages_say_what_the_runs_do() -> None:
    for path, text in evidence.pages(ROOT / "results").items():
        assert path.read_text() == text, f"{path.relative_to(ROOT)}: python -m experiments.evidence results"


def test_a_run_without_a_value_spoils_no_other_number() -> None:
    runs = bench(np.random.default_rng(1), 0.0)
    for row in next(r for r in runs if r.name == "gem" and r.seed == 1).results.subjects:
        if row.site == "F":
            row.classes["foreground"]["asd"] = None
    pairs = [("A-first", one) for one in claims.over(["sga"], ["jm"], "FT")]
    found = claims.find(pairs, runs, "asd", {})
    assert np.isfinite([found.low, found.high]).all()
    assert found.seeds == 3

"""The claims' numbers and verdicts, and that the published pages say what the published runs do."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from experiments import aims, baselines, claim_tables, claims, decide, evidence, explanations, figure
from experiments.spikes import spikes
from smg.bench.planned_runs import read_plan
from smg.learner.config import LearnerConfig
from smg.report.paired import Estimate
from smg.report.runs import Run, find_runs
from tests.report.benches import TWO_STREAMS, make_bench
from tests.report.random_runs import as_results, run

ROOT = Path(__file__).parents[2]


def found(low: float, high: float, papers: float | None = None, seeds: int = 4, metric: str = "dsc") -> decide.Found:
    return decide.Found(Estimate((low + high) / 2, low, high, (high - low) / 4, 10.0), papers, seeds, metric)


@pytest.mark.parametrize(
    ("low", "high", "papers", "outcome", "said"),
    [
        (0.1, 2.0, 1.0, decide.HOLDS, "**holds**"),
        (0.1, 2.0, None, decide.HOLDS, "**holds**"),
        (0.1, 2.0, 9.0, decide.HOLDS, "**holds**, smaller than the paper's 9.0"),
        (0.1, 1.0, 0.5, decide.HOLDS, "**holds**, by less than 1.5"),
        (-2.0, -0.1, 1.0, decide.REFUTED, "**does not hold**"),
        (-1.0, 1.4, 0.5, decide.SMALL, "**smaller than 1.5**"),
        (-4.0, 1.4, 3.0, decide.SMALL, "**smaller than 1.5**"),
        (-1.0, 2.0, 3.0, decide.SMALLER, "**smaller than the paper's 3.0**"),
        (-1.0, 4.0, 3.0, decide.UNDECIDED, "undecided"),
        (-1.0, 4.0, None, decide.UNDECIDED, "undecided"),
    ],
)
def test_a_verdict(low: float, high: float, papers: float | None, outcome: str, said: str) -> None:
    one = found(low, high, papers)
    assert one.outcome == outcome
    assert one.verdict.startswith(said)
    few = found(low, high, papers, seeds=2)
    assert (few.outcome, few.verdict) == (decide.UNDECIDED, "2 seeds only")


def test_a_distance_has_a_minimal_difference_of_its_own() -> None:
    assert found(-0.2, 0.29, metric="asd").verdict == "**smaller than 0.3**"
    assert found(-0.2, 0.31, metric="asd").outcome == decide.UNDECIDED


def test_beside_what_is_undecided_stands_what_was_detectable() -> None:
    one = found(-1.0, 4.0)
    assert f"({one.detectable:.1f} detectable)" in one.verdict
    assert decide.power_of(one.detectable, one.estimate.error, one.estimate.freedom) == pytest.approx(0.8)


def on(stream: str, made: Run) -> Run:
    return replace(made, folder=Path(stream, made.name, f"seed-{made.seed}"))


def bench(rng: np.random.Generator, among_runs: float, uneven: float = 1.0, seeds: int = 3) -> list[Run]:
    """A bench of the methods with replay, none better than another: chance among patients and among runs."""
    return [
        on(stream, run(name, seed, rng, shift=rng.normal(0, among_runs * (uneven if name == "sga+c" else 1))))
        for stream in claims.STREAMS
        for seed in range(seeds)
        for name in claims.REPLAY
    ]


@pytest.mark.parametrize(("among_runs", "uneven"), [(0.0, 1.0), (0.1, 1.0), (0.1, 3.0)])
def test_a_claims_interval_covers_the_truth_about_as_often_as_it_says(among_runs: float, uneven: float) -> None:
    """Even if the method that is judged has more noise than the others."""
    claim = claims.Claim("", "", claims.over(["sga+c"], ["jm", "gem", "c-meta"], "BM", "FM"))
    covered = 0
    for trial in range(60):
        runs = bench(np.random.default_rng(trial), among_runs, uneven, seeds=4)
        one = claims.find(claims.placed(claim, *claims.STREAMS), runs, "dsc", {})
        covered += one.low <= 0 <= one.high
    assert covered >= 54  # of 60, where 57 are meant


def test_what_the_paper_has_is_the_mean_of_its_comparisons() -> None:
    paper = claims.read_paper(ROOT / "results/paper.csv")
    runs = bench(np.random.default_rng(0), 0.0)
    claim = claims.Claim("", "", claims.over(["sga+c"], ["c-meta"], "BT"))
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

    for which in ("BM", "BT", "FM", "FT"):
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


STREAM_OF = {"A-first": TWO_STREAMS["A-E"], "F-first": TWO_STREAMS["F-B"]}
METHODS = ("finetune", *claims.REPLAY, "pooled")


PAGES = ("REPRODUCIBILITY.md", "README.md")  # with places for tables


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of results with a bench of the paper's methods, explanations, baselines and recommended methods."""
    root = tmp_path_factory.mktemp("root")
    for page in PAGES:
        shutil.copyfile(ROOT / page, root / page)
    results = root / "results"
    make_bench(results / "prostate", METHODS, STREAM_OF, seeds=range(4))
    make_bench(results / "catalogue", METHODS, STREAM_OF, seeds=range(4))
    make_bench(results / "explanations", {"adam": "sga", "1 exemplar": "sga", "jm 1 exemplar": "jm"}, STREAM_OF, (0, 1))
    make_bench(
        results / "prostate-recommended",
        {"recommended": "sga", "image-free": "lwf", "jm": "jm", "pooled": "pooled"},
        STREAM_OF,
    )
    make_bench(results / "baselines", {"gem": "gem", "gem margin 0": "gem"}, STREAM_OF, (0, 1))
    shutil.copyfile(ROOT / "results/paper.csv", results / "paper.csv")
    return results


def test_pages_are_made_from_a_bench_that_is_whole(published: Path) -> None:
    made = evidence.pages(published)
    page = made[published.parent / "REPRODUCIBILITY.md"]
    assert "Of the paper's 24 claims" in page
    assert "72 of 200 runs are done (seeds 0, 1, 2, 3)." in " ".join(page.split())
    assert "(docs/differences.svg)" in page
    assert "has not been run yet" not in page
    front = made[published.parent / "README.md"]
    assert "Of the paper's 24 claims" in front
    block = front.partition("<!-- levels")[2].partition("<!-- end of levels")[0]
    kept = [line.split(" | ")[:2] for line in block.splitlines() if line.startswith("| `")]
    assert kept == [
        ["| `recommended`", "two subjects a site"],
        ["| `jm`", "two subjects a site"],
        ["| `image-free`", "no image"],
        ["| `pooled`", "every scan"],
    ]
    assert made[published.parent / "docs/differences.svg"].startswith("<svg")
    assert "From a pilot of 4 seeds" in made[published / "prostate/power.md"]
    assert len(made[published.parent / "docs/differences.svg"]) < 50_000
    by_stream = made[published / "prostate/claims.md"]
    assert by_stream.count("\n| Fine-tuning forgets the sites before |") == 2  # by DSC and by ASD
    assert by_stream.index("With Nadeau and Bengio's correction") < by_stream.index("## Every comparison")


def test_pages_are_made_from_a_bench_that_is_under_way(published: Path, tmp_path: Path) -> None:
    """Some methods have fewer seeds, one has none, and other benches have not been run."""
    root = tmp_path / "root"
    shutil.copytree(published / "prostate", root / "results/prostate")
    for name in PAGES:
        shutil.copyfile(published.parent / name, root / name)
    shutil.copyfile(published / "paper.csv", root / "results/paper.csv")
    shutil.rmtree(root / "results/prostate/F-first/sga+c")
    shutil.rmtree(root / "results/prostate/A-first/gem/seed-3")
    page = evidence.pages(root / "results")[root / "REPRODUCIBILITY.md"]
    assert "67 of 200 runs are done (seeds 0, 1, 2, 3)." in " ".join(page.split())
    rows = {line.split(" | ")[0]: line for line in page.splitlines() if line.startswith("| ")}
    assert rows["| SGA(+c) is the best of all †"].endswith("| not run yet |")
    assert rows["| Fine-tuning forgets the sites before"].count("[") == 1


def column(page: str, head: str) -> dict[str, str]:
    """Return a column of the table of claims, by claim."""
    block = page.partition("<!-- claims")[2].partition("<!-- end of claims")[0]
    rows = [line.strip("| ").split(" | ") for line in block.splitlines() if line.startswith("| ") and line[2] != "*"]
    place = rows[0].index(head)
    return {row[0]: row[place].strip(" |") if len(row) > place else "" for row in rows[1:]}


def test_claims_by_another_training_stand_beside_if_they_have_enough_seeds(published: Path, tmp_path: Path) -> None:
    page = evidence.pages(published)[published.parent / "REPRODUCIBILITY.md"]
    beside = column(page, "with augmentation")
    assert len(beside) == len(list(claims.claims()))
    assert all(beside.values())
    root = tmp_path / "root"
    shutil.copytree(published, root / "results")
    for name in PAGES:
        shutil.copyfile(published.parent / name, root / name)
    for seed in (2, 3):
        shutil.rmtree(root / f"results/catalogue/F-first/jm/seed-{seed}")
    fewer = evidence.pages(root / "results")[root / "REPRODUCIBILITY.md"]
    beside = column(fewer, "with augmentation")
    assert beside["Fine-tuning forgets the sites before"]
    assert not beside["Joint minimisation still forgets"]  # two seeds on one of the streams


def test_what_holds_is_said_group_by_group(published: Path) -> None:
    runs = find_runs([published / "prostate"])
    said = claim_tables.in_short(runs, {})
    judged = [one for one in claim_tables.judged(runs, {}) if one.claim.is_papers]
    held = [one.claim.group for one in judged if one.outcome == decide.HOLDS]
    assert f"**{len(held)}** hold" in said
    for group in {one.claim.group for one in judged}:
        number = sum(one.claim.group == group for one in judged)
        assert (f"{group} ({held.count(group)} of {number})" in said) == (group in held)


def test_a_stricter_rule_decides_no_more(published: Path) -> None:
    runs = find_runs([published / "prostate"])
    plain = claim_tables.judged(runs, {})
    for how in ({"overlap": claim_tables.OVERLAP}, {"few": 99}):
        for one, other in zip(plain, claim_tables.judged(runs, {}, **how), strict=True):
            assert one.found
            assert other.found
            assert other.found.mean == one.found.mean
            assert other.found.high - other.found.low >= one.found.high - one.found.low
            assert other.outcome == one.outcome or other.outcome not in (decide.HOLDS, decide.REFUTED)


def test_a_training_with_one_seed_is_not_drawn(published: Path) -> None:
    runs = find_runs([published / "prostate"])
    assert evidence.has_enough(runs)
    assert not evidence.has_enough([one for one in runs if one.seed == 0])


def test_the_figure_has_every_method_on_both_streams(published: Path) -> None:
    runs = find_runs([published / "prostate"])
    ours = [name for name in METHODS if name != "jm"]
    drawn = ElementTree.fromstring(figure.drawing({"the paper's training": runs, "another": runs}))
    texts = [text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert [text for text in texts if text in METHODS] == ours * 2
    assert [text for text in texts if text and text.endswith("(4 seeds)")] == [
        "the paper's training (4 seeds)",
        "another (4 seeds)",
    ]
    shown = figure.differences(runs)
    assert len(shown) == (len(METHODS) - 1) * 2 * 2
    one = claims.find([("F-first", claims.Comparison("gem", claims.measure("FM"), "jm"))], runs, "dsc", {})
    assert shown["gem", "FM", "F-first"] == one
    without = figure.drawing({"alone": [run for run in runs if run.name == "jm"]})  # nothing to compare yet
    assert ElementTree.fromstring(without) is not None


def by_name(runs: list[Run], name: str, which: str) -> dict[int, float]:
    """The mean over both streams, by seed, in %."""
    here = [run for run in runs if run.name == name]
    return {
        k: 100 * float(np.mean([r.measure("dsc", which) for r in here if r.seed == k])) for k in {r.seed for r in here}
    }


def test_a_lead_and_its_change_with_one_thing_changed(published: Path) -> None:
    main, here = (find_runs([published / name]) for name in ("catalogue", "explanations"))
    made = [line for line in explanations.page(published).splitlines() if line.startswith("| ")][1:]
    lines = [line.strip("| ").split(" | ") for line in made]
    assert [line[1] for line in lines] == ["4", "2", "2"]
    assert explanations.in_short(published) == ""  # two seeds say too little
    sga, jm = by_name(main, "sga+c", "BM"), by_name(main, "jm", "BM")
    adam, ours, theirs = (by_name(here, name, "BM") for name in ("adam", "1 exemplar", "jm 1 exemplar"))
    expected = {
        "lead": np.mean([sga[k] - jm[k] for k in range(4)]),
        "adam": np.mean([adam[k] - jm[k] for k in (0, 1)]),
        "change by adam": np.mean([adam[k] - sga[k] for k in (0, 1)]),
        "change by 1 exemplar": np.mean([ours[k] - theirs[k] - sga[k] + jm[k] for k in (0, 1)]),
    }
    means = [lines[0][2], lines[1][2], lines[1][4], lines[2][4]]
    assert [float(text.split()[0]) for text in means] == pytest.approx(list(expected.values()), abs=0.06)


def test_the_best_settings_of_a_baseline_are_in_bold(published: Path) -> None:
    runs, names = find_runs([published / "baselines"]), ("gem", "gem margin 0")
    levels = {name: [by_name(runs, name, which) for which in ("BM", "FM")] for name in names}
    best = max(names, key=lambda name: np.mean([list(of.values()) for of in levels[name]]))
    assert baselines.best(runs) == best
    assert baselines.page(published).count(f"**{best}") == 1
    assert baselines.best(runs[1:]) is None  # one run is missing
    said = baselines.in_short(published)
    assert ("is best as it is" in said) == (best == "gem")
    assert f"`{best}` is best" in said


@pytest.mark.parametrize(
    ("low", "high", "said"), [(-1.9, 0.0, "reached"), (-4.0, -2.1, "missed"), (-3.0, 1.0, "undecided")]
)
def test_an_aim(low: float, high: float, said: str) -> None:
    assert said in aims.NO_IMAGE.judged(found(low, high))
    assert "2 seeds only" in aims.NO_IMAGE.judged(found(low, high, seeds=2))


def test_the_aims_are_about_every_site(published: Path) -> None:
    made = [line for line in aims.page(published).splitlines() if line.startswith("| ")][1:]
    rows = [line.strip("| ").split(" | ") for line in made]
    assert len(rows) == 2 * (2 + 5)
    assert [row[2] for row in rows if row[1] == "A-first"][2:] == ["A", "B", "C", "D", "F, held out"]
    assert all(row[5] == "3" for row in rows)
    first, second = aims.in_short(published).splitlines()
    assert "4 places" in first
    assert "10 places" in second
    farthest = min((row for row in rows if row[0].startswith("recommended")), key=lambda row: float(row[3].split()[0]))
    assert f"farthest at {farthest[2]} of {farthest[1]}" in second


def test_what_sets_the_recommended_settings_apart(published: Path) -> None:
    runs = find_runs([published / "prostate-recommended"])
    rows = [line.strip("| ").split(" | ") for line in aims.pairs(published).splitlines()[2:]]
    assert [row[0] for row in rows] == [f"`{a}` minus `{b}`" for a, b in aims.PAIRS if b not in ("sga+c", "finetune")]
    for (method, rival), row in zip([("recommended", "jm"), ("recommended", "pooled")], rows[:2], strict=True):
        for place, which in ((2, "BM"), (3, "FM")):
            ours, theirs = by_name(runs, method, which), by_name(runs, rival, which)
            assert float(row[place].split()[0]) == pytest.approx(np.mean([ours[k] - theirs[k] for k in ours]), abs=0.06)


@pytest.mark.parametrize(("name", "of"), [("explanations", "experiments/catalogue.yaml"), ("baselines", "prostate")])
def test_what_is_changed_is_changed_at_the_settings_of_its_bench(name: str, of: str) -> None:
    main, here = read_plan(str(ROOT / of) if "/" in of else of), read_plan(str(ROOT / f"experiments/{name}.yaml"))
    assert here.settings == main.settings
    assert here.streams == main.streams


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

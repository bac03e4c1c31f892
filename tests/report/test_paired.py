"""Paired differences: their mean is the difference of the measures, and the interval covers as often as it states."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from scipy import stats

from smg.report.paired import (
    Estimate,
    Values,
    interval,
    paired_differences,
    patients_part,
    to_markdown,
    values_of,
)
from smg.report.runs import Run
from tests.report.random_runs import changed, run


def shifted(base: Run, name: str, by: float, noise: float = 1e-4) -> Run:
    """Return a copy of a run under another name, the values of each subject shifted by `by` plus noise."""
    rng, rows = np.random.default_rng(1), [row.model_dump() for row in base.results.subjects]
    for row in rows:
        numbers = row["classes"]["foreground"]
        numbers |= {metric: value + by + noise * rng.normal() for metric, value in numbers.items()}
    return changed(base, name=name, subjects=rows)


def test_a_measure_is_the_mean_of_its_values() -> None:
    one = run("jm", 0, np.random.default_rng(1))
    for measure, value in one.results.measures["dsc"].items():
        sites = values_of(one, "dsc", measure)
        assert np.mean([np.mean(list(site.values())) for site in sites.values()]) == pytest.approx(value)


def test_the_difference_is_that_of_the_measures() -> None:
    rng = np.random.default_rng(2)
    runs = [run(name, seed, rng) for seed in (0, 1) for name in ("jm", "sga+c")]
    found = {(d.metric, d.measure): d for d in paired_differences(runs, "sga+c")}
    for measure in ("BM", "BT", "FM", "FT"):
        apart = [
            100 * (runs[i].results.measures["dsc"][measure] - runs[i + 1].results.measures["dsc"][measure])
            for i in (0, 2)
        ]
        assert found["dsc", measure].mean == pytest.approx(np.mean(apart))
    assert found["dsc", "BM"].seeds == 2
    assert found["dsc", "BM"].subjects == 2 * (5 + 3)
    assert found["dsc", "BT"].subjects == 2 * 5


def test_a_shift_common_to_all_subjects_is_certain_with_two_seeds() -> None:
    base = run("sga+c", 0, np.random.default_rng(3))
    worse = shifted(base, "jm", -0.05)
    (bm,) = [d for d in paired_differences([base, worse], "sga+c") if (d.metric, d.measure) == ("dsc", "BM")]
    assert (bm.mean, bm.low, bm.high) == pytest.approx((-5, -5, -5), abs=0.02)
    assert not bm.certain  # one seed says nothing about another run
    text = to_markdown(paired_differences([base, worse], "sga+c"), "sga+c")
    assert "| jm | -5.0 [-5.0, -5.0] |" in text
    assert "1 seed: the intervals cover chance among patients, not chance among runs" in text
    other = run("sga+c", 1, np.random.default_rng(8))
    both = to_markdown(paired_differences([base, worse, other, shifted(other, "jm", -0.05)], "sga+c"), "sga+c")
    assert "| jm | **-5.0 [-5.0, -5.0]** |" in both


@pytest.mark.parametrize("shift", [0.0, -0.05])
def test_where_nothing_varies_there_is_no_interval(shift: float) -> None:
    """Runs that are the same, and one seed with one subject a site."""
    runs = [run("sga+c", seed, np.random.default_rng(seed)) for seed in (0, 1)]
    same = [*runs, *(shifted(one, "jm", shift, 0.0) for one in runs)]
    found = paired_differences(same, "sga+c")
    assert not any(d.certain for d in found)
    row = to_markdown(found, "sga+c").splitlines()[-1]
    assert row.startswith(f"| jm | {100 * shift:+.1f} |")
    assert "[" not in row
    few = [run(name, 0, np.random.default_rng(seed)) for seed, name in enumerate(("jm", "sga+c"))]
    few = [
        changed(one, subjects=[row.model_dump() for row in one.results.subjects if row.subject == "Case0"])
        for one in few
    ]
    assert "[" not in to_markdown(paired_differences(few, "sga+c"), "sga+c").splitlines()[-1]


@pytest.mark.parametrize("among_seeds", [0.0, 0.2])
def test_the_interval_covers_the_truth_about_as_often_as_it_says(among_seeds: float) -> None:
    covered = 0
    for trial in range(100):
        rng = np.random.default_rng(100 + trial)
        shifts = {seed: rng.normal(0, among_seeds) for seed in range(3)}
        runs = [run("sga+c", seed, rng) for seed in range(3)] + [run("jm", s, rng, shifts[s]) for s in range(3)]
        (fm,) = [d for d in paired_differences(runs, "sga+c") if (d.metric, d.measure) == ("dsc", "FM")]
        covered += fm.low <= 0 <= fm.high
    assert covered >= 92  # of 100; 95 are expected, and more are allowed


def test_patients_that_seeds_share_are_not_counted_twice() -> None:
    values = {f"Case{n}": float(n) for n in range(6)}
    one = interval([[{"A": values}]])
    same = interval([[{"A": values}]] * 3)  # three seeds with the same six patients tell no more about other patients
    others = interval([[{"A": {f"{seed}{case}": v for case, v in values.items()}}] for seed in range(3)])
    assert one
    assert same
    assert others
    assert same[2] - same[1] == pytest.approx(one[2] - one[1], rel=0.01)
    assert others[2] - others[1] < 0.7 * (one[2] - one[1])


def test_what_seeds_share_widens_the_interval_of_the_seeds_and_never_narrows_it() -> None:
    """Three seeds with the same ten patients: with c, t may become so much smaller that m ± t √V narrows."""
    rng = np.random.default_rng(5)
    for spread in (0.01, 0.1, 1.0, 10.0):
        shifts, patients = rng.normal(0, 1, 3), spread * rng.normal(0, 1, 10)
        seeds = [[{"F": {f"p{n}": float(shift + patient) for n, patient in enumerate(patients)}}] for shift in shifts]
        means = np.array([np.mean(list(one[0]["F"].values())) for one in seeds])
        alone = stats.t.interval(0.95, 2, means.mean(), means.std(ddof=1) / np.sqrt(3))
        common = np.var(patients, ddof=1) / 10
        total = means.var(ddof=1) / 3 + common
        freedom = total**2 / ((means.var(ddof=1) / 3) ** 2 / 2 + common**2 / 9)
        with_patients = stats.t.interval(0.95, freedom, means.mean(), np.sqrt(total))
        found = interval(seeds) or pytest.fail("no interval")
        assert found[1:3] == pytest.approx(max(alone, with_patients, key=lambda ends: ends[1] - ends[0]))


def test_patients_that_one_seed_tests_do_not_add_degrees_of_freedom() -> None:
    rng = np.random.default_rng(6)

    def seed(shift: float, names: list[str]) -> list[Values]:
        return [{"A": {name: shift + float(rng.normal(0, 3)) for name in names}}]

    shared = {"a": -4.0, "b": 0.0, "c": 5.0}
    seeds = [seed(k / 10, [f"{k}-{n}" for n in range(8)]) for k in range(3)]
    for one in seeds:
        one[0]["A"] |= shared
    assert patients_part(seeds)[1] == len(shared) - 1
    assert patients_part(seeds[:1])[1] == 8 + len(shared) - 1


def test_seeds_that_share_training_subjects_have_wider_intervals_with_the_correction() -> None:
    seeds = [[{"A": {f"{k}-{n}": float(k) for n in range(4)}}] for k in range(5)]
    plain, corrected = interval(seeds), interval(seeds, overlap=1 / 3)
    assert plain
    assert corrected
    assert corrected.error / plain.error == pytest.approx(np.sqrt((1 / 5 + 1 / 3) / (1 / 5)))


@pytest.mark.parametrize("second", [[6.6, -0.5, -1.2], [-4.0, 2.0, 3.0]])
def test_streams_that_balance_each_other_by_chance_do_not_narrow_the_interval(second: list[float]) -> None:
    """With one patient only the seeds vary: the interval is Welch's or that of the seeds' means, whichever is wider."""
    first = [-4.9, 2.7, 2.5]
    seeds = [[{"A": {"p": a}}, {"F": {"p": b}}] for a, b in zip(first, second, strict=True)]
    mean, low, high, *_ = interval(seeds, streams=["A-first", "F-first"]) or pytest.fail("no interval")
    welch = stats.ttest_ind(first, [-b for b in second], equal_var=False).confidence_interval()
    both = np.add(first, second) / 2
    own = stats.t.interval(0.95, 2, both.mean(), both.std(ddof=1) / np.sqrt(3))
    wider = max((welch.low / 2, welch.high / 2), own, key=lambda ends: ends[1] - ends[0])
    assert mean == pytest.approx(both.mean())
    assert (low, high) == pytest.approx(wider)
    both = np.array([*both, 0.7])  # from four seeds on, that of the seeds' means
    found = interval([*seeds, [{"A": {"p": 0.7}}, {"F": {"p": 0.7}}]], streams=["A-first", "F-first"])
    assert found
    assert found[1:3] == pytest.approx(stats.t.interval(0.95, 3, both.mean(), both.std(ddof=1) / 2))


@dataclass(frozen=True)
class Design:
    """How a simulated difference varies: by seed, by patient, by what is left; and which patients a seed tests."""

    seeds: int
    patients: dict[str, int]  # by site
    by_seed: float
    by_patient: float
    by_both: float
    folds: int = 1  # 1: every seed tests all patients
    streams: int = 1

    def draw(self, rng: np.random.Generator, truth: float = 0.0) -> Estimate:
        patient = {(s, p): rng.normal(0, self.by_patient) for s, n in self.patients.items() for p in range(n)}
        numbers = []
        for seed in range(self.seeds):
            runs = rng.normal(0, self.by_seed, size=self.streams)
            tested = [(s, p) for s, p in patient if p % self.folds == seed % self.folds]
            numbers.append([self._values(rng, truth + run, tested, patient) for run in runs])
        streams = [str(n) for n in range(self.streams)]
        return interval(numbers, streams=streams) or pytest.fail("no interval")

    def _values(
        self,
        rng: np.random.Generator,
        mean: float,
        tested: list[tuple[str, int]],
        patient: dict[tuple[str, int], float],
    ) -> Values:
        values: Values = {}
        for s, p in tested:
            values.setdefault(s, {})[str(p)] = mean + patient[s, p] + rng.normal(0, self.by_both)
        return values


SIZES = {"A": 26, "C": 17, "D": 12, "E": 11}
DESIGNS = {
    "runs vary, four folds": Design(4, SIZES, 1.0, 0.0, 1.0, folds=4),
    "patients vary, four folds": Design(4, SIZES, 0.3, 2.0, 2.0, folds=4),
    "patients tested twice": Design(8, SIZES, 0.5, 3.0, 1.0, folds=4),
    "every seed tests the same": Design(4, {"F": 10}, 0.7, 3.0, 1.0),
    "two streams share patients": Design(5, SIZES, 1.0, 1.0, 2.0, folds=4, streams=2),
}


@pytest.mark.parametrize("design", DESIGNS.values(), ids=DESIGNS)
def test_the_interval_covers_chance_among_runs_and_among_patients(design: Design) -> None:
    rng, trials = np.random.default_rng(1), 300
    found = [design.draw(rng) for _ in range(trials)]
    covered = sum(one.low <= 0 <= one.high for one in found)
    assert 0.92 * trials <= covered <= 0.98 * trials  # the standard error of 300 trials is 1.3 %
    spread = np.std([one.mean for one in found])
    assert np.sqrt(np.mean([one.error**2 for one in found])) == pytest.approx(spread, rel=0.12)


def test_a_subject_without_a_value_is_left_out_of_both() -> None:
    rng = np.random.default_rng(5)
    runs = [run("jm", 0, rng, missing="BA0"), run("sga+c", 0, rng)]
    found = {(d.metric, d.measure): d for d in paired_differences(runs, "sga+c")}
    assert found["dsc", "BM"].subjects == 7
    assert found["asd", "BM"].subjects == 8


def test_a_seed_without_a_value_does_not_count() -> None:
    rng = np.random.default_rng(6)
    runs = [run(name, seed, rng) for seed in (0, 1) for name in ("jm", "sga+c")]
    for row in runs[2].results.subjects:  # jm, seed 1
        if row.site == "F":
            row.classes["foreground"]["asd"] = None
    found = {(d.metric, d.measure): d for d in paired_differences(runs, "sga+c")}
    assert found["asd", "FM"].seeds == 1
    assert not found["asd", "FM"].certain
    assert found["asd", "BM"].seeds == 2

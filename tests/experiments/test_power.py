"""Seeds that a difference needs, against published values and simulation."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import nct, t

from experiments.claims import REPLAY, STREAMS
from experiments.decide import noncentrality, power_of
from experiments.power import PILOT, Spread, needed, page, pilot_of, seeds_needed, spread_of
from smg.errors import SmgError
from smg.report.runs import Run
from tests.report.random_runs import run
from tests.report.test_paired import Design


@pytest.mark.parametrize(("effect", "seeds"), [(0.5, 34), (0.8, 15), (1.0, 10)])
def test_published_sample_sizes_of_a_paired_t_test(effect: float, seeds: int) -> None:
    assert seeds_needed(Spread(1.0), effect, 0.8) == seeds  # two-sided, 5 %, 80 %


@pytest.mark.parametrize("design", [Design(5, {"A": 1}, 1.2, 0.0, 0.0), Design(5, {"F": 12}, 0.8, 1.5, 0.7)])
def test_power_is_how_often_a_simulated_interval_excludes_zero(design: Design) -> None:
    """One patient, and twelve patients whom all seeds test."""
    rng, trials = np.random.default_rng(0), 400
    found = [design.draw(rng, truth=1.5) for _ in range(trials)]
    decided = np.mean([one.low > 0 or one.high < 0 for one in found])
    count = sum(design.patients.values())
    between = design.by_seed**2 + design.by_both**2 / count
    spread = Spread(between, design.by_patient**2 / count, max(1, count - 1))
    assert power_of(1.5, *spread.after(design.seeds)) == pytest.approx(decided, abs=0.06)  # 400 trials: ± 0.025


@pytest.mark.parametrize(("centre", "freedom"), [(0.5, 3.0), (2.0, 3.0), (3.1, 7.4), (2.8, 60.0)])
def test_power_is_that_of_the_noncentral_t(centre: float, freedom: float) -> None:
    bound = t.ppf(0.975, freedom)
    exact = nct.sf(bound, freedom, centre) + nct.cdf(-bound, freedom, centre)
    assert power_of(centre, 1.0, freedom) == pytest.approx(exact, abs=1e-4)


def test_what_is_detectable_is_what_is_found_with_that_power() -> None:
    error, freedom = Spread(4.0).after(6)
    assert power_of(error * noncentrality(freedom, 0.8), error, freedom) == pytest.approx(0.8, abs=1e-6)
    assert seeds_needed(Spread(1e4), 1.5, 0.8) is None
    assert seeds_needed(Spread(0.1, common=4.0, patients=9), 1.5, 0.8) is None  # more seeds bring no other patients


def pilot(names: tuple[str, ...], seeds: int) -> list[Run]:
    rng = np.random.default_rng(3)
    made = [(s, n, run(n, k, rng)) for s in STREAMS for k in range(seeds) for n in names]
    return [replace(one, folder=Path(stream, name, f"seed-{one.seed}")) for stream, name, one in made]


def test_the_spread_is_of_differences_paired_by_seed() -> None:
    runs = pilot(("jm", "finetune"), 4)
    found = spread_of(runs, "finetune", "jm", ("A-first",), "BM")
    assert found
    here = {r.name: [] for r in runs}
    for r in runs:
        if r.folder.parents[1].name == "A-first":
            here[r.name].append(100 * r.results.measures["dsc"]["BM"])
    expected = np.std(np.subtract(here["finetune"], here["jm"]), ddof=1)
    assert math.sqrt(found[0].variance) == pytest.approx(expected)
    assert found[1] == 4
    assert spread_of([r for r in runs if r.seed == 0], "finetune", "jm", ("A-first",), "BM") is None


def test_where_nothing_varies_the_fewest_seeds_find_any_difference() -> None:
    assert seeds_needed(Spread(0.0), 1.5, 0.8) == PILOT
    assert seeds_needed(Spread(0.0), 0.0, 0.8) is None


def test_the_page_has_every_pair_on_each_stream_and_on_both() -> None:
    runs = pilot((*REPLAY, "finetune"), 6)
    figures = needed(runs)
    assert {f.pilot for f in figures} == {4}  # the later seeds are not the pilot's
    assert len(figures) == 2 * len(REPLAY) * 3 * 2
    text = page(figures)
    assert text.count("\n| finetune | ") == 2
    assert "From a pilot of 4 seeds" in text
    fewer = [r for r in runs if r.seed < 2 or r.name != "gem"]
    assert "From a pilot of 2 to 4 seeds" in page(needed(fewer))
    assert {f.pilot for f in pilot_of(fewer)} == {4}  # a page is published of pairs with a whole pilot alone
    assert pilot_of([r for r in runs if r.seed < 2]) == []
    with pytest.raises(SmgError, match="no run of ewc"):
        needed(runs, references=["ewc"])
    with pytest.raises(SmgError, match="run more seeds"):
        needed([r for r in runs if r.seed == 0])

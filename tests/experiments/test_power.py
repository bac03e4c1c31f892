"""Seeds that a difference needs, against published values and simulation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from experiments.power import detectable, power_of, seeds_needed, spread_of
from smg.errors import SmgError
from smg.report.runs import find_runs
from tests.report.benches import make_bench


@pytest.mark.parametrize(("effect", "seeds"), [(0.5, 34), (0.8, 15), (1.0, 10)])
def test_published_sample_sizes_of_a_paired_t_test(effect: float, seeds: int) -> None:
    assert seeds_needed(1.0, effect, 0.8) == seeds  # two-sided, 5 %, 80 %


def test_power_is_how_often_a_simulated_comparison_is_significant() -> None:
    from scipy.stats import ttest_1samp

    drawn = np.random.default_rng(0).normal(1.5, 1.2, size=(20_000, 5))
    found = (ttest_1samp(drawn, 0.0, axis=1).pvalue < 0.05).mean()
    assert power_of(5, 1.5, 1.2) == pytest.approx(found, abs=0.01)


def test_what_is_detectable_is_what_is_found_with_that_power() -> None:
    assert power_of(6, detectable(2.0, 6, 0.8), 2.0) == pytest.approx(0.8, abs=1e-6)
    assert seeds_needed(100.0, 1.5, 0.8) is None


def test_the_spread_is_of_differences_paired_by_seed(tmp_path: Path) -> None:
    runs = find_runs([make_bench(tmp_path / "bench", seeds=(0, 1, 2))])
    stream = runs[0].folder.parents[1].name
    by_name = {
        name: [100 * r.results.measures["dsc"]["BM"] for r in runs if r.name == name] for name in ("jm", "sga+c")
    }
    only = [run for run in runs if run.name in by_name]
    expected = np.std(np.subtract(by_name["sga+c"], by_name["jm"]), ddof=1)
    assert spread_of(only, stream, "BM", "jm") == pytest.approx(expected)
    with pytest.raises(SmgError, match="no run of ewc"):
        spread_of(only, stream, "BM", "ewc")

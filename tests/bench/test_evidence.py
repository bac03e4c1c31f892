"""The claims' numbers and verdicts, and that the published pages say what the published runs do."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from smg.report.runs import Run
from tests.report.test_paired import run

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def evidence() -> ModuleType:
    spec = importlib.util.spec_from_file_location("evidence", ROOT / "benchmarks/evidence.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["evidence"] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("low", "high", "papers", "said"),
    [
        (0.1, 2.0, 1.0, "holds"),
        (0.1, 2.0, 9.0, "holds"),
        (-2.0, -0.1, None, "does not"),
        (-1.0, 2.0, 3.0, "does not"),  # zero is within and the paper's number is not
        (-1.0, 4.0, 3.0, "cannot be told"),
        (-1.0, 4.0, None, "cannot be told"),
    ],
)
def test_verdicts(evidence: ModuleType, low: float, high: float, papers: float | None, said: str) -> None:
    assert evidence.verdict(low, high, papers) == said


def values(strata: list[list[np.ndarray]]) -> float:
    return float(np.mean([np.mean([site.mean() for site in seed]) for seed in strata]))


def test_a_claims_number_is_what_it_says(evidence: ModuleType) -> None:
    rng = np.random.default_rng(4)
    runs = [run(name, seed, rng) for seed in (0, 1) for name in ("sga", "jm")]

    def mean(name: str, measure: str) -> float:
        return float(np.mean([r.results["measures"]["dsc"][measure] for r in runs if r.name == name]))

    for measure in ("BM", "BT", "FM", "FT"):
        claimed = values(evidence.over("sga", "jm", measure, "").strata(runs))
        assert claimed == pytest.approx(mean("sga", measure) - mean("jm", measure))
        assert values(evidence.of_measure("jm", measure, -1, "").strata(runs)) == pytest.approx(-mean("jm", measure))

    def after(one: Run, round: str, site: str) -> float:
        rows = one.results["subjects"]
        here = [r["classes"]["foreground"]["dsc"] for r in rows if r["round"] == round and r["site"] == site]
        return float(np.mean(here))

    jms = [r for r in runs if r.name == "jm"]
    fall = np.mean([after(r, "A", "A") - after(r, "B", "A") for r in jms])
    assert values(evidence.along("jm", 0, -1, "").strata(runs)) == pytest.approx(fall)
    rise = np.mean([after(r, "B", "F") - after(r, "A", "F") for r in jms])
    assert values(evidence.along("jm", -1, 1, "").strata(runs)) == pytest.approx(rise)
    ahead = np.mean([after(s, "B", "F") - after(j, "B", "F") for s, j in zip(runs[::2], runs[1::2], strict=True)])
    assert values(evidence.at_all_lengths("sga", "jm", -1, "").strata(runs)) == pytest.approx(ahead)


def test_the_published_pages_say_what_the_runs_do(evidence: ModuleType) -> None:
    for path, text in evidence.pages(ROOT / "results").items():
        assert path.read_text() == text, f"{path.relative_to(ROOT)}: python benchmarks/evidence.py results"

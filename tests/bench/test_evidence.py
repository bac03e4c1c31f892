"""The claims' numbers and verdicts, and that the published pages say what the published runs do."""

from __future__ import annotations

import importlib.util
import json
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
        (-2.0, -0.1, None, "reversed"),
        (-1.0, 2.0, 3.0, "smaller"),
        (-1.0, 4.0, 3.0, "open"),
        (-1.0, 4.0, None, "open"),
    ],
)
def test_a_comparisons_verdict(evidence: ModuleType, low: float, high: float, papers: float | None, said: str) -> None:
    assert evidence.Found("", 0.0, low, high, papers, 3).verdict == said


def test_a_claims_verdict(evidence: ModuleType) -> None:
    holds, less, open_ = (
        evidence.Found("", 0.0, low, high, 5.0, 3) for low, high in ((0.1, 1.0), (-1.0, 1.0), (-1.0, 9.0))
    )
    young = evidence.Found("", 0.0, 0.1, 1.0, 5.0, 2)
    assert evidence.verdict([holds, holds], 2) == "**holds**"
    assert evidence.verdict([holds, open_], 2) == "holds in part: 1 of 2"
    assert evidence.verdict([less, open_], 2) == "**does not**"
    assert evidence.verdict([less, open_, open_], 3) == "cannot be told"
    assert evidence.verdict([holds, young], 2) == "not told by 2 seeds"
    assert evidence.verdict([holds], 2) == "not all run yet"


def mean(seeds: list[dict[str, dict[str, float]]]) -> float:
    return float(np.mean([np.mean([np.mean(list(site.values())) for site in values.values()]) for values in seeds]))


def test_a_comparisons_number_is_what_it_says(evidence: ModuleType) -> None:
    rng = np.random.default_rng(4)
    runs = [run(name, seed, rng) for seed in (0, 1) for name in ("sga", "jm")]

    def measure(name: str, which: str) -> float:
        return float(np.mean([r.results["measures"]["dsc"][which] for r in runs if r.name == name]))

    for which in ("BM", "BT", "FT"):  # FM is another file's
        ahead = mean(evidence.over("sga", "jm", which).seeds(runs, "dsc"))
        assert ahead == pytest.approx(measure("sga", which) - measure("jm", which))
        assert mean(evidence.over("sga", "jm", which).seeds(runs, "asd")) == pytest.approx(
            -10 * ahead
        )  # less is better
    assert mean(evidence.forgets("jm").seeds(runs, "dsc")) == pytest.approx(-measure("jm", "BT"))

    def after(one: Run, round: str, site: str) -> float:
        rows = one.results["subjects"]
        here = [r["classes"]["foreground"]["dsc"] for r in rows if r["round"] == round and r["site"] == site]
        return float(np.mean(here))

    jms = [r for r in runs if r.name == "jm"]
    fall = np.mean([after(r, "A", "A") - after(r, "B", "A") for r in jms])
    assert mean(evidence.along("jm", 0, -1).seeds(runs, "dsc")) == pytest.approx(fall)
    rise = np.mean([after(r, "B", "F") - after(r, "A", "F") for r in jms])
    assert mean(evidence.along("jm", -1, 1).seeds(runs, "dsc")) == pytest.approx(rise)
    ahead = np.mean([after(s, "B", "F") - after(j, "B", "F") for s, j in zip(runs[::2], runs[1::2], strict=True)])
    assert mean(evidence.at_length("sga", "jm", -1, 2).seeds(runs, "dsc")) == pytest.approx(ahead)


def test_fm_is_over_every_unseen_subject_that_has_a_value(evidence: ModuleType, tmp_path: Path) -> None:
    rows = [
        {"site": "F", "subject": case, "classes": {"foreground": {"dsc": v}}} for case, v in [("a", 0.5), ("b", None)]
    ]
    (tmp_path / "unseen.json").write_text(json.dumps(rows))
    assert evidence.measured(Run(tmp_path, {}), "dsc", "FM") == {"F": {"a": 0.5}}


def test_the_published_pages_say_what_the_runs_do(evidence: ModuleType) -> None:
    for path, text in evidence.pages(ROOT / "results").items():
        assert path.read_text() == text, f"{path.relative_to(ROOT)}: python benchmarks/evidence.py results"

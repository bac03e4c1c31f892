"""The paper's stream on the real sites, small and short: fine-tuning forgets, SGA(+c) does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from smg.learner.config import LearnerConfig
from smg.learner.results import Results
from smg.learner.stream import Stream
from smg.sites.layouts import find_sites

SMALL = {
    "iterations": 150,
    "preparation": {"size": 64},
    "network": {"width": 8, "depth": 3},
    "optimiser": {"rate": 2e-3, "schedule": "cosine"},
}


def run(data: Path, folder: Path, method: str) -> Results:
    config = LearnerConfig.model_validate(SMALL | {"method": method})
    return Stream(find_sites(data), ["RUNMC", "HCRUDB", "UCL", "BIDMC"], "HK", config).run(folder)


@pytest.mark.parametrize(
    ("method", "backward_measure", "backward_transfer", "forward_measure"),
    [("finetune", (0.40, 0.75), (-0.40, -0.08), (0.35, 0.80)), ("sga+c", (0.60, 0.90), (-0.07, 0.15), (0.50, 0.85))],
)
def test_the_measures_are_in_the_region_of_trials_by_hand(
    real_data: Path,
    tmp_path: Path,
    method: str,
    backward_measure: tuple[float, float],
    backward_transfer: tuple[float, float],
    forward_measure: tuple[float, float],
) -> None:
    dsc = run(real_data, tmp_path / "run", method).measures["dsc"]
    assert backward_measure[0] < dsc["BM"] < backward_measure[1]
    assert backward_transfer[0] < dsc["BT"] < backward_transfer[1]
    assert forward_measure[0] < dsc["FM"] < forward_measure[1]

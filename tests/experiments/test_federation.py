"""The federation on real sites, made small: the page, and the whole on toy sites as separate processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.federation import RUNS, Round, section
from smg.learner.results import write_results
from tests.conftest import write_site
from tests.report.random_runs import as_results


def test_the_page_has_both_runs_side_by_side(tmp_path: Path) -> None:
    for number, name in enumerate(RUNS):
        dsc = {"BM": 0.8 + number / 1000, "BT": -0.01, "FM": 0.7, "FT": None}
        asd = {"BM": 2.0, "BT": 0.1, "FM": 3.0, "FT": 0.2}
        matrix = {"dsc": {"F": {"A": 0.7 + number / 100, "B": 0.8 - number / 100, "F": 0.6}}}
        (tmp_path / name).mkdir()
        write_results(tmp_path / name, as_results(measures={"dsc": dsc, "asd": asd}, matrix=matrix))
    one = Round("F", 80.4, 20.2, 400, 190.0, 3e-2, 5e-2, 2e-7)
    (tmp_path / "rounds.json").write_text(json.dumps([vars(one)]))
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section(tmp_path, "jm").splitlines()]
    by_name = {row[0]: row[1:] for row in rows if row}
    assert by_name["over the federation"][:4] == ["80.0", "-1.0", "70.0", "-"]
    assert by_name["centralised"][0] == "80.1"
    assert by_name["1 F"] == ["80", "20", "400", "190", "0.03", "0.05", "0.7", "0.7"]
    assert "2e-07" in section(tmp_path, "jm")


@pytest.mark.long
def test_a_short_stream_of_processes_measures_as_the_centralised_one(tmp_path: Path) -> None:
    for number, name in enumerate(("Amber", "Birch")):
        write_site(tmp_path / "data" / name, 8, first_seed=10 * number)
    words = ["--data", tmp_path / "data", "--out", tmp_path / "out", "--order", "Amber", "--unseen", "Birch"]
    words += ["--methods", "jm", "--iterations", "2", "--page", tmp_path / "page.md"]
    done = subprocess.run([sys.executable, "-m", "experiments.federation", *map(str, words)], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    rounds = json.loads((tmp_path / "out/jm/rounds.json").read_text())
    assert [one["site"] for one in rounds] == ["Amber", "Birch"]
    assert rounds[1]["answers"] == 2
    assert rounds[1]["distance"] < 1e-3
    measured = [json.loads((tmp_path / f"out/jm/{run}/results.json").read_text())["measures"] for run in RUNS]
    for measure in ("BM", "FM", "FT"):
        assert measured[0]["dsc"][measure] == pytest.approx(measured[1]["dsc"][measure], abs=0.02)

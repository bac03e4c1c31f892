"""What methods cost and give beside the paper's measures, against numbers computed by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from smg.evaluation.measures import COSTS
from smg.report.costs import COLUMNS, cost_tables, written_as
from smg.report.page import write_report
from smg.report.runs import find_runs
from tests.report.benches import make_bench

HEADS = [column.head for column in COLUMNS]


def edit(folder: Path, **changes: object) -> None:
    """Change some entries of a run's results.json."""
    path = folder / "results.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    """Return a bench of two methods and a network for each site, with two seeds."""
    folder = make_bench(tmp_path / "bench", ("finetune", "sga+c", "jm"), seeds=(0, 1), subjects=2, reports=3)
    for seed in (0, 1):
        for place, method in enumerate(("finetune", "sga+c", "jm")):
            seconds = dict.fromkeys("ABCD", 10.0 * (place + 1) + 2 * seed) | {"F": 1000.0}
            costs = {
                "plasticity": {"dsc": None, "asd": None},
                "replay_subjects": 8 * place,
                "replay_bytes": 3_000_000 * place,
            }
            costs |= {"state_bytes": 0, "parameters": 1_500_000, "seconds": seconds}
            edit(folder / "A-E" / method / f"seed-{seed}", costs=costs)
        edit(folder / "A-E" / "jm" / f"seed-{seed}", name="per-site", method="per-site")
    return folder


def test_plasticity_is_against_the_run_with_a_network_for_each_site(bench: Path) -> None:
    runs = find_runs([bench])
    (table,) = cost_tables(runs)
    cell = table.rows["sga+c"][HEADS.index("plasticity DSC %")]
    by_hand = []
    for seed in (0, 1):
        ours, alone = (
            next(r.results.matrix["dsc"] for r in runs if (r.name, r.seed) == (name, seed))
            for name in ("sga+c", "per-site")
        )
        by_hand.append(100 * sum(ours[s][s] - alone[s][s] for s in "ABCD") / 4)
    assert cell.mean == pytest.approx(sum(by_hand) / 2)
    assert cell.spread == pytest.approx(abs(by_hand[0] - by_hand[1]) / 2**0.5)
    assert table.rows["per-site"][HEADS.index("plasticity DSC %")].mean == 0


def test_without_that_run_or_with_other_iterations_it_is_unknown(bench: Path) -> None:
    for seed in (0, 1):
        path = bench / "A-E" / "jm" / f"seed-{seed}"
        config = json.loads((path / "results.json").read_text())["config"]
        edit(path, config=config | {"iterations": 1})
    (table,) = cost_tables(find_runs([bench]))
    assert table.rows["sga+c"][0].mean is None
    (table,) = cost_tables(find_runs([bench / "A-E" / "sga+c"]))
    assert table.rows["sga+c"][0].text() == "-"


def test_costs_in_every_form(bench: Path, tmp_path: Path) -> None:
    runs = find_runs([bench])
    markdown = written_as("md", runs)
    (row,) = [line for line in markdown.splitlines() if line.startswith("| sga+c |")]
    assert row.endswith(
        "| 8 ± 0 | 3.00 ± 0.00 | 0.0 ± 0.0 | 1.50 ± 0.00 | 21 ± 1 |"
    )  # without the round of the held-out site
    assert all(cost.formula in markdown for cost in COSTS.values())
    assert r"$8 \pm 0$ & $3.00 \pm 0.00$" in written_as("tex", runs)
    assert "A B C D | F,sga+c,cost,subjects kept,8.0000,0.0000,2\n" in written_as("csv", runs)
    page = write_report([bench], tmp_path / "report.html").page.read_text()
    assert "What each method costs and gives" in page
    assert all(head in page for head in HEADS)


def test_a_machine_that_was_busy_once_does_not_change_the_time_of_a_round(bench: Path, tmp_path: Path) -> None:
    runs = find_runs([make_bench(tmp_path / "third", ("sga+c",), seeds=(2,), subjects=2, reports=3)])
    costs = json.loads((bench / "A-E" / "sga+c" / "seed-0" / "results.json").read_text())["costs"]
    edit(runs[0].folder, costs=costs | {"seconds": dict.fromkeys("ABCDF", 5000.0)})
    (table,) = cost_tables(find_runs([bench, tmp_path / "third"]))
    assert table.rows["sga+c"][HEADS.index("seconds a round")].text(digits=0) == "22"


def test_results_of_an_older_version_have_no_such_table(tmp_path: Path) -> None:
    runs = find_runs([make_bench(tmp_path / "bench", ("finetune", "jm"), seeds=(0,), subjects=2, reports=3)])
    assert cost_tables(runs) == []
    assert written_as("md", runs) == ""
    assert 'id="costs"' not in write_report([tmp_path / "bench"], tmp_path / "report.html").page.read_text()

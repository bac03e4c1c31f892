"""`smg watch`: the state of runs by their logs, and when the command ends."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from smg.cli import app
from smg.errors import SmgError
from smg.files import locked
from smg.report.watching import watch, watch_all
from tests.report.benches import make_bench, make_run


def under_way(folder: Path, lines: int) -> Path:
    """Make a run whose log ends after some lines, the last of them written just now."""
    run = make_run(folder, "sga+c", ("A", "B"), "F", subjects=1, reports=10)
    (run / "results.json").unlink()
    kept = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()[:lines]]
    late = datetime.now(UTC) - datetime.fromisoformat(kept[-1]["time"])
    for line in kept:
        line["time"] = (datetime.fromisoformat(line["time"]) + late).isoformat(timespec="milliseconds")
    (run / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept))
    return run


def test_a_run_under_way_has_a_place_and_a_time_left(tmp_path: Path) -> None:
    run = under_way(tmp_path / "run", 1 + 11 + 5)  # a whole round, then five reports
    run_state = watch(run, [run])
    assert (run_state.state, run_state.round, run_state.site, run_state.iteration) == ("under way", 2, "B", 201)
    assert run_state.losses == {"incoming": 0.2}
    assert run_state.cosines == {"cos_incoming_replay": 0.25}
    assert run_state.share == pytest.approx((500 + 201) / 1500)
    assert run_state.seconds_left == pytest.approx(2 / 50 * (1500 - 701))  # 50 iterations take two seconds


def test_a_silent_run_is_stopped_and_a_failed_one_failed(tmp_path: Path) -> None:
    run = under_way(tmp_path / "run", 5)
    assert watch(run, [run], datetime.now(UTC) + timedelta(hours=1)).state == "stopped"
    (run / "failure.txt").write_text("out of memory\n")
    assert (watch(run, [run]).state, watch(run, [run]).said) == ("failed", "out of memory")
    os.utime(run / "failure.txt", (0, 0))  # the run has started again since
    assert watch(run, [run]).state == "under way"


def test_a_run_whose_process_is_gone_is_stopped_at_once(tmp_path: Path) -> None:
    run = under_way(tmp_path / "run", 5)
    with locked(run):
        assert watch(run, [run]).state == "under way"
    assert watch(run, [run]).state == "stopped"  # its process ended and released the lock
    gone = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True, check=True
    )
    (run / "lock").write_text(f"process {gone.stdout.strip()} on {socket.gethostname()}\n")  # its process was killed
    assert watch(run, [run]).state == "stopped"
    (run / "lock").write_text("process 1 on another-machine\n")  # whose processes cannot be seen from here
    assert watch(run, [run]).state == "under way"


def test_a_line_half_written_does_no_harm(tmp_path: Path) -> None:
    run = under_way(tmp_path / "run", 5)
    with (run / "log.jsonl").open("a") as log:
        log.write('{"event": "step", "round": 2, "si')
    assert watch(run, [run]).round == 1


def test_a_bench_counts_the_runs_to_come(tmp_path: Path) -> None:
    bench = make_bench(tmp_path / "bench", ("finetune", "jm"), seeds=(0,), subjects=1, reports=3)
    plan = json.loads((bench / "bench.json").read_text())
    (bench / "bench.json").write_text(json.dumps(plan | {"seeds": [0, 1]}))
    runs, waiting = watch_all([bench])
    assert [run.label for run in runs] == ["A-E/finetune/seed-0", "A-E/jm/seed-0"]
    assert (waiting, {run.state for run in runs}) == (2, {"done"})


def test_a_published_run_without_a_log_is_done(tmp_path: Path) -> None:
    bench = make_bench(tmp_path / "bench", ("finetune", "jm"), seeds=(0,), subjects=1, reports=3)
    rounds = {run.rounds for run in watch_all([bench])[0]}
    (bench / "A-E/jm/seed-0/log.jsonl").unlink()
    runs, waiting = watch_all([bench])
    assert (waiting, {run.state for run in runs}) == (0, {"done"})
    assert {run.rounds for run in runs} == rounds
    measures = json.loads((bench / "A-E/jm/seed-0/results.json").read_text())["measures"]["dsc"]
    assert [run.measures for run in runs if run.label == "A-E/jm/seed-0"] == [measures]


def test_a_bench_that_lists_its_runs_waits_for_no_others(tmp_path: Path) -> None:
    bench = make_bench(tmp_path / "bench", ("finetune", "jm"), seeds=(0,), subjects=1, reports=3)
    plan = json.loads((bench / "bench.json").read_text()) | {"seeds": [0, 1]}
    runs = ["A-E/finetune/seed-0", "A-E/jm/seed-0", "A-E/jm/seed-1"]
    (bench / "bench.json").write_text(json.dumps(plan | {"runs": runs}))
    assert watch_all([bench])[1] == 1
    (bench / "A-E/jm/seed-1").mkdir()
    (bench / "A-E/jm/seed-1/failure.txt").write_text("smg: a stream names a site twice: A, A\n")
    watched, waiting = watch_all([bench])  # it failed before its log began
    assert (waiting, [run.state for run in watched]) == (0, ["done", "done", "failed"])
    assert watched[-1].said == "a stream names a site twice: A, A"
    (bench / "elsewhere").mkdir()
    (bench / "elsewhere/bench.json").write_text('{"benchmarks": []}')  # a file of another tool
    assert watch_all([bench]) == (watched, 0)


def test_a_stopped_run_of_a_running_bench_is_under_way(tmp_path: Path) -> None:
    bench = make_bench(tmp_path / "bench", ("finetune", "sga+c"), seeds=(0,), subjects=1, reports=3)
    run = under_way(bench / "A-E" / "sga+c" / "seed-0", 5)
    (run / "lock").write_text("")  # its process ended and released the lock
    assert watch(run, [bench]).state == "stopped"
    with locked(bench):
        assert watch(run, [bench]).state == "under way"
        assert watch(run, [bench], datetime.now(UTC) + timedelta(hours=1)).state == "stopped"  # silent for too long
        plan = json.loads((bench / "bench.json").read_text())
        (bench / "bench.json").write_text(json.dumps(plan | {"now": ["A-E/finetune/seed-0"]}))
        assert watch(run, [bench]).state == "stopped"  # the running command has other runs
    (bench / "bench.json").write_text(json.dumps(plan))
    assert watch(run, [bench]).state == "stopped"


def test_watching_does_not_import_torch() -> None:
    code = "import sys, smg.report.watching; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_once_prints_plain_lines(tmp_path: Path) -> None:
    bench = make_bench(tmp_path / "bench", ("jm",), seeds=(0,), subjects=1, reports=3)
    under_way(bench / "A-E" / "sga+c" / "seed-0", 8)
    done = CliRunner().invoke(app, ["watch", str(bench), "--once"])
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0] == "A-E/jm/seed-0  done  5 rounds  BM 80.0  BT -5.0  FM 70.0  FT -10.0"
    assert "round 1 of 3 (A), iteration 301 of 500  loss: incoming 0.143  cos incoming replay +0.25" in lines[1]
    assert lines[2] == "2 runs: 1 done, 1 under way"
    plan = json.loads(CliRunner().invoke(app, ["watch", str(bench), "--json"]).stdout)
    assert [run["state"] for run in plan["runs"]] == ["done", "under way"]


def test_a_folder_without_runs_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(SmgError, match="smg run"):
        watch_all([tmp_path])
    with pytest.raises(SmgError, match="no such folder"):
        watch_all([tmp_path / "none"])


def test_it_follows_until_the_run_ends(tmp_path: Path) -> None:
    run = under_way(tmp_path / "run", 8)
    code = "import sys, smg.cli; sys.modules['smg.cli.watch'].EVERY[False] = 0.1; smg.cli.main()"
    command = [sys.executable, "-c", code]
    watching = subprocess.Popen([*command, "watch", str(run)], stdout=subprocess.PIPE, text=True)
    assert watching.stdout
    assert "under way" in watching.stdout.readline()
    time.sleep(0.3)
    assert watching.poll() is None
    (run / "results.json").write_text("{}")
    out, _ = watching.communicate(timeout=30)
    assert "done" in out
    assert watching.returncode == 0

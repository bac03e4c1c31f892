"""A bench in real processes: it resumes after a stop, and a run that fails harms no other."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from smg.bench.folder import planned_in
from smg.bench.state import results_of
from smg.bench.workers import Bench, gpus
from smg.errors import SmgError
from smg.files import locked
from smg.json_records import Settings
from smg.learner.results import write_results
from tests.bench.grids import grid, run_all
from tests.learner.streams import fingerprint, tiny_stream, write_sites


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_sites(tmp_path / "sites")


def test_a_run_of_several_channels_is_known_again(tmp_path: Path, data: Path) -> None:
    plan = grid(tmp_path, methods=["finetune"])
    (run,) = plan.runs()
    trained = run.config.with_channels(("T2", "ADC"))
    made = tiny_stream(data).run(tmp_path / "made")
    results = made.model_copy(
        update={"name": run.name, "config": Settings.model_validate(trained.model_dump(mode="json"))}
    )
    run.folder(tmp_path / "out").mkdir(parents=True)
    write_results(run.folder(tmp_path / "out"), results)
    assert Bench(plan, tmp_path / "out", data, workers=1).todo == []


def test_a_bench_does_each_run_once_and_reports_those_that_fail(tmp_path: Path, data: Path) -> None:
    out = tmp_path / "out"
    plan = grid(tmp_path)
    first = dict(run_all(Bench(plan, out, data, workers=2)))
    assert first["finetune"] is None
    assert first["sga+c"] is None
    assert "the loss of the incoming batch is nan" in str(first["jumpy"])
    assert "smg: round 1" in (out / "stream/jumpy/seed-0/failure.txt").read_text()

    before = fingerprint(out / "stream/finetune")
    (out / "stream/finetune/seed-0/failure.txt").write_text("\n")  # left by a run that was killed after its last result
    again = run_all(Bench(plan, out, data, workers=2))
    assert [name for name, _ in again] == ["jumpy"]  # what is done is not done again; what failed is tried again
    assert fingerprint(out / "stream/finetune") == before


def test_a_run_of_a_bench_is_the_stream_s_own_run_to_the_bit(tmp_path: Path, data: Path) -> None:
    plan = grid(tmp_path, methods=["sga+c"])
    run_all(Bench(plan, tmp_path / "out", data, workers=2))
    tiny_stream(data, method="sga+c").run(tmp_path / "alone")
    made = fingerprint(tmp_path / "out/stream/sga+c/seed-0")
    alone = fingerprint(tmp_path / "alone")
    assert {name: made[name] for name in alone} == alone


def test_a_killed_bench_takes_its_runs_along(tmp_path: Path, data: Path) -> None:
    grid(tmp_path, methods=["finetune"], iterations=100_000)
    out = tmp_path / "out"
    words = [str(tmp_path / "grid.yaml"), "--data", str(data), "--out", str(out)]
    bench = subprocess.Popen(
        [sys.executable, "-m", "smg", "bench", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    run = out / "stream/finetune/seed-0"
    wait_for(lambda: (run / "log.jsonl").exists())
    assert not free(out)
    assert not free(run)
    bench.send_signal(signal.SIGKILL)
    bench.wait()
    wait_for(lambda: free(run))  # its worker is gone


def test_ctrl_c_stops_a_bench_with_a_checkpoint(tmp_path: Path, data: Path) -> None:
    grid(tmp_path, methods=["finetune"], iterations=100_000)
    out = tmp_path / "out"
    words = [str(tmp_path / "grid.yaml"), "--data", str(data), "--out", str(out)]
    command = [sys.executable, "-m", "smg", "bench", *words]
    bench = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    run = out / "stream/finetune/seed-0"
    wait_for(lambda: '"step"' in ((run / "log.jsonl").read_text() if (run / "log.jsonl").exists() else ""))
    bench.send_signal(signal.SIGINT)
    _, printed = bench.communicate(timeout=60)
    assert bench.returncode == 130
    last = printed.splitlines()[-1]
    assert last.startswith("smg: stopped")
    assert "same command" in last
    assert list((run / "model/progress").iterdir())
    assert free(run)


def test_other_settings_need_another_folder_but_methods_may_join(tmp_path: Path, data: Path) -> None:
    out = tmp_path / "out"
    run_all(Bench(grid(tmp_path, methods=["finetune"]), out, data, workers=1))
    with pytest.raises(SmgError, match=r"out: .*other settings.*--out"):
        run_all(Bench(grid(tmp_path, methods=["jm"], batch=3), out, data, workers=1))
    assert run_all(Bench(grid(tmp_path, methods=["jm"], seeds=[1]), out, data, workers=1)) == [("jm", None)]
    record = json.loads((out / "bench.json").read_text())
    assert [method["name"] for method in record["methods"]] == ["finetune", "jm"]
    assert record["seeds"] == [0, 1]
    assert planned_in(out) == [out / "stream/jm/seed-1", out / "stream/finetune/seed-0"]  # and no others
    for changed in ({"name": "jm", "method": "sga"}, {"name": "jm", "method": "jm", "batch": 1}):
        with pytest.raises(SmgError, match=r"out: .*method called 'jm'.*another name"):
            run_all(Bench(grid(tmp_path, methods=[changed], seeds=[2]), out, data, workers=1))
    with pytest.raises(SmgError, match=r"out: .*stream called 'stream'.*another name"):
        run_all(Bench(grid(tmp_path, methods=["jm"], order=["B", "A"], seeds=[2]), out, data, workers=1))
    assert not (out / "stream/jm/seed-2").exists()


def test_time_left_goes_by_the_pace_seen(tmp_path: Path, data: Path) -> None:
    plan = grid(tmp_path, methods=["finetune", "jm", "sga"])
    bench = Bench(plan, tmp_path / "out", data, workers=2)
    assert bench.seconds_left() is None
    bench.todo = plan.runs()
    bench.pace = {"finetune": 10.0, "jm": 20.0}
    assert bench.seconds_left() == pytest.approx((10 + 20 + 15) / 2)
    assert results_of(tmp_path) is None


def wait_for(true: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.1)


def free(folder: Path) -> bool:
    """Whether no process holds the folder."""
    try:
        with locked(folder):
            return True
    except SmgError:
        return False


def test_results_of_another_run_are_not_taken_for_a_runs_own(tmp_path: Path, data: Path) -> None:
    out = tmp_path / "out"
    run_all(Bench(grid(tmp_path, methods=[{"name": "v", "method": "finetune"}]), out, data, workers=1))
    before = (out / "bench.json").read_text()
    with pytest.raises(SmgError, match=r"stream/v/seed-0: .*another configuration.*--out"):
        run_all(Bench(grid(tmp_path, methods=[{"name": "v", "method": "jm"}]), out, data, workers=1))
    with pytest.raises(SmgError, match=r"stream/v/seed-0: .*another configuration.*--out"):
        run_all(Bench(grid(tmp_path, methods=[{"name": "v", "method": "finetune"}], order=["B"]), out, data, 1))
    results = out / "stream/v/seed-0/results.json"
    made = json.loads(results.read_text())
    results.write_text(json.dumps(made | {"config": made["config"] | {"options": {"of another version": 1}}}))
    with pytest.raises(SmgError, match=r"stream/v/seed-0: .*another configuration.*--out"):
        run_all(Bench(grid(tmp_path, methods=[{"name": "v", "method": "finetune"}]), out, data, workers=1))
    assert (out / "bench.json").read_text() == before


@pytest.mark.parametrize(
    ("visible", "count", "names"),
    [(None, 2, ("0", "1")), ("", 0, ()), ("4,6", 2, ("4", "6")), ("GPU-a,-1,3", 1, ("GPU-a",))],
)
def test_the_names_of_the_gpus(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, count: int, names: tuple[str, ...]
) -> None:
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr("torch.cuda.device_count", lambda: count)
    assert gpus.__wrapped__() == names


def test_workers_share_out_the_gpus(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[str] = []
    start = subprocess.Popen

    def noting(*args: Any, env: dict[str, str] | None = None, **more: Any) -> Any:
        given.append((env or {}).get("CUDA_VISIBLE_DEVICES", ""))
        return start(*args, env=env, **more)

    monkeypatch.setattr("smg.bench.workers.subprocess.Popen", noting)
    monkeypatch.setattr("smg.bench.workers.gpus", lambda: ("4", "6"))  # this machine need not have them
    run_all(Bench(grid(tmp_path, methods=["finetune", "jm"]), tmp_path / "out", data, workers=2))
    assert given == ["4", "6"]

"""`smg bench` for a cluster: what it prints for Slurm and for other schedulers."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from tests.bench.grids import grid
from tests.cli.commands import assert_line, smg
from tests.learner.streams import write_sites


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    write_sites(tmp_path / "sites")
    grid(tmp_path, methods=["finetune", {"name": "two words", "method": "jm"}], data="sites")
    return tmp_path


def test_a_dry_run_prints_the_script_and_writes_nothing(desk: Path) -> None:
    words = ("--partition", "gpu", "--gres", "gpu:1", "--time", "4:00:00", "--max", "8", "--sbatch", "account=me")
    result = smg("bench", "grid.yaml", "--slurm", "--dry-run", *words, "--threads", "3", "--out", "my runs", cwd=desk)
    assert result.returncode == 0, result.stderr
    assert not (desk / "my runs").exists()
    for line in (
        "--array=0-1%8", "--requeue", "--open-mode=append", "--signal=B:TERM@120", "--cpus-per-task=3",
        "--partition=gpu", "--gres=gpu:1", "--time=4:00:00", "--account=me",
    ):  # fmt: skip
        assert f"#SBATCH {line}\n" in result.stdout
    assert "'stream/two words/seed-0'" in result.stdout
    assert f"run='{desk}/my runs'/${{runs[$SLURM_ARRAY_TASK_ID]}}" in result.stdout
    assert f'"$run/run.yaml" --data {desk}/sites --out "$run" --threads 3 ' in result.stdout
    subprocess.run(["bash", "-n"], input=result.stdout, text=True, check=True)


def test_commands_are_those_of_unfinished_runs_and_complete_the_bench(desk: Path) -> None:
    result = smg("bench", "grid.yaml", "--commands", cwd=desk)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert len(lines) == 2
    for line in lines:
        words = shlex.split(line)
        assert words[1:4] == ["-m", "smg", "run"]
        assert smg(*words[3:], cwd=Path("/")).returncode == 0  # from any folder
    assert smg("bench", "grid.yaml", "--commands", cwd=desk).stdout == ""
    assert "every run is done" in smg("bench", "grid.yaml", "--slurm", "--dry-run", cwd=desk).stdout
    assert "finetune" in smg("bench", "grid.yaml", cwd=desk).stdout


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (("--partition", "gpu"), ("--partition", "give --slurm")),
        (("--dry-run",), ("--dry-run", "give --slurm")),
        (("--slurm", "--commands"), ("give one of them",)),
        (("--slurm", "--workers", "2"), ("--workers", "--max")),
    ],
)
def test_options_that_do_not_go_together(desk: Path, words: tuple[str, ...], facts: tuple[str, ...]) -> None:
    assert_line(smg("bench", "grid.yaml", *words, cwd=desk), 2, *facts)

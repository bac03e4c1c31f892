"""A round that was begun and not finished: stopped by a closed terminal, resumed elsewhere, given up."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from smg.learner.closing import versions_of_packages
from tests.cli.commands import assert_line, smg, write_and_learn


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with two rounds and a third under way, stopped by SIGHUP."""
    made = write_and_learn(tmp_path_factory.mktemp("abandon"), "ABC", "AB")
    from smg.cli.terminal import TrainingProgress

    whole = TrainingProgress.__call__

    def hang_up(self: TrainingProgress, iteration: int, step: object) -> None:
        if iteration == 1:
            os.kill(os.getpid(), signal.SIGHUP)
        whole(self, iteration, step)  # type: ignore[arg-type]

    before = signal.getsignal(signal.SIGHUP)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainingProgress, "__call__", hang_up)
        stopped = smg("learn", "model", "C", "--unguarded", cwd=made)
    signal.signal(signal.SIGHUP, before)
    assert stopped.returncode == 130
    assert "stopped at iteration 1 of 3; the same command resumes there" in stopped.stderr
    return made


def test_it_is_given_up_by_a_command(folder: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(folder / "model", model)
    refused = smg("learn", model, folder / "A", "--again", "--unguarded")
    assert_line(refused, 1, "a round on site C is under way", f"`smg abandon {model}`")
    shutil.copytree(model / "rounds/002", model / "rounds/003")  # as if it had died before model.json named it
    given_up = smg("abandon", model)
    assert not (model / "rounds/003").exists()
    assert given_up.stdout == "round 3, C, was given up at iteration 1\n"
    assert not (model / "progress").exists()
    assert "abandoned: round 3, site C, iteration 1" in smg("history", model).stdout
    assert_line(smg("abandon", model), 1, "no round is under way")
    assert smg("learn", model, folder / "A", "--again", "--unguarded").returncode == 0


def test_a_rollback_names_the_round_that_it_needs(folder: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(folder / "model", model)
    back = smg("rollback", model, "1")
    assert f"round 3, C, is under way and goes on from round 2: `smg rollback {model} 2`" in back.stdout
    assert_line(
        smg("learn", model, folder / "C", "--unguarded"), 1, "goes on from round 2", f"`smg rollback {model} 2`"
    )
    forth = smg("rollback", model, "2")
    assert "under way" not in forth.stdout
    assert smg("learn", model, folder / "C", "--unguarded").returncode == 0


def test_another_torch_or_number_of_threads_is_a_warning(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model"
    shutil.copytree(folder / "model", model)
    other = versions_of_packages() | {"torch": "9.9.9", "threads": 77}
    monkeypatch.setattr("smg.learner.checkpoints.versions_of_packages", lambda: other)
    resumed = smg("learn", model, folder / "C", "--unguarded", "--json")
    assert resumed.returncode == 0
    assert "goes on with torch 9.9.9, 77 threads: its weights will differ in their last bits" in resumed.stderr
    assert json.loads(resumed.stdout)["round"] == 3

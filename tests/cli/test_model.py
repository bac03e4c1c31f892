"""The commands of a model's life: learn, evaluate, roll back, drop."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from socket import gethostname
from typing import Any

import pytest

from smg.learner.learner import Learner
from tests.cli.commands import TINY, assert_line, smg
from tests.learner.streams import write_sites


@pytest.fixture(scope="module")
def year(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three sites, and a model that has learned two of them."""
    folder = tmp_path_factory.mktemp("year")
    write_sites(folder / "sites")
    first = smg("learn", "model", "sites/A", *TINY, cwd=folder)
    assert first.returncode == 0, first.stderr
    assert "round 1: A, trained on 2 subjects" in first.stdout
    assert re.search(r"iteration 3/3 .*loss: incoming \d", first.stderr)
    second = smg("learn", "model", "sites", "--site", "B", "--tolerance", "100", cwd=folder)
    assert second.returncode == 0, second.stderr
    row = next(line for line in second.stdout.splitlines() if line.startswith("|A"))
    assert "1 sentinel" in row
    assert "→" in row  # its exemplars
    assert "kept for replay: 2 of A (0.0 MB), 2 of B (0.0 MB)" in second.stdout
    return folder


@pytest.fixture
def folder(year: Path, tmp_path: Path) -> Path:
    shutil.copytree(year, tmp_path / "year")
    return tmp_path / "year"


def test_a_round_that_harms_is_held_with_exit_3_and_can_be_accepted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn = Learner.learn
    # Less than nothing, which cannot be typed, is always too much.
    monkeypatch.setattr(Learner, "learn", lambda *words, **more: learn(*words, **more | {"tolerance": -200.0}))
    result = smg("learn", "model", "sites/C", cwd=folder)
    assert result.returncode == 3
    assert "round 3 is held" in result.stderr
    assert "`smg accept model 3`" in result.stderr
    history = json.loads(smg("history", "model", "--json", cwd=folder).stdout)
    assert history["current"] == 2
    assert [r["held"] for r in history["rounds"]] == [False, False, True]
    assert [r["guard"]["sites"].keys() for r in history["rounds"]] == [set(), {"A"}, {"A", "B"}]
    accepted = smg("accept", "model", "3", cwd=folder).stdout
    assert "the model knows C\n" in accepted  # and no longer the two that fell by more than was tolerated
    assert "it has lost A: DSC" in accepted
    assert [line.split("|")[1].strip() for line in accepted.splitlines() if "1 sentinel" in line] == ["A", "B"]
    assert "it has lost B: DSC" in smg("history", "model", cwd=folder).stdout
    history = json.loads(smg("history", "model", "--json", cwd=folder).stdout)
    assert (history["knows"], set(history["lost"])) == (["C"], {"A", "B"})
    back = json.loads(smg("rollback", "model", "2", "--json", cwd=folder).stdout)
    assert (back["current"], back["knows"], back["lost"]) == (2, ["A", "B"], {})
    assert [(one["site"], one["evidence"]) for one in back["sites"]] == [("B", "test part"), ("A", "sentinels")]


def test_history_says_what_each_round_did_to_every_site(folder: Path) -> None:
    first, second = json.loads(smg("history", "model", "--json", cwd=folder).stdout)["rounds"]
    assert [one["site"] for one in first["sites"]] == ["A"]
    own, earlier = second["sites"]
    assert (own["site"], own["evidence"], own["before"]) == ("B", "test part", None)
    judged = second["guard"]["sites"]["A"]
    assert (earlier["before"], earlier["after"]) == (judged["before"], judged["after"])
    assert earlier["change"] == pytest.approx(judged["after"] - judged["before"])
    assert not earlier["lost"]
    text = smg("history", "model", cwd=folder).stdout
    row = next(line for line in text.splitlines() if "1 sentinel" in line)
    assert f"{100 * judged['before']:.1f}" in row
    assert "the model knows A, B" in text
    assert {second["method"], str(second["iterations"])} <= set(text.replace("|", " ").split())
    assert max(map(len, text.splitlines())) <= 90  # a terminal's width


def test_history_rollback_and_replay(folder: Path) -> None:
    table = smg("history", "model", cwd=folder).stdout
    assert "current" in table
    assert "sga+c" in table
    assert "the model knows A\n" in smg("rollback", "model", "1", cwd=folder).stdout
    assert "rolled back: round 1" in smg("history", "model", cwd=folder).stdout
    stored = json.loads(smg("replay", "show", "model", "--json", cwd=folder).stdout)
    assert [(one["site"], one["round"], one["subjects"], one["in_use"]) for one in stored] == [
        ("A", 1, 2, True),
        ("B", 2, 2, False),  # its round is not current, but its subjects are still there
    ]
    harmed = next((folder / "model/rounds").glob("*2/exemplars.safetensors"))
    whole = harmed.read_bytes()
    harmed.write_bytes(whole[:-1])
    assert json.loads(smg("history", "model", "--json", cwd=folder).stdout)["current"] == 1
    harmed.write_bytes(whole)
    assert (
        "2 exemplars of A, its sentinels and its spectra removed"
        in smg("replay", "drop", "model", "A", "--yes", cwd=folder).stdout
    )
    refused = smg("learn", "model", "sites/C", cwd=folder)  # nothing is left to replay
    assert "would only fine-tune" in refused.stderr
    unmeasured = smg("learn", "model", "sites/C", "--method", "finetune", cwd=folder)
    assert unmeasured.returncode == 3
    assert next(line for line in unmeasured.stdout.splitlines() if line.startswith("|A")).count("not measured") == 1
    smg("accept", "model", "3", cwd=folder)
    assert "cannot tell whether it still knows A" in smg("history", "model", cwd=folder).stdout
    assert "dropped exemplars: site A, subjects 2" in smg("history", "model", cwd=folder).stdout


def test_a_class_that_subjects_do_not_have_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    from smg.cli.evaluate import _print_evaluation

    there = {"dsc": 0.5, "asd": 1.0, "hd95": 2.0, "surface_dice": 0.5, "volume_difference": 0.0}
    absent = there | {"dsc": 1.0, "asd": None, "hd95": None, "surface_dice": None}
    rows = [
        {"site": "A", "part": "test", "subject": f"Case{n}", "classes": {"near": there, "far": far}}
        for n, far in enumerate((there, absent))
    ]
    _print_evaluation(rows)
    said = capsys.readouterr().out
    far = next(line for line in said.splitlines() if "A far" in line)
    assert far.split("|")[-2].strip() == "1"
    assert "their DSC counts as 100 %" in said
    _print_evaluation([row | {"classes": {"near": there}} for row in rows])
    assert "absent" not in capsys.readouterr().out


def test_evaluate(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smg.cli.terminal.ProgressLine.is_due", lambda *_: True)
    result = smg("evaluate", "model", "sites/C", "sites/A", "--part", "all", "--csv", "all.csv", cwd=folder)
    assert result.returncode == 0, result.stderr
    assert "C, lowest DSC: Case0" in result.stdout
    assert "preparing C 4/4" in result.stderr
    assert "evaluating A: Case03, 4 of 4" in result.stderr
    assert len((folder / "all.csv").read_text().splitlines()) == 9
    rows = json.loads(smg("evaluate", "model", "sites/C", "--json", cwd=folder).stdout)
    assert [row["part"] for row in rows] == ["never learned"] * 4  # the whole of a site that was never learned
    assert set(rows[0]["classes"]["foreground"]) >= {"dsc", "asd", "hd95", "surface_dice", "volume_difference"}


def test_two_hospitals_whose_folders_are_called_alike(folder: Path) -> None:
    shutil.copytree(folder / "sites/C", folder / "other/B")
    shutil.copytree(folder / "sites/C", folder / "third/B")
    refused = smg("learn", "model", "other/B", cwd=folder)
    assert refused.returncode == 1
    assert "site B was learned before (round 2)" in refused.stderr
    assert "--as NAME" in refused.stderr
    assert "preparing" not in refused.stderr
    learned = smg("learn", "model", "other/B", "--as", "HK", "--tolerance", "100", "--json", cwd=folder)
    assert json.loads(learned.stdout)["site"] == "HK"
    unnamed = smg("evaluate", "model", "other/B", cwd=folder)  # HK's parts are not those of a site B
    assert unnamed.returncode == 1
    assert "the same scan was learned at site HK; --leave-out goes on without it, --as HK" in unnamed.stderr
    rows = json.loads(smg("evaluate", "model", "other/B", "--as", "HK", "--json", cwd=folder).stdout)
    assert [row["site"] for row in rows] == ["HK"]
    both = ("evaluate", "model", "other/B", "third/B", "--part", "all")
    assert_line(smg(*both, cwd=folder), 2, "two sites", "called B", "--as NAME")
    assert_line(smg(*both, "--as", "X", cwd=folder), 2, "2 sites (B, B)", "1 name")
    assert_line(smg("learn", "model", "other/B", "--as", " ", cwd=folder), 2, "--as", "empty")
    rows = json.loads(smg(*both, "--as", "X", "--as", "Y", "--json", cwd=folder).stdout)
    assert [row["site"] for row in rows] == ["X"] * 4 + ["Y"] * 4
    assert {row["part"] for row in rows} == {"learned at HK"}


def test_a_split_can_be_given_as_a_file(folder: Path) -> None:
    parts = {"train": ["Case03"], "validation": [], "test": ["Case00", "Case01", "Case02"]}
    (folder / "split.json").write_text(json.dumps({"sites": {"C": parts}}))
    result = smg("learn", "model", "sites/C", "--split", "split.json", "--tolerance", "100", "--json", cwd=folder)
    assert json.loads(result.stdout)["subjects"] == {"train": 1, "validation": 0, "test": 3}
    rows = json.loads(smg("evaluate", "model", "sites/C", "--split", "split.json", "--json", cwd=folder).stdout)
    assert [row["subject"] for row in rows] == parts["test"]
    assert "no split of site A" in smg("evaluate", "model", "sites/A", "--split", "split.json", cwd=folder).stderr


def test_ctrl_c_keeps_a_checkpoint_and_the_same_command_goes_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import smg.learner.round as training

    whole, before = training.take_step, signal.getsignal(signal.SIGINT)

    def interrupted(*words: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return whole(*words)

    monkeypatch.setattr(training, "take_step", interrupted)
    stopped = smg("learn", "model", "sites/C", "--tolerance", "100", cwd=folder)
    assert stopped.returncode == 130
    assert "smg: stopped at iteration 1 of 3" in stopped.stderr
    assert "same command" in stopped.stderr
    assert signal.getsignal(signal.SIGINT) is before
    stands = {"round": 3, "site": "C", "iteration": 1, "iterations": 3}
    for at_work, word in ((False, "stopped"), (True, "under way")):
        (folder / "model/lock").write_text(f"process {os.getpid()} on {gethostname()}" if at_work else "")
        history = json.loads(smg("history", "model", "--json", cwd=folder).stdout)
        assert history["under_way"] == stands | {"parent": 2, "at_work": at_work}
        assert f"C: iteration 1 of 3 at its last checkpoint, {word}" in smg("history", "model", cwd=folder).stdout
    monkeypatch.setattr(training, "take_step", whole)
    resumed = smg("learn", "model", "sites/C", "--tolerance", "100", cwd=folder)
    assert resumed.returncode == 0, resumed.stderr
    assert "going on at iteration 1 of 3" in resumed.stderr
    assert json.loads(smg("history", "model", "--json", cwd=folder).stdout)["under_way"] is None


def test_a_damaged_round_hides_no_other(folder: Path) -> None:
    weights = folder / "model/rounds/001/weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    history = smg("history", "model", cwd=folder)
    assert history.returncode == 0, history.stderr
    assert "round 1 is damaged: model/rounds/001/weights.safetensors: cut short or altered" in history.stdout
    shutil.rmtree(folder / "model/rounds/001")
    rounds = json.loads(smg("history", "model", "--json", cwd=folder).stdout)["rounds"]
    missing = "model/rounds/001/round.json: No such file or directory; restore it from a backup"
    assert [one["damaged"] for one in rounds] == [missing, None]
    assert rounds[0]["site"] == "A"
    assert "damaged" in smg("history", "model", cwd=folder).stdout
    predicted = smg("predict", "model", "sites/C/Case00.nii.gz", "--out", "masks", cwd=folder)
    assert predicted.returncode == 0, predicted.stderr
    refused = smg("replay", "show", "model", cwd=folder)
    assert (refused.returncode, len(refused.stderr.splitlines())) == (1, 1)


def test_looking_back_does_not_wait_for_torch(folder: Path) -> None:
    for words in (["history", "model"], ["replay", "show", "model"]):
        probe = f"import sys; from smg.cli import app; app({words}, standalone_mode=False)"
        probe += "; print(sys.modules.keys() & {'torch', 'monai', 'scipy', 'SimpleITK', 'numpy'})"
        said = subprocess.check_output([sys.executable, "-c", probe], text=True, cwd=folder)
        assert said.splitlines()[-1] == "set()"


def test_a_scheduler_that_asks_it_to_end_is_heard_as_ctrl_c_is(folder: Path) -> None:
    """Even where Ctrl-C itself is not, as in a shell's background."""
    words = ["learn", "model", "sites/C", "--iterations", "1000000", "--tolerance", "100"]
    shell = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-m", "smg", *words]
    with subprocess.Popen(shell, cwd=folder, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = next(line for line in process.stderr if line.startswith("iteration"))
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 130, line
        assert "same command" in process.stderr.read()
    assert list((folder / "model/progress").iterdir())


def test_dropped_exemplars_are_not_listed_as_kept(folder: Path) -> None:
    smg("replay", "drop", "model", "A", "--yes", cwd=folder)
    row = next(line for line in smg("history", "model", cwd=folder).stdout.splitlines() if line.startswith("|1"))
    assert [cell.strip() for cell in row.split("|")][-3] == "0"


def test_what_is_left_out_and_what_is_too_little_is_reported(folder: Path) -> None:
    (folder / "sites/C/Case01_segmentation.nii.gz").unlink()
    result = smg("learn", "model", "sites/C", "--leave-out", "--tolerance", "100", cwd=folder)
    assert "left out: Case01; run `smg sites check`" in result.stderr
    shutil.copytree(folder / "sites/B", folder / "one/S")
    for path in (folder / "one/S").glob("Case0[123]*"):
        path.unlink()
    assert "S has 1 subject" in smg("learn", "lone", "one/S", "--few", *TINY, cwd=folder).stderr
    empty = smg("evaluate", "lone", "one/S", cwd=folder)
    assert_line(empty, 1, "no subject in the test part", "--part all")

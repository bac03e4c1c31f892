"""What a newcomer gets wrong: each mistake is answered in one line that says what to do, and never by a traceback."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from smg.files import locked
from tests.cli.commands import TINY, assert_line, smg
from tests.learner.streams import write_sites


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("newcomer")
    write_sites(folder / "sites")
    assert smg("learn", "model", "sites/A", *TINY, cwd=folder).returncode == 0
    (folder / "empty").mkdir()
    (folder / "notes.txt").write_text("not a scan")
    (folder / "typo.yaml").write_text("order: [A, B]\nunseen: C\nmethod: jm\niteration: 5\n")
    (folder / "methods.yaml").write_text("order: [A, B]\nunseen: C\nmethds: [jm]\n")
    (folder / "twice.yaml").write_text("order: [A, B]\nunseen: B\n")
    shutil.copytree(folder / "sites/A", folder / "unmasked/A")
    (folder / "unmasked/A/Case01_segmentation.nii.gz").unlink()
    shutil.copytree(folder / "model", folder / "newer")
    about = json.loads((folder / "newer/model.json").read_text())
    (folder / "newer/model.json").write_text(json.dumps(about | {"format": 99}))
    return folder


RUN = ("run", "--data", "sites", "--order", "A,B", "--unseen", "C")


@pytest.mark.parametrize(
    ("words", "code", "facts"),
    [
        (("learn", "m", "nowhere"), 1, "nowhere: | no such"),
        (("learn", "m", "empty"), 1, "empty: | no site"),
        (("learn", "m", "sites"), 1, "sites: | 3 sites (A, B, C) | --site"),
        (("learn", "m", "sites/A/Case00.nii.gz"), 1, "Case00.nii.gz: | .csv"),
        (("learn", "m", "unmasked/A"), 1, "unmasked/A/Case01.nii.gz: | without mask"),
        (("learn", "m", "sites/A", "--method", "sgd"), 2, "no method 'sgd' | sga?"),
        (("learn", "m", "sites/A", "--set", "network.widht=8"), 2, "no setting 'network.widht' | network.width"),
        (("learn", "m", "sites/A", "--set", "batch"), 2, "'batch' | key=value"),
        (("learn", "m", "sites/A", "--config", "prostate-light"), 2, "did you mean prostate-lite?"),
        (("learn", "model", "sites/A"), 1, "site A was learned before (round 1) | --again"),
        (("learn", "model", "sites/B", "--set", "network.width=8"), 1, "cannot be changed | width 4, not 8"),
        (("learn", "model", "sites/C", "--set", "preparation.size=24"), 1, "size 16, not 24"),
        (("evaluate", "model", "sites/A", "--part", "tset"), 2, "--part tset: | train, validation, test or all"),
        (("learn", "model", "sites/B", "--tolerance", "nan"), 2, "--tolerance nan: | points of DSC"),
        (("learn", "model", "sites/B", "--tolerance", "inf"), 2, "--tolerance inf: | points of DSC"),
        (("learn", "model", "sites/B", "--tolerance", "-1"), 2, "--tolerance -1: | points of DSC"),
        (("learn", "empty/../sites", "sites/A"), 1, "empty/../sites: | not a model | new folder"),
        (("evaluate", "nomodel", "sites/A"), 1, "nomodel: no model | `smg learn nomodel SITE`"),
        (("evaluate", "newer", "sites/A"), 1, "newer/model.json: | newer version | format 99"),
        (("history", "sites"), 1, "sites: no model"),
        (("accept", "model", "1"), 1, "model: round 1 is not held; it is current"),
        (("rollback", "model", "7"), 1, "model: no round 7; it has 1"),
        (("replay", "drop", "model", "Z"), 1, "site Z was never learned"),
        (("predict", "model", "nowhere.nii.gz", "--out", "o"), 1, "nowhere.nii.gz"),
        (("predict", "model", "notes.txt", "--out", "o"), 1, "notes.txt"),
        (("predict", "model", "sites/A/Case00.nii.gz"), 2, "Missing option '--out'"),
        (("run",), 2, "no stream is named"),
        ((*RUN[:3], "--order", "A,B,X"), 1, "sites: no site 'X' | A, B, C"),
        ((*RUN, "--out", "model"), 1, "model: is a model | another folder"),
        (("run", "--data", "sites", "--order", " , "), 2, "no site | --order"),
        (("learn", "m", "sites/A", "--set", "preparation=64"), 2, "such as preparation.size"),
        (("sites", "check", "sites", "--limit", "inf"), 2, "--limit inf: | GiB"),
        (("evaluate", "model", "sites/A", "--split", "notes.txt"), 1, "notes.txt: not a split file"),
        (("run", "--order", "A,B"), 2, "--data DIR"),
        (("run", "--data", "sites", "--unseen", "C"), 2, "--unseen | --order"),
        ((*RUN[:4], "A,A"), 2, "twice: A, A"),
        ((*RUN, "--method", "smg"), 2, "no method 'smg'"),
        ((*RUN, "--seed", "one"), 2, "as an integer"),
        (("run", "typo.yaml", "--data", "sites"), 1, "typo.yaml: no setting 'iteration' | iterations?"),
        (("bench", "gird.yaml"), 1, "gird.yaml: No such file"),
        (("bench", "demo"), 2, "--data DIR"),
        (("bench", "demo", "--data", "nowhere"), 1, "nowhere: no such"),
        (("bench", "prostate-lite", "--data", "sites"), 1, "sites: no site 'RUNMC' | A, B, C"),
        (("bench", "demo", "--data", "sites", "--seeds", "a"), 2, "seed 'a' | whole number"),
        (("bench", "demo", "--data", "sites", "--seeds", "²"), 2, "seed '²' | whole number"),
        ((*RUN, "--set", "seed=[0, 1]"), 2, "seed '[0, 1]' | whole number | --seeds 0,1,2"),
        ((*RUN[:4], "A,B", "--unseen", "B"), 2, "site B | order | unseen"),
        (("run", "twice.yaml", "--data", "sites"), 1, "twice.yaml: | site B | order | unseen"),
        (("lern", "m", "sites/A"), 2, "No such command"),
        (("learn", "m", "sites/A", "--split", "nosplit.json"), 1, "nosplit.json: No such file"),
        (("learn", "m", "sites/A", "--set", "nosuch=1"), 2, "no setting 'nosuch' | `smg settings`"),
        (("learn", "m", "sites/A", "--labels", "foo"), 2, "labels 'foo' | 'any'"),
        (("learn", "m", "sites/A", "--labels", "zone=2"), 1, "not expected: 1 | background"),
        (("evaluate", "model", "sites/A", "--csv", "sites/A/Case00.nii.gz"), 2, "Case00.nii.gz: | .csv"),
        (("report", "model", "--out", "sites/A/Case00.nii.gz"), 2, "Case00.nii.gz: | .html"),
        (("report", "model", "--pictures"), 2, "--pictures | --data DIR"),
        (("report", "model", "--pictures", "--data", "nowhere"), 1, "nowhere: | no such"),
        (("predict", "model", "sites/A/Case00.nii.gz", "--out", "notes.txt"), 2, "notes.txt: is a file | folder"),
        (("sites", "show", "sites", "--out", "sites.jpg"), 2, "sites.jpg: | .png or .pdf or .svg"),
        (("run", "methods.yaml", "--data", "sites"), 1, "methods.yaml: no setting 'methds' | methods?"),
    ],
)  # fmt: skip
def test_one_helpful_line(made: Path, words: tuple[str, ...], code: int, facts: str) -> None:
    before = sorted(path for path in made.rglob("*") if path.name != "lock")
    result = smg(*words, cwd=made)
    assert_line(result, code, *facts.split(" | "))
    if code == 1 or result.stderr.startswith("smg: "):
        lines = result.stderr.strip().splitlines()
        messages = [line for line in lines if not line.startswith(("preparing", "looking at the scans"))]
        assert len(messages) == 1, result.stderr
    assert sorted(path for path in made.rglob("*") if path.name != "lock") == before  # nothing half-made is left


def test_two_runs_into_one_folder(made: Path) -> None:
    assert smg(*RUN, *TINY, "--out", "one", cwd=made).returncode == 0
    other = smg(*RUN, *TINY, "--out", "one", "--method", "jm", cwd=made)
    assert other.returncode == 1
    assert "one: holds a run of another configuration" in other.stderr
    with locked(made / "one"):
        at_work = smg(*RUN, *TINY, "--out", "one", cwd=made)
    assert at_work.returncode == 1
    assert "one: in use by process" in at_work.stderr


def test_a_stopped_command_says_so_in_one_line(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("smg.sites.layouts.find_sites", stopped)
    for words in (("sites", "check", "sites"), ("evaluate", "model", "sites/A"), RUN, ("bench", "demo", *RUN[1:3])):
        result = smg(*words, cwd=made)
        assert_line(result, 130, "smg: stopped")
        assert len(result.stderr.splitlines()) == 1


def test_verbose_adds_the_traceback_for_whoever_looks_for_the_cause(made: Path) -> None:
    result = smg("evaluate", "nomodel", "sites/A", "--verbose", cwd=made)
    assert result.returncode == 1
    assert "Traceback" in result.stderr
    assert result.stderr.strip().splitlines()[-1].startswith("smg: nomodel: no model there")

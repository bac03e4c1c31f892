"""What a newcomer gets wrong: each mistake is answered in one line that says what to do, and never by a traceback."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from smg.files import locked
from tests.cli.test_model import TINY
from tests.cli.test_sites import smg
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
    shutil.copytree(folder / "sites/A", folder / "unmasked/A")
    (folder / "unmasked/A/Case01_segmentation.nii.gz").unlink()
    shutil.copytree(folder / "model", folder / "newer")
    about = json.loads((folder / "newer/model.json").read_text())
    (folder / "newer/model.json").write_text(json.dumps(about | {"format": 99}))
    return folder


RUN = ("run", "--data", "sites", "--order", "A,B", "--unseen", "C")


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("learn", "m", "nowhere"), 1, "nowhere: no such file or folder"),
        (("learn", "m", "empty"), 1, "empty: no site found: "),
        (("learn", "m", "sites"), 1, "sites: holds 3 sites (A, B, C); name one of them (--site)"),
        (("learn", "m", "sites/A/Case00.nii.gz"), 1, "Case00.nii.gz: neither a folder of sites nor a .csv file"),
        (("learn", "m", "unmasked/A"), 1, "unmasked/A/Case01.nii.gz: image without mask"),
        (("learn", "m", "sites/A", "--method", "sgd"), 2, "no method 'sgd'; did you mean sga?"),
        (("learn", "m", "sites/A", "--set", "network.widht=8"), 2, "no setting 'network.widht'; did you mean"),
        (("learn", "m", "sites/A", "--set", "batch"), 2, "'batch': settings are given as key=value"),
        (("learn", "m", "sites/A", "--config", "prostate-light"), 2, "did you mean prostate-lite?"),
        (("learn", "model", "sites/A"), 1, "site A was learned before (round 1); --again learns it again"),
        (("learn", "model", "sites/B", "--set", "network.width=8"), 1, "cannot be changed (width 4, not 8); make"),
        (("learn", "model", "sites/C", "--set", "preparation.size=24"), 1, "otherwise before (size 16, not 24)"),
        (("evaluate", "model", "sites/A", "--part", "tset"), 2, "--part tset: it is train, validation, test or all"),
        (("learn", "model", "sites/B", "--tolerance", "nan"), 2, "--tolerance nan: points of DSC, zero or more"),
        (("learn", "model", "sites/B", "--tolerance", "inf"), 2, "--tolerance inf: points of DSC, zero or more"),
        (("learn", "model", "sites/B", "--tolerance", "-1"), 2, "--tolerance -1: points of DSC, zero or more"),
        (("learn", "empty/../sites", "sites/A"), 1, "exists and holds no model; give a new folder"),
        (("evaluate", "nomodel", "sites/A"), 1, "nomodel: no model there; `smg learn nomodel SITE` makes one"),
        (("evaluate", "newer", "sites/A"), 1, "newer/model.json: made by a newer version of smg (format 99)"),
        (("history", "sites"), 1, "sites: no model there"),
        (("accept", "model", "1"), 1, "model: round 1 is not held; `smg rollback` goes back to it"),
        (("rollback", "model", "7"), 1, "model: no round 7; it has 1"),
        (("replay", "drop", "model", "Z"), 1, "site Z was never learned"),
        (("predict", "model", "nowhere.nii.gz", "--out", "o"), 1, "nowhere.nii.gz"),
        (("predict", "model", "notes.txt", "--out", "o"), 1, "notes.txt"),
        (("predict", "model", "sites/A/Case00.nii.gz"), 2, "Missing option '--out'"),
        (("run",), 2, "no stream is named"),
        ((*RUN[:3], "--order", "A,B,X"), 1, "sites: no site 'X' there; name one of A, B, C"),
        ((*RUN, "--out", "model"), 1, "model: is a model; give the run another folder"),
        (("run", "--data", "sites", "--order", " , "), 2, "a stream has at least one site"),
        (("learn", "m", "sites/A", "--set", "preparation=64"), 2, "name one of them, such as preparation.size"),
        (("sites", "check", "sites", "--limit", "inf"), 2, "--limit inf: a number of GiB"),
        (("evaluate", "model", "sites/A", "--split", "notes.txt"), 1, "notes.txt: not a split file"),
        (("run", "--order", "A,B"), 2, "where are the sites? Give --data DIR"),
        (("run", "--data", "sites", "--unseen", "C"), 2, "--unseen goes with --order"),
        ((*RUN[:4], "A,A"), 2, "a stream names a site twice: A, A"),
        ((*RUN, "--method", "smg"), 2, "no method 'smg'"),
        ((*RUN, "--seed", "one"), 2, "as an integer"),
        (("run", "typo.yaml", "--data", "sites"), 1, "typo.yaml: no setting 'iteration'; did you mean iterations?"),
        (("bench", "gird.yaml"), 1, "gird.yaml: No such file"),
        (("bench", "demo"), 2, "where are the sites? Give --data DIR"),
        (("bench", "demo", "--data", "nowhere"), 1, "nowhere: no such folder"),
        (("bench", "prostate-lite", "--data", "sites"), 1, "sites: no site 'RUNMC' there; name one of A, B, C"),
        (("bench", "demo", "--data", "sites", "--seeds", "a"), 2, "seed 'a' is no whole number"),
        (("bench", "demo", "--data", "sites", "--seeds", "²"), 2, "seed '²' is no whole number"),
        ((*RUN, "--set", "seed=[0, 1]"), 2, "seed '[0, 1]' is no whole number; `bench --seeds 0,1,2` takes several"),
        (("lern", "m", "sites/A"), 2, "No such command"),
        (("learn", "m", "sites/A", "--split", "nosplit.json"), 1, "nosplit.json: No such file"),
        (("learn", "m", "sites/A", "--set", "nosuch=1"), 2, "no setting 'nosuch'; `smg settings` lists them"),
        (("learn", "m", "sites/A", "--labels", "foo"), 2, "labels 'foo': cannot be read; give 'any'"),
        (("learn", "m", "sites/A", "--labels", "zone=2"), 1, "not expected: 1; give them to a class or the background"),
        (("evaluate", "model", "sites/A", "--csv", "sites/A/Case00.nii.gz"), 2, "has to end in .csv"),
        (("report", "model", "--out", "sites/A/Case00.nii.gz"), 2, "has to end in .html"),
        (("report", "model", "--pictures"), 2, "add --data DIR"),
        (("report", "model", "--pictures", "--data", "nowhere"), 1, "nowhere: no such file or folder"),
        (("predict", "model", "sites/A/Case00.nii.gz", "--out", "notes.txt"), 2, "notes.txt: is a file; give a folder"),
        (("sites", "show", "sites", "--out", "sites.jpg"), 2, "has to end in .png or .pdf or .svg"),
        (("run", "methods.yaml", "--data", "sites"), 1, "methods.yaml: no setting 'methds'; did you mean methods?"),
    ],
)  # fmt: skip
def test_one_helpful_line(made: Path, words: tuple[str, ...], code: int, sentence: str) -> None:
    before = sorted(path for path in made.rglob("*") if path.name != "lock")
    result = smg(*words, cwd=made)
    assert result.returncode == code
    assert sentence in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr
    if code == 1 or result.stderr.startswith("smg: "):
        said = [line for line in result.stderr.strip().splitlines() if not line.startswith("preparing")]
        assert len(said) == 1, result.stderr
    assert sorted(path for path in made.rglob("*") if path.name != "lock") == before  # nothing half-made is left


def test_two_runs_into_one_folder(made: Path) -> None:
    assert smg(*RUN, *TINY, "--out", "one", cwd=made).returncode == 0
    other = smg(*RUN, *TINY, "--out", "one", "--method", "jm", cwd=made)
    assert other.returncode == 1
    assert "one: holds a run of another configuration; give another folder" in other.stderr
    with locked(made / "one"):
        at_work = smg(*RUN, *TINY, "--out", "one", cwd=made)
    assert at_work.returncode == 1
    assert "one: in use by process" in at_work.stderr


def test_who_stops_a_command_is_told_so_in_one_line(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("smg.sites.layouts.find_sites", stopped)
    for words in (("sites", "check", "sites"), ("evaluate", "model", "sites/A"), RUN, ("bench", "demo", *RUN[1:3])):
        result = smg(*words, cwd=made)
        assert (result.returncode, result.stderr) == (130, "smg: stopped; what was done by then is there\n")


def test_verbose_adds_the_traceback_for_whoever_looks_for_the_cause(made: Path) -> None:
    result = smg("evaluate", "nomodel", "sites/A", "--verbose", cwd=made)
    assert result.returncode == 1
    assert "Traceback" in result.stderr
    assert result.stderr.strip().splitlines()[-1].startswith("smg: nomodel: no model there")

"""The engineer's year: learn, look, be warned, take back, predict."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.test_sites import smg
from tests.learner.streams import write_sites

TINY = [
    word
    for setting in (
        "iterations=3", "batch=2", "preparation.size=16", "network.width=4", "network.depth=1", "validate_every=2",
    )
    for word in ("--set", setting)
]  # fmt: skip


@pytest.fixture(scope="module")
def year(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three sites, and a model that has learned two of them."""
    folder = tmp_path_factory.mktemp("year")
    write_sites(folder / "sites")
    first = smg("learn", "model", "sites/A", *TINY, cwd=folder)
    assert first.returncode == 0, first.stderr
    assert "round 1: A, trained on 2 subjects" in first.stdout
    assert "iteration 3/3  loss: incoming" in first.stderr
    second = smg("learn", "model", "sites", "--site", "B", "--tolerance", "100", cwd=folder)
    assert second.returncode == 0, second.stderr
    assert "A (exemplars)" in second.stdout
    assert "kept for replay: 2 of A (0.0 MB), 2 of B (0.0 MB)" in second.stdout
    return folder


@pytest.fixture
def folder(year: Path, tmp_path: Path) -> Path:
    shutil.copytree(year, tmp_path / "year")
    return tmp_path / "year"


def test_a_round_that_harms_is_held_with_exit_3_and_can_be_accepted(folder: Path) -> None:
    result = smg("learn", "model", "sites/C", "--tolerance", "-100", cwd=folder)
    assert result.returncode == 3
    assert "round 3 is held" in result.stderr
    assert "`smg accept model 3` takes the round" in result.stderr
    told = json.loads(smg("history", "model", "--json", cwd=folder).stdout)
    assert told["current"] == 2
    assert [r["held"] for r in told["rounds"]] == [False, False, True]
    assert "the model knows A, B, C" in smg("accept", "model", "3", cwd=folder).stdout


def test_history_rollback_and_replay(folder: Path) -> None:
    table = smg("history", "model", cwd=folder).stdout
    assert "current" in table
    assert "sga+c" in table
    assert "round 1 is current; the model knows A" in smg("rollback", "model", "1", cwd=folder).stdout
    assert "rolled back: round 1" in smg("history", "model", cwd=folder).stdout
    assert set(json.loads(smg("replay", "show", "model", "--json", cwd=folder).stdout)) == {"A"}
    assert "2 exemplars of A removed" in smg("replay", "drop", "model", "A", cwd=folder).stdout
    assert "dropped exemplars: site A, subjects 2" in smg("history", "model", cwd=folder).stdout


def test_evaluate(folder: Path) -> None:
    result = smg("evaluate", "model", "sites/C", "sites/A", "--part", "all", "--csv", "all.csv", cwd=folder)
    assert result.returncode == 0, result.stderr
    assert "C, lowest DSC: Case0" in result.stdout
    assert len((folder / "all.csv").read_text().splitlines()) == 9
    rows = json.loads(smg("evaluate", "model", "sites/C", "--json", cwd=folder).stdout)
    assert len(rows) == 1
    assert set(rows[0]["classes"]["foreground"]) >= {"dsc", "asd", "hd95", "surface_dice", "volume_difference"}


def test_a_split_can_be_given_as_a_file(folder: Path) -> None:
    parts = {"train": ["Case03"], "validation": [], "test": ["Case00", "Case01", "Case02"]}
    (folder / "split.json").write_text(json.dumps({"sites": {"C": parts}}))
    result = smg("learn", "model", "sites/C", "--split", "split.json", "--tolerance", "100", "--json", cwd=folder)
    assert json.loads(result.stdout)["subjects"] == {"train": 1, "validation": 0, "test": 3}
    rows = json.loads(smg("evaluate", "model", "sites/C", "--split", "split.json", "--json", cwd=folder).stdout)
    assert [row["subject"] for row in rows] == parts["test"]
    assert "says nothing of site A" in smg("evaluate", "model", "sites/A", "--split", "split.json", cwd=folder).stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("learn", "model", "nowhere"), "nowhere: no such file or folder"),
        (("learn", "model", "sites"), "holds 3 sites (A, B, C); name one of them"),
        (("learn", "model", "sites/A"), "site A was learned before (round 1)"),
        (("learn", "model", "sites/C", "--method", "sgaa"), "no method 'sgaa'; did you mean sga"),
        (("learn", "model", "sites/C", "--set", "network.wdith=3"), "did you mean network.width?"),
        (("learn", "model", "sites/C", "--set", "network.width=3"), "the model's network is"),
        (("learn", "model", "sites/C", "--set", "preparation.size=24"), "scans were prepared otherwise before"),
        (("learn", "sites", "sites/C"), "sites: exists and holds no model; give a new folder"),
        (("learn", "new", "sites/A/Case00.nii.gz"), "a file, where a folder of sites or a .csv"),
        (("history", "nowhere"), "nowhere: no model there; `smg learn nowhere SITE` makes one"),
        (("rollback", "model", "7"), "model: no round 7; it has 1, 2"),
        (("replay", "drop", "model", "Z"), "site Z was never learned; it has A, B"),
        (("evaluate", "model", "sites/A", "--part", "tset"), "--part tset: it is train, validation, test or all"),
    ],
)
def test_mistakes_get_one_line_and_exit_1(year: Path, words: tuple[str, ...], sentence: str) -> None:
    result = smg(*words, cwd=year)
    assert result.returncode == 1
    assert sentence in result.stderr
    assert "Traceback" not in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1

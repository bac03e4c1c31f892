"""`smg forget`: what it prints, asks and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.commands import TINY, assert_line, smg, write_and_learn


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with sites A and B, and a model with a style memory that has learned them."""
    return write_and_learn(tmp_path_factory.mktemp("forget"), "AB", "AB", "--set", "memory=style")


def trained(desk: Path) -> str:
    """Return a case that site A's round trained on."""
    from smg.learner.exemplars import alias
    from smg.learner.history import History

    record = History(desk / "model").record(1)
    cases = (f"Case{number:02d}" for number in range(4))
    return next(case for case in cases if alias(record.config.seed, "A", case) in record.parts.train)


def test_it_prints_what_went_and_what_cannot_be_taken_back(desk: Path) -> None:
    done = smg("forget", "model", "--case", trained(desk), "--site", "A", "--yes", cwd=desk)
    assert done.returncode == 0, done.stderr
    assert "round 1: removed exemplar, part, selection scores and features\n" in done.stdout
    line = "weights trained with this person, which cannot be taken back: round 1; rounds that go on from them: 2\n"
    assert line in done.stdout
    assert "spectra of A cannot be separated by person: `smg replay drop model A` removes them all" in done.stdout
    assert "a keyed hash of the scan may still be in the records: --scan FILE beside --case removes it" in done.stdout
    assert "forgot a subject: rounds [1]" in smg("history", "model", cwd=desk).stdout
    assert smg("verify", "model", cwd=desk).returncode == 0
    assert smg("report", "model", "--out", "report.html", cwd=desk).returncode == 0


def test_of_a_person_forgotten_before_only_the_hashes_and_copies_are_left(desk: Path) -> None:
    case = trained(desk)
    assert smg("forget", "model", "--case", case, "--site", "A", "--yes", cwd=desk).returncode == 0
    smg("learn", "new", "A", *TINY, cwd=desk)  # fills the cache
    done = smg("forget", "model", "--case", case, "--scan", f"A/{case}.nii.gz", "--yes", cwd=desk).stdout
    assert "round 1: removed hashes of the scan\nround 1: knew the scan, but no case of this name; " in done
    assert "prepared copies removed from the cache: 1\n" in done
    assert "no weights were trained with this person, as far as the records still say" in done


def test_a_cache_that_cannot_be_made_hinders_nothing(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMG_CACHE", "/proc/none")
    done = smg("forget", "model", "--case", trained(desk), "--site", "A", "--yes", cwd=desk)
    assert done.returncode == 0, done.stderr
    dropped = smg("replay", "drop", "model", "B", "--yes", cwd=desk)
    assert dropped.returncode == 0, dropped.stderr


def test_as_json_by_the_scan(desk: Path) -> None:
    case = trained(desk)
    words = ("--scan", f"A/{case}.nii.gz", "--yes", "--json")
    done = json.loads(smg("forget", "model", *words, cwd=desk).stdout)
    assert done["removed"] == {"1": ["exemplar", "part", "selection scores and features", "hashes of the scan"]}
    assert (done["trained"], done["later"], done["spectra"], done["hashes_stay"]) == ([1], [2], ["A"], False)
    assert_line(smg("forget", "model", *words, cwd=desk), 1, "nothing is kept of this person")


def test_it_asks_and_refuses(desk: Path) -> None:
    before = (desk / "model/rounds/001/round.json").read_bytes()
    assert_line(smg("forget", "model", cwd=desk), 2, "give --case NAME or --scan FILE")
    asked = smg("forget", "model", "--case", "Case00", "--site", "A", cwd=desk)
    assert_line(asked, 2, "(rounds: 1", "There is no terminal to ask on; give --yes")
    assert_line(smg("forget", "model", "--case", "Case00", "--yes", cwd=desk), 1, "was learned at A, B; --site")
    assert_line(smg("forget", "model", "--case", "nobody", cwd=desk), 1, "nothing is kept of this person")
    assert_line(smg("forget", "model", "--scan", "A/none.nii.gz", cwd=desk), 1, "A/none.nii.gz")
    assert (desk / "model/rounds/001/round.json").read_bytes() == before

"""A sample of the mutated files, and every one that was a finding once; all of them: `python -m tests.fuzz`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.fuzz.run import fuzz
from tests.fuzz.seeds import KINDS, write_seeds
from tests.fuzz.worker import case_of, outcome, read

COUNT = 1000
ONCE_FOUND = (78, 98, 248, 288, 307, 1398, 6268, 6508, 6998, 9298)  # numbers of files, with seed 0


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("seeds")
    write_seeds(folder)
    return folder


def test_no_mutated_file_does_harm() -> None:
    found = fuzz(COUNT, seed=1, workers=1)
    assert found.findings == []
    assert sum(sum(counts.values()) for counts in found.counts.values()) == COUNT
    assert all(counts["refused"] for counts in found.counts.values())
    assert sum(counts["read"] for counts in found.counts.values()) > COUNT / 20  # not everything is refused


@pytest.mark.parametrize("number", ONCE_FOUND)
def test_what_was_found_once_is_refused_in_one_line(seeds: Path, tmp_path: Path, number: int) -> None:
    kind = KINDS[number % len(KINDS)]
    path, cut = case_of(seeds, tmp_path, kind, number, seed=0)
    what, detail = outcome(kind, path, cut, None)
    assert what != "finding", detail


def test_a_silent_misreading_would_be_found(seeds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check itself: a reader that drops a slice, one that never ends, and one that fails in any other way."""
    shutil.copytree(seeds / "dicom", tmp_path / "dicom")
    sound = read("dicom", tmp_path / "dicom")

    def dropping(kind: str, path: Path) -> object:
        return sound[0][1:], sound[1]

    def failing(kind: str, path: Path) -> object:
        return {}["key"]

    monkeypatch.setattr("tests.fuzz.worker.read", dropping)
    assert outcome("dicom", tmp_path / "dicom", False, sound)[1] == "misread: 5 slices of 6 files"
    monkeypatch.setattr("tests.fuzz.worker.read", failing)
    assert outcome("dicom", tmp_path / "dicom", False, sound) == ("finding", "traceback: KeyError: 'key'")

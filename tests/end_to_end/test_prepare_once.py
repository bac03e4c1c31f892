"""Every scan is hashed and prepared once by a command, and a test part is evaluated once by a round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from smg.learner.history import History
from smg.sites.split import load_splits
from tests.cli.commands import TINY, smg
from tests.learner.streams import tiny_stream, write_sites

Counts = dict[str, Counter[str]]
SCANS = {f"{site}/Case{number:02d}" for site in "ABC" for number in range(4)}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_sites(tmp_path / "sites")


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counts:
    """Count, scan by scan, how often a source is hashed, a scan is prepared, and a subject is evaluated."""
    counts: Counts = {}

    def count(what: str, target: str, name_of: Callable[..., str]) -> None:
        module, _, attribute = target.rpartition(".")
        original = getattr(__import__(module, fromlist=["_"]), attribute)
        counts[what] = Counter()

        def counting(*args: Any, **more: Any) -> Any:
            counts[what][name_of(*args)] += 1
            return original(*args, **more)

        monkeypatch.setattr(target, counting)

    count("hashed", "smg.prepare.prepared_site.key_of", lambda subject, *_: f"{subject.site}/{subject.case}")
    count("prepared", "smg.prepare.prepared_site._make", lambda _, subject, *more: f"{subject.site}/{subject.case}")
    count("evaluated", "smg.evaluation.subjects.read_subject_mask", lambda one: f"{one.site}/{one.case}")
    return counts


def test_a_learn_hashes_and_prepares_a_scan_once_and_opens_the_model_once(
    data: Path, tmp_path: Path, counted: Counts, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Path] = []
    read = History.__init__

    def reading(history: History, folder: Path, *more: Any) -> None:
        opened.append(folder)
        read(history, folder, *more)

    monkeypatch.setattr(History, "__init__", reading)
    for number, site in enumerate("AB", start=1):
        result = smg("learn", "model", data / site, "--tolerance", "100", *TINY, cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        assert len(opened) == number
    once = {scan: 1 for scan in SCANS if scan[0] in "AB"}
    assert counted["hashed"] == once
    assert counted["prepared"] == once
    assert max(counted["evaluated"].values()) == 1


def test_an_evaluate_hashes_a_scan_once(data: Path, tmp_path: Path, counted: Counts) -> None:
    assert smg("learn", "model", data / "A", *TINY, cwd=tmp_path).returncode == 0
    counted["hashed"].clear()
    assert smg("evaluate", "model", data / "A", data / "B", cwd=tmp_path).returncode == 0
    assert counted["hashed"] == {scan: 1 for scan in SCANS if scan[0] in "AB"}


def test_a_run_hashes_and_prepares_a_scan_once_and_evaluates_a_test_part_once_a_round(
    data: Path, tmp_path: Path, counted: Counts
) -> None:
    results = tiny_stream(data).run(tmp_path / "run")
    assert counted["hashed"] == dict.fromkeys(SCANS, 1)
    assert counted["prepared"] == dict.fromkeys(SCANS, 1)
    splits = load_splits(tmp_path / "run" / "split.json")
    tested = {f"{site}/{case}": 3 for site, split in splits.items() for case in split["test"]}
    unseen = {f"C/{case}": 1 for case in splits["C"]["train"]}  # after the last round of the order
    assert counted["evaluated"] == tested | unseen
    assert len(results.subjects) == sum(counted["evaluated"].values())

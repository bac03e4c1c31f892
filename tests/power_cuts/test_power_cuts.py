"""A sample of the power cuts, and the disk that loses what was not flushed; all: `python -m tests.power_cuts`."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

from tests.kills.operations import Operation
from tests.power_cuts.disk import Disk

ROOT = Path(__file__).parents[2]


def test_a_power_cut_loses_nothing_but_the_round_under_way() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.power_cuts", "--count", "16", "--seed", "1", "--methods", "der++"],
        cwd=ROOT, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "16 power cuts" in ended.stdout


def left(operations: list[Operation], tmp_path: Path) -> set[tuple[tuple[str, bytes], ...]]:
    """Return everything that power cuts after these operations were seen to leave of a folder with `file`."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "file").write_bytes(b"old")
    disk = Disk.of(folder)
    here = [
        Operation(
            one.kind, f"{folder}/{one.path}", f"{folder}/{one.other}", one.inode or disk.root, one.at, one.data
        )
        for one in operations
    ]  # fmt: skip
    found = set()
    for seed in range(300):
        cut = disk.cut(here, str(folder), random.Random(seed))
        found.add(tuple(sorted((name, cut.files[inode]) for name, inode in cut.names[disk.root].items())))
    return found


MADE = [Operation("make", "new", inode=1), Operation("write", "new", inode=1, data=b"new")]
RENAMED, SYNCED = Operation("rename", "new", "file"), Operation("sync", "new", inode=1)


def test_what_was_flushed_is_there(tmp_path: Path) -> None:
    assert left([*MADE, SYNCED, RENAMED, Operation("sync", "")], tmp_path) == {(("file", b"new"),)}


def test_a_rename_that_was_not_flushed_is_there_or_not(tmp_path: Path) -> None:
    new, temporary = ("file", b"new"), ("new", b"new")
    assert left([*MADE, SYNCED, RENAMED], tmp_path) == {(new,), (("file", b"old"),), (("file", b"old"), temporary)}


def test_a_file_that_was_not_flushed_may_be_empty_cut_or_zeros(tmp_path: Path) -> None:
    found = left([*MADE, RENAMED, Operation("sync", "")], tmp_path)
    assert found == {(("file", data),) for data in (b"", b"n", b"ne", b"new", b"\0\0\0")}


def test_a_removed_file_comes_back_unless_its_folder_was_flushed(tmp_path: Path) -> None:
    removed = Operation("remove", "file")
    assert left([removed], tmp_path) == {(), (("file", b"old"),)}
    (tmp_path / "again").mkdir()
    assert left([removed, Operation("sync", "")], tmp_path / "again") == {()}


def test_of_two_renames_the_second_alone_may_be_seen(tmp_path: Path) -> None:
    other = [Operation("make", "b", inode=2), Operation("rename", "file", "first"), Operation("rename", "b", "second")]
    found = {frozenset(name for name, _ in names) for names in left(other, tmp_path)}
    assert frozenset({"file", "second"}) in found
    assert frozenset({"first"}) in found

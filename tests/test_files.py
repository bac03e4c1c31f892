"""A file is there whole or not at all."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from pathlib import Path

import pytest

from smg.files import folder_in, replacing, write_json


def test_it_replaces_and_leaves_nothing_beside(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.json"
    write_json(path, {"b": 1})
    write_json(path, {"b": 2})
    assert json.loads(path.read_text()) == {"b": 2}
    assert list(path.parent.iterdir()) == [path]


def test_a_failure_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), replacing(path) as temporary:
        temporary.write_text(f"half {1 / 0}")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_names_the_file_and_not_the_one_that_was_to_take_its_place(tmp_path: Path) -> None:
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(OSError) as failed:
        write_json(tmp_path / "folder.json", {})
    assert failed.value.filename == str(tmp_path / "folder.json")


def test_permissions_are_the_users(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_json(tmp_path / "a.json", 1)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.json").stat().st_mode) == 0o640


def test_what_the_dead_left_is_swept_and_what_the_living_write_is_not(tmp_path: Path) -> None:
    path = tmp_path / "a-b.json"
    with replacing(path) as temporary:
        dead = subprocess.Popen(["true"])
        dead.wait()
        left = temporary.with_name(temporary.name.replace(f"-{os.getpid()}-", f"-{dead.pid}-"))
        left.write_text("half")
        write_json(path, 1)
        assert not left.exists()
        assert temporary.exists()
    with folder_in(tmp_path) as folder:
        left = folder.with_name(folder.name.replace(f"-{os.getpid()}-", f"-{dead.pid}-"))
        left.mkdir()
        (left / "half.nii.gz").write_text("half")
        with folder_in(tmp_path):
            assert not left.exists()
            assert folder.is_dir()
    assert not folder.exists()

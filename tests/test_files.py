"""A file is there whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
from pathlib import Path

import pytest

from smg.errors import SmgError
from smg.files import append_line, folder_in, left_alone, locked, replacing, write_json


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


def test_a_line_cut_short_swallows_no_other(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    append_line(path, 1)
    append_line(path, {"b": 2})
    path.write_bytes(path.read_bytes()[:-3])  # as a crash or a full disk leaves it
    append_line(path, 3)
    append_line(path, 4, durable=True)
    assert path.read_text().splitlines() == ["1", '{"b": ', "3", "4"]


def test_a_failure_names_the_file_and_not_the_one_that_was_to_take_its_place(tmp_path: Path) -> None:
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(SmgError, match=f"^{tmp_path}/folder.json: "):
        write_json(tmp_path / "folder.json", {})


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


def test_a_full_disk_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    told = "{}: No space left on device; nothing was lost"
    monkeypatch.setattr(Path, "touch", full)
    with pytest.raises(SmgError, match=told.format("a.json")):
        write_json(tmp_path / "a.json", 1)
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(SmgError, match=told.format("lock")), locked(tmp_path):
        pytest.fail("it was locked")
    monkeypatch.undo()
    with pytest.raises(ZeroDivisionError), locked(tmp_path):
        assert 1 / 0
    assert left_alone(tmp_path)  # though this process lives on
    with locked(tmp_path):  # nobody has it
        pass

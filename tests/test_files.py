"""Files are written whole or not at all, and one process at a time holds a folder."""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from smg.errors import SmgError
from smg.files import append_line, folder_in, left_alone, locked, locks_stay_here, placing, replacing, write_json


def test_a_file_is_replaced_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
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


def test_a_line_cut_short_loses_no_other_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    append_line(path, 1)
    append_line(path, {"b": 2})
    path.write_bytes(path.read_bytes()[:-3])  # as a crash or a full disk leaves it
    append_line(path, 3)
    append_line(path, 4, durable=True)
    assert path.read_text().splitlines() == ["1", '{"b": ', "3", "4"]


def test_a_failure_names_the_file_and_not_the_temporary_one(tmp_path: Path) -> None:
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


def test_temporary_files_of_dead_processes_are_removed_and_those_of_running_ones_kept(tmp_path: Path) -> None:
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

    monkeypatch.setattr("smg.files._create", full)
    with pytest.raises(SmgError, match=r"a\.json: No space left on device"):
        write_json(tmp_path / "a.json", 1)
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(SmgError, match=r"lock: No space left on device"), locked(tmp_path):
        pytest.fail("the folder was locked")
    monkeypatch.undo()
    with locked(tmp_path):  # the failure has released it
        pass


def test_an_error_releases_the_lock_and_empties_its_file(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), locked(tmp_path):
        assert 1 / 0
    assert (tmp_path / "lock").read_bytes() == b""
    assert left_alone(tmp_path)  # though this process is still running


def test_a_second_holder_is_refused_with_the_first_ones_name(tmp_path: Path) -> None:
    with locked(tmp_path):
        with pytest.raises(SmgError, match=f"process {os.getpid()} on "), locked(tmp_path):
            pytest.fail("the folder was locked twice")
        assert not left_alone(tmp_path)  # the refused one has not emptied the file


HOLD = """
import os, sys, time
from pathlib import Path
from smg.files import locked
with locked(Path(sys.argv[1])):
    if not os.fork():
        print("held", flush=True)  # the child, which has given the lock up by now
    time.sleep(600)
"""


def test_a_killed_holder_holds_nothing_even_where_its_child_lives_on(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(SmgError, match=f"process {holder.pid} on "), locked(tmp_path):
            pytest.fail("the folder was locked twice")
        holder.kill()
        holder.wait()
        assert left_alone(tmp_path)
        with locked(tmp_path):
            pass
    finally:
        os.killpg(holder.pid, signal.SIGKILL)  # its child


@pytest.mark.parametrize(
    ("mount", "reason"),
    [
        ("nfs4 server:/x rw,vers=4.2,local_lock=none", None),
        ("nfs server:/x rw,vers=3,nolock,local_lock=all", "nfs mounted with local_lock=all, nolock"),
        ("lustre mgs:/x rw,localflock", "lustre mounted with localflock"),
        ("lustre mgs:/x rw,flock", None),
        ("cifs //server/x rw,nobrl", "cifs mounted with nobrl"),
        ("fuse.sshfs host: rw", "sshfs"),
        ("ext4 /dev/sda1 rw", None),
    ],
)
def test_a_lock_says_where_it_cannot_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mount: str, reason: str | None
) -> None:
    mounts = tmp_path / "mounts"
    here = str(tmp_path).replace(" ", "\\040")
    mounts.write_text(f"22 1 8:1 / / rw - ext4 /dev/sda1 rw\n40 22 0:50 / {here} rw,noatime shared:1 - {mount}\n")
    monkeypatch.setattr("smg.files.MOUNTS", mounts)
    assert locks_stay_here(tmp_path / "bench") == reason
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench/lock").write_text("\nprocess 5 on another-host\n")
    if reason:  # the holder may be running there
        refused = pytest.raises(SmgError, match=r"process 5 on another-host.*do not reach other hosts")
        with refused, locked(tmp_path / "bench"):
            pytest.fail("the folder was locked")
        assert "process 5" in (tmp_path / "bench/lock").read_text()
    else:
        with locked(tmp_path / "bench"):
            pass


def test_a_file_system_without_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    def cannot(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", cannot)
    with pytest.raises(SmgError, match="cannot be locked on its file system"), locked(tmp_path):
        pytest.fail("the folder was locked")


def test_a_file_that_another_has_placed_stays_unless_it_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "entry"

    def write(text: str) -> None:
        with placing(path, is_good=lambda there: there.read_text() != "damaged") as temporary:
            temporary.write_text(text)

    write("first")
    inode = path.stat().st_ino
    write("second")  # whoever has mapped the first keeps it
    assert (path.read_text(), path.stat().st_ino) == ("first", inode)
    path.write_text("damaged")
    write("third")
    assert path.read_text() == "third"
    assert list(tmp_path.iterdir()) == [path]

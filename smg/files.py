"""Atomic writes, lines appended safely, and folders that one process at a time may use."""

from __future__ import annotations

import contextlib
import errno
import glob
import io
import json
import math
import os
import secrets
import shutil
import socket
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from smg.errors import SmgError

CANNOT_LOCK = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
MOUNTS = Path("/proc/self/mountinfo")
_PRIVATE: set[Path] = set()  # folders in which everything that this process makes is its owner's alone


def make_private(folder: Path) -> None:
    """Make a folder that only its owner can read, whatever the umask, and everything in it too.

    Permissions are taken away, never given: a folder that its owner has protected against writing stays protected. What
    this process makes later inside it is private as well (`make_folder`, `replacing`, `append_line`).
    """
    _PRIVATE.add(Path(os.path.abspath(folder)))
    make_folder(folder)
    if sys.platform == "win32" or folder.stat().st_uid != os.getuid():
        return
    _hide(folder, folder.stat())
    for path, kind in _entries(folder):
        if stat.S_ISDIR(kind.st_mode) or stat.S_ISREG(kind.st_mode):
            _hide(path, kind)


def _hide(path: Path, kind: os.stat_result) -> None:
    """Take every permission away from all but the owner, and that to execute a file."""
    now = stat.S_IMODE(kind.st_mode)
    private = now & (0o700 if stat.S_ISDIR(kind.st_mode) else 0o600)
    if private != now:
        path.chmod(private)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, which a power failure does not undo; inside a private one they are private."""
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    if not folder.is_dir():
        make_folder(folder.parent)
        private = _is_private(folder.parent)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700 if private else 0o777)
            if private:
                folder.chmod(0o700)
            sync_folder(folder.parent)


def refuse_links(folder: Path) -> None:
    """Raise an error that names the first entry of a folder that is neither a plain file nor a folder.

    A link in a folder that came from elsewhere may lead to any file of this machine, and a named pipe never ends.
    """
    for path, kind in _entries(folder):
        if not (stat.S_ISREG(kind.st_mode) or stat.S_ISDIR(kind.st_mode)):
            what = "a link" if stat.S_ISLNK(kind.st_mode) else "a pipe, socket or device"
            raise SmgError(f"{path}: {what}; a model holds plain files and folders alone: remove it")


def _entries(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield everything inside a folder with its kind, without following links."""
    with os.scandir(folder) as entries:
        inside = sorted(entries, key=lambda entry: entry.name)
    for entry in inside:
        try:
            kind = entry.stat(follow_symlinks=False)
            yield Path(entry.path), kind
            if stat.S_ISDIR(kind.st_mode):
                yield from _entries(Path(entry.path))
        except FileNotFoundError:  # removed meanwhile, as temporary files are
            continue


def _is_private(folder: Path) -> bool:
    """Return whether a folder is, or lies in, one that this process has made private."""
    here = Path(os.path.abspath(folder))
    return sys.platform != "win32" and any(here.is_relative_to(private) for private in _PRIVATE)


def _create(path: Path) -> None:
    """Make a new, empty file: private in a private folder, and elsewhere as the user's umask says."""
    private = _is_private(path.parent)
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_NOFOLLOW", 0)
    descriptor = os.open(path, flags, 0o600 if private else 0o666)  # not tempfile's, hidden from the user's group
    try:
        if private:
            os.chmod(path, 0o600)
    finally:
        os.close(descriptor)


@contextmanager
def replacing(path: Path, durable: bool = True) -> Iterator[Path]:
    """Yield a temporary path beside `path`, and move it to `path` when the block ends without an error.

    The file is flushed to disk first, unless `durable` is false.
    """
    make_folder(path.parent)
    temporary = _beside(path)
    try:
        _create(temporary)
        yield temporary
        if durable:
            _sync_file(temporary)
        os.replace(temporary, path)
        if durable:
            sync_folder(path.parent)
    except OSError as error:
        if error.filename in (None, str(temporary)):  # an error of a full disk names no file
            error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def placing(path: Path, is_good: Callable[[Path], bool], durable: bool = False) -> Iterator[Path]:
    """Yield a temporary path beside `path`, and move it to `path` unless a good file has come there meanwhile.

    The file is flushed to disk only if `durable` is true. Another host may have that file mapped into memory; on NFS it
    would lose the pages of one that is replaced.
    """
    make_folder(path.parent)
    temporary = _beside(path)
    try:
        _create(temporary)
        yield temporary
        if durable:
            _sync_file(temporary)
        try:
            os.link(temporary, path)
        except FileExistsError:
            if not is_good(path):
                os.replace(temporary, path)
        except OSError:  # a file system without hard links
            os.replace(temporary, path)
        if durable:
            temporary.unlink(missing_ok=True)
            sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turn an OSError of the block into one line that names the file; `path` where the error names none."""
    try:
        yield
    except OSError as error:
        raise SmgError(f"{error.filename or path}: {error.strerror}; nothing was lost") from None


@contextmanager
def folder_in(parent: Path) -> Iterator[Path]:
    """Yield a temporary folder in `parent`, for files that are moved when complete; remove it after the block."""
    folder = _beside(parent / "writing")
    make_folder(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _beside(path: Path) -> Path:
    """Return a new name beside `path` that holds host and process; remove what dead processes of this host left."""
    remove_temporaries(path.parent, path.name)
    return path.with_name(f".{path.name}-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}")


def remove_temporaries(folder: Path, name: str | None = None) -> None:
    """Remove what dead processes of this host were writing in a folder, in the place of one file or of any."""
    wanted = "*" if name is None else glob.escape(name)
    for left in folder.glob(f".{wanted}-{glob.escape(socket.gethostname())}-*-*"):
        process = left.name.split("-")[-2]
        if process.isdigit() and not _alive(int(process)):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)


def _alive(process: int) -> bool:
    """Return whether a process of this host is running."""
    if sys.platform == "win32":
        return _alive_on_windows(process)
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it runs, under another user
        return True
    return True


def _alive_on_windows(process: int) -> bool:
    """Return whether a process is running; on Windows `os.kill(process, 0)` would send it Ctrl-C."""
    import ctypes

    synchronize, access_denied, still_running = 0x00100000, 5, 0x102  # of winnt.h and winerror.h
    kernel = ctypes.WinDLL("kernel32", use_last_error=True)  # type: ignore[attr-defined]
    kernel.OpenProcess.restype = ctypes.c_void_p
    handle = kernel.OpenProcess(synchronize, False, process)
    if not handle:
        return bool(ctypes.get_last_error() == access_denied)  # type: ignore[attr-defined]
    try:
        return bool(kernel.WaitForSingleObject(ctypes.c_void_p(handle), 0) == still_running)
    finally:
        kernel.CloseHandle(ctypes.c_void_p(handle))


def _sync_file(path: Path) -> None:
    """Flush a file's content to disk; its name is flushed with its folder."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Flush a folder to disk, so that a file made, renamed or removed in it stays so after a power failure."""
    if sys.platform == "win32":  # where a folder cannot be opened, and NTFS journals renames
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def to_json(value: object, indent: int | None = None, sort_keys: bool = False) -> str:
    """Return a value as strict JSON, which has no NaN and no infinity: they become null."""
    try:
        return json.dumps(value, indent=indent, sort_keys=sort_keys, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), indent=indent, sort_keys=sort_keys, allow_nan=False)


def _finite(value: Any) -> Any:
    """Return a value with None in the place of every number that is NaN or infinite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list | tuple) else value


def parse_json(text: str | bytes) -> Any:
    """Return the content of a JSON text; raise ValueError if it is not JSON, also if it is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def plain_cell(value: object) -> object:
    """Return a value for a CSV file; a text that a spreadsheet would compute, as `=1+1`, begins with an apostrophe."""
    is_formula = isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r")
    return f"'{value}" if is_formula and not _is_number(str(value)) else value


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return word == "-"  # the mark of a number that is missing
    return True


def write_json(path: Path, value: object, sort_keys: bool = True) -> None:
    """Write a value as indented JSON, whole or not at all."""
    with naming(path), replacing(path) as temporary:
        temporary.write_bytes(json_file(value, sort_keys))


def json_file(value: object, sort_keys: bool = True) -> bytes:
    """Return the content of the file that `write_json` writes."""
    return (to_json(value, 2, sort_keys) + "\n").encode()


def append_line(path: Path, value: object, durable: bool = False) -> None:
    """Append a JSON object to a file of lines, on a line of its own even where a crash has cut the last line.

    With `durable` the line, and the file's name, have reached the disk when this returns.
    """
    with naming(path), io.open(path, "ab+", opener=_opened_to_append) as file:  # noqa: UP020, as Path.open does
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - 1))
        cut = file.read(1) not in (b"", b"\n")
        file.write(b"\n" * cut + to_json(value).encode() + b"\n")
        if durable:
            file.flush()
            os.fsync(file.fileno())
    if durable:
        sync_folder(path.parent)


def _opened_to_append(path: str, flags: int) -> int:
    """Open a file, never through a link; a new one is private in a private folder."""
    private = _is_private(Path(path).parent)
    descriptor = os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o600 if private else 0o666)
    if private:
        os.fchmod(descriptor, 0o600)
    return descriptor


def safetensors_header(path: Path) -> tuple[dict[str, Any], dict[str, str], int]:
    """Return a safetensors file's entry for each array, its metadata, and the byte where arrays begin.

    No array is read. Raises ValueError if the file is shorter or longer than its header announces.
    """
    with path.open("rb") as file:
        return read_safetensors_header(file.read, path.stat().st_size)


def read_safetensors_header(read: Callable[[int], bytes], size: int) -> tuple[dict[str, Any], dict[str, str], int]:
    """Return the header of a safetensors file of `size` bytes, of which `read` returns the next ones."""
    length = int.from_bytes(read(8), "little")
    if length > size:
        raise ValueError("cut short")
    head = parse_json(read(length))
    if not isinstance(head, dict):
        raise ValueError("no header")
    metadata = head.pop("__metadata__", {})
    if max((entry["data_offsets"][1] for entry in head.values()), default=0) + 8 + length != size:
        raise ValueError("cut short")
    return head, metadata, 8 + length


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder for this process alone; raise an error that names the process which holds it already.

    `FOLDER/lock` names the holder and is emptied at the end. The system releases the lock of a process that dies, in
    whatever way, and a forked child does not inherit it. On NFS and other shared file systems the lock holds for all
    hosts, unless `locks_stay_here` says why not; there a holder that the file names on another host is believed.
    """
    from filelock import FileLock, Timeout  # here, since it takes as long to import as the rest of this module

    path = folder / "lock"
    held: list[int] = []  # the lock file's descriptor
    with naming(path):
        make_folder(folder)
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise SmgError(f"{path}: a link or special file in the place of the lock; remove it")
    # No fallback where a file system cannot lock: a lock by a file's existence would outlive its holder.
    lock = FileLock(
        path, blocking=False, thread_local=False, fallback_to_soft=False, preserve_lock_file=True,
        on_acquired=held.append, mode=0o600 if _is_private(folder) else 0o644,
    )  # fmt: skip
    with naming(path):
        try:
            lock.acquire()
        except Timeout:
            holder = _holder(path).strip() or "another process"
            raise SmgError(f"{folder}: in use by {holder}; wait for it, or give another folder") from None
        except OSError as error:
            if error.errno not in CANNOT_LOCK:
                raise
            raise SmgError(
                f"{folder}: files cannot be locked on its file system ({error.strerror}), so nothing would keep two "
                "processes apart; give a folder on another one, or mount it with locks"
            ) from None
    try:
        _believe(folder, _holder(path).split())
    except BaseException:
        lock.release()  # and leave the holder's name there
        raise
    try:
        with naming(path):
            os.ftruncate(held[0], 0)
            # The lock on Windows is on the first byte, which no other process can then read.
            os.write(held[0], f"\nprocess {os.getpid()} on {socket.gethostname()}\n".encode())
        yield
    finally:  # also after an error in the block, which the process may survive
        try:
            os.ftruncate(held[0], 0)
        finally:
            lock.release()


def _believe(folder: Path, holder: list[str]) -> None:
    """Raise an error if the holder that a lock file names may run on another host, which the lock does not reach."""
    reason = locks_stay_here(folder) if len(holder) == 4 and holder[3] != socket.gethostname() else None
    if reason:
        raise SmgError(
            f"{folder}: in use by {' '.join(holder)}, or left so when that was killed: locks there do not reach other "
            f"hosts ({reason}); wait for it, or delete {folder / 'lock'} if it has ended"
        )


def locks_stay_here(folder: Path) -> str | None:
    """Return why locks in a folder hold on this host alone, as its mount says; None if nothing says so.

    Linux passes locks on NFS to the server, unless it was mounted not to.
    """
    kind, options = _mount(folder)
    if kind in ("nfs", "nfs4"):
        found = options & {"nolock", "local_lock=flock", "local_lock=all"}
    elif kind == "lustre":
        found = options & {"localflock"}
    elif kind in ("cifs", "smb3"):
        found = options & {"nobrl"}
    else:
        return "sshfs" if kind == "fuse.sshfs" else None
    return f"{kind} mounted with {', '.join(sorted(found))}" if found else None


def _mount(folder: Path) -> tuple[str, set[str]]:
    """Return the kind of the file system that holds a folder, and its options; nothing where Linux does not say."""
    here, best = folder.resolve(), ("", Path(), set[str]())
    try:
        lines = MOUNTS.read_text().splitlines()
    except OSError:
        return "", set()
    for line in lines:
        where, _, what = line.partition(" - ")
        point = Path(where.split()[4].replace("\\040", " "))
        if here.is_relative_to(point) and len(point.parts) >= len(best[1].parts):
            kind, _, options = what.split(maxsplit=2)
            best = kind, point, set(options.split(","))
    return best[0], best[2]


def left_alone(folder: Path) -> bool:
    """Return whether no process of this host uses a folder, by the content of its lock file.

    The lock itself is not tried, since that would take it for a moment. An empty lock file was left by a process that
    ended well. A holder on another host counts as running.
    """
    try:
        words = _holder(folder / "lock").split()
    except OSError:
        return False
    if len(words) != 4 or words[3] != socket.gethostname():
        return not words
    return not (words[1].isdigit() and _alive(int(words[1])))


def _holder(path: Path) -> str:
    """Return the holder that a lock file names, `process 123 on HOST`; empty if there is none."""
    with path.open("rb", buffering=0) as file:
        try:
            return file.read().decode(errors="replace")
        except PermissionError:  # Windows: the first byte is locked
            file.seek(1)
            return file.read().decode(errors="replace")

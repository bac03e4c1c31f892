"""No scan ends the process that asks for it: readers die, wait or grow in its place, and the batch goes on."""

from __future__ import annotations

import os
import resource
import signal
import struct
import subprocess
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from smg import patience
from smg.errors import SmgError
from smg.sites import in_process, readers
from smg.sites.formats import Truncated
from smg.sites.tables import read_rows
from smg.sites.volume import read_header, read_volume, source_files, write_volume
from tests.conftest import scan
from tests.dicom.made import rewrite, write_series

META = (
    "ObjectType = Image\nNDims = 3\nDimSize = 4 3 2\nElementType = MET_SHORT\nElementSpacing = 1 1 1\n"
    "BinaryData = True\nElementDataFile = LOCAL\n"
)
NRRD = "NRRD0004\ntype: short\ndimension: 3\nsizes: 4 3 2\nendian: little\nencoding: raw\n"
ROOT = Path(readers.__file__).parents[2]
VOXELS = np.arange(24, dtype="<i2").tobytes()


def grown(read: str, path: Path) -> tuple[str, int]:
    """Return the one line that reading a file ends in, and the most memory in MiB that any process took for it."""
    program = (
        "import resource, sys; from pathlib import Path; from smg.errors import SmgError\n"
        "from smg.sites.tables import read_rows; from smg.sites.volume import read_volume, source_files\n"
        f"try: {read}(Path(sys.argv[1]))\n"
        "except SmgError as error: print(error)\n"
        "from smg.sites import readers; readers._readers.end()\n"
        "print(max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))"
    )
    # By a small process between: the kernel counts a parent's memory as that of the program it starts.
    between = ["sh", "-c", '"$@"; exit $?', "sh"]
    done = subprocess.run(
        [*between, sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True
    )
    *lines, most = done.stdout.splitlines()
    assert len(lines) == 1, done
    return lines[0], int(most) >> 10


HEADERS = {
    "ndims.mha": META.replace("NDims = 3", "NDims = 65535"),
    "digits.mhd": META.replace("LOCAL", "%0900000000d.raw"),
    "patterns.mhd": META.replace("LOCAL", "%0d" * 20_000),
    "slices.mhd": META.replace("4 3 2", "1 1 3000000").replace("LOCAL", "slice%03d.raw"),
    "size.mha": META.replace("4 3 2", "4 3 99999999999999999999"),
    "no-end.nrrd": NRRD.rstrip("\n"),
    "range.nrrd": NRRD + "data file: slice%d.raw 1 4000000000 1\n\n",
    "patterns.nrrd": NRRD + f"data file: {'%0d' * 20_000} 1 2 1\n\n",
    "digits.nrrd": NRRD + "data file: %0900000000d 1 2 1\n\n",
    "dimension.nrrd": NRRD.replace("dimension: 3", "dimension: 60000") + "\n",
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_is_bounded_before_it_is_believed(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(HEADERS[name].encode() + VOXELS)
    for read in (read_volume, source_files) if "pattern" in name or "digits" in name else (read_volume,):
        with pytest.raises(SmgError) as error:
            read(tmp_path / name)
        assert str(error.value).count("\n") == 0
        assert name in str(error.value) or read is source_files


def test_headers_that_announce_much_take_little_memory(tmp_path: Path) -> None:
    (tmp_path / "range.nrrd").write_bytes(HEADERS["range.nrrd"].encode())
    line, most = grown("read_volume", tmp_path / "range.nrrd")
    assert "files" in line
    assert most < 500
    (tmp_path / "wide.csv").write_text("image,mask" + ",x" * 10_000 + "\n" + "a,b\n" * 500)
    line, most = grown("read_rows", tmp_path / "wide.csv")
    assert "columns" in line
    assert most < 500


def test_a_nifti_whose_voxels_begin_far_away_is_refused(tmp_path: Path) -> None:
    write_volume(tmp_path / "s.nii", scan()[0])
    data = bytearray((tmp_path / "s.nii").read_bytes())
    for offset in (4e9, float("nan"), -1.0, float("inf")):
        data[108:112] = struct.pack("<f", offset)
        (tmp_path / "s.nii").write_bytes(data)
        with pytest.raises(SmgError, match=r"s\.nii: "):
            read_volume(tmp_path / "s.nii")


@pytest.mark.parametrize(
    ("does", "sentence"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "it ended the process that read it (SIGSEGV)"),
        ("while True: pass", "no progress in 0.3 s of processor time"),
        ("kept = bytearray(3 << 30)", "over 1 GiB more memory than the scan itself"),
        ("import sys; sys.exit(7)", "it ended the process that read it (exit code 7)"),
    ],
)
def test_whatever_a_library_does_is_one_line_and_the_next_scan_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does: str, sentence: str
) -> None:
    """A reading process in which SimpleITK does the worst."""
    write_volume(tmp_path / "bad.mha", scan()[0])
    write_volume(tmp_path / "good.mha", scan()[0])
    spoiled = readers.PROGRAM.replace(
        "try:",
        "from smg import patience; patience.SECONDS = 0.3\nfrom smg.sites import itk\nread = itk.read_array\n"
        "def spoiled(path, header):\n  if path.name == 'bad.mha':\n    patience.advance()\n"
        + "".join(f"    {line}\n" for line in does.splitlines())
        + "  return read(path, header)\nitk.read_array = spoiled\ntry:",
    )
    monkeypatch.setattr(readers, "PROGRAM", spoiled)
    monkeypatch.setattr(readers, "_readers", readers._Readers())
    monkeypatch.setattr(patience, "SECONDS", 0.3)
    try:
        with pytest.raises(SmgError) as error:
            read_volume(tmp_path / "bad.mha")
        assert str(error.value).startswith(f"{tmp_path}/bad.mha: ")
        assert sentence in str(error.value)
        assert np.array_equal(read_volume(tmp_path / "good.mha").array, scan()[0].array)
    finally:
        readers._readers.end()


def test_a_reader_that_was_ended_from_outside_is_replaced(tmp_path: Path) -> None:
    write_volume(tmp_path / "s.nrrd", scan()[0])
    first = read_volume(tmp_path / "s.nrrd").array
    for reader in readers._readers.idle:
        os.kill(reader.process.pid, signal.SIGKILL)
    while readers._readers.idle:
        with pytest.raises(SmgError, match="the system ended the process"):
            read_volume(tmp_path / "s.nrrd")
    assert np.array_equal(read_volume(tmp_path / "s.nrrd").array, scan()[0].array)
    assert np.array_equal(first, scan()[0].array)  # its voxels outlive the process that read them


def test_what_is_read_apart_is_what_is_read_here(tmp_path: Path) -> None:
    write_series(tmp_path / "series")
    for suffix in (".mha", ".mhd", ".nrrd"):
        write_volume(tmp_path / f"s{suffix}", scan()[0])
    for path in (tmp_path / "series", *(tmp_path / f"s{suffix}" for suffix in (".mha", ".mhd", ".nrrd"))):
        array, affine = in_process.read_voxels(path, 1 << 30)
        volume = read_volume(path)
        assert volume.array.dtype == array.dtype
        assert np.array_equal(volume.array, array)
        assert np.array_equal(volume.affine, affine)
        assert read_header(path).shape == array.shape
        volume.array[0] = 0  # ours to change


def test_many_threads_read_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where paths are relative, and the current folder is not that of the reader's start."""
    for number in range(6):
        write_volume(tmp_path / f"{number}.mha", scan(number)[0])
    monkeypatch.chdir(tmp_path)
    with ThreadPoolExecutor(3) as pool:
        arrays = list(pool.map(lambda number: read_volume(Path(f"{number}.mha")).array, range(6)))
    for number, array in enumerate(arrays):
        assert np.array_equal(array, scan(number)[0].array)


def test_a_bomb_of_deflated_dicom_is_refused(tmp_path: Path) -> None:
    """A data set of 4 MB that inflates to 4 GB, one private element."""
    folder = write_series(tmp_path / "series")
    rewrite(sorted(folder.iterdir())[0])
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    first = packer.compress(b"\x09\x00\x01\x00OB\x00\x00" + struct.pack("<I", 0xFFFFFFF0))
    first += packer.flush(zlib.Z_FULL_FLUSH)
    zeros = packer.compress(bytes(1 << 24)) + packer.flush(zlib.Z_FULL_FLUSH)  # a block that can be repeated
    syntax = b"1.2.840.10008.1.2.1.99"
    meta = b"\x02\x00\x10\x00UI" + struct.pack("<H", len(syntax)) + syntax
    head = bytes(128) + b"DICM\x02\x00\x00\x00UL\x04\x00" + struct.pack("<I", len(meta)) + meta
    (folder / "bomb.dcm").write_bytes(head + first + 256 * zeros + packer.flush())
    line, most = grown("read_volume", folder)
    assert "bomb.dcm" in line or "memory" in line or "progress" in line
    assert most < 1500


def test_a_fifo_is_no_scan(tmp_path: Path) -> None:
    for name in ("s.nii.gz", "s.mha", "s.nrrd"):
        os.mkfifo(tmp_path / name)
        with pytest.raises(SmgError, match="not a regular file"):
            read_volume(tmp_path / name)


@pytest.mark.parametrize("kind", ["absolute", "above", "link", "list", "pattern"])
@pytest.mark.parametrize("suffix", [".mhd", ".nrrd"])
def test_a_data_file_stays_in_the_scans_folder(tmp_path: Path, kind: str, suffix: str) -> None:
    """Voxels of another file of this machine must not become a scan, nor be hashed as one."""
    (tmp_path / "secret").write_bytes(VOXELS)
    folder = tmp_path / "received"
    folder.mkdir()
    (folder / "link.raw").symlink_to(tmp_path / "secret")
    named = {
        "absolute": str(tmp_path / "secret"), "above": "../secret", "link": "link.raw", "list": "LIST\n../secret",
        "pattern": "../secre%d 1 2 1",
    }[kind]  # fmt: skip
    text = META.replace("LOCAL", named) if suffix == ".mhd" else f"{NRRD}data file: {named}\n"
    (folder / f"s{suffix}").write_text(text)
    for read in (read_volume, source_files):
        with pytest.raises(SmgError, match="outside the scan's folder"):
            read(folder / f"s{suffix}")


def test_the_end_of_a_gzip_stream_is_verified(tmp_path: Path) -> None:
    write_volume(tmp_path / "s.nii.gz", scan()[0])
    packed = (tmp_path / "s.nii.gz").read_bytes()
    for cut in range(1, 9):
        (tmp_path / "s.nii.gz").write_bytes(packed[:-cut])
        with pytest.raises(Truncated):
            read_volume(tmp_path / "s.nii.gz")
    for bit in range(8 * (len(packed) - 12), 8 * len(packed)):
        changed = bytearray(packed)
        changed[bit // 8] ^= 1 << bit % 8
        (tmp_path / "s.nii.gz").write_bytes(changed)
        try:  # bits that fill up the stream's last byte mean nothing
            array = read_volume(tmp_path / "s.nii.gz").array
        except SmgError:
            continue
        assert np.array_equal(array, scan()[0].array)
        assert bit < 8 * (len(packed) - 8)


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    write_volume(tmp_path / "s.mha", scan()[0])
    read_volume(tmp_path / "s.mha")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        read_volume(tmp_path / "s.mha")
    assert len(os.listdir("/proc/self/fd")) <= before + 1
    assert resource.getrlimit(resource.RLIMIT_DATA)[0] == resource.getrlimit(resource.RLIMIT_DATA)[1]


def test_a_package_that_is_found_by_a_hook_is_found_by_its_readers(tmp_path: Path) -> None:
    """As in an editable installation, whose folder is not on `sys.path`: `make setup` makes one."""
    write_volume(tmp_path / "s.mha", scan()[0])
    program = (
        "import importlib.util, sys; from pathlib import Path\n"
        "class Finder:\n"
        "    @staticmethod\n"
        "    def find_spec(name, path=None, target=None):\n"
        "        if name == 'smg':\n"
        f"            place = {str(Path(readers.__file__).parents[1])!r}\n"
        "            return importlib.util.spec_from_file_location(\n"
        "                name, place + '/__init__.py', submodule_search_locations=[place])\n"
        f"sys.path[:] = [path for path in sys.path if path not in ('', {str(Path(readers.__file__).parents[2])!r})]\n"
        "sys.meta_path.insert(0, Finder)\n"
        "from smg.sites.volume import read_volume\n"
        f"print(read_volume(Path({str(tmp_path / 's.mha')!r})).array.shape)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.stdout.strip() == str(scan()[0].array.shape), done.stderr


def test_a_reader_that_cannot_start_does_not_blame_the_scan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_volume(tmp_path / "s.mha", scan()[0])
    monkeypatch.setattr(readers, "import_path", list[str])
    monkeypatch.setattr(readers, "_readers", readers._Readers())
    with pytest.raises(SmgError, match="cannot import what it needs; install smg again"):
        read_volume(tmp_path / "s.mha")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/SimpleITK.py").write_text("raise ImportError('libITK.so: cannot open shared object file')")
    monkeypatch.setattr(readers, "import_path", lambda: [str(tmp_path / "broken"), *sys.path, str(ROOT)])
    with pytest.raises(SmgError, match="cannot import what it needs; install smg again"):
        read_volume(tmp_path / "s.mha")


def test_a_csv_keeps_the_columns_that_mean_something(tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_text("image,mask,note\na.nii,b.nii,secret\n")
    assert read_rows(tmp_path / "s.csv") == [(2, {"image": "a.nii", "mask": "b.nii"})]

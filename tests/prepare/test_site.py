"""Prepared subjects: their values, when the cache is used, and what it withstands."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from smg.errors import SmgError
from smg.prepare.cache import cache_folder
from smg.prepare.prepare_options import Preparation
from smg.prepare.prepared_site import prepare_scan, prepare_site
from smg.sites.site import Site
from smg.sites.volume import Volume, read_volume, write_volume
from tests.conftest import affine, scan, write_site

SMALL = Preparation(size=16)


def entries() -> dict[str, int]:
    return {p.name: p.stat().st_mtime_ns for p in cache_folder().iterdir()}


def test_slices_have_the_size_zero_mean_and_unit_variance(tmp_path: Path) -> None:
    prepared = prepare_site(Site.find(write_site(tmp_path / "HK")), SMALL)
    assert len(prepared) == 4
    for p in prepared:
        assert p.images.shape == (6, 1, 16, 16)
        assert p.images.dtype == torch.float32
        assert abs(p.images.mean()) < 1e-5
        assert abs(p.images.std(correction=0) - 1) < 1e-5
        assert p.foreground == (False, True, True, True, True, False)
        assert p.labels.dtype == torch.uint8
        assert p.grid.back(p.labels.numpy()).shape == (6, 20, 24)


def test_normalised_by_slice_and_clipped(tmp_path: Path) -> None:
    image, _ = scan()
    image.array[2, 3, 3] = 32000
    by_slice, _ = prepare_scan([image], Preparation(size=16, normalise="slice"))
    assert np.abs(by_slice.mean(axis=(2, 3))).max() < 1e-5
    assert np.allclose(by_slice.std(axis=(2, 3)), 1, atol=1e-5)
    clipped, _ = prepare_scan([image], Preparation(size=16, clip=(1, 99)))
    free, _ = prepare_scan([image], Preparation(size=16))
    assert clipped.max() < 4 < free.max()
    flat = Volume(np.concatenate([image.array[:1] * 0, image.array]), image.affine)
    assert not np.isnan(prepare_scan([flat], Preparation(size=16, normalise="slice"))[0]).any()


@pytest.mark.parametrize(
    "wrong", [{"size": 3}, {"clip": (99, 1)}, {"clip": (0, 101)}, {"normalise": "no"}, {"adjacent": 2}, {"typo": 1}]
)
def test_invalid_options_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Preparation.model_validate(wrong)


def test_nothing_is_made_twice_and_every_change_is_noticed(tmp_path: Path) -> None:
    folder = write_site(tmp_path / "HK")
    first = prepare_site(Site.find(folder), SMALL)
    made = entries()
    assert len(made) == 4
    again = prepare_site(Site.find(folder), SMALL)
    assert entries() == made
    assert all(torch.equal(a.images, b.images) for a, b in zip(first, again, strict=True))
    # these options apply to drawing and change nothing on disk
    prepare_site(Site.find(folder), Preparation(size=16, adjacent=3, empty_slices=False))
    assert entries() == made
    for other in ({"size": 18}, {"clip": (1, 99)}, {"normalise": "slice"}, {"labels": [1]}):
        before = len(entries())
        prepare_site(Site.find(folder), Preparation.model_validate({"size": 16} | other))
        assert len(entries()) == before + 4
    # one voxel, same size, same time stamp
    path = folder / "Case02_segmentation.nii.gz"
    times, size, mask = path.stat(), path.stat().st_size, read_volume(path)
    changed = mask.array.copy()
    changed[1, 5, 7] = 0
    write_volume(path, Volume(changed, mask.affine))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    before = len(entries())
    prepare_site(Site.find(folder), SMALL)
    assert len(entries()) == before + 1, size


def test_a_change_of_the_raw_file_behind_an_mhd_is_noticed(tmp_path: Path) -> None:
    folder = write_site(tmp_path / "HK", suffix=".mhd")
    prepare_site(Site.find(folder), SMALL)
    write_volume(folder / "Case01.mhd", scan(77)[0])
    prepare_site(Site.find(folder), SMALL)
    assert len(entries()) == 5


def test_a_truncated_entry_is_made_again(tmp_path: Path) -> None:
    folder = write_site(tmp_path / "HK")
    whole = [p.images.clone() for p in prepare_site(Site.find(folder), SMALL)]
    for path in cache_folder().iterdir():
        path.write_bytes(path.read_bytes()[:-7])
    for path in list(cache_folder().iterdir())[:2]:
        path.write_bytes(b"")
    again = prepare_site(Site.find(folder), SMALL)
    assert all(torch.equal(a, b.images) for a, b in zip(whole, again, strict=True))


@pytest.mark.parametrize("part", ["images", "labels", "about"])
def test_an_entry_that_was_changed_is_made_again(part: str, tmp_path: Path) -> None:
    """One bit of an image, a label or a header, with length and date as they were."""
    site = Site.find(write_site(tmp_path / "A", 1))
    (before,) = prepare_site(site, SMALL, cache=tmp_path / "cache")
    images, labels = before.images.clone(), before.labels.clone()
    (path,) = (tmp_path / "cache").iterdir()
    at, data = path.stat(), bytearray(path.read_bytes())
    place = {"images": -len(labels.numpy().tobytes()) - 1, "labels": -1, "about": data.index(b"needed") + 9}[part]
    data[place] ^= 1
    path.unlink()
    path.write_bytes(data)
    os.utime(path, ns=(at.st_atime_ns, at.st_mtime_ns))
    (after,) = prepare_site(site, SMALL, cache=tmp_path / "cache")
    assert torch.equal(after.images, images)
    assert torch.equal(after.labels, labels)
    assert after.needed == before.needed


def test_a_site_with_faults_is_refused_unless_they_are_left_out(tmp_path: Path) -> None:
    folder = write_site(tmp_path / "HK", 5)
    write_volume(folder / "Case01.nii.gz", Volume(np.zeros((6, 20, 24), np.int16), affine()))
    write_volume(folder / "Case03.nii.gz", scan(0)[0])  # Case00 again
    (folder / "Case04_segmentation.nii.gz").unlink()
    with pytest.raises(SmgError, match=r"site HK has 3 faults: `smg sites check`") as error:
        prepare_site(Site.find(folder), SMALL)
    assert "\n" not in str(error.value)
    left = prepare_site(Site.find(folder), SMALL, leave_out=True)
    assert [p.subject.case for p in left] == ["Case00", "Case02"]


def test_a_description_that_lists_fewer_values_since_is_heard(tmp_path: Path) -> None:
    site = replace(Site.find(write_site(tmp_path / "A", 2)), label_values=frozenset((0, 1)))
    assert len(prepare_site(site, Preparation(size=16))) == 2
    with pytest.raises(SmgError, match="label values that were not expected: 1"):
        prepare_site(replace(site, label_values=frozenset((0, 2))), Preparation(size=16))
    assert len(prepare_site(site, Preparation(size=16))) == 2


def test_the_cache_is_readable_by_its_owner_alone_and_names_no_patient(tmp_path: Path) -> None:
    prepare_site(Site.find(write_site(tmp_path / "Hospital")), SMALL)
    assert stat.S_IMODE(cache_folder().stat().st_mode) == 0o700
    for path in cache_folder().iterdir():
        assert b"Case" not in path.read_bytes()
        assert b"Hospital" not in path.read_bytes()


def test_a_cache_that_cannot_be_written_says_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SMG_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(SmgError, match="set SMG_CACHE"):
        prepare_site(Site.find(write_site(tmp_path / "HK")), SMALL)


def test_a_site_of_more_subjects_than_files_may_be_open(tmp_path: Path) -> None:
    import resource

    folder = write_site(tmp_path / "HK", 40)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    open_now = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_now + 20, hard))
    try:
        prepared = prepare_site(Site.find(folder), SMALL)
        assert sum(float(p.images.sum()) for p in prepared) < 1
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


PROGRAM = """
import sys
from smg.prepare.prepare_options import Preparation
from smg.prepare.prepared_site import prepare_site
from smg.sites.site import Site
print(len(prepare_site(Site.find(sys.argv[1]), Preparation(size=200))), flush=True)
"""


def test_two_processes_at_once_and_one_killed_leave_a_whole_cache(tmp_path: Path) -> None:
    folder = write_site(tmp_path / "HK", 12)
    run = [sys.executable, "-c", PROGRAM, str(folder)]
    killed = subprocess.Popen(run, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not entries() and time.monotonic() < deadline:
        time.sleep(0.001)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    both = [subprocess.Popen(run, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [p.communicate(timeout=120)[0].strip() for p in both] == ["12", "12"]
    whole = [name for name in entries() if name.endswith(".safetensors")]
    assert len(whole) == 12
    prepared = prepare_site(Site.find(folder), Preparation(size=200))
    assert all(abs(float(p.images.mean())) < 1e-4 for p in prepared)


def test_the_real_sites(real_data: Path) -> None:
    from smg.sites.layouts import find_sites

    counts = {}
    for name, site in find_sites(real_data).items():
        prepared = prepare_site(site, Preparation(size=64))
        counts[name] = (len(prepared), sum(sum(p.foreground) for p in prepared))
    assert counts == {"BIDMC": (12, 261), "HCRUDB": (19, 468), "HK": (12, 158), "RUNMC": (30, 422), "UCL": (13, 175)}


@pytest.mark.parametrize("normalise", ["volume", "slice"])
def test_a_scan_of_the_prepared_size_is_left_as_it_is(tmp_path: Path, normalise: str) -> None:
    """Without resizing and conversion, slices could be views of the scan, which normalisation must not change."""
    given = np.random.default_rng(0).normal(5.0, 2.0, (3, 16, 16)).astype(np.float32)
    volume = Volume(given.copy(), np.diag([-1.0, -1.0, 1.0, 1.0]))
    options = Preparation.model_validate({"size": 16, "normalise": normalise})
    here, _ = prepare_scan([volume], options)
    assert np.array_equal(volume.array, given)
    write_volume(tmp_path / "scan.nii", volume)
    from_file, _ = prepare_scan([read_volume(tmp_path / "scan.nii")], options)
    assert np.array_equal(from_file, here)
    assert here.mean() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(("value", "rows"), [(7.0, 320), (100.0, 320), (37.3, 100), (-1024.0, 100), (0.0, 100)])
def test_a_constant_slice_becomes_zeros_and_not_amplified_rounding(value: float, rows: int) -> None:
    rng = np.random.default_rng(0)
    array = np.stack([np.full((rows, rows), value), rng.normal(100, 1, (rows, rows))]).astype(np.float32)
    slices, _ = prepare_scan([Volume(array, np.eye(4))], Preparation(size=64, normalise="slice"))
    assert not slices[0].any()
    assert slices[1].std() == pytest.approx(1, abs=1e-4)


def test_a_scan_of_very_many_slices_is_a_fault_that_names_its_file(tmp_path: Path) -> None:
    """A file of a few kB must not ask for more memory than there is."""
    many = np.zeros((200_000, 2, 2), np.uint8)
    many[::2] = 100
    write_volume(tmp_path / "A/Case00.nrrd", Volume(many, np.eye(4)))
    write_volume(tmp_path / "A/Case00_segmentation.nrrd", Volume((many > 0).astype(np.uint8), np.eye(4)))
    with pytest.raises(SmgError, match=r"Case00\.nrrd.*200000 slices.*GiB.*--limit"):
        prepare_site(Site.find(tmp_path / "A"), Preparation(size=384))

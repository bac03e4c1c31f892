"""Fixtures and helpers of all tests: tiny scans, a site on disk, and the real sites if there are any."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

# One thread each: the networks of tests are so small that more threads only wait. It is set before torch is imported,
# and for the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest

from smg import trust
from smg.sites.volume import Volume, write_volume

# Ctrl-C stops the tests and the processes that they start, even if the parent process ignores it.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test its own cache of prepared scans and its own configuration, never the user's."""
    monkeypatch.setenv("SMG_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
    trust.begin_call()


@pytest.fixture(scope="session", autouse=True)
def _own_secret(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Name subjects by a secret of the tests, never the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SMG_SECRET", str(tmp_path_factory.mktemp("secret") / "secret"))
        yield


@pytest.fixture
def desk(made: Path, tmp_path: Path) -> Path:
    """Return a copy of the folder that a module's fixture `made` returns, for one test to change."""
    return shutil.copytree(made, tmp_path / "desk")


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Return the folder of real prostate sites; skip the test if there is none."""
    folder = os.environ.get("SMG_TEST_DATA")
    if not folder:
        pytest.skip("SMG_TEST_DATA does not name the folder of the real prostate sites")
    return Path(folder)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that use the real sites as `real`, and run the longest tests first, to balance the workers."""
    for item in items:
        if "real_data" in getattr(item, "fixturenames", ()):
            item.add_marker("real")
    items.sort(key=lambda item: "end_to_end" not in item.nodeid)


def affine(spacing: tuple[float, float, float] = (0.6, 0.5, 3.0)) -> np.ndarray:
    made = np.diag([*spacing, 1.0])
    made[:3, 3] = (-30.0, 12.5, 40.0)
    return made


def scan(seed: int = 0, shape: tuple[int, int, int] = (6, 20, 24)) -> tuple[Volume, Volume]:
    """Return a small image, and a mask on all but its first and last slice."""
    rng = np.random.default_rng(seed)
    mask = np.zeros(shape, np.uint8)
    mask[1:-1, 5:14, 7:18] = 1
    image = (rng.normal(100, 20, shape) + 80 * mask).astype(np.int16)
    return Volume(image, affine()), Volume(mask, affine())


def write_site(folder: Path, subjects: int = 4, suffix: str = ".nii.gz", first_seed: int = 0) -> Path:
    """Write a site in the prostate data set's layout, and return its folder."""
    for number in range(subjects):
        image, mask = scan(first_seed + number)
        write_volume(folder / f"Case{number:02d}{suffix}", image)
        write_volume(folder / f"Case{number:02d}_segmentation{suffix}", mask)
    return folder

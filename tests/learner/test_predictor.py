"""Many scans at a time: the same as one by one, in order, past bad files, and never many in memory."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import smg.learner.predictor
from smg.errors import SmgError
from smg.learner.config import LearnerConfig
from smg.learner.learner import Learner
from smg.learner.predictor import AT_A_TIME, Prediction
from smg.sites.site import Site
from smg.sites.volume import Volume, read_volume, write_volume
from tests.conftest import affine, scan, write_site
from tests.learner.streams import TINY

SCANS = 25


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Learner:
    folder = tmp_path_factory.mktemp("model")
    write_site(folder / "A", 5)
    made = Learner.create(folder / "model", LearnerConfig.model_validate(TINY))
    made.learn(Site.find(folder / "A"))
    return made


@pytest.fixture(scope="module")
def scans(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("scans")
    for number in range(SCANS):
        write_volume(folder / f"s{number:02d}.nii.gz", scan(number, (4 + number % 5, 20, 24))[0])
    return sorted(folder.iterdir())


def test_all_at_a_time_equal_one_by_one_to_the_bit(model: Learner, scans: list[Path]) -> None:
    answers = list(model.predict_all(scans))
    assert [path for path, _ in answers] == scans
    for path, made in answers:
        alone = model.predict(read_volume(path))
        assert isinstance(made, Prediction)
        assert np.array_equal(made.mask.array, alone.mask.array)
        assert np.array_equal(made.mask.affine, alone.mask.affine)
        assert (made.distances, made.unlike) == (alone.distances, alone.unlike)


@pytest.mark.parametrize("place", [0, 3, -1])
def test_a_bad_file_stops_nothing(model: Learner, scans: list[Path], tmp_path: Path, place: int) -> None:
    bad = tmp_path / "bad.nii.gz"
    bad.write_bytes(b"no scan")
    broken = tmp_path / "broken.nii.gz"
    array = scan(1)[0].array.astype(np.float32)
    array[0, 0, 0] = np.nan
    write_volume(broken, Volume(array, affine()))
    files = scans[:6]
    files[place:place] = [bad, broken, tmp_path / "nothing.mha"]
    answers = dict(model.predict_all(files))
    assert list(answers) == files
    assert str(answers[bad]).startswith(f"{bad}: too short for a NIfTI header")
    assert str(answers[broken]).startswith(f"{broken}: 1 voxels are NaN or infinite")
    with pytest.raises(SmgError, match="the scan: 1 voxels are NaN or infinite"):
        model.predict(Volume(array, np.eye(4)))
    assert str(answers[tmp_path / "nothing.mha"]).startswith(f"{tmp_path}/nothing.mha: no such file")
    assert sum(isinstance(answer, Prediction) for answer in answers.values()) == 6


def test_what_cannot_be_kept_is_that_scans_error(model: Learner, scans: list[Path]) -> None:
    def keep(path: Path, made: Prediction) -> None:
        if path == scans[2]:
            raise SmgError(f"{path}: the disk is full")

    answers = list(model.predict_all(scans[:5], keep))
    assert [isinstance(answer, SmgError) for _, answer in answers] == [False, False, True, False, False]


def test_few_scans_are_in_memory_at_any_moment(
    model: Learner, scans: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted from the moment one is read to the moment it is handed over, with a reader that outruns the network."""
    lock, inside, most, reading = threading.Lock(), set(), 0, set()
    original, main = smg.learner.predictor.read_volume, threading.get_ident()

    def read(path: Path) -> Volume:
        nonlocal most
        with lock:
            inside.add(path)
            most = max(most, len(inside))
            reading.add(threading.get_ident())
        return original(path)

    def passes(self: Any, images: Any) -> Any:
        assert threading.get_ident() == main  # the network has one caller
        time.sleep(0.01)
        return one_pass(self, images)

    one_pass = smg.learner.predictor.Predictor._pass
    monkeypatch.setattr(smg.learner.predictor, "read_volume", read)
    monkeypatch.setattr(smg.learner.predictor.Predictor, "_pass", passes)
    for path, _ in model.predict_all(iter(scans)):
        with lock:
            inside.discard(path)
    assert not inside
    assert main not in reading
    assert most <= 2 * AT_A_TIME + 2 < SCANS


def test_who_stops_listening_stops_the_work(model: Learner, scans: list[Path]) -> None:
    taken = []

    def named() -> Any:
        for path in scans:
            taken.append(path)
            yield path

    answers = model.predict_all(named())
    next(answers)
    answers.close()  # type: ignore[attr-defined]
    assert len(taken) <= 2 * AT_A_TIME + 2

"""Series that arrive: what comes after a slice was not taken is refused, and never taken for a whole series."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from smg.serve import spool
from smg.serve.arrivals import Arrivals, Refused
from smg.serve.node_options import Limits, Peer

PEER = Peer("PACS", "127.0.0.1", 104)
SETTLE = 0.3  # longer than any pause of a loaded machine between two slices


class Sending:
    """An association, open until it is released or lost."""

    def __init__(self) -> None:
        self.is_released, self.is_open = False, True

    def is_alive(self) -> bool:
        return self.is_open

    def release(self) -> None:
        self.is_released, self.is_open = True, False


def sent(arrivals: Arrivals, slices: range, one_each: bool, lost: int | None = None, waiting: int = 0) -> int:
    """Send slices of one series, and return how many were taken; the association of slice `lost` breaks."""
    taken, shared = 0, Sending()
    for number in slices:
        association = Sending() if one_each else shared
        try:
            arrivals.add(PEER, "1.2.3", f"1.2.3.{number}", b"x" * 10, association, waiting)
            taken += 1
        except Refused:
            pass
        if number == lost:
            association.is_open = False
        elif one_each:
            association.release()
        complete, _ = arrivals.take()
        assert not complete
    shared.release()
    return taken


def whole(arrivals: Arrivals) -> list[int]:
    """Return the numbers of slices of the series that are complete, once nothing more comes."""
    time.sleep(1.5 * SETTLE)
    return [len(one.sizes) for one in arrivals.take()[0]]


@pytest.mark.parametrize("one_each", [True, False])
def test_the_rest_of_a_series_that_found_the_queue_full(one_each: bool, tmp_path: Path) -> None:
    arrivals = Arrivals(tmp_path, Limits(queue=1, settle=SETTLE))
    assert sent(arrivals, range(8), one_each, waiting=1) == 0
    assert sent(arrivals, range(8, 20), one_each) == 0  # a place is free now
    assert whole(arrivals) == []
    assert sent(arrivals, range(20), one_each) == 20
    assert whole(arrivals) == [20]


def test_the_rest_of_a_series_over_the_limit(tmp_path: Path) -> None:
    arrivals = Arrivals(tmp_path, Limits(scan_bytes=100, settle=SETTLE))
    assert sent(arrivals, range(14), one_each=True) == 10
    assert whole(arrivals) == []
    assert list(tmp_path.iterdir()) == []


def test_the_rest_of_a_series_that_broke_off(tmp_path: Path) -> None:
    arrivals = Arrivals(tmp_path, Limits(settle=SETTLE))
    assert sent(arrivals, range(20), one_each=True, lost=6) == 7
    assert whole(arrivals) == []
    assert list(tmp_path.iterdir()) == []
    assert sent(arrivals, range(20), one_each=True) == 20
    assert whole(arrivals) == [20]


def test_the_rest_of_a_series_whose_association_was_silent_before_it_broke_off(tmp_path: Path) -> None:
    arrivals, association = Arrivals(tmp_path, Limits(settle=SETTLE)), Sending()
    for number in range(7):
        arrivals.add(PEER, "1.2.3", f"1.2.3.{number}", b"x" * 10, association, 0)
    time.sleep(1.5 * SETTLE)
    association.is_open = False
    assert [len(one.sizes) for one in arrivals.take()[1]] == [7]
    assert sent(arrivals, range(7, 20), one_each=False) == 0
    assert whole(arrivals) == []


def test_the_rest_of_a_series_whose_first_slice_could_not_be_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(folder: Path) -> Path:
        raise OSError(28, "No space left")

    arrivals = Arrivals(tmp_path, Limits(settle=SETTLE))
    with monkeypatch.context() as disk:
        disk.setattr(spool, "new_folder", full)
        with pytest.raises(OSError, match="No space"):
            arrivals.add(PEER, "1.2.3", "1.2.3.0", b"x", Sending(), 0)
    assert sent(arrivals, range(1, 20), one_each=False) == 0
    assert list(tmp_path.iterdir()) == []


def test_the_rest_of_a_series_of_which_a_slice_could_not_be_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, content: bytes) -> int:
        raise OSError(28, "No space left")

    arrivals = Arrivals(tmp_path, Limits(settle=SETTLE))
    assert sent(arrivals, range(5), one_each=False) == 5
    with monkeypatch.context() as disk:
        disk.setattr(Path, "write_bytes", full)
        with pytest.raises(OSError, match="No space"):
            arrivals.add(PEER, "1.2.3", "1.2.3.5", b"x", Sending(), 0)
    assert sent(arrivals, range(6, 20), one_each=False) == 0
    assert list(tmp_path.iterdir()) == []

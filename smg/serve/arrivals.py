"""Series that are being received: where their files are, and when a series is complete.

A sender may send a series over one association or over one for each slice, and several series over one. So a series is
complete when every association that brought a slice of it has been released and no further slice has come for a while
(`settle`). If one of them is aborted, lost or silent for too long, or a slice cannot be taken, the series is dropped: a
mask of a part of a scan would look like that of a whole one. So what still comes of a dropped series is refused, until
every association that brings it has ended and none of it has come for that while; then it can be sent again.
"""

from __future__ import annotations

import hashlib
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from smg.serve import spool
from smg.serve.node_options import Limits, Peer


class Association(Protocol):
    """What is asked of a pynetdicom association."""

    is_released: bool

    def is_alive(self) -> bool: ...


class Refused(Exception):
    """A slice that is not taken: the sender gets `out of resources`."""


@dataclass(eq=False)
class Arriving:
    """A series of one peer: its folder so far, and the associations that brought it."""

    peer: Peer
    uid: str
    folder: Path
    sizes: dict[str, int] = field(default_factory=dict)  # file -> bytes
    last: float = field(default_factory=time.monotonic)  # when the last slice came
    associations: list[Association] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        return sum(self.sizes.values())

    def state(self, settle: float) -> str:
        """Return `arriving`, `complete`, or `broken`."""
        if any(not one.is_alive() and not one.is_released for one in self.associations):
            return "broken"
        if any(one.is_alive() and not one.is_released for one in self.associations):
            return "arriving"
        return "complete" if time.monotonic() - self.last >= settle else "arriving"


@dataclass(eq=False)
class Dropped:
    """A series that was dropped, and the associations that still bring slices of it."""

    associations: list[Association]
    last: float = field(default_factory=time.monotonic)  # when it was dropped, or when the last slice came since

    def has_ended(self, settle: float) -> bool:
        """Return whether the sender has stopped sending it."""
        return not any(one.is_alive() for one in self.associations) and time.monotonic() - self.last >= settle


class Arrivals:
    """All series that are being received. Called by the threads of associations and by the one that watches."""

    def __init__(self, folder: Path, limits: Limits) -> None:
        self.folder, self.limits = folder, limits
        self.lock = threading.Lock()
        self.series: dict[tuple[str, str], Arriving] = {}
        self.dropped: dict[tuple[str, str], Dropped] = {}

    def __len__(self) -> int:
        return len(self.series)

    def add(self, peer: Peer, uid: str, instance: str, content: bytes, association: Association, waiting: int) -> None:
        """Write a slice of a series; raise Refused where it is one too many. `waiting` scans are queued already."""
        key = peer.title, uid
        with self.lock:
            if dropped := self.dropped.get(key):
                dropped.last = time.monotonic()
                if association not in dropped.associations:
                    dropped.associations.append(association)
                raise Refused
            arriving = self.series.get(key)
            if arriving is None:
                if len(self.series) + waiting >= self.limits.queue:
                    self.dropped[key] = Dropped([association])
                    raise Refused(
                        f"{waiting} scans wait and {len(self.series)} are being received; send it again later"
                    )
                try:
                    folder = spool.new_folder(self.folder)
                except OSError:
                    self.dropped[key] = Dropped([association])
                    raise
                arriving = self.series[key] = Arriving(peer, uid, folder)
            name = f"{hashlib.sha256(instance.encode()).hexdigest()[:32]}.dcm"
            if arriving.bytes - arriving.sizes.get(name, 0) + len(content) > self.limits.scan_bytes:
                self._drop(key, association)
                raise Refused(
                    f"series {uid} has more than {self.limits.scan_bytes >> 20} MB; raise --max-mb if it is meant"
                )
            try:
                (arriving.folder / name).write_bytes(content)
            except OSError:
                self._drop(key, association)
                raise
            arriving.sizes[name], arriving.last = len(content), time.monotonic()
            if association not in arriving.associations:
                arriving.associations.append(association)

    def take(self) -> tuple[list[Arriving], list[Arriving]]:
        """Remove and return the series that are complete, and those that broke off."""
        with self.lock:
            states = {key: one.state(self.limits.settle) for key, one in self.series.items()}
            complete = [self.series.pop(key) for key, state in states.items() if state == "complete"]
            broken = [self._drop(key) for key, state in states.items() if state == "broken"]
            self.dropped = {key: one for key, one in self.dropped.items() if not one.has_ended(self.limits.settle)}
        return complete, broken

    def _drop(self, key: tuple[str, str], *associations: Association) -> Arriving:
        """Delete what came of a series, and refuse the rest of it."""
        arriving = self.series.pop(key)
        self.dropped[key] = Dropped([*arriving.associations, *associations])
        spool.delete(arriving.folder)
        return arriving

    def put_back(self, arriving: Arriving) -> None:
        """Keep a complete series for which the queue has no room yet."""
        with self.lock:
            self.series.setdefault((arriving.peer.title, arriving.uid), arriving)

"""A tiny stream, and a process that dies in the middle of it wherever a test says."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import smg.learner.round
from smg.errors import SmgError
from smg.gradients.oracle import Oracle
from smg.learner.config import LearnerConfig
from smg.learner.learner import Learner
from smg.learner.records import CheckpointFacts
from smg.learner.store import Store
from smg.learner.stream import Stream
from smg.sites.layouts import find_sites
from smg.sites.volume import write_volume
from tests.conftest import scan, write_site

TINY = {
    "iterations": 4,
    "batch": 2,
    "preparation": {"size": 16},
    "network": {"width": 4, "depth": 1},
    "validate_every": 2,
    "log_every": 1,
    "guard": {"tolerance": 100},  # rounds of four iterations harm
}


def write_sites(folder: Path) -> Path:
    for place, name in enumerate("ABC"):
        write_site(folder / name, 4, first_seed=10 * place)
    return folder


def write_small(folder: Path, cases: Sequence[int] = range(4)) -> Path:
    """Write cases whose foreground is one pixel of 128 x 128, so that nothing of it is left at 16 x 16."""
    for number in cases:
        image, mask = scan(number, (6, 128, 128))
        mask.array[:] = 0
        mask.array[2:4, 61, 61] = 1
        write_volume(folder / f"Case{number:02d}.nii.gz", image)
        write_volume(folder / f"Case{number:02d}_segmentation.nii.gz", mask)
    return folder


def tiny_learner(folder: Path, **changes: Any) -> Learner:
    """Return a new model with small settings."""
    return Learner.create(folder, LearnerConfig.model_validate(TINY | {"method": "sga+c"} | changes))


@contextmanager
def refused(*facts: str, kind: type[SmgError] = SmgError) -> Iterator[None]:
    """Assert that the block raises an error of one line that has these facts."""
    with pytest.raises(kind) as error:
        yield
    message = str(error.value)
    assert "\n" not in message
    for fact in facts:
        assert fact in message


def tiny_stream(data: Path, **changes: Any) -> Stream:
    config = LearnerConfig.model_validate(TINY | changes)
    return Stream(find_sites(data), ["A", "B"], "C", config, checkpoint_seconds=0)


def fingerprint(run: Path) -> dict[str, str]:
    """A hash of every file that a run leaves, but for the dates in its journal and log, the lock, and time spent."""
    return {
        str(path.relative_to(run)): hashlib.sha256(_timeless(path)).hexdigest()
        for path in sorted(run.rglob("*"))
        if path.is_file() and path.name not in ("journal.jsonl", "log.jsonl", "lock") and "progress" not in path.parts
    }


def _timeless(path: Path) -> bytes:
    if path.name not in ("round.json", "results.json"):
        return path.read_bytes()
    held = json.loads(path.read_text())
    assert held.pop("seconds", None) or held["costs"].pop("seconds")  # it was measured
    return json.dumps(held).encode()


def noted(model: Path) -> list[tuple[str, int]]:
    """Return the events and rounds in a model's journal."""
    return [(line.event, line.round) for line in Store(model).journal() if line.round is not None]


def at_checkpoint(site: str, number: int, iteration: int) -> CheckpointFacts:
    """Return the facts of a checkpoint that an older version wrote, which did not say what it was made from."""
    return CheckpointFacts(
        site=site,
        round=number,
        iteration=iteration,
        iterations=None,
        parent=None,
        versions={},
        key=None,
        curve=(),
        log=(),
        begun=False,
        selected=False,
        ended=False,
        seconds=0.0,
    )


class Moments:
    """Counts the moments at which a process may die, by kind, and dies at the n-th of one kind by SIGKILL."""

    KINDS = ("training", "before a rename", "after a rename", "before removing", "in a write", "closing")
    LOOKING = "begin_round and end_round"  # of methods that have them
    CLOSING = ("write_round", "write", "note", "forget_progress")  # what the end of a round writes, in this order

    def __init__(self, kind: str = "", fatal: int = 0) -> None:
        self.kind, self.left = kind, fatal
        self._watch(smg.learner.round, "take_step", "training", before=True)
        self._watch(smg.learner.round.Training, "_look", self.LOOKING, before=True)
        self._watch_looking()
        self._watch(smg.learner.round.Training, "_look", self.LOOKING, before=False)
        self._watch(os, "replace", "before a rename", before=True)
        self._watch(os, "replace", "after a rename", before=False)
        self._watch(shutil, "rmtree", "before removing", before=True)
        for name in self.CLOSING:
            self._watch(Store, name, "closing", before=True)
            self._watch(Store, name, "closing", before=False)
        self._halve_writes()

    def pass_by(self, kind: str) -> None:
        if kind == self.kind:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def _watch(self, where: Any, name: str, kind: str, before: bool) -> None:
        original = getattr(where, name)

        def watched(*args: Any, **more: Any) -> Any:
            if before:
                self.pass_by(kind)
            result = original(*args, **more)
            if not before:
                self.pass_by(kind)
            return result

        setattr(where, name, watched)

    def _watch_looking(self) -> None:
        """Every pass that a method asks for outside of the iterations."""
        original = Oracle._pass

        def watched(oracle: Oracle, *args: Any) -> Any:
            if not oracle._reports:
                self.pass_by(self.LOOKING)
            return original(oracle, *args)

        Oracle._pass = watched  # type: ignore[method-assign]

    def _halve_writes(self) -> None:
        """A write is two: the first half reaches the file, and the process may die before the second."""
        original = Path.write_bytes

        def write_bytes(path: Path, data: bytes) -> int:
            original(path, data[: len(data) // 2])
            self.pass_by("in a write")
            return original(path, data)

        Path.write_bytes = write_bytes  # type: ignore[method-assign,assignment]

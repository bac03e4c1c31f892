"""An encrypted model beside a plain one of the same settings, and a change of its key that is killed anywhere."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from smg.learner.config import LearnerConfig
from smg.learner.history import History
from smg.learner.learner import Learner
from smg.learner.rekey import change_key
from smg.learner.store import Store
from smg.sites.site import Site
from smg.vault.key import Key
from tests.learner.streams import TINY, write_sites

KEY, OTHER, THIRD = (Key(bytes([number]) * 32, False, f"key {number}") for number in (1, 2, 3))
CONFIG = LearnerConfig.model_validate(
    TINY | {"method": "der++", "memory": "style", "keep_optimiser": True, "select": "average"}
)
SEALED = ("exemplars", "sentinels", "spectra", "optimiser")


def make_pair(folder: Path, keys: tuple[Key | None, ...] = (None, KEY)) -> Path:
    """Write sites A, B and C, a model that has learned A and B, the same model encrypted, and the caches of both."""
    write_sites(folder)
    with pytest.MonkeyPatch.context() as patch:
        for name, key in zip(("plain", "model"), keys, strict=True):
            patch.setenv("SMG_CACHE", str(folder / f"cache of {name}"))
            learner = Learner.create(folder / name, CONFIG, encrypt=key)
            for site in "AB":
                learner.learn(Site.find(folder, site), checkpoint_seconds=0)
    return folder


def arrays(model: Path, key: Key | None, *names: str) -> dict[tuple[int, str, str], torch.Tensor]:
    """Return the arrays of a model's rounds, decrypted."""
    store, found = Store(model, key), {}
    for number, name in itertools.product(store.read().numbers, names):
        for array, tensor in store.read_tensors(number, name).items():
            found[number, name, array] = tensor.clone()
    return found


def assert_same_content(model: Path, key: Key | None, other: Path, other_key: Key | None, *names: str) -> None:
    one, two = arrays(model, key, "weights", *names), arrays(other, other_key, "weights", *names)
    assert one.keys() == two.keys()
    for place, tensor in one.items():
        assert torch.equal(tensor, two[place]), place


def entries(desk: Path) -> list[Path]:
    return sorted((desk / "cache of model").rglob("*.safetensors"))


class Killed(BaseException):
    """As good as SIGKILL where a death leaves nothing behind but what was written, and faster."""


def dying_at(fatal: int, patch: pytest.MonkeyPatch) -> list[str]:
    """Die at the n-th write: before or after a file is moved to its place, in the middle of it, before a removal."""
    died: list[str] = []
    left = [fatal]

    def pass_by(what: str) -> None:
        left[0] -= 1
        if left[0] == 0:
            died.append(what)
            raise Killed

    def watched(where: Any, name: str) -> None:
        original = getattr(where, name)

        def call(*args: Any, **more: Any) -> Any:
            pass_by(f"before {name}")
            result = original(*args, **more)
            pass_by(f"after {name}")
            return result

        patch.setattr(where, name, call)

    def halved(path: Path, data: bytes) -> int:
        count = path.open("wb").write(data[: len(data) // 2])
        pass_by("in a write")
        with path.open("ab") as file:
            return count + file.write(data[len(data) // 2 :])

    watched(os, "replace")
    watched(os, "fsync")
    watched(shutil, "rmtree")
    patch.setattr(Path, "write_bytes", halved)
    return died


def killed_at_every_write(desk: Path, again: bool, step: int = 1) -> Iterator[tuple[int, Path]]:
    """Yield copies of the model in each of which a change from KEY to OTHER was killed at another moment.

    The function that `python -m tests.kills` may call: whoever takes a copy runs the change again.
    """
    for fatal in itertools.count(1, step):
        model = desk / f"killed-{fatal}"
        shutil.copytree(desk / "model", model)
        with pytest.MonkeyPatch.context() as patch:
            died = dying_at(fatal, patch)
            with contextlib.suppress(Killed):
                change_key(History(model, KEY), OTHER, again)
        if not died:
            return
        yield fatal, model

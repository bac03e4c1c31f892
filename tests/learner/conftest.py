"""Fixtures of the learner's tests: three small sites, and a model that has learned two of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from smg.learner.learner import Learner
from smg.sites.site import Site
from smg.vault import keyring
from tests.learner.encrypted import make_pair
from tests.learner.streams import tiny_learner, write_sites


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of sites A, B and C, which no test may change."""
    return write_sites(tmp_path_factory.mktemp("sites"))


@pytest.fixture(scope="session")
def taught_once(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a model that has learned A and B, which no test may change."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SMG_CACHE", str(tmp_path_factory.mktemp("cache")))
        made = tiny_learner(tmp_path_factory.mktemp("taught") / "model")
        for name in "AB":
            made.learn(Site.find(data, name))
    return made.store.folder


@pytest.fixture
def taught(taught_once: Path, tmp_path: Path) -> Learner:
    """Return a model of the test's own that has learned A and B."""
    return Learner(shutil.copytree(taught_once, tmp_path / "model"))


@pytest.fixture
def no_key_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away every key of an encrypted model that the environment or an earlier test has given."""
    for name in ("SMG_KEY_FILE", "SMG_KEY", "SMG_PASSPHRASE"):
        monkeypatch.delenv(name, raising=False)
    keyring.begin_call()


@pytest.fixture(scope="session")
def pair_made_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a plain and an encrypted model of the same rounds, which no test may change."""
    return make_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture
def sealed_desk(pair_made_once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of both models, their sites and their caches, of which the encrypted model's is in use."""
    shutil.copytree(pair_made_once, tmp_path / "desk")
    monkeypatch.setenv("SMG_CACHE", str(tmp_path / "desk" / "cache of model"))
    return tmp_path / "desk"

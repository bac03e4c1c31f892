"""Pseudonyms are keyed: without the hospital's secret nobody can try names or scans."""

from __future__ import annotations

import hashlib
import json
import shutil
import stat
from pathlib import Path

import pytest
import torch

from smg.errors import SmgError
from smg.learner.learner import Learner
from smg.learner.pseudonyms import own_pseudonyms, pseudonyms_of, secret_file
from smg.learner.store import Store
from smg.prepare.prepared_site import prepare_site
from smg.sites.site import Site
from tests.cli.commands import assert_line, smg
from tests.conftest import write_site
from tests.learner.streams import TINY


def taught(folder: Path, data: Path) -> Learner:
    learner = Learner.create(folder, **(TINY | {"iterations": 2}))
    learner.learn(Site.find(data / "A"))
    return learner


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_site(folder / "A", 4)
    return folder


@pytest.fixture
def secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SMG_SECRET", str(tmp_path / "kept" / "secret"))
    return tmp_path / "kept" / "secret"


def test_trying_every_case_name_and_every_scan_finds_nobody(data: Path, tmp_path: Path, secret: Path) -> None:
    """As it did: a record number of seven digits was found in seconds from round.json alone."""
    learner = taught(tmp_path / "model", data)
    whole = "".join(path.read_text() for path in (tmp_path / "model").rglob("*.json"))
    for number in range(4):
        for digits in (8, 12, 16):
            tried = hashlib.sha256(f"alias/0/A/Case{number:02d}".encode()).hexdigest()[:digits]
            assert tried not in whole
    record = learner.history.record(1)
    for prepared in prepare_site(Site.find(data / "A"), learner.config.preparation):
        assert prepared.content[:16] not in whole
        assert prepared.turned[:16] not in whole
    assert record.pseudonyms == own_pseudonyms().identity
    key = secret.read_bytes()
    every = b"".join(path.read_bytes() for path in (tmp_path / "model").rglob("*") if path.is_file())
    assert key not in every
    assert key.hex().encode() not in every


def test_the_secret_is_made_once_for_its_owner_alone(
    secret: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = own_pseudonyms().subject(0, "A", "Case00")
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert own_pseudonyms().subject(0, "A", "Case00") == first
    monkeypatch.delenv("SMG_SECRET")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    assert secret_file() == tmp_path / "share" / "smg" / "secret"
    assert own_pseudonyms().subject(0, "A", "Case00") != first
    secret_file().write_bytes(b"short")
    with pytest.raises(SmgError, match="too short for a secret"):
        own_pseudonyms()


def test_a_secret_that_cannot_be_made_is_found_before_training(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SMG_SECRET", str(tmp_path / "file" / "secret"))
    learner = Learner.create(tmp_path / "model", **TINY)
    with pytest.raises(SmgError, match=r"file/secret: the secret of pseudonyms cannot be made .*SMG_SECRET"):
        learner.learn(Site.find(data / "A"), on_step=lambda iteration, step: pytest.fail("it began"))


def test_weights_and_parts_do_not_depend_on_the_secret(data: Path, tmp_path: Path, secret: Path) -> None:
    one = taught(tmp_path / "one", data)
    secret.unlink()
    other = taught(tmp_path / "other", data)
    names = {own_pseudonyms().subject(0, "A", s.case): s.case for s in Site.find(data / "A").subjects}
    weights = [Store(tmp_path / name).read_tensors(1, "weights") for name in ("one", "other")]
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())
    records = one.history.record(1), other.history.record(1)
    assert records[0].pseudonyms != records[1].pseudonyms
    assert records[0].subjects == records[1].subjects
    assert set(records[1].parts.train) < set(names)
    assert not set(records[0].parts.train) & set(names)
    assert records[0].selection.R == records[1].selection.R


def test_without_the_secret_a_model_predicts_and_does_not_guess_parts(data: Path, tmp_path: Path, secret: Path) -> None:
    taught(tmp_path / "model", data)
    shutil.copytree(data / "A", tmp_path / "A")
    secret.unlink()
    assert smg("predict", "model", "A/Case00.nii.gz", "--out", "masks", cwd=tmp_path).returncode == 0
    assert_line(smg("evaluate", "model", "A", cwd=tmp_path), 1, "the secret of its pseudonyms is not here")
    assert smg("evaluate", "model", "A", "--part", "all", cwd=tmp_path).returncode == 0


def test_a_model_with_plain_hashes_goes_on(data: Path, tmp_path: Path, secret: Path) -> None:
    """As models made before there were keys: old rounds keep their names, new ones have keyed ones."""
    learner = taught(tmp_path / "model", data)
    site, plain = Site.find(data / "A"), pseudonyms_of(None)
    assert plain is not None
    text = (tmp_path / "model" / "rounds" / "001" / "round.json").read_text()
    for subject in site.subjects:
        new, old = (one.subject(0, "A", subject.case) for one in (own_pseudonyms(), plain))
        text = text.replace(new, old)
    record = json.loads(text)
    record["pseudonyms"], record["scans"] = None, []
    (tmp_path / "model" / "rounds" / "001" / "round.json").write_text(json.dumps(record))
    Store(tmp_path / "model").adopt()
    before = {row.case for row in learner.evaluate(site)}
    again = Learner(tmp_path / "model")
    assert {row.case for row in again.evaluate(site)} == before
    again.learn(site, again=True, unguarded=True)
    first, second = (again.history.record(number) for number in (1, 2))
    assert (first.pseudonyms, second.pseudonyms) == (None, own_pseudonyms().identity)
    named = {own_pseudonyms().subject(0, "A", case) for case in before}
    assert set(second.parts.test) == named

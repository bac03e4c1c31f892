"""`smg init`, `smg learn --encrypt`, `smg rekey`, and every other command on an encrypted model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from smg.files import safetensors_header
from smg.learner.history import History
from smg.learner.verify import verify
from smg.prepare.cache import cache_folder
from smg.vault import keyring
from tests.cli.commands import TINY, assert_line, smg
from tests.conftest import write_site


@pytest.fixture(autouse=True)
def _no_key_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    for before in ("SMG_", "SMG_NEW_"):
        for name in ("KEY_FILE", "KEY", "PASSPHRASE"):
            monkeypatch.delenv(f"{before}{name}", raising=False)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with sites A and B, the key `safe/model.key`, and an encrypted model that has learned A."""
    folder = tmp_path_factory.mktemp("made")
    for place, name in enumerate("AB"):
        write_site(folder / name, 4, first_seed=10 * place)
    result = smg("learn", "model", "A", *TINY, "--encrypt", "--key-file", "safe/model.key", cwd=folder)
    assert result.returncode == 0, result.stderr
    assert "safe/model.key: made a new key; keep a copy" in result.stderr
    return folder


def key_of(model: Path) -> str:
    record = History(model).model.encryption
    assert record is not None
    return record.users[0]


def test_init_makes_a_model_that_learns(tmp_path: Path) -> None:
    write_site(tmp_path / "A", 4)
    result = smg("init", "model", *TINY, "--method", "jm", "--encrypt", "--key-file", "key", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "encrypted, method jm, no site learned" in result.stdout
    assert_line(smg("learn", "model", "A", cwd=tmp_path), 1, "model: encrypted, and key", "--key-file FILE")
    assert not list(cache_folder().rglob("*.safetensors"))  # refused before any scan was prepared
    assert smg("learn", "model", "A", "--key-file", "key", cwd=tmp_path).returncode == 0
    assert list(cache_folder().rglob("*.safetensors"))
    for path in cache_folder().rglob("*.safetensors"):
        assert "sealed" in safetensors_header(path)[1]
    assert not verify(tmp_path / "model").faults
    assert_line(smg("init", "model", *TINY, cwd=tmp_path), 1, "model: exists")
    assert smg("init", "plain", *TINY, cwd=tmp_path).returncode == 0
    assert History(tmp_path / "plain").model.encryption is None


def test_a_key_is_needed_and_does_not_lie_in_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_line(smg("init", "model", "--encrypt", cwd=tmp_path), 2, "no key; give --key-file FILE", "SMG_PASSPHRASE")
    inside = smg("init", "model", "--encrypt", "--key-file", "model/key", cwd=tmp_path)
    assert_line(inside, 2, "model/key: the key must not lie in the model's folder")
    (tmp_path / "bad").write_text("not a key")
    assert_line(smg("init", "model", "--encrypt", "--key-file", "bad", cwd=tmp_path), 1, "bad: not a key")
    monkeypatch.setenv("SMG_PASSPHRASE", "short")
    assert_line(smg("init", "model", "--encrypt", cwd=tmp_path), 1, "SMG_PASSPHRASE: too short")
    assert not (tmp_path / "model").exists()
    monkeypatch.setenv("SMG_PASSPHRASE", "long enough to be one")
    assert smg("init", "model", "--encrypt", *TINY, cwd=tmp_path).returncode == 0


def test_what_needs_no_patient_works_without_the_key(desk: Path) -> None:
    for words in (
        ["history", "model"],
        ["verify", "model"],
        ["card", "model"],
        ["replay", "show", "model"],
        ["predict", "model", "A/Case00.nii.gz", "--out", "masks"],
        ["export", "model", "--as", "torch", "--out", "weights"],
        ["report", "model", "--out", "report.html"],
        ["rollback", "model", "0"],
        ["rollback", "model", "1"],
        ["replay", "drop", "model", "A", "--yes"],
    ):
        result = smg(*words, cwd=desk)
        assert result.returncode == 0, (words, result.stderr)


def test_what_needs_a_patient_says_which_key_is_missing(desk: Path) -> None:
    (desk / "other.key").write_bytes(bytes(32))
    for words in (
        ["learn", "model", "B"],
        ["evaluate", "model", "A"],
        ["forget", "model", "--case", "Case00", "--yes"],
        ["rekey", "model", "--new-key-file", "new.key"],
    ):
        assert_line(smg(*words, cwd=desk), 1, f"model: encrypted, and key {key_of(desk / 'model')} is needed")
        wrong = smg(*words, "--key-file", "other.key", cwd=desk)
        assert_line(wrong, 1, "not encrypted by this key (other.key)", key_of(desk / "model"))
        assert_line(smg(*words, "--key-file", "nowhere.key", cwd=desk), 1, "nowhere.key: No such file")
    assert keyring.given() is None
    assert not (desk / "new.key").exists()


def test_with_the_key_everything_works(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMG_KEY_FILE", str(desk / "safe" / "model.key"))
    for words in (
        ["learn", "model", "B", "--unguarded", "--encrypt"],
        ["evaluate", "model", "A"],
        ["forget", "model", "--scan", "A/Case00.nii.gz", "--yes"],
    ):
        result = smg(*words, cwd=desk)
        assert result.returncode == 0, (words, result.stderr)
    assert smg("verify", "model", cwd=desk).returncode == 0


def test_replay_show_says_whether_it_is_encrypted(desk: Path) -> None:
    assert f"encrypted, by key {key_of(desk / 'model')}" in smg("replay", "show", "model", cwd=desk).stdout
    (one,) = json.loads(smg("replay", "show", "model", "--json", cwd=desk).stdout)
    assert one["encrypted"] is True
    assert one["subjects"] == 2
    assert smg("learn", "plain", "A", *TINY, cwd=desk).returncode == 0
    assert "not encrypted" in smg("replay", "show", "plain", cwd=desk).stdout
    assert_line(smg("learn", "plain", "B", "--encrypt", cwd=desk), 1, "plain: --encrypt is for a new model")
    given = smg("learn", "plain", "B", "--key-file", "safe/model.key", cwd=desk)
    assert_line(given, 2, "plain: not encrypted; leave --key-file out")
    assert_line(smg("rekey", "plain", "--new-key-file", "new.key", cwd=desk), 1, "plain: not encrypted")


def test_rekey(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = ("--key-file", "safe/model.key")
    assert_line(smg("rekey", "model", *old, cwd=desk), 2, "no key; give --new-key-file FILE")
    done = smg("rekey", "model", *old, "--new-key-file", "new.key", cwd=desk)
    assert done.returncode == 0, done.stderr
    assert f"opened by key {key_of(desk / 'model')} (new.key)" in done.stdout
    assert_line(smg("learn", "model", "B", *old, cwd=desk), 1, "not encrypted by this key (safe/model.key)")
    monkeypatch.setenv("SMG_NEW_PASSPHRASE", "long enough to be one")
    again = smg("rekey", "model", "--key-file", "new.key", "--encrypt-again", "--json", cwd=desk)
    assert json.loads(again.stdout) == {"key": key_of(desk / "model"), "files": 2}
    monkeypatch.setenv("SMG_PASSPHRASE", "long enough to be one")
    assert smg("evaluate", "model", "A", cwd=desk).returncode == 0
    monkeypatch.setenv("SMG_PASSPHRASE", "another one, and long")
    assert_line(smg("evaluate", "model", "A", cwd=desk), 1, "not encrypted by this key (SMG_PASSPHRASE)")
    monkeypatch.delenv("SMG_PASSPHRASE")
    assert_line(smg("evaluate", "model", "A", cwd=desk), 1, "a passphrase is needed")
    assert "changed the key" in smg("history", "model", cwd=desk).stdout


def test_a_run_is_not_encrypted_and_says_so(desk: Path) -> None:
    (desk / "runs").mkdir()
    (desk / "model").rename(desk / "runs" / "model")
    words = ("--data", desk, "--order", "A,B", "--out", "runs", *TINY)
    assert_line(smg("run", *words, cwd=desk), 1, "runs/model: encrypted, and a run is not")

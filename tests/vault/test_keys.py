"""The user's key: from a file, a variable or a passphrase, recognised by its identity, and never in the folder."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from smg.errors import Misuse, SmgError
from smg.vault import keyring
from smg.vault.key import Key
from smg.vault.vault import Vault, opened_by, settled, users_of
from smg.vault.wrapped_keys import EncryptionRecord, ScryptRecord

SECRET = bytes(range(7, 39))
NAMES = ("KEY_FILE", "KEY", "PASSPHRASE")
MODEL = Path("model")


@pytest.fixture(autouse=True)
def _no_key_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(f"SMG_{name}", raising=False)
    keyring.begin_call()


@pytest.mark.parametrize(
    "content", [SECRET, SECRET.hex().encode() + b"\n", SECRET.hex().upper().encode(), base64.b64encode(SECRET) + b"\n"]
)
def test_a_file_holds_bytes_or_their_spelling(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(content)
    assert Key.from_file(tmp_path / "key").secret == SECRET


@pytest.mark.parametrize("content", [b"", b"short", SECRET[:-1], SECRET + b"x", b"\xff" * 64, b"g" * 64, b"A" * 40])
def test_what_is_no_key_is_refused_by_the_files_name(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(SmgError, match=r"key: not a key \(32 random bytes"):
        Key.from_file(tmp_path / "key")
    with pytest.raises(SmgError, match="nowhere: No such file"):
        Key.from_file(tmp_path / "nowhere")


def test_a_new_file_is_its_owners_alone_and_no_other_is_overwritten(tmp_path: Path) -> None:
    made = Key.make_file(tmp_path / "safe" / "key")
    assert (tmp_path / "safe" / "key").stat().st_mode & 0o777 == 0o600
    assert Key.make_file(tmp_path / "safe" / "key") == made
    assert made.secret != Key.make_file(tmp_path / "other").secret
    assert made.secret.hex() not in repr(made)


KEYS = [Key(SECRET, False, "bytes"), Key.from_passphrase("nine words that nobody guesses")]


@pytest.mark.parametrize("key", KEYS, ids=["bytes", "passphrase"])
def test_a_key_opens_what_it_wraps_and_another_does_not(key: Key) -> None:
    vault = Vault.make(key)
    assert vault.record == EncryptionRecord.model_validate_json(vault.record.model_dump_json())
    found = opened_by(vault.record, key, MODEL)
    assert found is not None
    assert found.keys == vault.keys
    for other in (Key(SECRET[::-1], False, "other"), Key.from_passphrase("other words"), *KEYS):
        if other != key:
            assert opened_by(vault.record, other, MODEL) is None


def test_a_short_passphrase_protects_nothing_new() -> None:
    with pytest.raises(SmgError, match="too short"):
        Vault.make(Key.from_passphrase("eleven char"))


def test_accents_are_the_same_however_they_are_typed() -> None:
    vault = Vault.make(Key.from_passphrase("caf\u00e9 after the round"))
    assert opened_by(vault.record, Key.from_passphrase("cafe\u0301 after the round"), MODEL)


@pytest.mark.parametrize("field", ["wrapped", "nonce", "data"])
def test_an_altered_record_is_noticed(field: str) -> None:
    vault = Vault.make(KEYS[0])
    one = vault.record.keys[0]
    before = getattr(one, field)
    altered = one.model_copy(update={field: ("1" if before[0] == "0" else "0") + before[1:]})
    record = vault.record.model_copy(update={"keys": (altered,), "current": altered.data})
    with pytest.raises(SmgError, match="encrypted data key was altered"):
        opened_by(record, KEYS[0], Path("model/model.json"))
    moved = vault.record.model_copy(update={"model": "0" * 32})
    with pytest.raises(SmgError, match="encrypted data key was altered"):
        opened_by(moved, KEYS[0], Path("model/model.json"))


@pytest.mark.parametrize("cost", [{"n": 1 << 21}, {"n": (1 << 17) + 1}, {"n": 1 << 20, "r": 32}, {"p": 100}, {"n": 2}])
def test_a_model_cannot_ask_for_any_cost(cost: dict[str, int]) -> None:
    with pytest.raises(ValueError):
        ScryptRecord(salt="0" * 32, **cost)


def test_a_change_of_the_data_key_has_both_keys_until_it_is_settled() -> None:
    old, new = KEYS
    vault = Vault.make(old)
    changing = vault.with_new_data_key(old, new)
    for key in KEYS:
        found = opened_by(changing.record, key, MODEL)
        assert found is not None
        assert found.keys == changing.keys
        assert len(found.keys) == 2
    assert changing.record.changing_to in users_of(changing.record, new)
    left = settled(changing.record)
    assert opened_by(left, old, MODEL) is None
    found = opened_by(left, new, MODEL)
    assert found is not None
    assert list(found.keys) == [changing.current]
    assert left.current != vault.current


# --- which key is at hand ---------------------------------------------------------------------------------------------


def test_keys_of_the_environment_are_recognised(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    by_bytes, by_words = (Vault.make(key).record for key in KEYS)
    (tmp_path / "wrong").write_bytes(bytes(32))
    monkeypatch.setenv("SMG_KEY_FILE", str(tmp_path / "wrong"))
    monkeypatch.setenv("SMG_KEY", SECRET.hex())
    assert keyring.open_vault(by_bytes, MODEL).record == by_bytes
    with pytest.raises(
        SmgError, match=rf"not encrypted by this key \(.*wrong, SMG_KEY\), but by key {by_words.users[0]}"
    ):
        keyring.open_vault(by_words, MODEL)
    monkeypatch.setenv("SMG_PASSPHRASE", KEYS[1].secret.decode())
    assert keyring.open_vault(by_words, MODEL).record == by_words


def test_what_is_missing_is_said() -> None:
    by_bytes, by_words = (Vault.make(key).record for key in KEYS)
    with pytest.raises(SmgError, match=f"model: encrypted, and key {by_bytes.users[0]} is needed.*--key-file"):
        keyring.open_vault(by_bytes, MODEL)
    with pytest.raises(SmgError, match=r"a passphrase is needed.*SMG_PASSPHRASE"):
        keyring.open_vault(by_words, MODEL)
    asked: list[str] = []

    def ask(question: str) -> str:
        asked.append(question)
        return KEYS[1].secret.decode()

    keyring.begin_call(ask)
    for _ in range(2):
        assert keyring.open_vault(by_words, MODEL).record == by_words
    assert asked == ["Passphrase of model: "]  # once


def test_a_new_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "model"
    with pytest.raises(Misuse, match="no key; give --key-file FILE"):
        keyring.new_key(model, None)
    with pytest.raises(Misuse, match="must not lie in the model's folder"):
        keyring.new_key(model, model / "deep" / "key")
    key, made = keyring.new_key(model, tmp_path / "key")
    assert made
    assert keyring.new_key(model, tmp_path / "key") == (key, False)
    monkeypatch.setenv("SMG_PASSPHRASE", "too short")
    with pytest.raises(SmgError, match="SMG_PASSPHRASE: too short"):
        keyring.new_key(model, None)
    monkeypatch.delenv("SMG_PASSPHRASE")
    answers = iter(["one and the same", "one and the other", "one and the same", "one and the same"])
    keyring.begin_call(lambda question: next(answers))
    with pytest.raises(SmgError, match="differ"):
        keyring.new_key(model, None)
    assert keyring.new_key(model, None)[0].is_passphrase

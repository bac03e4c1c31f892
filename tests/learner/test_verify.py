"""The journal is a chain: what was changed afterwards shows, and `smg verify` says what."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from smg.errors import SmgError
from smg.learner.history import History
from smg.learner.learner import Learner
from smg.learner.store import Store
from smg.learner.undo import drop
from smg.learner.verify import verify
from smg.prepare.cache import cache_folder
from smg.sites.site import Site
from tests.cli.commands import assert_line, smg, write_and_learn


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with sites A, B and C, and a model that has learned A and B."""
    return write_and_learn(tmp_path_factory.mktemp("made"), "ABC", "AB")


def test_a_model_as_it_was_written_has_no_fault(desk: Path) -> None:
    found = verify(desk / "model")
    assert not found.faults
    assert found.uncovered == ()
    assert found.files == 1 + 2 + sum(1 for _ in desk.glob("model/rounds/*/*.safetensors"))
    for words in (["rollback", "model", "1"], ["replay", "drop", "model", "A", "--yes"], ["learn", "model", "C"]):
        smg(*words, cwd=desk)
        assert not verify(desk / "model").faults
    assert smg("verify", "model", cwd=desk).returncode == 0


@pytest.mark.parametrize("name", ["model.json", "rounds/001/round.json", "rounds/002/round.json"])
def test_an_edit_of_a_record_is_noticed(name: str, desk: Path) -> None:
    """Even one that fits the schema: a class's values, a tolerance, whether a round is held."""
    path = desk / "model" / name
    record = json.loads(path.read_text())
    record["config"]["seed"] = 7
    path.write_text(json.dumps(record))
    assert f"{name}: differs from the hash in the journal" in verify(desk / "model").faults
    assert_line(smg("verify", "model", cwd=desk), 1, f"model/{name}: differs")
    assert_line(smg("evaluate", "model", "A", cwd=desk), 1, f"model/{name}: altered since smg wrote it", "--adopt")
    assert smg("verify", "model", "--adopt", cwd=desk).returncode == 0
    assert smg("evaluate", "model", "A", cwd=desk).returncode == 0
    assert [line.event for line in Store(desk / "model").journal()][-1] == "adopted"


@pytest.mark.parametrize("name", ["weights", "exemplars", "sentinels"])
def test_a_changed_or_missing_array_is_named(name: str, desk: Path) -> None:
    path = desk / "model" / "rounds" / "002" / f"{name}.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert verify(desk / "model").faults == (
        f"rounds/002/{name}.safetensors: differs from what its round's record says",
    )
    path.unlink()
    assert verify(desk / "model").faults == (f"rounds/002/{name}.safetensors: missing",)


def test_a_line_changed_added_or_removed_breaks_the_chain(desk: Path) -> None:
    path = desk / "model" / "journal.jsonl"
    lines = path.read_text().splitlines()
    place = next(n for n, line in enumerate(lines) if '"learned"' in line)
    for changed in (
        [*lines[:place], lines[place].replace('"A"', '"Z"'), *lines[place + 1 :]],
        [*lines[:place], *lines[place + 1 :]],
        [*lines[:place], lines[0], *lines[place:]],
    ):
        path.write_text("\n".join(changed) + "\n")
        assert any("does not follow the line before" in fault for fault in verify(desk / "model").faults)


def test_a_file_that_smg_did_not_write_is_named(desk: Path) -> None:
    (desk / "model" / "notes.txt").write_text("by hand")
    assert verify(desk / "model").uncovered == ("notes.txt",)


def test_signed_lines_and_those_that_are_not(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("key", "other"):
        made = subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519"], capture_output=True, check=True).stdout
        (desk / f"{name}.pem").write_bytes(made)
    public = ["openssl", "pkey", "-in", desk / "key.pem", "-pubout", "-out", desk / "public.pem"]
    subprocess.run(public, check=True, capture_output=True)
    assert_line(smg("verify", "model", "--key", "public.pem", cwd=desk), 1, "no line is signed")
    monkeypatch.setenv("SMG_SIGNING_KEY", str(desk / "key.pem"))
    assert smg("rollback", "model", "1", cwd=desk).returncode == 0
    for key in ("public.pem", "key.pem"):
        assert smg("verify", "model", "--key", key, cwd=desk).returncode == 0
    assert_line(smg("verify", "model", "--key", "other.pem", cwd=desk), 1, "is not signed by this key")
    monkeypatch.delenv("SMG_SIGNING_KEY")
    assert smg("rollback", "model", "2", cwd=desk).returncode == 0
    assert_line(smg("verify", "model", "--key", "public.pem", cwd=desk), 1, "is not signed")
    assert smg("verify", "model", cwd=desk).returncode == 0
    monkeypatch.setenv("SMG_SIGNING_KEY", str(desk / "nowhere.pem"))
    assert_line(smg("rollback", "model", "1", cwd=desk), 1, "nowhere.pem: No such file", "SMG_SIGNING_KEY")


def test_a_model_of_before_the_chain_opens_and_begins_one(desk: Path) -> None:
    path = desk / "model" / "journal.jsonl"
    old = [json.loads(line) for line in path.read_text().splitlines()]
    plain = [{k: v for k, v in line.items() if k != "previous"} for line in old if line["event"] != "wrote"]
    path.write_text("".join(json.dumps(line) + "\n" for line in plain))
    found = verify(desk / "model")
    assert not found.faults
    assert "model.json" in found.uncovered
    assert smg("rollback", "model", "1", cwd=desk).returncode == 0
    assert not verify(desk / "model").faults
    assert "model.json" not in verify(desk / "model").uncovered


# --- another process, and what is left --------------------------------------------------------------------------------


def test_a_round_learned_behind_a_deleted_lock_is_not_lost(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first process goes on while a second one, which found no lock, learns the same round and enters it."""
    first = Learner(desk / "model")
    original = Store.check_current
    entered: list[object] = []

    def second_comes_first(store: Store, model: object) -> None:
        if not entered:
            entered.append(True)
            (desk / "model" / "lock").unlink()
            shutil.rmtree(desk / "model" / "progress")  # it began before the first had a checkpoint
            Learner(desk / "model").learn(Site.find(desk / "C"), unguarded=True)
        original(store, model)  # type: ignore[arg-type]

    monkeypatch.setattr(Store, "check_current", second_comes_first)
    with pytest.raises(
        SmgError, match=r"model\.json: another process has changed it meanwhile; this round is not entered"
    ):
        first.learn(Site.find(desk / "A"), again=True, unguarded=True)
    assert History(desk / "model").sites == ["A", "B", "C"]
    assert not verify(desk / "model").faults


def test_drop_removes_what_is_damaged_and_what_was_left(desk: Path) -> None:
    rounds = desk / "model" / "rounds"
    (rounds / "001" / "exemplars.safetensors").write_bytes(b"damaged")
    for left in (rounds / ".003", rounds / "004"):
        shutil.copytree(rounds / "001", left)
    temporary = rounds / "001" / ".exemplars.safetensors-another-host-123-0a0b0c0d"
    temporary.write_bytes(b"slices")
    (cache_folder() / "prepared.safetensors").touch()
    result = smg("replay", "drop", "model", "A", "--yes", cwd=desk)
    assert result.returncode == 0, result.stderr
    for name in ("rounds/.003", "rounds/004", f"rounds/001/{temporary.name}"):
        assert name in result.stdout
        assert not (desk / "model" / name).exists()
    assert f"delete {cache_folder()}" in result.stdout
    assert not verify(desk / "model").faults
    assert (rounds / "001" / "exemplars.safetensors").stat().st_size == 16
    assert_line(smg("replay", "drop", "model", "A", "--yes", cwd=desk), 1, "nothing of site A is kept any more")


def test_drop_asks(desk: Path) -> None:
    assert_line(smg("replay", "drop", "model", "A", cwd=desk), 2, "no terminal to ask on; give --yes")
    assert drop(History(desk / "model"), "A").exemplars == 2


def test_an_export_is_noted_with_its_kind_and_round(desk: Path) -> None:
    exported = smg("export", "model", "--as", "torch", "--round", "1", "--out", "out", cwd=desk)
    assert exported.returncode == 0, exported.stderr
    last = Store(desk / "model").journal()[-1]
    assert (last.event, last.details()) == ("exported", {"round": 1, "kind": "torch"})
    assert "exported: round 1, kind torch" in smg("history", "model", cwd=desk).stdout
    assert not verify(desk / "model").faults


def test_an_export_of_a_model_in_use_stands_and_says_that_it_is_not_noted(desk: Path) -> None:
    with Store(desk / "model").locked():
        exported = smg("export", "model", "--as", "torch", "--out", "out", cwd=desk)
    assert exported.returncode == 0
    assert (desk / "out" / "README.md").is_file()
    assert "the journal does not note this export: model: in use by process" in exported.stderr
    assert all(line.event != "exported" for line in Store(desk / "model").journal())

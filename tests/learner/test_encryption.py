"""An encrypted model: learned from as any other, and nothing of a patient is readable in its folder or in the cache."""

from __future__ import annotations

import gzip
import json
import random
import re
import shutil
import zlib
from pathlib import Path

import pytest
import torch

from smg.errors import Misuse, SmgError
from smg.files import safetensors_header
from smg.learner.forget import Person, forget, person_of
from smg.learner.history import History
from smg.learner.learner import Learner
from smg.learner.rekey import change_key
from smg.learner.store import Store
from smg.learner.undo import drop
from smg.learner.verify import verify
from smg.prepare.encrypted import SealedPrepared
from smg.prepare.prepared_site import prepare_site
from smg.prepare.slices import Slices
from smg.sites.site import Site
from smg.sites.volume import read_volume
from smg.vault import keyring
from smg.vault.key import Key
from tests.learner.encrypted import CONFIG, KEY, OTHER, SEALED, THIRD, arrays, assert_same_content, entries

pytestmark = pytest.mark.usefixtures("no_key_at_hand")


# --- round trip -------------------------------------------------------------------------------------------------------


def test_it_learns_what_a_plain_model_learns(sealed_desk: Path) -> None:
    assert_same_content(sealed_desk / "model", KEY, sealed_desk / "plain", None, *SEALED)
    for number in (1, 2):
        for name in SEALED:
            path = sealed_desk / "model" / "rounds" / f"{number:03d}" / f"{name}.safetensors"
            assert list(safetensors_header(path)[0]) == ["sealed"]
    assert not verify(sealed_desk / "model").faults
    assert verify(sealed_desk / "model").uncovered == ()


def test_a_plain_model_has_no_trace_of_encryption(sealed_desk: Path) -> None:
    record = json.loads((sealed_desk / "plain" / "model.json").read_text())
    assert record["format"] == 3
    assert "encryption" not in record
    assert json.loads((sealed_desk / "model" / "model.json").read_text())["format"] == 4
    assert "key" not in json.loads((sealed_desk / "plain" / "journal.jsonl").read_text().splitlines()[1])


def slices_of(sealed_desk: Path) -> list[bytes]:
    """Return the bytes of every prepared slice and mask of sites A and B, and rows out of their middle."""
    found = []
    for site in "AB":
        for subject in prepare_site(Site.find(sealed_desk, site), CONFIG.preparation, cache=sealed_desk / "aside"):
            for image, labels in zip(subject.images, subject.labels, strict=True):
                assert image.shape[-2:] == (16, 16)
                found += [image.numpy().tobytes(), image[0, 8].numpy().tobytes(), image[0, 8].half().numpy().tobytes()]
                if labels.any():
                    found += [labels.numpy().tobytes()]
    return found


def unpacked(data: bytes) -> list[bytes]:
    """Return a file's bytes, and whatever in it can be inflated."""
    found = [data]
    for begin in (m.start() for m in re.finditer(rb"\x1f\x8b|\x78[\x01\x5e\x9c\xda]", data)):
        for inflate in (gzip.decompress, zlib.decompress, zlib.decompressobj().decompress):
            try:
                found.append(inflate(data[begin:]))
            except (OSError, EOFError, zlib.error):
                continue
    return found


def test_no_slice_is_in_any_file_of_model_or_cache(sealed_desk: Path) -> None:
    needles = slices_of(sealed_desk)
    seen = {}
    for name in ("model", "cache of model", "plain", "cache of plain"):
        files = [path for path in (sealed_desk / name).rglob("*") if path.is_file()]
        assert files
        seen[name] = sum(needle in data for path in files for data in unpacked(path.read_bytes()) for needle in needles)
    assert seen["model"] == seen["cache of model"] == 0
    assert seen["plain"] > 20  # the same search finds them where they are
    assert seen["cache of plain"] > 100


def test_no_hash_or_case_is_in_the_encrypted_cache(sealed_desk: Path) -> None:
    files = [path for path in (sealed_desk / "cache of model").rglob("*") if path.is_file()]
    for subject in prepare_site(Site.find(sealed_desk, "A"), CONFIG.preparation, cache=sealed_desk / "aside"):
        for word in (subject.content, subject.turned, subject.subject.case):
            assert not any(word.encode() in path.read_bytes() or word in str(path) for path in files)


def test_nothing_is_readable_in_a_checkpoint(sealed_desk: Path) -> None:
    class Stop(Exception): ...

    def stop(iteration: int, step: object) -> None:
        if iteration == 3:
            raise Stop

    learner = Learner(sealed_desk / "model", key=KEY)
    with pytest.raises(Stop):
        learner.learn(Site.find(sealed_desk, "C"), checkpoint_seconds=0, on_step=stop)
    (path,) = (sealed_desk / "model" / "progress").glob("*.safetensors")
    assert list(safetensors_header(path)[0]) == ["sealed"]
    found = Store(sealed_desk / "model", KEY).resume()
    assert found is not None
    moments = next(t for name, t in found[0].items() if name.startswith("moments.") and t.numel() > 50)
    assert moments.numpy().tobytes()[:64] not in path.read_bytes()
    under_way = History(sealed_desk / "model").under_way()  # without the key
    assert under_way is not None
    assert under_way.site == "C"
    assert not verify(sealed_desk / "model").faults
    with pytest.raises(SmgError, match=r"key .* is needed"):
        Store(sealed_desk / "model").resume()
    with pytest.raises(SmgError, match="under way"):
        change_key(History(sealed_desk / "model", KEY), OTHER, again=True)
    shutil.copytree(sealed_desk / "model", sealed_desk / "abandoned")
    given_up = Learner(sealed_desk / "abandoned").abandon()  # without the key
    assert given_up is not None
    assert given_up.site == "C"
    change_key(History(sealed_desk / "model", KEY), OTHER)  # which leaves files as they are: the round goes on
    Learner(sealed_desk / "model", key=OTHER).learn(Site.find(sealed_desk, "C"), unguarded=True)
    Learner(sealed_desk / "plain").learn(Site.find(sealed_desk, "C"), unguarded=True)
    assert_same_content(sealed_desk / "model", OTHER, sealed_desk / "plain", None, *SEALED)


# --- without the key, or with a wrong one -----------------------------------------------------------------------------


def test_what_needs_no_patient_works_without_the_key(sealed_desk: Path) -> None:
    history, plain = History(sealed_desk / "model"), History(sealed_desk / "plain")
    assert [one.fault for one in history.rounds()] == [None, None]
    assert history.kept_by_site() == plain.kept_by_site()
    assert [one.kept for one in history.stored()] == [one.kept for one in plain.stored()]
    learner = Learner(sealed_desk / "model")
    scan = read_volume(sealed_desk / "A" / "Case00.nii.gz")
    assert (learner.predict(scan).mask.array == Learner(sealed_desk / "plain").predict(scan).mask.array).all()
    learner.rollback(1)
    learner.rollback(2)
    assert not verify(sealed_desk / "model").faults
    assert drop(history, "A").exemplars == 2


@pytest.mark.parametrize("key", [None, OTHER], ids=["no key", "another key"])
def test_what_needs_a_patient_says_which_key(key: Key | None, sealed_desk: Path) -> None:
    user = History(sealed_desk / "model").model.encryption.users[0]  # type: ignore[union-attr]
    before = {path: path.read_bytes() for path in (sealed_desk / "model").rglob("*.safetensors")}
    learner = Learner(sealed_desk / "model", key=key)
    tries = (
        learner.replay,
        learner.sentinels,
        learner.spectra,
        lambda: learner.learn(Site.find(sealed_desk, "C")),
        lambda: learner.evaluate(Site.find(sealed_desk, "A")),
        lambda: learner.change_key(THIRD),
        lambda: forget(learner.history, Person("Case00", "A")),
    )
    for one in tries:
        with pytest.raises(SmgError, match=f"model: .*{user}.*--key-file FILE, or set SMG_KEY_FILE"):
            one()
    assert {path: path.read_bytes() for path in (sealed_desk / "model").rglob("*.safetensors")} == before


def test_a_key_in_the_environment_is_enough(sealed_desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMG_KEY", KEY.secret.hex())
    assert list(Learner(sealed_desk / "model").replay()) == ["A", "B"]
    keyring.use(KEY)
    with pytest.raises(Misuse, match="plain: not encrypted; leave --key-file out"):
        Learner(sealed_desk / "plain").prepare(Site.find(sealed_desk, "C"))


# --- tampering --------------------------------------------------------------------------------------------------------


def put(store: Store, number: int, name: str, data: bytes) -> None:
    """Put other bytes in the place of a round's file, and their hash into the records, as an attacker would."""
    import hashlib

    path = store.round_folder(number) / f"{name}.safetensors"
    path.write_bytes(data)
    record = store.read_round(number)
    files = record.files | {path.name: hashlib.sha256(data).hexdigest()}
    with store.locked():
        store.replace_record(record.model_copy(update={"files": files}))


def bytes_of(model: Path, number: int, name: str) -> bytes:
    return (model / "rounds" / f"{number:03d}" / f"{name}.safetensors").read_bytes()


def test_files_cannot_be_swapped_even_with_their_hashes(sealed_desk: Path) -> None:
    store = Store(sealed_desk / "model", KEY)
    mine = bytes_of(sealed_desk / "model", 1, "exemplars")
    for number, name, data, reason in (
        (1, "exemplars", bytes_of(sealed_desk / "model", 2, "exemplars"), "moved here"),
        (1, "exemplars", bytes_of(sealed_desk / "model", 1, "sentinels"), "moved here"),
        (1, "exemplars", bytes_of(sealed_desk / "plain", 1, "exemplars"), "not encrypted, unlike its model"),
        (1, "exemplars", mine[:-1], "damaged"),
        (1, "exemplars", mine[: len(mine) // 2], "damaged"),
        (1, "exemplars", b"", "damaged"),
    ):
        put(store, number, name, data)
        with pytest.raises(SmgError, match=rf"rounds/001/exemplars\.safetensors: .*{reason}.*; restore"):
            store.read_tensors(number, name)
    put(store, 1, "exemplars", mine)
    store.read_tensors(1, "exemplars")
    rng = random.Random(0)
    for _ in range(30):
        changed = bytearray(mine)
        changed[rng.randrange(len(mine))] ^= 1 << rng.randrange(8)
        put(store, 1, "exemplars", bytes(changed))
        with pytest.raises(SmgError, match=r"exemplars\.safetensors: "):
            store.read_tensors(1, "exemplars")


def test_a_change_of_a_file_alone_fails_its_hash(sealed_desk: Path) -> None:
    path = sealed_desk / "model" / "rounds" / "002" / "exemplars.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert verify(sealed_desk / "model").faults == (
        "rounds/002/exemplars.safetensors: differs from what its round's record says",
    )
    with pytest.raises(SmgError, match="cut short or altered"):
        Learner(sealed_desk / "model", key=KEY).replay()


def test_an_encrypted_file_in_a_plain_model_is_no_empty_one(sealed_desk: Path) -> None:
    store = Store(sealed_desk / "plain")
    put(store, 1, "exemplars", bytes_of(sealed_desk / "model", 1, "exemplars"))
    with pytest.raises(SmgError, match=r"exemplars\.safetensors: encrypted, and model\.json names no key"):
        store.read_tensors(1, "exemplars")


def test_an_altered_wrapped_key_is_one_line(sealed_desk: Path) -> None:
    path = sealed_desk / "model" / "model.json"
    record = json.loads(path.read_text())
    wrapped = record["encryption"]["keys"][0]["wrapped"]
    record["encryption"]["keys"][0]["wrapped"] = wrapped[:-1] + ("0" if wrapped[-1] != "0" else "1")
    path.write_text(json.dumps(record))
    Store(sealed_desk / "model").adopt()
    with pytest.raises(SmgError, match=r"model/model\.json: its encrypted data key was altered"):
        Learner(sealed_desk / "model", key=KEY).replay()
    record["encryption"]["keys"] = []
    path.write_text(json.dumps(record))
    with pytest.raises(SmgError, match=r"model\.json: damaged"):
        Store(sealed_desk / "model").read()


# --- the cache --------------------------------------------------------------------------------------------------------


def test_cached_subjects_are_those_of_a_plain_cache(sealed_desk: Path) -> None:
    learner = Learner(sealed_desk / "model", key=KEY)
    plain = prepare_site(Site.find(sealed_desk, "A"), CONFIG.preparation, cache=sealed_desk / "aside")
    for one, other in zip(learner.prepare(Site.find(sealed_desk, "A")), plain, strict=True):
        assert isinstance(one, SealedPrepared)
        for name in ("subject", "foreground", "content", "turned", "needed", "values", "shape"):
            assert getattr(one, name) == getattr(other, name)
        assert torch.equal(one.images, other.images)
        assert torch.equal(one.labels, other.labels)
        assert torch.equal(one.image_slices[-1], other.images[-1])
        index = torch.tensor([[0, 1, 2], [3, 3, 0]])
        assert torch.equal(one.image_slices[index], other.images[index])
    for adjacent in (1, 3):
        options = CONFIG.preparation.model_copy(update={"adjacent": adjacent})
        sealed, read = (Slices(some, options) for some in (learner.prepare(Site.find(sealed_desk, "A")), plain))
        for number in range(len(read)):
            one_slice, another = sealed.gather([number]), read.gather([number])
            assert torch.equal(one_slice.images, another.images)
            assert torch.equal(one_slice.labels, another.labels)


def test_a_damaged_or_swapped_entry_is_made_again(sealed_desk: Path) -> None:
    learner, site = Learner(sealed_desk / "model", key=KEY), Site.find(sealed_desk, "A")
    expected = {p.subject.case: p.images for p in learner.prepare(site)}
    for path in entries(sealed_desk):
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    shutil.copy(entries(sealed_desk)[1], entries(sealed_desk)[0])
    for one in learner.prepare(site):
        assert torch.equal(one.images, expected[one.subject.case])


def test_models_do_not_share_entries(sealed_desk: Path) -> None:
    count = len(entries(sealed_desk))
    Learner.create(sealed_desk / "second", CONFIG, encrypt=KEY).prepare(Site.find(sealed_desk, "A"))
    assert len(entries(sealed_desk)) == count + 4


# --- forgetting -------------------------------------------------------------------------------------------------------


def test_a_person_is_forgotten_in_files_and_cache(sealed_desk: Path) -> None:
    history = History(sealed_desk / "model", KEY)
    before = arrays(sealed_desk / "model", KEY, "exemplars", "sentinels")
    names = {array.split(".")[1] for number, _, array in before if number == 1}
    count = len(entries(sealed_desk))
    for case in range(4):
        removed = forget(history, person_of(None, [sealed_desk / "A" / f"Case{case:02d}.nii.gz"]))
        assert len(removed.cached) == 1
    assert len(entries(sealed_desk)) == count - 4
    after = arrays(sealed_desk / "model", KEY, "exemplars", "sentinels")
    assert {place for place in before if place[0] == 2} == set(after)
    assert len(names) == 3
    assert not verify(sealed_desk / "model").faults

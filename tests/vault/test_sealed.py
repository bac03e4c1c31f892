"""Encrypted files: read as they were written, and no byte, chunk or file can be changed or swapped unnoticed."""

from __future__ import annotations

import os
import random

import pytest

from smg.errors import SmgError
from smg.files import read_safetensors_header
from smg.vault.key import Key
from smg.vault.sealed import CHUNK, Sealed, Sealing, facts_of
from smg.vault.vault import Vault

SIZES = [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 3 * CHUNK + 17]
PLACE = "rounds/001/exemplars"


@pytest.fixture(scope="module")
def vault() -> Vault:
    return Vault.make(Key(bytes(range(32)), False, "a test"))


def sealed(vault: Vault, plain: bytes, place: str = PLACE) -> bytes:
    return b"".join(Sealing(vault, place, plain, {"subjects": 2}))


def opened(data: bytes, vault: Vault, place: str = PLACE) -> bytes:
    return bytes(Sealed(data, vault, place, "file").read())


@pytest.mark.parametrize("size", SIZES)
def test_every_range_is_read_as_it_was_written(size: int, vault: Vault) -> None:
    plain = os.urandom(size)
    file = Sealed(sealed(vault, plain), vault, PLACE, "file")
    assert bytes(file.read()) == plain
    file.verify()
    rng = random.Random(size)
    for _ in range(50):
        start, stop = sorted(rng.randint(0, size) for _ in range(2))
        assert bytes(file.read(start, stop)) == plain[start:stop]


def test_pieces_are_the_same_each_time_and_no_two_files_are(vault: Vault) -> None:
    one = Sealing(vault, PLACE, b"the same" * 999)
    assert list(one) == list(one)
    assert sealed(vault, b"the same") != sealed(vault, b"the same")


def test_it_is_a_safetensors_file_with_public_facts(vault: Vault) -> None:
    data = sealed(vault, b"secret" * 100)
    with memoryview(data) as view:
        at = iter([view[:8].tobytes(), view[8 : 8 + int.from_bytes(view[:8], "little")].tobytes()])
    head, metadata, _ = read_safetensors_header(lambda _: next(at), len(data))
    assert list(head) == ["sealed"]
    assert facts_of(metadata) == {"subjects": 2}
    assert facts_of({}) is None
    assert b"secret" not in data


def test_any_flipped_bit_is_noticed(vault: Vault) -> None:
    plain = os.urandom(CHUNK + 100)
    data = sealed(vault, plain)
    begin = 8 + int.from_bytes(data[:8], "little")
    rng = random.Random(0)
    header = [(byte, rng.randrange(8)) for byte in range(begin)]  # each byte of the header
    body = [(rng.randrange(begin, len(data)), rng.randrange(8)) for _ in range(200)]
    for byte, bit in header + body:
        changed = bytearray(data)
        changed[byte] ^= 1 << bit
        with pytest.raises(SmgError, match=r"file: .*; (restore|update)"):
            opened(bytes(changed), vault)


@pytest.mark.parametrize("kept", [0, 4, 8, 100, -1, -16, -17, -100, -CHUNK - 16, -CHUNK - 17])
def test_any_cut_is_noticed(kept: int, vault: Vault) -> None:
    data = sealed(vault, os.urandom(3 * CHUNK))
    with pytest.raises(SmgError, match=r"file: .*; restore"):
        opened(data[:kept], vault)
    with pytest.raises(SmgError, match="cut short or altered"):
        opened(data + b"more", vault)


def test_chunks_cannot_be_swapped(vault: Vault) -> None:
    data = bytearray(sealed(vault, os.urandom(3 * CHUNK)))
    begin, each = 8 + int.from_bytes(data[:8], "little"), CHUNK + 16
    first, second = data[begin : begin + each], data[begin + each : begin + 2 * each]
    data[begin : begin + 2 * each] = second + first
    with pytest.raises(SmgError, match="altered since it was encrypted"):
        opened(bytes(data), vault)


def test_a_chunk_of_another_file_does_not_fit(vault: Vault) -> None:
    one, other = (bytearray(sealed(vault, os.urandom(CHUNK))) for _ in range(2))
    begin = 8 + int.from_bytes(one[:8], "little")
    one[begin:] = other[begin:]
    with pytest.raises(SmgError, match="altered since it was encrypted"):
        opened(bytes(one), vault)


def test_a_file_is_bound_to_its_place_its_model_and_its_key(vault: Vault) -> None:
    data = sealed(vault, b"x" * 100)
    with pytest.raises(SmgError, match="encrypted as 'rounds/001/exemplars' and moved here"):
        opened(data, vault, "rounds/001/sentinels")
    other = Vault.make(Key(bytes(range(32)), False, "the same key"))
    with pytest.raises(SmgError, match="encrypted for another model"):
        opened(data, other)
    same_model = Vault(vault.record.model_copy(update={"current": other.current}), other.keys)
    with pytest.raises(SmgError, match="by a data key"):
        opened(data, same_model)
    forged = data.replace(vault.current.encode(), other.current.encode())  # a header that names a key of the model
    with pytest.raises(SmgError, match="altered since it was encrypted"):
        opened(forged, same_model)


def test_a_newer_format_asks_for_a_newer_smg(vault: Vault) -> None:
    with pytest.raises(SmgError, match="newer version of smg"):
        opened(sealed(vault, b"x").replace(rb"\"version\": 1", rb"\"version\": 2"), vault)

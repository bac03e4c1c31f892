"""Everything that leaves a hospital in whole rounds is searched for its scans, paths, names and hashes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from smg.federation.messages import Message
from smg.learner.exemplars import alias
from smg.prepare.prepared_site import prepare_site
from smg.sites.volume import read_volume
from tests.federation.test_round import NAMES, Land

RUN = 4  # values in a row that count as a piece of an image; not all equal
Array = np.ndarray


def pieces(values: Array) -> set[bytes]:
    """Return every run of values along the rows of an image, as bytes; constant runs say nothing."""
    rows = np.ascontiguousarray(values).reshape(-1, values.shape[-1])
    runs = np.lib.stride_tricks.sliding_window_view(rows, RUN, axis=1).reshape(-1, RUN)
    changing = runs[(runs != runs[:, :1]).any(axis=1)]
    return {run.tobytes() for run in np.unique(changing, axis=0)}


def holds(data: bytes, wanted: set[bytes]) -> bool:
    """Return whether one of the pieces is anywhere in the data, at any byte."""
    length = len(next(iter(wanted)))
    first = {piece[:4] for piece in wanted}
    starts = np.array(sorted(int.from_bytes(word, "little") for word in first), np.uint32)
    for shift in range(4):
        words = np.frombuffer(data, np.uint32, (len(data) - shift) // 4, shift)
        for place in np.flatnonzero(np.isin(words, starts)):
            at = shift + 4 * int(place)
            if data[at : at + length] in wanted:
                return True
    return False


def of_scans(land: Land, name: str) -> list[set[bytes]]:
    """Return the pieces of a hospital's scans: as stored, as prepared, and in the precisions they could travel in."""
    found: list[set[bytes]] = []
    for subject in land.sites[name].subjects:
        raw = read_volume(subject.images[0]).array
        found += [pieces(raw.astype(kind)) for kind in (np.int16, np.float32, np.float64)]
    for prepared in prepare_site(land.sites[name], land.config.preparation, cache=land.folder / "cache"):
        images = prepared.images.numpy()
        found += [pieces(images.astype(kind)) for kind in (np.float16, np.float32, np.float64)]
    return [one for one in found if one]


def of_people(land: Land, name: str) -> set[bytes]:
    """Return the words by which a patient, a file or this machine could be found."""
    cases = [subject.case for subject in land.sites[name].subjects]
    aliases = [alias(land.config.seed, name, case) for case in cases]
    number = 1 + NAMES.index(name)  # the round that it learned itself
    home = json.loads((land.folder / name / f"model/rounds/{number:03d}/round.json").read_text())
    paths = [str(land.folder), str(Path.home()), ".nii", "/data/"]
    hashes = home["scans"]
    assert hashes
    return {word.encode() for word in (*cases, *aliases, *paths, *hashes)}


@pytest.mark.parametrize("method", ["sga+c", "der++"])
def test_no_pixel_path_name_or_hash_leaves_a_hospital(tmp_path: Path, method: str) -> None:
    land = Land(tmp_path, method)
    for name in NAMES:
        land.learn(name)
    messages = [one for way in land.ways for one in way.traffic.messages]
    kinds = set()
    for name in NAMES:
        images, words = of_scans(land, name), of_people(land, name)
        left = [data for sender, _, data in messages if sender == name]
        assert left
        kinds |= {Message.from_bytes(data).kind for data in left}
        whole = b"".join(left)
        assert not any(word in whole for word in words)
        assert not any(holds(whole, one) for one in images)
        spied = whole[:1001] + _piece(images) + whole[1001:]  # the search finds what it is for, also between others
        assert any(holds(spied, one) for one in images)
    assert {"gradients", "sums", "nearest", "summary", "scores", "receive", "holding"} <= kinds


def _piece(images: list[set[bytes]]) -> bytes:
    return sorted(images[-1])[0]

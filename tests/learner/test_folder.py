"""The folder of a model: damaged files, other formats, locks, and a disk that takes no more."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from smg.errors import SmgError
from smg.learner.learner import Learner
from smg.learner.store import Store
from smg.sites.site import Site
from tests.learner.streams import fingerprint, refused, tiny_learner


@pytest.mark.parametrize("harm", ["cut short", "altered", "gone"])
def test_a_harmed_file_is_noticed(taught: Learner, harm: str) -> None:
    path = taught.store.round_folder(2) / "weights.safetensors"
    whole = path.read_bytes()
    if harm == "gone":
        path.unlink()
    else:
        path.write_bytes(whole[:-9] if harm == "cut short" else whole[:-9] + bytes(9))
    with pytest.raises(SmgError, match=r"weights.safetensors: (cut short or altered|No such file)"):
        taught.network()
    assert taught.network(1) is not None  # the other versions are whole


def test_a_line_cut_short_in_the_journal_hides_no_other(taught: Learner) -> None:
    path = taught.store.folder / "journal.jsonl"
    path.write_bytes(path.read_bytes()[:-5])
    taught.rollback(1)
    assert [line.event for line in taught.store.journal()] == ["created", "learned", "rolled back"]


def test_models_of_other_formats_are_refused(taught: Learner, tmp_path: Path) -> None:
    path = taught.store.folder / "model.json"
    stored = json.loads(path.read_text())
    path.write_text(json.dumps(stored | {"format": 99}))
    with refused("model.json", "newer"):
        Learner(taught.store.folder)
    path.write_text("{")
    with refused("model.json", "damaged"):
        Learner(taught.store.folder)
    with refused("nowhere", "`smg learn"):
        Learner(tmp_path / "nowhere")
    path.write_text(json.dumps(stored))
    with refused("another folder"):
        tiny_learner(taught.store.folder)


def test_a_model_with_its_classes_in_another_order_is_refused(data: Path, tmp_path: Path) -> None:
    for number, labels in enumerate(({"a": 1, "b": 2}, {"b": 1, "a": 2})):
        tiny_learner(tmp_path / str(number), preparation={"size": 16, "labels": labels})
        path = tmp_path / str(number) / "model.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 1}))
        Store(path.parent).adopt()
    Learner(tmp_path / "0")
    with refused(str(tmp_path / "1"), "older smg", "classes"):
        Learner(tmp_path / "1")


HOLD = """
import sys, time
from pathlib import Path
from smg.learner.store import Store
with Store(Path(sys.argv[1])).locked():
    print("held", flush=True)
    time.sleep(60)
"""


def test_one_process_at_a_time_and_the_second_says_who_holds_it(taught: Learner, data: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(taught.store.folder)], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    holder.stdout.readline()
    with refused(f"process {holder.pid} "):
        taught.learn(Site.find(data, "C"))
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert taught.learn(Site.find(data, "C")).round == 3  # a dead holder holds nothing


def test_a_model_made_in_the_meantime_is_not_overwritten(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def another_is_faster() -> None:
        if not made:
            made.append(True)
            tiny_learner(tmp_path / "model").learn(Site.find(data, "A"))

    monkeypatch.setattr("smg.learner.creation.meet", another_is_faster)
    with refused("another folder"):
        tiny_learner(tmp_path / "model")
    assert Learner(tmp_path / "model").sites == ["A"]


def test_a_full_disk_loses_nothing(taught: Learner, data: Path) -> None:
    before = fingerprint(taught.store.folder)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6000, hard))  # any file over 6 kB is refused, as by a full disk
    try:
        with pytest.raises(SmgError, match=r"(File too large|No space left).*nothing was lost|set SMG_CACHE"):
            taught.learn(Site.find(data, "C"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert fingerprint(taught.store.folder) == before
    assert taught.learn(Site.find(data, "C")).round == 3


def test_a_folder_that_may_not_be_written(taught: Learner, data: Path) -> None:
    before = fingerprint(taught.store.folder)
    site, outcome = Site.find(data, "C"), multiprocessing.get_context("fork").SimpleQueue()

    def as_nobody() -> None:
        for path in (taught.store.folder, *taught.store.folder.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        if os.geteuid() == 0:  # whom nothing forbids
            for folder in taught.store.folder.parents:
                folder.chmod(folder.stat().st_mode | 0o055)
            os.setuid(65534)
        try:
            Learner(taught.store.folder).learn(site)
        except SmgError as error:
            outcome.put(str(error))
        else:
            outcome.put("learned")

    process = multiprocessing.get_context("fork").Process(target=as_nobody)
    process.start()
    assert "Permission denied; nothing was lost" in outcome.get()
    process.join()
    assert fingerprint(taught.store.folder) == before


def test_a_folder_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with refused("Not a directory"):
        tiny_learner(tmp_path / "file" / "model")

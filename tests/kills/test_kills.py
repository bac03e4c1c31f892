"""A sample of the kills, and every way in which a killed command ended differently once; all: `-m tests.kills`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from smg.errors import SmgError
from smg.learner.config import LearnerConfig
from smg.learner.exemplars import alias
from smg.learner.forget import BEGUN, EVENT, Person, forget, person_of
from smg.learner.history import History
from smg.learner.learner import Learner
from smg.learner.pseudonyms import own_pseudonyms, secret_file
from smg.learner.store import Store
from smg.learner.undo import DROPPED, DROPPING, drop, roll_back
from smg.learner.verify import verify
from smg.prepare import cache
from smg.sites.site import Site
from tests.kills.desks import difference, state_of
from tests.learner.streams import TINY, at_checkpoint, write_sites

ROOT = Path(__file__).parents[2]


class Killed(BaseException):
    """The end of a process: nothing is left of it but what was written."""


@contextmanager
def killed_at(name: str, call: int = 1, after: bool = False) -> Iterator[None]:
    """End the block before or after the n-th call of one of the store's methods."""
    original, calls = getattr(Store, name), iter(range(1, 1000))

    def fatal(store: Store, *args: object, **more: object) -> None:
        is_last = next(calls) == call
        if after or not is_last:
            original(store, *args, **more)
        if is_last:
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, name, fatal)
        with pytest.raises(Killed):
            yield


def events(model: Path, *names: str) -> list[tuple[str, object]]:
    return [(line.event, line.details()) for line in Store(model).journal() if line.event in names or not names]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sites A, B and C with cases of the same names, and a model of der++ that has learned A and B."""
    folder = write_sites(tmp_path_factory.mktemp("sites"))
    learner = Learner.create(folder / "model", LearnerConfig.model_validate(TINY | {"method": "der++"}))
    for name in "AB":
        learner.learn(Site.find(folder, name))
    return folder


@pytest.fixture
def desk(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "desk")
    return tmp_path / "desk"


def test_killed_commands_end_the_same() -> None:
    """In a process of its own, which has torch and forks commands; a bench is left to the whole count."""
    commands = "learn the first site;learn, no cache;learn;accept;rollback;replay drop;forget;abandon;rekey"
    words = ["--count", "27", "--seed", "1", "--workers", "1", "--methods", "der++", "--commands", commands, "--json"]
    ended = subprocess.run(
        [sys.executable, "-m", "tests.kills", *words], cwd=ROOT, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    found = json.loads(ended.stdout)
    assert (ended.returncode, found["findings"]) == (0, []), ended.stderr
    assert sum(found["moment"].values()) == 27
    assert len(found["command"]) == 9


def test_a_difference_would_be_found(desk: Path) -> None:
    """The check itself: one bit, one line of the journal, one file that is left."""
    before = state_of(desk)
    assert difference(before, state_of(desk)) is None
    weights = desk / "model" / "rounds" / "002" / "weights.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert "weights" in str(difference(state_of(desk), before))
    shutil.copy(desk / "model" / "rounds" / "001" / "weights.safetensors", weights)
    assert difference(state_of(desk), before) is not None
    (desk / "model" / ".left").touch()
    assert ".left" in str(difference(state_of(desk), before))


@pytest.mark.parametrize(("name", "after"), [("write", False), ("note", False), ("note", True), ("keep_plan", True)])
def test_a_model_whose_creation_was_killed_is_created_again(tmp_path: Path, name: str, after: bool) -> None:
    config = LearnerConfig.model_validate(TINY)
    with killed_at(name, after=after):
        Learner.create(tmp_path / "model", config, plan="a plan")
    left = tmp_path / "model" / ".model.json-host-123-0123abcd"  # a process was writing it
    left.touch()
    assert Store(tmp_path / "model").abandoned
    left.unlink()
    Learner.create(tmp_path / "model", config, plan="another plan")
    assert [event for event, _ in events(tmp_path / "model")] == ["created"]
    assert (tmp_path / "model" / "plan.yaml").read_text() == "another plan"
    assert verify(tmp_path / "model").faults == ()


def test_a_folder_with_anything_else_is_not_taken_for_an_interrupted_creation(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").touch()
    assert Store(tmp_path).abandoned
    (tmp_path / "thesis.txt").touch()
    assert not Store(tmp_path).abandoned


@pytest.mark.parametrize(("name", "call"), [("note", 1), ("replace_tensors", 1), ("replace_tensors", 2), ("note", 2)])
@pytest.mark.parametrize("after", [False, True])
def test_a_killed_drop_is_finished_and_noted_once(desk: Path, name: str, call: int, after: bool) -> None:
    with killed_at(name, call, after):
        drop(History(desk / "model"), "A")
    if (name, call, after) == ("note", 2, True):  # it was complete
        with pytest.raises(SmgError, match="nothing to drop"):
            drop(History(desk / "model"), "A")
    else:
        drop(History(desk / "model"), "A")
    what = {"site": "A", "subjects": 2}
    assert events(desk / "model", DROPPING, DROPPED) == [(DROPPING, what), (DROPPED, what)]
    assert History(desk / "model").kept(1).subjects == 0
    assert verify(desk / "model").faults == ()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("name", ["note", "replace_tensors", "replace_record"])
def test_a_killed_forget_notes_every_round_once(desk: Path, name: str, after: bool) -> None:
    learner = Learner(desk / "model")
    learner.learn(Site.find(desk, "A"), again=True)
    person = Person("Case00", "A")
    with killed_at(name, 1, after):
        forget(History(desk / "model"), person)
    forget(History(desk / "model"), person)
    what = {"rounds": [1, 3]}
    assert events(desk / "model", BEGUN, EVENT) == [(BEGUN, what), (EVENT, what)]
    assert verify(desk / "model").faults == ()


def test_a_forget_that_was_killed_after_its_last_removal_is_noted(desk: Path) -> None:
    person = Person("Case00", "A")
    with killed_at("note", 2):
        forget(History(desk / "model"), person)
    with pytest.raises(SmgError, match="nothing is kept"):
        forget(History(desk / "model"), person)
    assert events(desk / "model", BEGUN, EVENT) == [(BEGUN, {"rounds": [1]}), (EVENT, {"rounds": [1]})]


def test_forgetting_a_person_twice_spares_the_namesake_of_another_site(desk: Path) -> None:
    """A name and a scan: once the scan is forgotten, the name alone is of somebody else."""
    scan = next((desk / "A").glob("Case00.nii*"))
    forget(History(desk / "model"), person_of("Case00", [scan]))
    with pytest.raises(SmgError, match="nothing is kept"):
        forget(History(desk / "model"), person_of("Case00", [scan]))
    record = History(desk / "model").record(2)
    assert alias(record.config.seed, "B", "Case00") in record.parts.part_of()


def under_way(desk: Path) -> Learner:
    """Return a model with a checkpoint of an older version, which says no more than its round."""
    learner = Learner(desk / "model")
    learner.store.checkpoint({}, at_checkpoint("C", 3, 1))
    return learner


@pytest.mark.parametrize(("name", "after"), [("note", True), ("forget_progress", False), ("forget_progress", True)])
def test_a_killed_abandon_is_noted_once(desk: Path, name: str, after: bool) -> None:
    learner = under_way(desk)
    with killed_at(name, after=after):
        learner.abandon()
    if not after or name == "note":
        assert learner.abandon() is not None
    assert events(desk / "model", "abandoned") == [("abandoned", {"round": 3, "site": "C", "iteration": 1})]
    assert not (desk / "model" / "progress").exists()


def test_what_is_left_of_a_checkpoint_is_removed_by_any_command_that_writes(desk: Path) -> None:
    (desk / "model" / "progress").mkdir()
    (desk / "model" / "progress" / ".0123.safetensors-host-123-0123abcd").touch()
    roll_back(History(desk / "model"), 1)
    assert not (desk / "model" / "progress").exists()


def test_a_round_that_was_being_written_is_no_fault_of_the_model(desk: Path) -> None:
    """Its record has no hash in the journal yet, or has one under the name that it is to get."""
    shutil.copytree(desk / "model" / "rounds" / "002", desk / "model" / "rounds" / ".003")
    found = verify(desk / "model")
    assert found.faults == ()
    assert {name for name in found.uncovered if name.endswith(".json")} == {"rounds/.003/round.json"}


def test_a_rollback_that_was_killed_at_its_end_is_noted_once(desk: Path) -> None:
    with killed_at("note", after=True):
        roll_back(History(desk / "model"), 1)
    roll_back(History(desk / "model"), 1)
    assert events(desk / "model", "rolled back") == [("rolled back", {"round": 1})]


def _process_that_ended() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


@pytest.mark.parametrize("use", [lambda: cache.cache_folder() / "entry", lambda: own_pseudonyms() and secret_file()])
def test_what_a_dead_process_was_writing_is_removed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, use: Callable[[], Path]
) -> None:
    """Slices of patients in the cache, and a copy of the secret."""
    import socket

    monkeypatch.setenv("SMG_CACHE", str(tmp_path))
    monkeypatch.setenv("SMG_SECRET", str(tmp_path / "secret"))
    name = f".{use().name}-{socket.gethostname()}"
    dead, alive = (tmp_path / f"{name}-{pid}-0123abcd" for pid in (_process_that_ended(), os.getpid()))
    dead.touch()
    alive.touch()
    monkeypatch.setattr(cache, "_PRIVATE", set())
    use()
    assert (dead.exists(), alive.exists()) == (False, True)

"""What a hospital's service rules for itself, and how it goes on when it was away."""

from __future__ import annotations

import json
from concurrent.futures import Future
from pathlib import Path

import pytest

from smg.errors import SmgError
from smg.federation.limits import Limits
from smg.federation.messages import Message
from smg.federation.peers import Peers
from smg.federation.roster import Roster
from smg.federation.round_exchange import pseudonyms
from smg.federation.service import Service
from smg.federation.transport import Absent, InProcess, Refused
from smg.gradients.oracle import Unanswered
from smg.learner.learner import Learner
from tests.federation.test_round import NAMES, Land, flat


class Moody(InProcess):
    """A way on which chosen questions get lost."""

    def __init__(self, hospitals: dict[str, Service], lost: set[int], me: str, of: str = "Amber") -> None:
        super().__init__(hospitals, me=me)
        self.lost, self.of, self.asked = lost, of, 0

    def ask(self, hospital: str, question: bytes) -> Future[bytes]:
        self.asked += hospital == self.of
        if hospital == self.of and self.asked in self.lost:
            gone: Future[bytes] = Future()
            gone.set_exception(Absent(hospital, "is away"))
            return gone
        return super().ask(hospital, question)


def second_round(land: Land, way: InProcess, name: str = "Birch", **more: object) -> tuple[Learner, Peers]:
    roster = Roster(way, **more)  # type: ignore[arg-type]
    roster._pause = lambda _seconds: None
    peers = Peers(roster, list(way.hospitals), land.folder / name / "model", pseudonyms(name.encode()))
    peers.bring_together()
    learner = Learner(land.folder / name / "model")
    peers.greet(learner.config)
    return learner, peers


def test_questions_that_get_lost_are_asked_again_and_change_nothing(tmp_path: Path) -> None:
    weights = []
    for name, lost in (("calm", set[int]()), ("moody", {6, 9, 10, 13})):
        land = Land(tmp_path / name, "sga")
        land.learn("Amber")
        learner, peers = second_round(land, Moody({"Amber": land.services["Amber"]}, lost, "Birch"))
        learner.learn(land.sites["Birch"], elsewhere=peers, unguarded=True)
        weights.append(flat(Learner(land.folder / "Birch" / "model")))
    assert weights[0].equal(weights[1])


def test_a_round_reaches_a_hospital_that_is_away_for_a_moment_at_its_end(tmp_path: Path) -> None:
    land = Land(tmp_path, "sga")
    land.learn("Amber")
    way = Moody({"Amber": land.services["Amber"]}, set(), "Birch")
    learner, peers = second_round(land, way)
    learner.learn(land.sites["Birch"], elsewhere=peers, unguarded=True)
    way.lost = {way.asked + 1, way.asked + 3}  # the list of versions, then the round itself
    assert peers.distribute() == ["Amber"]
    assert Learner(tmp_path / "Amber" / "model").current == 2


def test_a_hospital_that_stays_away_stops_the_round_at_a_checkpoint(tmp_path: Path) -> None:
    land = Land(tmp_path, "sga")
    land.learn("Amber")
    way = Moody({"Amber": land.services["Amber"]}, set(range(8, 1000)), "Birch")
    learner, peers = second_round(land, way, patience=-1.0)
    with pytest.raises(Unanswered, match="the same command goes on"):
        learner.learn(land.sites["Birch"], elsewhere=peers, unguarded=True)
    assert Learner(tmp_path / "Birch" / "model").store.resume() is not None
    learner, peers = second_round(land, InProcess({"Amber": land.services["Amber"]}, me="Birch"))
    said: list[str] = []
    learner.learn(land.sites["Birch"], elsewhere=peers, unguarded=True, say=said.append)
    assert any("going on at iteration" in line for line in said)


def test_a_service_started_again_is_greeted_again(tmp_path: Path) -> None:
    land = Land(tmp_path, "sga")
    land.learn("Amber")
    hospitals = {"Amber": land.services["Amber"]}
    way = InProcess(hospitals, me="Birch")
    learner, peers = second_round(land, way)
    way.hospitals["Amber"] = Service("Amber", tmp_path / "Amber" / "model", b"Amber")
    record = learner.learn(land.sites["Birch"], elsewhere=peers, unguarded=True)
    assert record.round == 2


def test_drop_goes_on_and_says_so(tmp_path: Path) -> None:
    land = Land(tmp_path, "sga")
    land.learn("Amber")
    land.learn("Birch")
    hospitals = {name: land.services[name] for name in NAMES[:2]}
    way = Moody(hospitals, set(range(6, 1000)), "Cedar", of="Birch")
    learner, peers = second_round(land, way, "Cedar", absent="drop")
    record = learner.learn(land.sites["Cedar"], elsewhere=peers)
    without = (record.federation or {})["iterations_without"]
    assert list(without) == ["Birch"]
    assert without["Birch"] >= 2
    assert record.held  # Birch could not be measured
    assert any("Birch was not measured" in reason for reason in record.guard.reasons)


def test_limits_end_a_round_and_the_audit_log_says_what_was_given(tmp_path: Path) -> None:
    land = Land(tmp_path, "sga")
    land.learn("Amber")
    service = Service("Amber", tmp_path / "Amber" / "model", b"Amber", Limits(budget=3), land.services["Amber"].audit)
    learner, peers = second_round(land, InProcess({"Amber": service}, me="Birch"))
    with pytest.raises(Refused, match="of the 3 answers that it allows"):
        learner.learn(land.sites["Birch"], elsewhere=peers, unguarded=True)
    lines = [json.loads(line) for line in (tmp_path / "Amber" / "answers.jsonl").read_text().splitlines()]
    assert 1 <= sum(line["answers"] for line in lines if line["answered"] and line["kind"] == "gradients") <= 3
    assert all(line["caller"] in NAMES for line in lines)


def test_a_model_that_names_code_is_refused(tmp_path: Path) -> None:
    land = Land(tmp_path, "sga")
    config = land.config.model_dump(mode="json") | {"method": "mine.py:mine"}
    model = {"format": 2, "config": config, "rounds": [], "origin": None}
    question = Message("receive", {"model": model}).to_bytes()
    answer = Message.from_bytes(land.services["Amber"]("Birch", question))
    assert answer.kind == "refused"
    assert "code of its own" in answer.facts["why"]
    assert not (tmp_path / "Amber" / "model").exists()


def test_two_models_are_not_mixed(tmp_path: Path) -> None:
    land = Land(tmp_path, "sga")
    land.learn("Amber")
    alone = Learner.create(tmp_path / "Birch2", land.config.model_copy(update={"seed": 5}))
    alone.learn(land.sites["Birch"], unguarded=True)
    way = InProcess({"Amber": land.services["Amber"]}, me="Birch")
    peers = Peers(Roster(way), ["Amber"], tmp_path / "Birch2", pseudonyms(b"Birch"))
    with pytest.raises(SmgError, match="another round 1"):
        peers.bring_together()

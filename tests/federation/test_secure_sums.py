"""Secure sums: the sum comes out, and no answer alone says anything."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from smg.errors import Misuse
from smg.federation.messages import Message, Sums
from smg.federation.peers import Peers
from smg.federation.roster import Roster
from smg.federation.round_exchange import pseudonyms
from smg.federation.secure_sums import Masks, fixed, opened
from smg.federation.source import Federated
from smg.federation.transport import InProcess, Refused
from smg.gradients.oracle import Oracle
from smg.learner.learner import Learner
from smg.methods import METHODS
from tests.federation.test_round import NAMES as ALL
from tests.federation.test_round import Land
from tests.federation.toy_hospitals import NAMES, distance_between, elsewhere, federated, toy_hospital
from tests.toys import smooth_network


def agreed(count: int) -> dict[str, Masks]:
    masks = {name: Masks() for name in NAMES[:count]}
    keys = {name: one.public for name, one in masks.items()}
    for name, one in masks.items():
        one.agree(name, keys)
    return masks


@pytest.mark.parametrize("count", [2, 3])
def test_masks_cancel_in_the_sum_alone(count: int) -> None:
    values = [torch.randn(5000, dtype=torch.float64, generator=torch.Generator().manual_seed(n)) for n in range(count)]
    hidden = [one.masked(v, 3, 1) for one, v in zip(agreed(count).values(), values, strict=True)]
    total = opened(hidden, values[0])
    assert float((total - sum(values)).abs().max()) < 4e-12
    for one, value in zip(hidden, values, strict=True):
        bits = np.unpackbits(one.numpy().view(np.uint8)).mean()
        assert abs(bits - 0.5) < 0.005  # 320,000 fair coins
        plain = torch.corrcoef(torch.stack([one.double(), value]))[0, 1]
        assert abs(plain) < 0.07
        assert not torch.equal(one, fixed(value))


def test_an_exchange_is_used_once_and_keys_belong_to_a_session() -> None:
    masks = agreed(2)["Amber"]
    masks.use(0)
    masks.use(4)
    for used in (4, 2):
        with pytest.raises(Refused, match="twice"):
            masks.use(used)
    here, there = agreed(2).values()
    keys = {"Amber": here.public, "Birch": there.public}
    here.use(0)
    here.agree("Amber", keys)  # sent again
    with pytest.raises(Refused, match="twice"):
        here.use(0)
    with pytest.raises(Refused, match="other keys were sent within a session"):
        here.agree("Amber", keys | {"Birch": Masks().public})
    with pytest.raises(Refused, match="another session"):
        masks.agree("Amber", {"Amber": Masks().public, "Birch": Masks().public})
    with pytest.raises(Refused, match="two hospitals"):
        masks.agree("Amber", {"Amber": masks.public})
    with pytest.raises(Refused, match="too large"):
        agreed(2)["Amber"].masked(torch.full((3,), 2.0**21), 0, 0)


def test_keys_that_cannot_be_read_are_not_taken_for_an_agreement() -> None:
    here, there = Masks(), Masks()
    keys = {"Amber": here.public, "Birch": there.public, "Cedar": "zz"}
    for _ in range(2):
        with pytest.raises(ValueError, match="hex"):
            here.agree("Amber", keys)
        with pytest.raises(Refused, match="before keys were sent"):
            here.use(0)
    here.agree("Amber", {"Amber": here.public, "Birch": there.public})
    here.use(0)


def under_masks() -> tuple[Federated, InProcess]:
    masks = agreed(2)
    way = InProcess({name: toy_hospital(name, n, masks=masks[name]) for n, name in enumerate(masks)}, keeps=True)
    return Federated(Oracle(smooth_network()), tuple(masks), Roster(way).ask_all, secure=True), way


@pytest.mark.parametrize("name", ["jm", "c-meta", "g-meta", "sga", "pooled"])
def test_directions_under_masks(name: str) -> None:
    (hidden, way), (plain, _) = under_masks(), federated()
    for number in range(3):
        for source in (hidden, plain):
            source.at(0, 1, number)
        ours = METHODS[name]().direction(hidden.theta, hidden, elsewhere(number))
        assert distance_between(ours, METHODS[name]().direction(plain.theta, plain, elsewhere(number))) < 1e-9
    for sender, _, data in way.traffic.messages:
        if sender != way.me:
            sums = Sums.of(Message.from_bytes(data))
            assert all(gradient.dtype == torch.int64 for gradient in sums.gradients)
            assert sums.losses == ()


def test_the_same_question_again_gets_the_same_answer_and_another_none() -> None:
    far, way = under_masks()
    far.at(0, 1, 0)
    far(far.theta, elsewhere().pooled)
    question = next(data for sender, receiver, data in way.traffic.messages if receiver == "Amber")
    first = next(data for sender, _, data in way.traffic.messages if sender == "Amber")
    again = Message.from_bytes(way.ask("Amber", question).result())
    assert again.digest() == Message.from_bytes(first).digest()
    message = Message.from_bytes(question)
    other = Message(message.kind, message.facts, {"theta.0": message.tensors["theta.0"] + 1})
    answer = Message.from_bytes(way.ask("Amber", other.to_bytes()).result())
    assert answer.kind == "refused"
    assert "twice" in answer.facts["why"]


def test_a_round_under_masks(tmp_path: Path) -> None:
    land = Land(tmp_path, "sga")
    for name in ALL[:2]:
        land.learn(name)
    way = InProcess({other: land.services[other] for other in ALL[:2]}, me="Cedar")
    peers = Peers(Roster(way, secure=True), ALL[:2], tmp_path / "Cedar" / "model", pseudonyms(b"Cedar"))
    peers.bring_together()
    learner = Learner(tmp_path / "Cedar" / "model")
    with pytest.raises(Misuse, match="each site's gradient"):
        peers.greet(learner.config.model_copy(update={"method": "gem"}))
    peers.greet(learner.config)
    record = learner.learn(land.sites["Cedar"], elsewhere=peers, unguarded=True)
    assert (record.federation or {})["secure_sums"]
    plain = Land(tmp_path / "plain", "sga")
    for name in ALL:
        expected = plain.learn(name)
    assert [row.losses for row in record.log] == [pytest.approx(row.losses) for row in expected.log]

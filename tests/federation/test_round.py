"""Whole rounds over hospitals of this process: the model that comes out, and what is stored where."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from smg.errors import SmgError
from smg.federation.limits import Audit
from smg.federation.peers import Peers
from smg.federation.roster import Roster
from smg.federation.round_exchange import pseudonyms
from smg.federation.service import Service
from smg.federation.transport import InProcess
from smg.learner.config import LearnerConfig
from smg.learner.learner import Learner
from smg.learner.verify import verify
from smg.sites.site import Site
from smg.vault.key import Key
from tests.conftest import write_site

NAMES = ("Amber", "Birch", "Cedar")
SETTINGS: dict[str, Any] = {
    "iterations": 4,
    "batch": 2,
    "replay": {"batch": 4},
    "preparation": {"size": 16},
    "network": {"width": 2, "depth": 2},
    "augment": "mild",
    "validate_every": 2,
}


class Land:
    """Three hospitals, each with scans, a service and a model folder of its own."""

    def __init__(self, folder: Path, method: str, config: LearnerConfig | None = None) -> None:
        self.folder = folder
        self.config = config or LearnerConfig.model_validate(SETTINGS | {"method": method})
        self.sites = {
            name: Site.find(write_site(folder / "data" / name, 7, first_seed=10 * n)) for n, name in enumerate(NAMES)
        }
        self.services = {
            name: Service(name, folder / name / "model", name.encode(), audit=Audit(folder / name / "answers.jsonl"))
            for name in NAMES
        }
        self.ways: list[InProcess] = []

    def learn(self, name: str) -> dict[str, Any]:
        """Let a hospital run a round, the others answering."""
        way = InProcess({other: self.services[other] for other in NAMES if other != name}, me=name, keeps=True)
        self.ways.append(way)
        others = [other for other in NAMES if other != name]
        peers = Peers(Roster(way), others, self.folder / name / "model", pseudonyms(name.encode()))
        peers.bring_together()
        folder = self.folder / name / "model"
        learner = Learner(folder) if folder.exists() else Learner.create(folder, self.config)
        peers.greet(learner.config)
        record = learner.learn(self.sites[name], elsewhere=peers, unguarded=True)
        assert peers.hand_out() == others
        return record


@pytest.mark.parametrize(("method", "merge"), [("sga+c", None), ("der++", None), ("jm", 0.7)])
def test_a_stream_over_hospitals_is_the_centralised_one(tmp_path: Path, method: str, merge: float | None) -> None:
    land = Land(tmp_path, method, LearnerConfig.model_validate(SETTINGS | {"method": method, "merge": merge}))
    central = Learner.create(tmp_path / "central", land.config)
    for name in NAMES:
        far, near = land.learn(name), central.learn(land.sites[name], unguarded=True)
        central = Learner(tmp_path / "central")
        assert far.selection.chosen == near.selection.chosen
        assert pytest.approx(near.selection.V, abs=1e-4) == far.selection.V
        for site, one in near.earlier.items():
            assert far.earlier[site].model_dump() == pytest.approx(one.model_dump(), abs=1e-3)
        assert [j.subjects for j in far.guard.sites.values()] == [1] * (far.round - 1)
        for site, one in near.guard.sites.items():
            assert far.guard.sites[site].after == pytest.approx(one.after, abs=1e-3)
        assert far.familiar.spread == pytest.approx(near.familiar.spread, rel=1e-3)
        assert [row.losses for row in far.log] == [pytest.approx(row.losses, rel=1e-3) for row in near.log]
    for name in NAMES:  # everybody has every version, and exemplars and sentinels of its own site alone
        own = Learner(tmp_path / name / "model")
        assert own.current == 3
        assert list(own.replay()) == list(own.sentinels()) == [name]
        assert torch.equal(*(flat(Learner(tmp_path / who / "model")) for who in (name, "Cedar")))
    assert distance(flat(Learner(tmp_path / "Cedar" / "model")), flat(central)) < 1e-3


def flat(learner: Learner) -> torch.Tensor:
    return torch.cat([t.detach().flatten() for t in learner.network().state_dict().values()])


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


def test_records_that_left_name_nobody(tmp_path: Path) -> None:
    """Hashes of scans, features of single subjects and aliases stay; a hospital finds its own names again."""
    land = Land(tmp_path, "sga")
    for name in NAMES[:2]:
        land.learn(name)
    home = json.loads((tmp_path / "Amber/model/rounds/001/round.json").read_text())
    away = json.loads((tmp_path / "Birch/model/rounds/001/round.json").read_text())
    assert home["scans"]
    assert away["scans"] == away["selection"]["features"] == []
    text = json.dumps(away)
    for names in home["parts"].values():
        assert not any(name in text for name in names)
    second = json.loads((tmp_path / "Birch/model/rounds/002/round.json").read_text())
    assert list(second["sentinels"]["Amber"]) == list(away["sentinels"]["Amber"])  # so that the best so far is found
    sent = b"".join(data for way in land.ways for _, _, data in way.traffic.messages)
    for word in (b".nii", b"/data/", str(tmp_path).encode(), b"Case"):
        assert word not in sent


def test_a_hospital_whose_model_is_encrypted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers as any other if its key is at hand; without the key it says so, and no slice is readable."""
    monkeypatch.setenv("SMG_KEY", "ab" * 32)
    ends = []
    for name, key in (("plain", None), ("encrypted", Key.from_text("ab" * 32))):
        land = Land(tmp_path / name, "sga")
        for hospital in NAMES[:2]:
            Learner.create(land.folder / hospital / "model", land.config, encrypt=key)
        for hospital in NAMES[:2]:
            land.learn(hospital)
        ends.append(flat(Learner(land.folder / "Birch" / "model")))
        for hospital in NAMES[:2]:
            own = Learner(land.folder / hospital / "model")
            assert own.is_encrypted == (key is not None)
            assert list(own.replay()) == [hospital]
            assert not verify(land.folder / hospital / "model").faults
    assert torch.equal(*ends)
    assert not Learner(land.folder / "Cedar" / "model").is_encrypted  # a folder that a federation makes is not
    monkeypatch.delenv("SMG_KEY")
    with pytest.raises(SmgError, match=r"Amber/model: encrypted, and key \w+ is needed"):
        land.learn("Cedar")

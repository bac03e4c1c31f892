"""The other hospitals of a round, for the learner: implements `smg.learner.elsewhere.Elsewhere` over a roster.

Before a round all folders of the model get the same rounds. Afterwards the new round is sent to every hospital that is
connected. A hospital that was not connected gets the round before the next one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from smg.errors import Misuse, SmgError
from smg.federation.cost import Cost, expected
from smg.federation.messages import Message
from smg.federation.roster import Roster
from smg.federation.round_exchange import Rename, is_at_home, listing, outgoing, receive, same_model
from smg.federation.service import terms_of_config
from smg.federation.source import Federated
from smg.federation.transport import Absent
from smg.gradients.oracle import GradientSource, Oracle
from smg.learner.config import LearnerConfig, spelled
from smg.learner.elsewhere import Rows, Scores, Summary
from smg.learner.learner import Learner
from smg.learner.store import Store

NOT_FEDERATED = ("sga-direct",)
ATTEMPTS, PAUSE = 4, 5.0  # to distribute a round, and seconds between them: a job that died is started again meanwhile
EACH_GRADIENT = ("gem", "isgm")  # of a site, which a sum over sites would hide


class Peers:
    """Hospitals that answer for the sites they hold, in one round."""

    def __init__(self, roster: Roster, others: Sequence[str], folder: Path, rename: Rename) -> None:
        self.roster, self.others, self.folder, self.rename = roster, tuple(others), folder, rename
        self.rows: dict[str, Rows] = {}
        self._holders: dict[str, str] = {}  # site -> hospital
        self._source: Federated | None = None

    # --- versions -----------------------------------------------------------------------------------------------------

    def bring_together(self) -> None:
        """Exchange missing rounds between this folder of the model and those of all connected hospitals."""
        there = self._versions()
        mine = listing(self.folder)
        for name, theirs in there.items():
            same_model(mine, theirs, name)
        for name, theirs in there.items():
            known = {entry["round"] for entry in mine.get("rounds", [])}
            for entry in _missing(theirs, mine):
                if entry["round"] not in known:
                    receive(self.folder, theirs, self._fetched(name, entry["round"]))
            mine = listing(self.folder)
        self.hand_out(there)

    def distribute(self) -> list[str]:
        """Send the new round to the other hospitals, again to those that answered in it and are away for a moment."""
        done = self.hand_out()
        for _ in range(ATTEMPTS - 1):
            if set(self._holders.values()) <= set(done):
                break
            self.roster._pause(PAUSE)
            done = self.hand_out()
        return done

    def hand_out(self, there: Mapping[str, Mapping[str, Any]] | None = None) -> list[str]:
        """Send each connected hospital the rounds that it lacks; return the hospitals that have all rounds."""
        found = self._versions() if there is None else there
        mine, done = listing(self.folder), []
        for name, theirs in found.items():
            same_model(mine, theirs, name)
            try:
                for entry in _missing(mine, theirs):
                    self._sent(name, mine, outgoing(self.folder, entry["round"], self.rename))
                if mine and not theirs and not mine["rounds"]:
                    self._sent(name, mine, None)
                done.append(name)
            except Absent as error:
                self.roster.say(f"{error}; it gets what it lacks before the next round")
        return done

    def _versions(self) -> dict[str, Mapping[str, Any]]:
        answers = self.roster.ask_those_there(self.others, Message("versions"))
        return {name: answer.facts for name, answer in answers.items()}

    def _fetched(self, hospital: str, number: int) -> Message:
        return self.roster.ask(hospital, Message("round", {"number": number}))

    def _sent(self, hospital: str, mine: Mapping[str, Any], version: Message | None) -> None:
        facts = {"model": dict(mine)} | ({"version": dict(version.facts)} if version else {})
        self.roster.ask(hospital, Message("receive", facts, version.tensors if version else {}))

    # --- a round ------------------------------------------------------------------------------------------------------

    def greet(self, config: LearnerConfig) -> None:
        """Ask each hospital for its site; raise an error if no hospital that answers holds a site of the model."""
        name = spelled(config.method)[0]
        if name in NOT_FEDERATED:
            raise Misuse(f"method {name}: needs products with the Hessian, which no hospital answers; use sga")
        if config.memory != "none":
            raise Misuse("memory=style needs spectra, which stay at other hospitals; set memory=none")
        if config.merge is not None and config.merge_by != "share":
            raise Misuse("merge_by=fisher needs importances, which stay at other hospitals; set merge_by=share")
        model = Store(self.folder).read()
        entries = model.line(model.current)
        far = {entry.site for entry in entries if not is_at_home(self.folder, entry.round)}
        far -= {entry.site for entry in entries if is_at_home(self.folder, entry.round)}
        self.rows, self._holders = {}, {}
        if not far:
            return
        holdings = self.roster.greet(self._holding(far), terms_of_config(config), model.current)
        for hospital, holding in holdings.items():
            if holding.site in self._holders:
                raise SmgError(
                    f"hospitals {self._holders[holding.site]} and {hospital} both hold {holding.site}; let one leave"
                )
            self.rows[holding.site] = Rows(holding.rows, holding.exemplars)
            self._holders[holding.site] = hospital
        self._require_all(far)
        if self.roster.secure:
            self._agree(name)

    def _agree(self, method: str) -> None:
        """Distribute the hospitals' public keys, for secure sums."""
        keys = {hospital: one.public_key for hospital, one in self.roster.holdings.items()}
        if method in EACH_GRADIENT:
            raise Misuse(f"method {method}: needs each site's gradient, so sums hide nothing; use sga, jm or c-meta")
        if len(keys) < 2:
            raise Misuse("--secure-sums: the sum of one other hospital hides nothing; leave it out")
        if self.roster.absent == "drop" or not all(rows.count for rows in self.rows.values()):
            raise Misuse("secure sums need every hospital's answer; use --absent hold, and exemplars at all of them")
        self.roster.ask_each(keys, Message("keys", {"keys": keys}))

    def cost(self, config: LearnerConfig, incoming: int) -> Cost | None:
        """Return the cost of a round from the slices of its site; None if no other hospital takes part."""
        far = {site: rows for site, rows in self.rows.items() if rows.count}
        if not far:
            return None
        own = list(Learner(self.folder).replay().values())
        here = [sum(sum(p.foreground) for p in subjects) for subjects in own]
        owners = [None] * len(own) + [self._holders[site] for site in far]
        return expected(config, incoming, [*here, *far.values()], owners)

    def _holding(self, sites: set[str]) -> dict[str, str]:
        """Return the hospitals that hold one of these sites; wait for unavailable hospitals if one is needed."""
        begun, away = time.monotonic(), list(self.others)
        held: dict[str, str] = {}
        while True:
            for name, theirs in self.roster.ask_those_there(away, Message("holding")).items():
                away.remove(name)
                if theirs.facts.get("site") in sites:
                    held[name] = str(theirs.facts["site"])
            if sites <= set(held.values()) or not away:
                return held
            waited = time.monotonic() - begun
            self.roster.missed(Absent(away[0], "is away"), waited)
            if self.roster.absent == "drop" and waited > 30:
                return held

    def _require_all(self, sites: set[str]) -> None:
        lost = sorted(sites - set(self._holders))
        if lost and self.roster.absent == "hold":
            raise SmgError(
                f"no hospital holds {', '.join(lost)}; its exemplars are needed, or --absent drop goes on without them"
            )
        if lost:
            self.roster.say(f"no hospital that is there holds {', '.join(lost)}: the round goes on without")

    def source(self, own: GradientSource, sites: Sequence[str]) -> GradientSource:
        assert isinstance(own, Oracle)
        owners = [self._holders.get(site) if site in self.rows else None for site in sites]
        self._source = Federated(own, owners, self.roster.ask_all, self.roster.is_dropped, self.roster.secure)
        return self._source

    def nearest(self, network: nn.Module, unit: Tensor) -> Mapping[str, Tensor]:
        question = Message("nearest", {}, _weights("weights", network) | {"unit": unit})
        return {site: answer.tensors["least"] for site, answer in self._asked(question).items()}

    def summaries(self, network: nn.Module) -> Mapping[str, Summary]:
        answers = self._asked(Message("summary", {}, _weights("weights", network)))
        return {
            site: Summary(one.facts["subjects"], one.tensors["mean"], one.tensors["squares"])
            for site, one in answers.items()
            if one.facts["subjects"]
        }

    def scores(self, before: nn.Module, after: nn.Module) -> Mapping[str, Scores]:
        question = Message("scores", {}, _weights("before", before) | _weights("after", after))
        found = {}
        for site, answer in self._asked(question, all_sites=True).items():
            means, sentinels = answer.facts["exemplars"], answer.facts["sentinels"]
            found[site] = Scores(
                (means[0], means[1]) if means else None, {name: (b, a) for name, (b, a) in sentinels.items()}
            )
        return found

    def about(self) -> dict[str, Any]:
        absent = {name: len(iterations) for name, iterations in self.roster.dropped_at.items()}
        return {
            "holders": dict(self._holders),
            "absent": self.roster.absent,
            "iterations_without": absent,
            "secure_sums": self.roster.secure,
        }

    def _asked(self, question: Message, all_sites: bool = False) -> dict[str, Message]:
        """Ask the holders of sites with exemplars, or of all sites."""
        sites = [site for site, rows in self.rows.items() if all_sites or rows.count]
        answers = self.roster.ask_each([self._holders[site] for site in sites], question)
        return {site: answers[self._holders[site]] for site in sites if self._holders[site] in answers}


def _missing(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rounds that another folder has and this one lacks, in order; round 0 if a new folder needs it."""
    known = {entry["round"] for entry in here.get("rounds", [])}
    rounds = sorted((e for e in there.get("rounds", []) if e["round"] not in known), key=lambda e: int(e["round"]))
    first = [{"round": 0}] if there.get("origin") and not here else []
    return first + rounds


def _weights(prefix: str, network: nn.Module) -> dict[str, Tensor]:
    return {f"{prefix}/{name}": tensor for name, tensor in network.state_dict().items()}

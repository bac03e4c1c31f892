"""Greet and ask the other hospitals, turn refusals into errors, and handle hospitals that do not answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Literal

from smg.errors import SmgError
from smg.federation.messages import Ask, Holding, Message, Sums, Terms
from smg.federation.transport import Absent, Refused, Transport
from smg.gradients.oracle import AskAgain, Unanswered

OnAbsent = Literal["hold", "drop"]
MISSES = 2  # failures in a row after which a hospital is probed in the background, and no iteration waits for it


@dataclass
class Roster:
    """The other hospitals of a federation, as the incoming one sees them.

    absent: `hold` asks again until `patience` is over, then stops at a checkpoint; `drop` continues without its rows.
    """

    way: Transport
    absent: OnAbsent = "hold"
    patience: float = 600.0  # seconds in which a hospital may come back
    say: Callable[[str], None] = lambda _line: None
    misses: dict[str, int] = field(default_factory=dict)
    dropped_at: dict[str, list[int]] = field(default_factory=dict)  # hospital -> iterations without it
    secure: bool = False  # sums under masks, whose keys last as long as a greeting
    holdings: dict[str, Holding] = field(default_factory=dict)  # of the hospitals greeted
    _greeting: Message | None = None
    _probes: dict[str, Future[bytes]] = field(default_factory=dict)
    _pause: Callable[[float], None] = time.sleep

    def ask(self, hospital: str, question: Message) -> Message:
        """Return a hospital's answer to one question."""
        return self.answer(hospital, self.way.ask(hospital, question.to_bytes()))

    def answer(self, hospital: str, coming: Future[bytes]) -> Message:
        """Wait for an answer and return it; raise an error for a refusal."""
        answer = Message.from_bytes(coming.result())
        if answer.kind == "refused":
            why = str(answer.facts["why"])
            if answer.facts.get("greet"):
                self._greet_again(hospital)
            raise Absent(hospital, why) if answer.facts.get("later") else Refused(why)
        self.misses.pop(hospital, None)
        return answer

    def ask_each(self, hospitals: Iterable[str], question: Message) -> dict[str, Message]:
        """Ask several hospitals the same question at once, and return the answers; wait as long as patience allows."""
        data = question.to_bytes()
        found: dict[str, Message] = {}
        for hospital, coming in [(name, self.way.ask(name, data)) for name in hospitals]:
            try:
                found[hospital] = self._patiently(hospital, data, coming)
            except Absent as error:  # only with `drop`
                self.say(f"{error}; going on without it")
        return found

    def ask_those_there(self, hospitals: Iterable[str], question: Message) -> dict[str, Message]:
        """Ask several hospitals the same question at once; hospitals that do not answer at once are left out."""
        data, found = question.to_bytes(), {}
        for hospital, coming in [(name, self.way.ask(name, data)) for name in hospitals]:
            try:
                found[hospital] = self.answer(hospital, coming)
            except Absent as error:
                self.say(str(error))
        return found

    def greet(self, hospitals: Iterable[str], terms: Terms, round: int = 0) -> dict[str, Holding]:
        """Return the holding of each hospital for a round that follows `round`; a hospital with other terms refuses."""
        self._greeting = Message("greeting", {"terms": vars(terms), "round": round})
        answers = self.ask_each(hospitals, self._greeting)
        self.holdings = {name: Holding.of(answer) for name, answer in answers.items()}
        return self.holdings

    def _greet_again(self, hospital: str) -> None:
        """Greet a hospital again after its service was restarted; raise an error if its holding has changed."""
        assert self._greeting is not None  # a hospital that was not greeted is not asked
        holding = Holding.of(self.ask(hospital, self._greeting))
        if replace(holding, public_key="") == replace(self.holdings[hospital], public_key=""):
            if self.secure:
                raise Unanswered(
                    f"hospital {hospital} was started again and its keys are gone; the round is saved, and the same "
                    "command goes on"
                )
        else:
            raise SmgError(
                f"hospital {hospital}: came back with other exemplars or settings than the round began with; restore "
                "them there, or give the round up"
            )

    def ask_all(self, asks: Mapping[str, Ask]) -> dict[str, Future[Sums]]:
        """Send each hospital its questions, all at once."""
        sent = {name: ask.message().to_bytes() for name, ask in asks.items()}
        coming = {name: self.way.ask(name, data) for name, data in sent.items()}
        return {name: _Coming(self, name, asks[name], sent[name], coming[name]) for name in asks}

    def is_dropped(self, hospital: str, iteration: int) -> bool:
        """Return whether an iteration continues without a hospital, which is probed in the background."""
        if self.absent == "hold" or self.misses.get(hospital, 0) < MISSES:
            return False
        probe = self._probes.get(hospital)
        if probe is not None and probe.done() and probe.exception() is None:
            self.misses.pop(hospital), self._probes.pop(hospital)
            self.say(f"hospital {hospital} is back")
            return False
        if probe is None or probe.done():
            self._probes[hospital] = self.way.ask(hospital, Message("presence").to_bytes())
        self._left_out(hospital, iteration)
        return True

    def missed(self, error: Absent, waited: float) -> None:
        """Note that a hospital did not answer; pause before the next attempt, or raise if the round has to stop."""
        name = error.hospital
        self.misses[name] = self.misses.get(name, 0) + 1
        if self.absent == "drop" and self.misses[name] >= MISSES:
            return
        if waited > self.patience:
            raise Unanswered(
                f"hospital {name} has been away for {waited:.0f} s ({error}); the round is saved, and the same "
                "command goes on"
            ) from error
        self.say(f"{error}; asking again")
        self._pause(min(0.5 * 2 ** min(self.misses[name], 6), 30.0))

    def _left_out(self, hospital: str, iteration: int) -> None:
        """Note an iteration without a hospital's rows."""
        there = self.dropped_at.setdefault(hospital, [])
        if iteration not in there[-1:]:
            if iteration - 1 not in there[-1:]:
                self.say(f"iteration {iteration}: going on without hospital {hospital}; its rows are left out")
            there.append(iteration)

    def _patiently(self, hospital: str, data: bytes, coming: Future[bytes]) -> Message:
        begun = time.monotonic()
        while True:
            try:
                return self.answer(hospital, coming)
            except Absent as error:
                self.missed(error, time.monotonic() - begun)
                if self.absent == "drop" and self.misses[hospital] >= MISSES:
                    raise
                coming = self.way.ask(hospital, data)


class _Coming(Future[Sums]):
    """Pending sums; if a hospital does not answer, the question or the whole iteration is repeated."""

    def __init__(self, roster: Roster, hospital: str, ask: Ask, data: bytes, future: Future[bytes]) -> None:
        super().__init__()
        self._roster, self._hospital, self._ask, self._data, self._future = roster, hospital, ask, data, future

    def result(self, timeout: float | None = None) -> Sums:
        roster, begun = self._roster, time.monotonic()
        while True:
            try:
                return Sums.of(roster.answer(self._hospital, self._future))
            except Absent as error:
                roster.missed(error, time.monotonic() - begun)
                if roster.absent == "drop" and roster.misses[self._hospital] >= MISSES:
                    raise AskAgain from error
                self._future = roster.way.ask(self._hospital, self._data)

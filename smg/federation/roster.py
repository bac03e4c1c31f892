"""The other hospitals: greeting and asking them, their refusals as errors, and what to do without one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Literal

from smg.errors import SmgError
from smg.federation.messages import Ask, Holding, Message, Sums, Terms
from smg.federation.transport import Absent, Refused, Transport

OnAbsent = Literal["hold", "drop"]
MISSES = 2  # after so many in a row a hospital is probed in the background, and no iteration waits for it


@dataclass
class Roster:
    """The other hospitals of a federation, as the incoming one sees them.

    absent: `hold` asks again and stops, resumable, when `patience` is over; `drop` goes on without a hospital's rows.
    """

    way: Transport
    absent: OnAbsent = "hold"
    patience: float = 600.0  # seconds in which a hospital may come back
    say: Callable[[str], None] = lambda _line: None
    misses: dict[str, int] = field(default_factory=dict)
    dropped_at: dict[str, list[int]] = field(default_factory=dict)  # hospital -> iterations without it
    _probes: dict[str, Future[bytes]] = field(default_factory=dict)
    _pause: Callable[[float], None] = time.sleep

    def ask(self, hospital: str, question: Message) -> Message:
        """Return a hospital's answer to one question."""
        return self.answer(hospital, self.way.ask(hospital, question.to_bytes()))

    def answer(self, hospital: str, coming: Future[bytes]) -> Message:
        """Wait for an answer; a refusal is an error."""
        answer = Message.from_bytes(coming.result())
        if answer.kind == "refused":
            why = str(answer.facts["why"])
            raise Absent(hospital, why) if answer.facts.get("later") else Refused(why)
        self.misses.pop(hospital, None)
        return answer

    def ask_each(self, hospitals: Iterable[str], question: Message) -> dict[str, Message]:
        """Ask several hospitals the same at once, and wait for all, as long as patience allows."""
        data = question.to_bytes()
        found: dict[str, Message] = {}
        for hospital, coming in [(name, self.way.ask(name, data)) for name in hospitals]:
            found[hospital] = self._patiently(hospital, data, coming)
        return found

    def greet(self, hospitals: Iterable[str], terms: Terms) -> dict[str, Holding]:
        """Return what each hospital holds; one that computes otherwise refuses."""
        answers = self.ask_each(hospitals, Message("greeting", {"terms": vars(terms)}))
        return {name: Holding.of(answer) for name, answer in answers.items()}

    def ask_all(self, asks: Mapping[str, Ask]) -> dict[str, Future[Sums]]:
        """Send each hospital its questions, all at once."""
        sent = {name: self.way.ask(name, ask.message().to_bytes()) for name, ask in asks.items()}
        return {name: _Coming(self, name, future) for name, future in sent.items()}

    def is_dropped(self, hospital: str) -> bool:
        """Whether this iteration goes on without a hospital, which is probed in the meantime."""
        if self.misses.get(hospital, 0) == 0:
            return False
        probe = self._probes.get(hospital)
        if probe is not None and probe.done() and probe.exception() is None:
            self.misses.pop(hospital), self._probes.pop(hospital)
            self.say(f"hospital {hospital} is back")
            return False
        if probe is None or probe.done():
            self._probes[hospital] = self.way.ask(hospital, Message("presence").to_bytes())
        return True

    def missed(self, error: Absent, iteration: int, waited: float) -> None:
        """Note that an iteration failed for want of a hospital; raise where the round has to stop."""
        name = error.hospital
        self.misses[name] = self.misses.get(name, 0) + 1
        if self.absent == "drop" and self.misses[name] >= MISSES:
            self.dropped_at.setdefault(name, []).append(iteration)
            self.say(f"iteration {iteration}: going on without hospital {name}; its rows are left out")
            return
        if self.absent == "hold" and waited > self.patience:
            raise SmgError(
                f"hospital {name} has been away for {waited:.0f} s; the round is saved, and the same command goes on"
            ) from error
        self.say(f"hospital {name} does not answer ({error}); asking again")
        self._pause(min(0.5 * 2 ** min(self.misses[name], 6), 30.0))

    def _patiently(self, hospital: str, data: bytes, coming: Future[bytes]) -> Message:
        begun = time.monotonic()
        while True:
            try:
                return self.answer(hospital, coming)
            except Absent as error:
                if time.monotonic() - begun > self.patience:
                    raise
                self.say(str(error))
                self._pause(1.0)
                coming = self.way.ask(hospital, data)


class _Coming(Future[Sums]):
    """Sums that are on their way."""

    def __init__(self, roster: Roster, hospital: str, future: Future[bytes]) -> None:
        super().__init__()
        self._of = roster, hospital, future

    def result(self, timeout: float | None = None) -> Sums:
        roster, hospital, future = self._of
        return Sums.of(roster.answer(hospital, future))

"""Desks that commands begin on, made once for each method, and the state of a desk without its times."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from smg.learner.store import Store
from smg.learner.verify import verify
from tests.kills.processes import KILLED, RAN, RUNS, Moment, start, wait
from tests.kills.scenarios import SCENARIOS, STEPS, Place, Scenario, timeless

# Files with times, which differ in every run; journals are compared by their events.
WITH_TIMES = {"lock", "log.jsonl", "journal.jsonl", "report.html", "table.md", "table.tex"}
WITH_TIMES |= {"time-a-step.pdf", "time-a-step.png"}
State = dict[str, str]


@dataclass
class Undisturbed:
    """What a command does when nothing ends it."""

    begin: Path  # the desk it begins on
    words: list[str]
    code: int
    state: State
    operations: list[str]  # of its process
    of_run: list[str]  # of a bench's run
    seconds: float


@dataclass
class Desks:
    """The desks of one method, below a folder."""

    folder: Path
    data: Path
    method: str
    secret_on_desk: bool = False  # beside the model, where a power cut reaches it too
    made: dict[str, Path] = field(default_factory=dict)
    known: dict[str, Undisturbed] = field(default_factory=dict)

    def begin(self, name: str) -> Path:
        """Return the desk that a step ends with, made when it is first asked for."""
        if name not in self.made:
            step = STEPS[name]
            place = self.fresh(step, f"step {name}")
            checkpoint = Moment("after rename", step.stops_at) if step.stops_at else Moment()
            code = wait(start(step.words(place), place.desk, self.environment(place.desk), checkpoint))
            if code not in ((-9,) if step.stops_at else (0, 3)):
                raise RuntimeError(f"{self.method}, {name}: exit {code}: {said(place.desk)}")
            self.made[name] = place.desk
        return self.made[name]

    def fresh(self, scenario: Scenario, name: str) -> Place:
        """Return a new desk as a scenario begins with it."""
        desk = self.folder / name / "desk"
        shutil.rmtree(desk.parent, ignore_errors=True)
        if scenario.begins:
            shutil.copytree(self.begin(scenario.begins), desk)
            if scenario.cold:
                shutil.rmtree(desk / "cache")
        else:
            desk.mkdir(parents=True)
        return Place(desk, self.data, self.method)

    def environment(self, desk: Path) -> dict[str, str]:
        secret = (desk if self.secret_on_desk else self.folder) / "home" / "secret"
        return {"SMG_CACHE": str(desk / "cache"), "SMG_SECRET": str(secret)}

    def undisturbed(self, name: str) -> Undisturbed:
        """Return what a command does when nothing ends it, found out when it is first asked for."""
        if name not in self.known:
            place = self.fresh(SCENARIOS[name], f"undisturbed {name}")
            words, begun = SCENARIOS[name].words(place), time.monotonic()
            code = wait(start(words, place.desk, self.environment(place.desk)))
            if code not in (0, 3):
                raise RuntimeError(f"{self.method}, {name}: exit {code}: {said(place.desk)}")
            ran, runs = (_listed(place.desk.with_name(file)) for file in (RAN, RUNS))
            seconds = time.monotonic() - begun
            state = state_of(place.desk, SCENARIOS[name].content)
            self.known[name] = Undisturbed(place.desk, words, code, state, ran, runs, seconds)
        return self.known[name]


def _listed(path: Path) -> list[str]:
    return json.loads(path.read_text()) if path.exists() else []


def said(desk: Path) -> str:
    """Return what the last command on a desk wrote to standard error."""
    return desk.with_name("stderr").read_text(errors="replace").strip()[-1500:]


def killed_itself(desk: Path) -> bool:
    """Return whether a process has killed itself since this was last asked."""
    mark = desk.with_name(KILLED)
    if there := mark.exists():
        mark.unlink()
    return there


def state_of(desk: Path, content: Callable[[Path], bytes] = timeless) -> State:
    """Return a hash of every file on a desk and its permissions, the events of every journal, and what verify finds."""
    state: State = {}
    for path in sorted(desk.rglob("*")):
        name = str(path.relative_to(desk))
        if path.is_dir():
            state[name] = "folder"
        elif path.name not in WITH_TIMES:
            mode = oct(path.stat().st_mode & 0o777)
            state[name] = f"{hashlib.sha256(content(path)).hexdigest()} {mode}"
        elif path.name == "journal.jsonl":
            events = [(line.event, line.details()) for line in Store(path.parent).journal()]
            state[name] = json.dumps(events)
            found = verify(path.parent)
            state[f"verify {name}"] = json.dumps([found.faults, found.uncovered, found.files])
    return state


def difference(state: State, expected: State) -> str | None:
    """Return the first thing in which two states differ."""
    for name in sorted(state.keys() | expected.keys()):
        if state.get(name) != expected.get(name):
            return f"{name}: {state.get(name, 'missing')[:300]} in place of {expected.get(name, 'nothing')[:300]}"
    return None


def scratch() -> str | None:
    """Return a folder in memory for desks, where there is one: what a process has written outlives it there too."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None

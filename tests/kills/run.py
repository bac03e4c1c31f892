"""Kill commands, start them again, and compare the end with that of commands that nothing has ended."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.kills.desks import Desks, Undisturbed, difference, killed_itself, said, scratch, state_of
from tests.kills.processes import Moment, start, wait, warm_up
from tests.kills.scenarios import METHOD_NAMES, SCENARIOS, write_data

AT_A_TIME = 0.3  # share of the kills that come at a random time
ATTEMPTS = 40  # of a command that is left to end; a killed bench's run may still be ending


@dataclass
class Found:
    """How many kills there were by method, command and moment, and what differed."""

    methods: Counter[str] = field(default_factory=Counter)
    commands: Counter[str] = field(default_factory=Counter)
    moments: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    ends: int = 0  # commands that ended, and were compared

    @property
    def kills(self) -> int:
        return self.methods.total()

    def add(self, row: dict[str, object]) -> None:
        """Add the outcome of one command: its kills, and the difference if there is one."""
        moments = row["moments"]
        assert isinstance(moments, list)
        self.methods[str(row["method"])] += len(moments)
        self.commands[str(row["command"])] += len(moments)
        self.moments.update(moments)
        self.ends += 1
        if row["finding"]:
            self.findings.append(f"{row['method']}, {row['command']}, {row['moments']}: {row['finding']}")


def kill(
    count: int,
    seed: int,
    workers: int = 2,
    methods: Sequence[str] = METHOD_NAMES,
    commands: Sequence[str] = tuple(SCENARIOS),
) -> Found:
    """Kill commands `count` times, in so many processes; each has methods of its own."""
    warm_up()
    found = Found()
    with tempfile.TemporaryDirectory(dir=scratch()) as name:
        folder = Path(name)
        write_data(folder / "data")
        shares = {method: (count * (n + 1)) // len(methods) - (count * n) // len(methods) for n, method in
                  enumerate(methods)}  # fmt: skip
        rows = folder / "rows.jsonl"
        rows.touch()
        children = []
        for worker in range(workers):
            own = {method: shares[method] for method in methods[worker::workers]}
            sys.stdout.flush()
            if not (child := os.fork()):
                _work(folder, own, seed, commands, rows)
            children.append(child)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        for line in rows.read_text().splitlines():
            found.add(json.loads(line))
        found.findings += [f"a worker ended with exit {code}; what it said is above" for code in codes if code]
    return found


def _work(folder: Path, shares: dict[str, int], seed: int, commands: Sequence[str], rows: Path) -> None:
    """Go through the methods of one worker, a line for each command that was killed and ended; end this process."""
    code = 1
    try:
        for method, share in shares.items():
            desks = Desks(folder / method, folder / "data", method)
            os.environ.update(desks.environment(desks.folder))  # never the user's own secret and cache
            rng = random.Random(f"{seed} {method}")
            fitting = [command for command in commands if method in SCENARIOS[command].methods]
            order = rng.sample(fitting, len(fitting))
            number = 0
            while share > 0:
                command = order[number % len(order)]
                row = _killed(desks, command, rng, share)
                with rows.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                share -= len(row["moments"])  # type: ignore[arg-type]
                number += 1
            shutil.rmtree(desks.folder, ignore_errors=True)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _killed(desks: Desks, command: str, rng: random.Random, most: int) -> dict[str, object]:
    """Kill a command once or several times, let it end, and return the kills and the difference."""
    scenario, straight = SCENARIOS[command], desks.undisturbed(command)
    place = desks.fresh(scenario, "killed")
    environment, moments, finding = desks.environment(place.desk), list[str](), None
    for _ in range(min(most, rng.randint(*scenario.kills))):
        moment = _moment(rng, straight)
        process = start(straight.words, place.desk, environment, moment)
        code = wait(process, moment.seconds) if moment.seconds else wait(process)
        if code is None:
            _kill_all(process)
            moments.append(moment.name)
        elif killed_itself(place.desk):
            moments.append(moment.name)
    for _ in range(ATTEMPTS):
        code = wait(start(straight.words, place.desk, environment, Moment()))
        if code == straight.code or scenario.done in said(place.desk) or not _in_use(place.desk):
            break
        time.sleep(0.1)
    if code != straight.code and scenario.done not in said(place.desk):
        finding = f"exit {code}: {said(place.desk)}"
    else:
        finding = difference(state_of(place.desk, scenario.content), straight.state)
    shutil.rmtree(place.desk.parent, ignore_errors=True)
    return {"method": desks.method, "command": command, "moments": moments, "finding": finding}


def _in_use(desk: Path) -> bool:
    return "in use by" in said(desk)


def _moment(rng: random.Random, straight: Undisturbed) -> Moment:
    """Draw a moment: a time, or the n-th operation of a kind, each kind as often as any other."""
    if rng.random() < AT_A_TIME:
        return Moment(seconds=rng.uniform(0.001, straight.seconds))
    in_run = bool(straight.of_run) and rng.random() < 0.6
    there = Counter(straight.of_run if in_run else straight.operations)
    kind = rng.choice(sorted(there))
    return Moment(kind, rng.randint(1, there[kind]), in_run=in_run)


def _kill_all(process: int) -> None:
    """Kill a command and the processes that it has started."""
    with contextlib.suppress(OSError):
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
        os.kill(process, signal.SIGKILL)
        for child in children:
            os.kill(int(child), signal.SIGKILL)
    os.waitpid(process, 0)

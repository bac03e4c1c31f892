"""Cut the power during commands, look at what is left, start the command again, and compare the end."""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from smg.errors import SmgError
from smg.learner.history import History
from smg.learner.pseudonyms import pseudonyms_of
from smg.learner.verify import verify
from tests.kills.desks import Desks, State, difference, said, scratch, state_of
from tests.kills.operations import Operation
from tests.kills.processes import Moment, start, wait, warm_up
from tests.kills.scenarios import SCENARIOS, Place, Scenario, write_data
from tests.power_cuts.disk import Disk
from tests.power_cuts.record import recorded, same_secret

METHODS = ("der++", "ewc", "sga+c")  # with stored outputs, with a state and importances, with batch norm
COMMANDS = tuple(name for name in SCENARIOS if name not in ("run", "bench"))
HELD = 3


@dataclass
class Found:
    """What was left of each command: the command ended the same when it was started again, or something differs."""

    cuts: Counter[str] = field(default_factory=Counter)  # by command
    opened: int = 0  # models that open at once
    absent: int = 0  # new models of which nothing is left
    findings: list[str] = field(default_factory=list)


@dataclass
class Recording:
    """An undisturbed command: the disk it began on, what it did, and the end."""

    begin: Path
    words: list[str]
    disk: Disk
    operations: list[Operation]
    code: int
    state: State


def cut(
    count: int, seed: int, methods: Sequence[str] = METHODS, commands: Sequence[str] = COMMANDS, first: int = 0
) -> Found:
    """Cut the power `count` times; the n-th cut is the same for one seed, whatever came before."""
    warm_up()
    same_secret()
    found, kept, desks = Found(), dict[tuple[str, str], Recording](), dict[str, Desks]()
    with tempfile.TemporaryDirectory(dir=scratch()) as name:
        folder = Path(name)
        write_data(folder / "data")
        pairs = [(method, command) for command in commands for method in methods]
        for number in range(first, first + count):
            method, command = pairs[number % len(pairs)]
            if method not in desks:
                desks[method] = Desks(folder / method, folder / "data", method, secret_on_desk=True)
            if (method, command) not in kept:
                kept[method, command] = _recording(desks[method], SCENARIOS[command], command)
            rng = random.Random(f"{seed} {number}")
            finding = _cut(desks[method], SCENARIOS[command], kept[method, command], rng, found)
            found.cuts[command] += 1
            if finding:
                found.findings.append(f"{number} ({method}, {command}): {finding}")
    return found


def _recording(desks: Desks, scenario: Scenario, name: str) -> Recording:
    place = desks.fresh(scenario, f"recorded {name}")
    begin = desks.folder / f"begin {name}"
    shutil.copytree(place.desk, begin)
    environment = desks.environment(place.desk)
    os.environ.update(environment)
    words, disk = scenario.words(place), Disk.of(place.desk)
    code, operations = recorded(words, place.desk, environment)
    if code not in (0, HELD):
        raise RuntimeError(f"{desks.method}, {name}: exit {code}: {said(place.desk)}")
    return Recording(begin, words, disk, operations, code, state_of(place.desk, scenario.content))


def _cut(desks: Desks, scenario: Scenario, made: Recording, rng: random.Random, found: Found) -> str | None:
    """Cut the power once, and return what is wrong with what was left."""
    place = Place(desks.folder / "cut" / "desk", desks.data, desks.method)
    shutil.rmtree(place.desk.parent, ignore_errors=True)
    moment = rng.randint(1, len(made.operations))
    below = str(desks.folder.resolve() / f"recorded {_name_of(scenario)}" / "desk")
    made.disk.cut(made.operations[:moment], below, rng).write(place.desk)
    at = f"after operation {moment} of {len(made.operations)}"
    os.environ.update(desks.environment(place.desk))
    if wrong := _opened(place.desk / "model", made.begin / "model", found):
        return f"{at}: {wrong}"
    code = wait(start(made.words, place.desk, desks.environment(place.desk), Moment()))
    if code != made.code and scenario.done not in said(place.desk):
        return f"{at}: exit {code}: {said(place.desk)}"
    state = state_of(place.desk, scenario.content)
    if more := [name for name in state if name not in made.state and name.startswith("cache/") and "/." not in name]:
        return f"{at}: {more[0]} has come back"
    if wrong := difference(_flushed(state), _flushed(made.state)):
        return f"{at}: {wrong}"
    return None


def _flushed(state: State) -> State:
    """Return a state without the cache, which is not flushed: an entry that is lost or damaged is made again."""
    return {name: what for name, what in state.items() if not name.startswith("cache")}


def _name_of(scenario: Scenario) -> str:
    return next(name for name, one in SCENARIOS.items() if one is scenario)


def _opened(model: Path, before: Path, found: Found) -> str | None:
    """Return what is wrong with a model after a power cut; its earlier rounds must be there, whole."""
    had = History(before).model.numbers if (before / "model.json").exists() else ()
    if not (model / "model.json").exists():
        found.absent += not had
        return f"the model of rounds {had} is gone" if had else None
    try:
        history = History(model)
        rounds = history.rounds()
        history.under_way()
        faults = [*(one.fault for one in rounds if one.fault), *verify(model).faults]
        if not {*had} <= {one.entry.round for one in rounds}:
            faults.append("an earlier round is gone")
        for number in had:
            weights = f"rounds/{number:03d}/weights.safetensors"
            if (model / weights).read_bytes() != (before / weights).read_bytes():
                faults.append(f"{weights}: other weights")
        if any(one.record and pseudonyms_of(one.record.pseudonyms) is None for one in rounds):
            faults.append("the secret of its pseudonyms is gone")
    except SmgError as error:
        return f"does not open: {error}"
    found.opened += not faults
    return faults[0] if faults else None


def print_found(found: Found) -> None:
    """Print how many power cuts there were in each command, and every finding."""
    for command, number in found.cuts.items():
        print(f"{command:24} {number:6}")
    for finding in found.findings:
        print(finding[:600])
    print(
        f"{found.cuts.total()} power cuts: {found.opened} models opened, {found.absent} were not made yet, "
        f"{len(found.findings)} findings",
        file=sys.stdout,
    )

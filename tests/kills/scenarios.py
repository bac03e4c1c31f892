"""The commands that write, each with the desk that it begins on; a new command is one more entry of `SCENARIOS`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from smg.learner.exemplars import alias
from smg.learner.history import History
from smg.learner.store import Store
from smg.methods import METHODS
from smg.vault.key import Key
from tests.conftest import write_site

METHOD_NAMES = (*METHODS, "sga+c")
HOLDING = tuple(name for name in METHOD_NAMES if name != "per-site")  # a network a site harms no other
OLD_KEY, NEW_KEY = b"o" * 32, b"n" * 32  # of an encrypted model
SETTINGS = {
    "iterations": 2,
    "batch": 2,
    "preparation.size": 16,
    "network.width": 2,
    "network.depth": 1,
    "validate_every": 1,
    "log_every": 1,
    "guard.tolerance": 100,  # rounds of two iterations harm
}
EXTRA = {  # what else a checkpoint may hold
    "finetune": {"select": "best", "keep_optimiser": "true"},
    "lwf": {"memory": "style", "select": "average"},
    "ewc": {"merge": "0.6", "merge_by": "fisher", "select": "best"},
    "sga": {"share": "true", "batch": "4"},
    "sga+c": {"augment": "strong", "select": "average", "network.norm": "batch"},
}


@dataclass(frozen=True)
class Place:
    """Where a command runs: a desk of its own, beside the sites that all desks share."""

    desk: Path  # with `model`, `bench` or `run`, and `cache`
    data: Path  # with the sites A and B
    method: str


Words = Callable[[Place], list[str]]


def timeless(path: Path) -> bytes:
    """Return a file's content without the times that were measured."""
    if path.name == "table.csv":
        return b"".join(line for line in path.read_bytes().splitlines(keepends=True) if b"seconds" not in line)
    if path.name not in ("round.json", "results.json"):
        return path.read_bytes()
    held = json.loads(path.read_text())
    (held["costs"] if path.name == "results.json" else held).pop("seconds")
    return json.dumps(held).encode()


@dataclass(frozen=True)
class Scenario:
    """A command that writes, and how its end is known."""

    words: Words
    begins: str = ""  # the scenario or step whose end it begins with; an empty desk if there is none
    done: str = "\0"  # in the message of a command that was complete when its process was killed
    cold: bool = False  # without prepared scans
    stops_at: int = 0  # a step that is ended after its n-th checkpoint
    kills: tuple[int, int] = (1, 3)  # how many before the command is left to end, at least and at most
    methods: tuple[str, ...] = METHOD_NAMES
    content: Callable[[Path], bytes] = timeless  # what of a file has to be the same, as what is encrypted never is


def write_data(folder: Path) -> Path:
    """Write two sites of four small subjects, and a grid of one stream for each method."""
    for place, name in enumerate("AB"):
        write_site(folder / name, 4, ".nii", first_seed=10 * place)
    (folder / "old.key").write_bytes(OLD_KEY)
    (folder / "new.key").write_bytes(NEW_KEY)
    for method in METHOD_NAMES:
        words = {key: value for key, value in _settings(method).items() if "." not in key}
        for key, value in _settings(method).items():
            if "." in key:
                section, name = key.split(".")
                words.setdefault(section, {})[name] = value  # type: ignore[union-attr]
        grid = {"order": ["A", "B"], "unseen": None, "methods": [method], "seeds": [0], **words}
        (folder / f"{method}.yaml").write_text(json.dumps(grid).replace('"true"', "true"))  # JSON is YAML
    return folder


def _settings(method: str) -> dict[str, object]:
    return SETTINGS | EXTRA.get(method, {})


def _learn(site: str, **more: object) -> Words:
    def words(place: Place) -> list[str]:
        settings = _settings(place.method) | more
        given = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        return ["learn", "model", str(place.data / site), "--method", place.method, *given]

    return words


def _forget(place: Place) -> list[str]:
    """Forget a person of whom an exemplar is kept, if there is any, by name and scan."""
    history = History(place.desk / "model")
    seed = history.record(1).config.seed
    chosen = history.record(1).selection.chosen
    cases = [f"Case{number:02d}" for number in range(4)]
    case = next((case for case in cases if alias(seed, "A", case) in chosen), cases[0])
    return ["forget", "model", "--case", case, "--scan", str(place.data / "A" / f"{case}.nii"), "--yes"]


def _run(command: str, *more: str) -> Words:
    def words(place: Place) -> list[str]:
        return [command, str(place.data / f"{place.method}.yaml"), "--data", str(place.data), "--out", command, *more]

    return words


def _encrypted(place: Place) -> list[str]:
    return [*_learn("A")(place), "--encrypt", "--key-file", str(place.data / "old.key")]


def _rekey(place: Place) -> list[str]:
    keys = ["--key-file", str(place.data / "old.key"), "--new-key-file", str(place.data / "new.key")]
    return ["rekey", "model", *keys, "--encrypt-again"]


def decrypted(path: Path) -> bytes:
    """Return what of a file is the same whenever it is encrypted: arrays, and records without keys and hashes."""
    if path.name == "model.json":
        return json.dumps(json.loads(path.read_text()) | {"encryption": None}).encode()
    if path.name == "round.json":
        return json.dumps(json.loads(timeless(path)) | {"files": None}).encode()
    if path.suffix != ".safetensors" or path.parents[1].name != "rounds":
        return timeless(path)
    store = Store(path.parents[2], Key(NEW_KEY, False, "new.key"))
    tensors = store.read_tensors(int(path.parent.name), path.stem)
    return b"".join(name.encode() + tensors[name].contiguous().numpy().tobytes() for name in sorted(tensors))


STEPS = {  # how the desks that commands begin on are made
    "one round": Scenario(_learn("A")),
    "two rounds": Scenario(_learn("B"), begins="one round"),
    "an encrypted round": Scenario(_encrypted),
    "one unguarded round": Scenario(_learn("A", **{"guard.subjects": 0})),
    "a held round": Scenario(_learn("B"), begins="one unguarded round"),
    "a round under way": Scenario(_learn("B"), begins="one round", stops_at=1),
}
SCENARIOS = {
    "learn the first site": Scenario(_learn("A"), done="was learned before"),
    "learn": Scenario(_learn("B"), begins="one round", done="was learned before"),
    "learn, no cache": Scenario(_learn("B"), begins="one round", done="was learned before", cold=True),
    "accept": Scenario(lambda _: ["accept", "model", "2"], begins="a held round", methods=HOLDING),
    "rollback": Scenario(lambda _: ["rollback", "model", "1"], begins="two rounds"),
    "replay drop": Scenario(
        lambda _: ["replay", "drop", "model", "A", "--yes"], begins="two rounds", done="nothing to drop"
    ),
    "forget": Scenario(_forget, begins="two rounds", done="nothing is kept of this person"),
    "abandon": Scenario(lambda _: ["abandon", "model"], begins="a round under way", done="no round is under way"),
    "rekey": Scenario(_rekey, begins="an encrypted round", content=decrypted),
    "run": Scenario(_run("run", "--quiet", "--threads", "1")),
    "bench": Scenario(  # it ends with a report, which takes long: more kills, of fewer methods, whose runs are above
        _run("bench", "--workers", "1", "--threads", "1"),
        kills=(4, 8),
        methods=("der++", "ewc", "jm", "per-site", "sga+c"),
    ),
}

"""`smg demo --federation`: phantom hospitals as separate processes, whose exemplars stay at home."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smg.cli.terminal import say
from smg.errors import SmgError

if TYPE_CHECKING:
    from torch import Tensor

    from smg.learner.learner import Learner

HOSPITALS, HELD_OUT, SUBJECTS = ("E", "A", "D"), "F", 8
SETTINGS: dict[str, Any] = {
    "method": "sga+c",
    "iterations": 60,
    "preparation": {"size": 64, "spacing": 1.9, "field": 120},
    "network": {"width": 8, "depth": 3},
    "optimiser": {"rate": 2e-3, "schedule": "cosine"},
    "validate_every": 60,
}


def federated_demo(out: Path, seed: int) -> None:
    """Let three hospitals learn one model over a relay with mutual TLS, and compare it with the centralised run."""
    from smg.cli.sites import make_phantoms
    from smg.learner.learner import Learner
    from smg.report.page import write_report
    from smg.sites.site import Site

    make_phantoms(out / "sites", small=True, seed=seed, letters=[*HOSPITALS, HELD_OUT], subjects=SUBJECTS)
    settings = _settings_file(out, seed)
    begun = time.monotonic()
    with running(out) as learn:
        for name in HOSPITALS:
            say(f"hospital {name} learns; its scans and exemplars stay with it")
            learn(name, settings)
    say(f"three rounds over the federation took {time.monotonic() - begun:.0f} s; now with all data in one place")
    central = _centralised(out, seed)
    sites = {name: Site.find(out / "sites" / name) for name in (*HOSPITALS, HELD_OUT)}
    far = Learner(out / "hospitals" / HOSPITALS[-1] / "model")
    apart = _distance(far, central)
    dsc = {name: [_dsc(model, site) for model in (far, central)] for name, site in sites.items()}
    for name, (over, at_once) in dsc.items():
        what = "held out" if name == HELD_OUT else "learned"
        print(f"{name} ({what}): DSC {100 * over:.1f} % over the federation, {100 * at_once:.1f} % centralised")
    most = max(abs(a - b) for a, b in dsc.values())
    first = _first_difference(far, central)
    print(f"In the first iteration with others' answers the losses differ by {first:.0e} of their value.")
    print(
        f"At the end the federated weights differ from the centralised ones by {apart:.1e} of their length, and DSC by "
        f"{100 * most:.2f} points at most: rounding, which Adam magnifies."
    )
    folder = out / "hospitals" / HOSPITALS[-1] / "model"
    write_report([folder, out / "central"], out / "report.html", say=say)
    print(f"The full report: {out / 'report.html'}. What each hospital answered: {out / 'federation'}/*/answers.jsonl")


@contextmanager
def running(out: Path) -> Iterator[Any]:
    """Run the relay and the hospitals' services as processes of their own; give what lets a hospital learn."""
    from smg.federation.kit import provision

    provision(out / "federation", list(HOSPITALS), "localhost", _free_port())
    started = [_start(out, "relay", "serve", str(out / "federation" / "relay"))]
    try:
        for name in HOSPITALS:
            model = out / "hospitals" / name / "model"
            model.parent.mkdir(parents=True, exist_ok=True)
            folder = out / "federation" / name
            started.append(_start(out, name, "join", str(model), "--federation", str(folder)))

        def learn(name: str, settings: Path) -> None:
            words = [str(out / "hospitals" / name / "model"), str(out / "sites" / name), "--unguarded", "--quiet"]
            words += ["--federation", str(out / "federation" / name), "--config", str(settings)]
            done = subprocess.run(_smg("learn", *words), stdin=subprocess.DEVNULL, capture_output=True, text=True)
            if done.returncode:
                raise SmgError(f"hospital {name}: {done.stderr.strip() or done.stdout.strip()}")

        yield learn
    finally:
        for process in started:
            process.terminate()
        for process in started:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _start(out: Path, name: str, *words: str) -> subprocess.Popen[bytes]:
    from smg.federation.family import WITH_PARENT

    with (out / "federation" / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            _smg("federation", *words),
            env=os.environ | {WITH_PARENT: "1"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


def _smg(*words: str) -> Sequence[str]:
    return [sys.executable, "-m", "smg", *words]


def _settings_file(out: Path, seed: int) -> Path:
    import yaml

    path = out / "settings.yaml"
    path.write_text(yaml.safe_dump(SETTINGS | {"seed": seed}))
    return path


def _centralised(out: Path, seed: int) -> Learner:
    from smg.learner.learner import Learner
    from smg.sites.site import Site

    learner = Learner.create(out / "central", **(SETTINGS | {"seed": seed}))
    for name in HOSPITALS:
        learner.learn(Site.find(out / "sites" / name), unguarded=True)
        learner = Learner(out / "central")
    return learner


def _first_difference(a: Learner, b: Learner) -> float:
    """Return the largest relative difference of losses in the first iteration of the second round."""
    ours, theirs = (model.store.read_round(2).log[0].losses for model in (a, b))
    return max(abs(ours[name] - theirs[name]) / abs(theirs[name]) for name in theirs)


def _distance(a: Learner, b: Learner) -> float:
    one, other = _flat(a), _flat(b)
    return float((one - other).norm() / other.norm())


def _flat(learner: Learner) -> Tensor:
    import torch

    return torch.cat([tensor.double().flatten() for tensor in learner.network().state_dict().values()])


def _dsc(learner: Learner, site: Any) -> float:
    rows = learner.evaluate(site, part="all")
    return sum(row.classes["foreground"].dsc for row in rows) / len(rows)


def _free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])

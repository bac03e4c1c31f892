"""`smg demo --federation`: phantom hospitals as separate processes, whose exemplars stay at home."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smg.cli.federation import require_nvflare
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
    require_nvflare()
    from smg.cli.sites import make_phantoms
    from smg.federation.loopback import Loopback

    if (out / "federation").exists():
        raise SmgError(f"{out}: holds a federation already; give another folder with --out")
    make_phantoms(out / "sites", small=True, seed=seed, letters=[*HOSPITALS, HELD_OUT], subjects=SUBJECTS)
    settings = _settings_file(out, seed)
    begun = time.monotonic()
    with Loopback(out, HOSPITALS) as land:
        for name in HOSPITALS:
            say(f"hospital {name} learns; its scans and exemplars stay with it")
            land.learn(name, out / "sites" / name, settings)
    say(f"three rounds over the federation took {time.monotonic() - begun:.0f} s; now with all data in one place")
    compare(out, land.model(HOSPITALS[-1]), seed)


def compare(out: Path, model: Path, seed: int) -> None:
    """Learn the same rounds with all data in one place, and print how far the federated model is from that one."""
    from smg.learner.learner import Learner
    from smg.report.page import write_report
    from smg.sites.site import Site

    central, far = _centralised(out, seed), Learner(model)
    sites = {name: Site.find(out / "sites" / name) for name in (*HOSPITALS, HELD_OUT)}
    dsc = {name: [_dsc(learner, site) for learner in (far, central)] for name, site in sites.items()}
    for name, (over, at_once) in dsc.items():
        what = "held out" if name == HELD_OUT else "learned"
        print(f"{name} ({what}): DSC {100 * over:.1f} % over the federation, {100 * at_once:.1f} % centralised")
    most, first = max(abs(a - b) for a, b in dsc.values()), _first_difference(far, central)
    print(
        "The federated run is the centralised one up to rounding: in the first iteration with others' answers the "
        f"losses {f'differ by {first:.0e} of their value' if first else 'are equal to the bit'}. Training magnifies "
        f"rounding: at the end the weights differ by {_distance(far, central):.1e} of their length, and DSC by "
        f"{100 * most:.1f} points at most."
    )
    write_report([model, out / "central"], out / "report.html", say=say)
    print(f"The full report: {out / 'report.html'}. What each hospital answered: {out / 'federation'}/*/answers.jsonl")


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

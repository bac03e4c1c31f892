"""Made-up benches: the files that a real bench writes, with random numbers instead of trained networks."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from smg.evaluation.measures import FORMULAS, measures
from smg.evaluation.metrics import COMPARED
from smg.learner.config import LearnerConfig

# (DSC that a method forgets, DSC that it reaches on the held-out site)
CHARACTER = {
    "finetune": (0.30, 0.66),
    "jm": (0.16, 0.71),
    "gem": (0.11, 0.72),
    "c-meta": (0.08, 0.73),
    "isgm": (0.09, 0.76),
    "g-meta": (0.11, 0.76),
    "sga": (0.07, 0.77),
    "sga+c": (0.05, 0.79),
}
TWO_STREAMS = {"A-E": (("A", "B", "C", "D"), "F"), "F-B": (("F", "D", "C", "B"), "A")}


def make_bench(
    folder: Path,
    methods: Sequence[str] | dict[str, str] = ("finetune", "jm", "sga+c"),
    streams: dict[str, tuple[tuple[str, ...], str]] | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    subjects: int = 4,
    reports: int = 12,
) -> Path:
    """Write a folder as `smg bench` does, with `subjects` tested at each site and `reports` logged in each round.

    methods: their names, or the method of each name.
    """
    methods = methods if isinstance(methods, dict) else {name: name for name in methods}
    streams = streams or {"A-E": TWO_STREAMS["A-E"]}
    listed = [{"name": name, "order": list(order), "unseen": unseen} for name, (order, unseen) in streams.items()]
    plan = {
        "settings": {},
        "part": "test",
        "streams": listed,
        "methods": [{"name": n, "method": m} for n, m in methods.items()],
    }
    _write(folder / "bench.json", plan | {"seeds": list(seeds)})
    for stream, (order, unseen) in streams.items():
        for name, method in methods.items():
            for seed in seeds:
                run = folder / stream / name / f"seed-{seed}"
                make_run(run, method, order, unseen, seed, subjects, reports, name)
    return folder


def make_run(
    folder: Path,
    method: str,
    order: Sequence[str],
    unseen: str,
    seed: int = 0,
    subjects: int = 4,
    reports: int = 12,
    name: str | None = None,
) -> Path:
    """Write the folder of one finished run."""
    name = name or method
    rng = np.random.default_rng([seed, *map(ord, name), *map(ord, unseen)])
    sites = [*order, unseen]
    rows = [
        {"round": learned, "site": site, "subject": f"Case{n:02d}", "classes": {"foreground": _numbers(rng, mean)}}
        for at, learned in enumerate(sites)
        for place, site in enumerate(sites)
        for n in range(subjects)
        for mean in [_expected(method, at, place, len(order))]
    ]
    matrix = {m: {r: {s: _mean(rows, r, s, m) for s in sites} for r in sites} for m in COMPARED}
    config = LearnerConfig(method=method, seed=seed, iterations=reports * 50).model_dump(mode="json")
    identity = {"name": name, "method": method, "stream": {"order": list(order), "unseen": unseen}, "seed": seed}
    results = identity | {
        "part": "test",
        "matrix": matrix,
        "measures": {m: measures(matrix[m], order, unseen) for m in matrix},
        "formulas": FORMULAS,
        "subjects": rows,
        "config": config,
        "versions": {"smg": "0.1.0", "torch": "2.13.0", "python": "3.11.7", "threads": 1},
    }
    _write(folder / "results.json", results)
    parts = {"train": [f"Case{n + 50}" for n in range(3 * subjects)], "validation": ["Case49"], "test": []}
    _write(folder / "split.json", {"seed": seed, "sites": dict.fromkeys(sites, parts)})
    _records(folder / "model", rng, sites, config, reports)
    _log(folder, identity, sites, reports)
    return folder


def add_costs(bench: Path, replay_bytes: int, seconds: float) -> None:
    """Give every run of a bench costs: 8 exemplars of this size, and this many seconds for each round."""
    for path in bench.rglob("results.json"):
        results = json.loads(path.read_text())
        costs = {
            "plasticity": {},
            "state_bytes": 0,
            "parameters": 1,
            "replay_subjects": 8,
            "replay_bytes": replay_bytes,
            "seconds": dict.fromkeys("ABCDF", seconds),
        }
        path.write_text(json.dumps(results | {"costs": costs}))


def _expected(method: str, at: int, place: int, last: int) -> float:
    """Return the expected DSC on the site at `place` after the round `at`."""
    forgets, elsewhere = CHARACTER.get(method, (0.1, 0.7))
    if place > at:
        return elsewhere - 0.06 * (last - 1 - min(at, last - 1))
    return float(0.88 - 0.01 * place - forgets * (1 - math.exp(-(at - place))))


def _numbers(rng: np.random.Generator, mean: float) -> dict[str, float | None]:
    dsc = float(np.clip(mean + rng.normal(0, 0.03), 0, 0.98))
    if rng.random() < 0.01:
        return {"dsc": 0.0, "asd": None, "hd95": None, "surface_dice": None, "volume_difference": -31.0}
    asd = 12 * (1 - dsc) ** 1.2
    return {
        "dsc": dsc,
        "asd": asd,
        "hd95": 4 * asd,
        "surface_dice": dsc**0.7,
        "volume_difference": float(rng.normal(0, 4)),
    }


def _mean(rows: list[dict[str, Any]], learned: str, site: str, metric: str) -> float:
    here = [r["classes"]["foreground"][metric] for r in rows if r["round"] == learned and r["site"] == site]
    return float(np.mean([value for value in here if value is not None]))


def _records(model: Path, rng: np.random.Generator, sites: Sequence[str], config: dict[str, Any], reports: int) -> None:
    entries = []
    for number, site in enumerate(sites, start=1):
        entries.append({"round": number, "parent": number - 1, "site": site})
        _write(
            model / "rounds" / f"{number:03d}" / "round.json", make_record(rng, config, number, site, reports, sites)
        )
    _write(model / "model.json", {"format": 1, "config": config, "current": len(sites), "rounds": entries})


def make_record(
    rng: np.random.Generator, config: dict[str, Any], number: int, site: str, reports: int, sites: Sequence[str]
) -> dict[str, Any]:
    """Return the content of a `round.json`, as far as a report reads it."""
    method, names = config["method"], [f"{number:02d}{n:06x}" for n in range(12)]
    features = rng.normal(number, 1.0, (12, 16)) + rng.normal(0, 2, 16)
    r, v = rng.uniform(0.8, 1, 12), -rng.uniform(0.5, 0.9, 12) * (number > 1)
    chosen = [] if method == "finetune" else [names[i] for i in np.argsort(-(r + v))[:2]]
    log = []
    for n in range(reports):
        aligned = {"cos_incoming_replay": 0.4 * n / reports + 0.1 * rng.normal(), "cos_train_test": 0.5}
        loss = 1.2 * math.exp(-3 * n / reports) + 0.05 * rng.normal()
        replays = number > 1 and method != "finetune"
        losses = {"incoming": loss, "replay": loss / 2} if replays else {"incoming": loss}
        log.append({"iteration": 1 + 50 * n, "losses": losses, "norms": {}, "cosines": aligned if replays else {}})
    return {
        "round": number,
        "parent": number - 1,
        "site": site,
        "subjects": {"train": 12, "validation": 2, "test": 4},
        "config": config,
        "files": {},
        "curve": [{"iteration": 50 * reports, "dsc": 0.85}],
        "log": log,
        "selection": {
            "policy": "comprehensive",
            "chosen": chosen,
            "candidates": names,
            "R": r.tolist(),
            "V": v.tolist(),
            "H": (r + v).tolist(),
            "features": features.round(6).tolist(),
        },
        "kept": {site: {"subjects": len(chosen), "bytes": 100_000}},
        "test": [{"subject": "0badcafe", "classes": {"foreground": _numbers(rng, 0.85)}}],
        "earlier": {s: {"before": 0.86, "after": 0.86 - 0.04 * number} for s in sites[: number - 1]},
        "held": False,
        "versions": {"smg": "0.1.0"},
    }


def _log(folder: Path, identity: dict[str, Any], sites: Sequence[str], reports: int) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    events: list[dict[str, Any]] = [{"event": "begin", "rounds": list(sites), "iterations": reports * 50, **identity}]
    for number, site in enumerate(sites, start=1):
        for n in range(reports):
            losses = {"losses": {"incoming": 1.0 / (n + 1)}, "cosines": {"cos_incoming_replay": 0.25}}
            events.append({"event": "step", "round": number, "site": site, "iteration": 1 + 50 * n, **losses})
        scores = dict.fromkeys(sites, 0.8)
        events.append({"event": "evaluation", "round": number, "site": site, "dsc": scores, "asd": scores})
    events.append({"event": "end", "measures": {"dsc": {"BM": 0.8, "BT": -0.05, "FM": 0.7, "FT": -0.1}}})
    lines = [
        {"time": (now + timedelta(seconds=2 * n)).isoformat(timespec="milliseconds"), **e} for n, e in enumerate(events)
    ]
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def _write(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))

"""The runs in some folders, as their `results.json` tell of them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smg.errors import SmgError


@dataclass(frozen=True)
class Run:
    """A finished run."""

    folder: Path
    results: dict[str, Any]

    @property
    def name(self) -> str:
        """Of the method, or of its variant."""
        return str(self.results["name"])

    @property
    def seed(self) -> int:
        return int(self.results["seed"])

    @property
    def stream(self) -> str:
        """`A B C | F`"""
        told = self.results["stream"]
        return " ".join(told["order"]) + (f" | {told['unseen']}" if told["unseen"] else "")

    def measure(self, metric: str, measure: str) -> float | None:
        value = self.results["measures"][metric][measure]
        return None if value is None else float(value)


def find_runs(paths: Iterable[Path]) -> list[Run]:
    """Every finished run in or below these folders, methods and streams in the order of their bench, then by seed."""
    found: dict[Path, Run] = {}
    orders: dict[str, int] = {}
    for path in paths:
        if not path.is_dir():
            raise SmgError(f"{path}: no such folder; give a run's or a bench's")
        for file in sorted(path.rglob("bench.json")):
            for name in _names_in(file):
                orders.setdefault(name, len(orders))
        for file in sorted(path.rglob("results.json")):
            found.setdefault(file.parent.resolve(), _read(file))
    _check_alike(found.values())
    last = len(orders)

    def place(run: Run) -> tuple[int, int, int]:
        # STREAM/METHOD/seed-N, where it is of a bench
        stream = run.folder.parents[1].name if len(run.folder.parents) > 1 else ""
        return orders.get(stream, last), orders.get(run.name, last), run.seed

    return sorted(found.values(), key=place)


def _names_in(bench: Path) -> list[str]:
    """Of a bench's streams and methods; another tool's file of that name has none for us."""
    try:
        told = json.loads(bench.read_text())
        return [str(one["name"]) for one in [*told["streams"], *told["methods"]]]
    except (ValueError, KeyError, TypeError):
        return []


def _check_alike(runs: Iterable[Run]) -> None:
    """Runs of one name are one method's seeds, and all are of one part: else two experiments would become one table."""
    rows: dict[tuple[str, str], dict[int, Run]] = {}
    parts: dict[str, Run] = {}
    for run in runs:
        parts.setdefault(run.results.get("part", "test"), run)
        if len(parts) > 1:
            (one, first), (two, second) = parts.items()
            folders = f"{first.folder} and {second.folder}"
            raise SmgError(f"{folders}: measured on the {one} and on the {two} parts; report them apart")
        row = rows.setdefault((run.stream, run.name), {})
        if run.seed in row:
            both, why = row[run.seed], f"with seed {run.seed}"
        else:
            row[run.seed] = run
            both, why = next(iter(row.values())), "with different settings"
            told = both.results, run.results
            if not _differ(*(r.get("config", {}) for r in told)):
                continue
        raise SmgError(f"{both.folder} and {run.folder}: two runs called {run.name!r} {why}; report them apart")


SECTIONS = ("config", "preparation", "network", "optimiser", "replay", "augment")


def _differ(one: Any, other: Any, key: str = "config") -> bool:
    """In what both tell: an older version's configuration has fewer settings."""
    if one is None or other is None or key not in SECTIONS:
        return key != "seed" and one != other
    return any(_differ(one[inner], other[inner], inner) for inner in one.keys() & other.keys())


def _read(path: Path) -> Run:
    try:
        told = json.loads(path.read_text())
        told.setdefault("name", told["method"])
        Run(path.parent, told).measure("dsc", "BM")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise SmgError(f"{path}: not the results of a run") from None
    return Run(path.parent, told)

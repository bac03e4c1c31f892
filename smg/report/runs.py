"""Read the finished runs below some folders from their `results.json`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smg.errors import SmgError

SECTIONS = ("config", "preparation", "network", "optimiser", "replay", "augment")  # of a configuration


@dataclass(frozen=True)
class Run:
    """A finished run."""

    folder: Path
    results: dict[str, Any]  # results.json

    @property
    def name(self) -> str:
        """Return the name of the method, or of its variant."""
        return str(self.results["name"])

    @property
    def seed(self) -> int:
        return int(self.results["seed"])

    @property
    def order(self) -> list[str]:
        """Return the sites in the order they were learned."""
        return list(self.results["stream"]["order"])

    @property
    def unseen(self) -> str | None:
        """Return the held-out site, if there is one."""
        site = self.results["stream"]["unseen"]
        return None if site is None else str(site)

    @property
    def sites(self) -> list[str]:
        """Return the learned sites in order, then the held-out site."""
        return [*self.order, *([self.unseen] if self.unseen else [])]

    @property
    def stream(self) -> str:
        """Return the stream as `A B C | F`."""
        return " ".join(self.order) + (f" | {self.unseen}" if self.unseen else "")

    @property
    def stream_title(self) -> str:
        """Return the stream as `A → B → C, held-out site F`."""
        return " → ".join(self.order) + (f", held-out site {self.unseen}" if self.unseen else "")

    def measure(self, metric: str, measure: str) -> float | None:
        """Return a measure as it is stored; None where it does not exist, or did not when the run was made."""
        value = self.results["measures"].get(metric, {}).get(measure)
        return None if value is None else float(value)


def find_runs(paths: Iterable[Path]) -> list[Run]:
    """Return every finished run in or below these folders.

    Streams and methods are in the order of their bench, then runs by seed. Raises SmgError where a folder does not
    exist, and where runs of two experiments would become one table.
    """
    found: dict[Path, Run] = {}
    orders: dict[str, int] = {}
    for path in paths:
        if not path.is_dir():
            raise SmgError(f"{path}: no such folder; give the folder of a run or a bench")
        for file in sorted(path.rglob("bench.json")):
            for name in _names_in(file):
                orders.setdefault(name, len(orders))
        for file in sorted(path.rglob("results.json")):
            found.setdefault(file.parent.resolve(), _read(file))
    _check_alike(found.values())
    last = len(orders)

    def place(run: Run) -> tuple[int, int, int]:
        # a bench has STREAM/METHOD/seed-N
        stream = run.folder.parents[1].name if len(run.folder.parents) > 1 else ""
        return orders.get(stream, last), orders.get(run.name, last), run.seed

    return sorted(found.values(), key=place)


def _names_in(bench: Path) -> list[str]:
    """Return the names of a bench's streams and methods; none from a `bench.json` of another tool."""
    try:
        plan = json.loads(bench.read_text())
        return [str(one["name"]) for one in [*plan["streams"], *plan["methods"]]]
    except (ValueError, KeyError, TypeError):
        return []


def _check_alike(runs: Iterable[Run]) -> None:
    """Check that runs of one name differ only in their seed, and that all were evaluated on the same part."""
    rows: dict[tuple[str, str], dict[int, Run]] = {}
    parts: dict[str, Run] = {}
    for run in runs:
        parts.setdefault(run.results.get("part", "test"), run)
        if len(parts) > 1:
            (one, first), (two, second) = parts.items()
            folders = f"{first.folder} and {second.folder}"
            raise SmgError(f"{folders}: one was measured on the {one} part, the other on the {two} part; "
                           "report them separately")  # fmt: skip
        row = rows.setdefault((run.stream, run.name), {})
        if run.seed in row:
            other, why = row[run.seed], f"with seed {run.seed}"
        else:
            row[run.seed] = run
            other, why = next(iter(row.values())), "with different settings"
            if not _differ(other.results.get("config", {}), run.results.get("config", {})):
                continue
        both = f"{other.folder} and {run.folder}"
        raise SmgError(f"{both}: two runs called {run.name!r} {why}; report them separately")


def _differ(one: Any, other: Any, key: str = "config") -> bool:
    """Return whether two configurations differ in a setting that both have; an older version has fewer settings."""
    if one is None or other is None or key not in SECTIONS:
        return key != "seed" and one != other
    return any(_differ(one[inner], other[inner], inner) for inner in one.keys() & other.keys())


def _read(path: Path) -> Run:
    try:
        results = json.loads(path.read_text())
        results.setdefault("name", results["method"])
        float(results["measures"]["dsc"]["BM"] or 0)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise SmgError(f"{path}: not the results of a run; move the file out of the folder") from None
    return Run(path.parent, results)

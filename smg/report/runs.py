"""Read the finished runs below some folders from their `results.json`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smg.bench.folder import BENCH, bench_in
from smg.errors import SmgError
from smg.learner.results import RESULTS, Results, read_results
from smg.sites.labels import first_class

SECTIONS = ("config", "preparation", "network", "optimiser", "replay", "augment")  # of a configuration


@dataclass(frozen=True)
class Run:
    """A finished run."""

    folder: Path
    results: Results

    @property
    def name(self) -> str:
        """Return the name of the method, or of its variant."""
        return self.results.name

    @property
    def seed(self) -> int:
        return self.results.seed

    @property
    def order(self) -> list[str]:
        """Return the sites in the order they were learned."""
        return list(self.results.stream.order)

    @property
    def unseen(self) -> str | None:
        """Return the held-out site, if there is one."""
        return self.results.stream.unseen

    @property
    def sites(self) -> list[str]:
        """Return the learned sites in order, then the held-out site."""
        return self.results.stream.sites

    @property
    def first_class(self) -> str:
        """Return the class that tables show."""
        return first_class(self.results.config.tree())

    @property
    def stream(self) -> str:
        """Return the stream as `A B C | F`."""
        return " ".join(self.order) + (f" | {self.unseen}" if self.unseen else "")

    @property
    def stream_title(self) -> str:
        """Return the stream as `A → B → C, held-out site F`."""
        return " → ".join(self.order) + (f", held-out site {self.unseen}" if self.unseen else "")

    def renamed(self, name: str) -> Run:
        """Return the run under another name of its method."""
        return Run(self.folder, self.results.model_copy(update={"name": name}))

    def measure(self, metric: str, measure: str, class_name: str | None = None) -> float | None:
        """Return a measure as it is stored, of the first class if none is named; None where it does not exist."""
        by_metric = self.results.classes.get(class_name, {}) if class_name else self.results.measures
        return by_metric.get(metric, {}).get(measure)


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
        for file in sorted(path.rglob(BENCH)):
            if bench := bench_in(file.parent):
                for name in [one.name for one in bench.streams] + [one.name for one in bench.methods]:
                    orders.setdefault(name, len(orders))
        for file in sorted(path.rglob(RESULTS)):
            found.setdefault(file.parent.resolve(), Run(file.parent, read_results(file.parent)))
    _check_alike(found.values())
    last = len(orders)

    def place(run: Run) -> tuple[int, int, int]:
        # a bench has STREAM/METHOD/seed-N
        stream = run.folder.parents[1].name if len(run.folder.parents) > 1 else ""
        return orders.get(stream, last), orders.get(run.name, last), run.seed

    return sorted(found.values(), key=place)


def _check_alike(runs: Iterable[Run]) -> None:
    """Check that runs of one name differ only in their seed, and that all were evaluated on the same part."""
    rows: dict[tuple[str, str], dict[int, Run]] = {}
    parts: dict[str, Run] = {}
    for run in runs:
        parts.setdefault(run.results.part, run)
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
            if not _differ(other.results.config.tree(), run.results.config.tree()):
                continue
        both = f"{other.folder} and {run.folder}"
        raise SmgError(f"{both}: two runs called {run.name!r} {why}; report them separately")


def _differ(one: Any, other: Any, key: str = "config") -> bool:
    """Return whether two configurations differ in a setting that both have; an older version has fewer settings."""
    if one is None or other is None or key not in SECTIONS:
        return key != "seed" and one != other
    return any(_differ(one[inner], other[inner], inner) for inner in one.keys() & other.keys())

"""Small benches for tests."""

from __future__ import annotations

import json
from pathlib import Path

from smg.bench.planned_runs import Plan, PlannedRun, read_plan
from smg.bench.workers import Bench
from tests.learner.streams import TINY

GRID = {
    "order": ["A", "B"],
    "unseen": "C",
    "methods": ["finetune", {"name": "jumpy", "method": "jm", "optimiser": {"rate": 1e30}}, "sga+c"],
    "part": "test",
} | TINY  # fmt: skip


def grid(folder: Path, **changes: object) -> Plan:
    """Return a plan of tiny runs; one of its methods fails."""
    (folder / "grid.yaml").write_text(json.dumps(GRID | changes))  # JSON is YAML
    return read_plan(str(folder / "grid.yaml"))


def run_all(bench: Bench) -> list[tuple[str, str | None]]:
    """Carry out a bench; return the runs that have finished, each with its fault if it failed."""
    finished: list[tuple[str, str | None]] = []

    def note(run: PlannedRun, fault: str | None) -> None:
        finished.append((run.name, fault))

    bench.go(lambda: None, note)
    return finished

"""Share mutated files among processes, and collect what came of them; a process that dies is a finding too."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.seeds import KINDS, write_seeds

WAIT = 120  # seconds for one file, on a machine that is busy


@dataclass
class Found:
    """Outcomes of all files: how many of each kind were read or refused, and the findings."""

    counts: dict[str, Counter[str]] = field(default_factory=lambda: {kind: Counter() for kind in KINDS})
    findings: list[dict[str, object]] = field(default_factory=list)

    def add(self, row: dict[str, object]) -> None:
        """Add the outcome of one file."""
        self.counts[str(row["kind"])][str(row["what"])] += 1
        if row["what"] == "finding":
            self.findings.append(row)


def fuzz(count: int, seed: int, workers: int = 2, first: int = 0) -> Found:
    """Read `count` mutated files in so many processes."""
    found = Found()
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(workers) as pool:
        seeds = Path(name) / "seeds"
        write_seeds(seeds)
        edges = [first + count * n // workers for n in range(workers + 1)]
        for rows in pool.map(lambda pair: _part(seeds, Path(name), *pair, seed), itertools.pairwise(edges)):
            for row in rows:
                found.add(row)
    return found


def _part(seeds: Path, folder: Path, first: int, last: int, seed: int) -> list[dict[str, object]]:
    """Return the outcomes of the files from `first` to `last`, with a new process after one that died."""
    rows: list[dict[str, object]] = []
    while first < last:
        own = Path(tempfile.mkdtemp(dir=folder))
        words = [str(seeds), str(own), str(first), str(last), str(seed)]
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.worker", *words],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2],
        )  # fmt: skip
        begun: dict[str, object] | None = None
        assert process.stdout is not None
        for line in process.stdout:
            row = json.loads(line)
            if "end" in row:
                rows.append(row)
                begun = None
            else:
                begun = row
        code, said = process.wait(), process.stderr.read() if process.stderr else ""
        if begun is None and code:
            raise RuntimeError(f"the worker did not begin: {said[-2000:]}")
        if begun is None:
            return rows
        number = int(str(begun["begin"]))
        rows.append({"end": number, "kind": begun["kind"], "what": "finding", "detail": f"ended the process: {code}"})
        first = number + 1
    return rows

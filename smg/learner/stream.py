"""One run: a method on an ordered stream of sites with one seed, the last site unseen until the end."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from smg.errors import SmgError
from smg.evaluation.measures import FORMULAS, Matrix, measures
from smg.evaluation.subjects import mean_of
from smg.files import write_json
from smg.learner.config import LearnerConfig
from smg.learner.learner import Learner, first_process, meet, versions
from smg.sites.site import Site
from smg.sites.split import Split, save_splits, split_site

METRICS = ("dsc", "asd")


@dataclass
class Stream:
    """Rounds over `order`; after each the model is evaluated on every site's test part. A last round learns `unseen`.

        Stream(sites, order=["RUNMC", "HCRUDB"], unseen="HK", config=LearnerConfig(method="sga+c")).run("runs/one")

    The folder holds the model, the split, and `results.json`; a run that was stopped goes on where it was.
    """

    sites: dict[str, Site]
    order: Sequence[str]
    unseen: str | None
    config: LearnerConfig
    splits: dict[str, Split] | None = None
    leave_out: bool = False
    checkpoint_seconds: float = 60.0
    say: Callable[[str], None] = field(default=lambda line: None)

    def __post_init__(self) -> None:
        wanted = [*self.order, *([self.unseen] if self.unseen else [])]
        for name in wanted:
            if name not in self.sites:
                raise SmgError(f"no site {name!r} in the data; it holds {', '.join(self.sites)}")
        if len(set(wanted)) < len(wanted):
            raise SmgError(f"a stream names a site twice: {', '.join(wanted)}")
        self.rounds = wanted

    def run(self, folder: str | Path) -> dict[str, Any]:
        """Learn, evaluate, and write `results.json`; its content is returned."""
        folder = Path(folder)
        splits = self.splits or {name: split_site(self.sites[name], self.config.seed) for name in self.rounds}
        learner = self._learner(folder)
        if first_process():
            save_splits(folder / "split.json", splits, None if self.splits else self.config.seed)
        rows: list[dict[str, Any]] = []
        for number, name in enumerate(self.rounds, start=1):
            if name not in learner.sites:
                self.say(f"round {number} of {len(self.rounds)}: {name}")
                learner.learn(
                    self.sites[name],
                    splits[name],
                    leave_out=self.leave_out,
                    checkpoint_seconds=self.checkpoint_seconds,
                    say=self.say,
                )
            rows += self._evaluated(folder, learner, number, name, splits)
        results = self.results(rows)
        if first_process():
            write_json(folder / "results.json", results)
        return results

    def _learner(self, folder: Path) -> Learner:
        there = (folder / "model" / "model.json").exists()
        meet()  # before any process of a job makes what the others look for
        if there:
            learner = Learner(folder / "model")
            if learner.config != self.config or learner.sites != self.rounds[: len(learner.sites)]:
                raise SmgError(f"{folder}: holds a run of another configuration; give another folder")
            return learner
        return Learner.create(folder / "model", self.config)

    def _evaluated(
        self, folder: Path, learner: Learner, number: int, name: str, splits: dict[str, Split]
    ) -> list[dict[str, Any]]:
        """The rows of one round, from its file where they were made before."""
        path = folder / "evaluations" / f"{number:03d}.json"
        if path.exists():
            kept: list[dict[str, Any]] = json.loads(path.read_text())
            return kept
        if learner.current != number:
            raise SmgError(f"{path}: missing, and the model has gone on since; delete {folder} to run it anew")
        rows = []
        for site in self.rounds:
            for row in learner.evaluate(self.sites[site], "test", splits[site], self.leave_out):
                rows.append({"round": name, "site": site, **row.as_json()})
        if first_process():
            write_json(path, rows)
        return rows

    def results(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """Everything a table, a figure or another program needs; the first class's, where there are several."""
        names = self.config.preparation.labels.names
        matrices = {metric: self._matrix(rows, metric, names[0]) for metric in METRICS}
        order = list(self.order)
        return {
            "method": self.config.method,
            "stream": {"order": order, "unseen": self.unseen},
            "seed": self.config.seed,
            "matrix": _jsonable(matrices),
            "measures": _jsonable({m: measures(matrix, order, self.unseen) for m, matrix in matrices.items()}),
            "formulas": FORMULAS,
            "classes": {
                name: _jsonable({m: measures(self._matrix(rows, m, name), order, self.unseen) for m in METRICS})
                for name in names
            },
            "missing": {metric: self._missing(rows, metric, names[0]) for metric in METRICS},
            "subjects": rows,
            "config": self.config.model_dump(mode="json"),
            "versions": versions(),
        }

    def _matrix(self, rows: list[dict[str, Any]], metric: str, name: str) -> Matrix:
        matrix: Matrix = {}
        for row_round in dict.fromkeys(row["round"] for row in rows):
            for site in self.rounds:
                here = [r["classes"][name][metric] for r in rows if r["round"] == row_round and r["site"] == site]
                mean, _ = mean_of(float("nan") if value is None else value for value in here)
                matrix.setdefault(row_round, {})[site] = mean
        return matrix

    def _missing(self, rows: list[dict[str, Any]], metric: str, name: str) -> dict[str, dict[str, int]]:
        """How many subjects a metric does not exist for, where there are any."""
        counts: dict[str, dict[str, int]] = {}
        for row in rows:
            if row["classes"][name][metric] is None:
                of_round = counts.setdefault(row["round"], {})
                of_round[row["site"]] = of_round.get(row["site"], 0) + 1
        return counts


def _jsonable(value: Any) -> Any:
    """NaN is no JSON: null stands for it."""
    if isinstance(value, dict):
        return {key: _jsonable(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and value != value else value

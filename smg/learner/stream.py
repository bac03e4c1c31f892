"""One run: a method on an ordered stream of sites with one seed, and a held-out site that is learned last."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from smg.errors import Misuse, SmgError
from smg.evaluation.measures import FORMULAS, Matrix, measures, plasticity
from smg.evaluation.metrics import COMPARED
from smg.evaluation.subjects import OnSubject, mean_of
from smg.files import locked
from smg.learner.closing import versions_of_packages
from smg.learner.config import LearnerConfig
from smg.learner.events import Begin, End, Evaluation, Event, Listener, StepReport, appending
from smg.learner.learner import Learner
from smg.learner.processes import first_process, meet
from smg.learner.results import (
    Costs,
    MatrixRecord,
    Measures,
    ResultRow,
    Results,
    StreamRecord,
    read_rows,
    write_results,
    write_rows,
)
from smg.learner.round import OnStep, logged
from smg.methods import Step
from smg.prepare.site import prepare_site
from smg.records import Settings
from smg.sites.check import doubled
from smg.sites.site import Site
from smg.sites.split import Split, fold_site, load_splits, save_splits, split_site


@dataclass
class Stream:
    """Learn an ordered stream of sites, and evaluate every site after every round.

        sites = find_sites(Path("data"))  # from smg.sites.layouts
        config = smg.LearnerConfig(method="sga+c")
        smg.Stream(sites, order=["RUNMC", "HCRUDB"], unseen="HK", config=config).run("runs/one")

    Args:
        sites: Sites by name.
        order: Names of the sites to learn, in order.
        unseen: Held-out site: evaluated after every round, and learned in a last one. None for no such site.
        config: Settings of every round.
        splits: Cases of each site's parts, by site. Default: drawn by the seed.
        part: Part of each site that is evaluated; `validation` while settings are being chosen.
        leave_out: Go on without subjects that have faults. Without it, a fault is an error.
        name: Name in tables. Default: the method's.
        checkpoint_seconds: Least time between two checkpoints, in seconds.
        say: Callback for notes to the user, one line each.
        on_step: Callback after each iteration, with its number and its `Step`.
        on_scan: Callback with the site's name, after each scan that is prepared at the beginning.
        on_subject: Callback with (subject, index, total), before each subject is evaluated.
        listeners: Callbacks that receive every event which is written to the run's log.
    """

    sites: dict[str, Site]
    order: Sequence[str]
    unseen: str | None
    config: LearnerConfig
    splits: dict[str, Split] | None = None
    part: str = "test"
    leave_out: bool = False
    name: str = ""
    checkpoint_seconds: float = 60.0
    say: Callable[[str], None] = field(default=lambda line: None)
    on_step: OnStep | None = None
    on_scan: Callable[[str], None] | None = None
    on_subject: OnSubject | None = None
    listeners: Sequence[Listener] = ()

    def __post_init__(self) -> None:
        wanted = [*self.order, *([self.unseen] if self.unseen else [])]
        for name in wanted:
            if name not in self.sites:
                raise SmgError(f"no site {name!r} in the data; it holds {', '.join(self.sites)}")
        if len(set(wanted)) < len(wanted):
            raise Misuse(f"a stream names a site twice: {', '.join(wanted)}")
        self.rounds = wanted
        self.config = self.config.with_channels(self.sites[wanted[0]].channels)

    def run(self, folder: str | Path) -> Results:
        """Learn and evaluate in a folder, write `results.json` there, and return its content.

        The folder also holds the model, the split and `log.jsonl`. A run that was stopped resumes where it was.
        """
        folder = Path(folder)
        with locked(folder) if first_process() else nullcontext():
            return self._run(folder)

    def _run(self, folder: Path) -> Results:
        self._check_model(folder)
        self._refuse_doubles()
        splits = self.splits or {name: self._split(self.sites[name]) for name in self.rounds}
        self._check_splits(folder / "split.json", splits)
        if not any(split[self.part] for split in splits.values()):
            raise SmgError(f"no site has a subject in its {self.part} part; give more subjects, or a split of your own")
        learner = self._learner(folder)
        learner.settle()  # otherwise done by a round, and none may be left
        log = self._logger(folder)
        if first_process():
            save_splits(folder / "split.json", splits, None if self.splits else self.config.seed)
        log(self._begin())
        rows: list[ResultRow] = []
        for number, name in enumerate(self.rounds, start=1):
            if name not in learner.sites:
                self.say(f"round {number} of {len(self.rounds)}: {name}")
                learner.learn(
                    self.sites[name],
                    splits[name],
                    leave_out=self.leave_out,
                    unguarded=True,  # unguarded: a comparison of methods continues whatever a round did
                    checkpoint_seconds=self.checkpoint_seconds,
                    on_step=self._logging_steps(log, number, name),
                    say=self.say,
                )
            rows += self._evaluated(folder, learner, number, splits, log)
        results = self.results(rows).model_copy(update={"costs": self._costs(learner, rows)})
        if first_process():
            write_results(folder, results)
        log(End(measures=results.measures))
        return results

    def _split(self, site: Site) -> Split:
        seed, folds = self.config.seed, self.config.folds
        return split_site(site, seed) if folds is None else fold_site(site, seed, folds)

    def _refuse_doubles(self) -> None:
        """Refuse a scan that is at two sites: it would be learned at one and tested, as if unseen, at the other.

        Subjects that are left out are removed before the sites are split, so that they take no place in a part.
        """
        here = {name: self.sites[name] for name in self.rounds}
        self.say(f"looking through the scans of {', '.join(here)}")
        options = self.config.preparation, self.leave_out
        prepared = [p for site in here.values() for p in prepare_site(site, *options, progress=self.on_scan)]
        faults = doubled((p.subject, p.content, p.turned) for p in prepared)
        if faults and not self.leave_out:
            more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
            raise SmgError(f"{faults[0]}{more}; --leave-out goes on without the second")
        used = {(p.subject.site, p.subject.case) for p in prepared} - {(fault.site, fault.subject) for fault in faults}
        self.sites = self.sites | {
            name: site.keep({case for where, case in used if where == name}) for name, site in here.items()
        }

    def _check_splits(self, path: Path, splits: dict[str, Split]) -> None:
        """Raise an error if a resumed run has other parts than before: a training subject must not be tested."""
        for site, split in (load_splits(path) if path.exists() else {}).items():
            if site in splits and {part: set(cases) for part, cases in splits[site].items()} != {
                part: set(cases) for part, cases in split.items()
            }:
                raise SmgError(f"{path}: the run was begun with another split of site {site}; give another folder")

    @property
    def _stream(self) -> StreamRecord:
        return StreamRecord(order=tuple(self.order), unseen=self.unseen)

    def _begin(self) -> Begin:
        return Begin(
            rounds=tuple(self.rounds),
            iterations=self.config.iterations,
            name=self.name or self.config.method,
            method=self.config.method,
            stream=self._stream,
            seed=self.config.seed,
            part=self.part,
        )

    def _logger(self, folder: Path) -> Listener:
        listeners = [appending(folder), *self.listeners] if first_process() else []

        def log(event: Event) -> None:
            for listener in listeners:
                listener(event)

        return log

    def _logging_steps(self, log: Listener, number: int, site: str) -> OnStep:
        every, last = self.config.log_every, self.config.iterations

        def on_step(iteration: int, step: Step) -> None:
            if (iteration - 1) % every == 0 or iteration == last:
                log(StepReport(round=number, site=site, **logged(iteration, step).model_dump()))
            if self.on_step:
                self.on_step(iteration, step)

        return on_step

    def _learner(self, folder: Path) -> Learner:
        learner = self._check_model(folder)
        meet()  # before any process of a job creates files that the others look for
        return learner or Learner.create(folder / "model", self.config)

    def _check_model(self, folder: Path) -> Learner | None:
        """Return the model of a run that is resumed, or None; raise an error if it is the model of another run."""
        if not (folder / "model" / "model.json").exists():
            return None
        learner = Learner(folder / "model")
        if learner.config != self.config or learner.sites != self.rounds[: len(learner.sites)]:
            raise SmgError(f"{folder}: holds a run of another configuration; give another folder")
        return learner

    def _evaluated(
        self, folder: Path, learner: Learner, number: int, splits: dict[str, Split], log: Listener
    ) -> list[ResultRow]:
        """Return the rows of one round, from its file if the file covers all current sites."""
        path = folder / "evaluations" / self.part / f"{number:03d}.json"
        if path.exists():
            kept = read_rows(path)
            if {row.site for row in kept} >= {site for site in self.rounds if splits[site][self.part]}:
                return kept
        rows = self.evaluate(learner, number, splits)
        name, first = self.rounds[number - 1], self.config.preparation.labels.names[0]
        means = {metric: _jsonable(self._matrix(rows, metric, first))[name] for metric in COMPARED}
        log(Evaluation(round=number, site=name, means=means))
        if first_process():
            write_rows(path, rows)  # after the event was logged, since rows read from a file are not logged again
        return rows

    def evaluate(self, learner: Learner, number: int, splits: dict[str, Split]) -> list[ResultRow]:
        """Return the rows of a round's network on every site's part, also long after the round.

        After the last round of the order no subject of the unseen site has been learned, so its training part is
        evaluated too. Its validation part is not: settings may have been chosen by it.
        """
        last = number == len(self.order) and self.part == "test"
        return [
            ResultRow(round=self.rounds[number - 1], site=site, part=part, subject=row.case, classes=row.metrics())
            for site in self.rounds
            for part in ([self.part, "train"] if last and site == self.unseen else [self.part])
            for row in learner.evaluate(self.sites[site], part, splits[site], self.leave_out, number, self.on_subject)
        ]

    def results(self, rows: list[ResultRow]) -> Results:
        """Return the results of the run; matrices and measures are of the first class where there are several."""
        names = self.config.preparation.labels.names
        begin = self._begin()
        return Results(
            name=begin.name,
            method=begin.method,
            stream=begin.stream,
            seed=begin.seed,
            part=begin.part,
            matrix={metric: _jsonable(self._matrix(rows, metric, names[0])) for metric in COMPARED},
            measures={metric: self._measures(rows, metric, names[0]) for metric in COMPARED},
            formulas=FORMULAS,
            classes={name: {metric: self._measures(rows, metric, name) for metric in COMPARED} for name in names},
            missing={metric: self._missing(rows, metric, names[0]) for metric in COMPARED},
            subjects=tuple(rows),
            config=Settings.model_validate(self.config.model_dump(mode="json")),
            versions=versions_of_packages(),
        )

    def _measures(self, rows: list[ResultRow], metric: str, name: str) -> Measures:
        """Return BM, BT, FM and FT; FT is a difference of two rounds, over the subjects that both have."""
        both = [row for row in rows if row.part in (None, self.part)]
        found, paired = (
            measures(self._matrix(some, metric, name), list(self.order), self.unseen) for some in (rows, both)
        )
        return {key: _number(value) for key, value in (found | {"FT": paired["FT"]}).items()}

    def _costs(self, learner: Learner, rows: list[ResultRow]) -> Costs:
        """Return the costs of the rounds; plasticity needs a network for each site, which only `per-site` has."""
        records = learner.history.records()
        last, own = len(self.order), self.config.recipe().method.one_network_a_site
        name, end = self.config.preparation.labels.names[0], records[last - 1]
        alone = {}
        for metric in COMPARED:
            matrix = self._matrix(rows, metric, name)
            alone[metric] = plasticity(matrix, list(self.order), {s: matrix[s][s] for s in self.order if own})
        weights = sum(p.numel() for p in learner.network(end.round).parameters())
        return Costs(
            plasticity={metric: _number(value) for metric, value in alone.items()},
            replay_subjects=sum(one.subjects for one in end.kept.values()),
            replay_bytes=sum(one.bytes for one in end.kept.values()),
            state_bytes=learner.history.state(end.round).bytes,
            parameters=weights * (last if own else 1),
            seconds={record.site: round(record.seconds, 3) for record in records},
        )

    def _matrix(self, rows: list[ResultRow], metric: str, name: str) -> Matrix:
        matrix: Matrix = {}
        for row_round in self.rounds:
            for site in self.rounds:
                here = [row.classes[name][metric] for row in rows if row.round == row_round and row.site == site]
                mean, _ = mean_of(float("nan") if value is None else value for value in here)
                matrix.setdefault(row_round, {})[site] = mean
        return matrix

    def _missing(self, rows: list[ResultRow], metric: str, name: str) -> dict[str, dict[str, int]]:
        """Return the number of subjects without a value of a metric, where there are any."""
        counts: dict[str, dict[str, int]] = {}
        for row in rows:
            if row.classes[name][metric] is None:
                of_round = counts.setdefault(row.round, {})
                of_round[row.site] = of_round.get(row.site, 0) + 1
        return counts


def _jsonable(matrix: Matrix) -> MatrixRecord:
    """Return a matrix for JSON, with None in place of NaN."""
    return {learned: {site: _number(value) for site, value in row.items()} for learned, row in matrix.items()}


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value

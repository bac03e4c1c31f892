"""One run: a method on an ordered stream of sites with one seed, and a held-out site that is learned last."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from smg.errors import Misuse, SmgError
from smg.evaluation.subjects import OnSubject
from smg.files import locked
from smg.learner.config import LearnerConfig
from smg.learner.events import Begin, End, Evaluation, Event, Listener, StepReport, appending
from smg.learner.exemplars import alias
from smg.learner.learner import Learner
from smg.learner.processes import first_process, meet
from smg.learner.records import RoundRecord
from smg.learner.results import ResultRow, Results, StreamRecord, read_rows, write_results, write_rows
from smg.learner.round import OnStep, logged
from smg.learner.round_checks import check_foreground, check_selection
from smg.learner.summary import costs_of, means_of_sites, summarise
from smg.methods import Step
from smg.prepare.prepared_site import PreparedSite, prepare_site
from smg.sites.check import doubled
from smg.sites.site import Site
from smg.sites.split import Split, check_folds, fold_site, load_splits, save_splits, split_site


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
            raise Misuse(f"a stream names a site twice: {', '.join(wanted)}; name each site once")
        self.rounds = wanted
        self._prepared: dict[str, PreparedSite] = {}  # by name, from the beginning of a run
        self.config = self.config.with_channels(self.sites[wanted[0]].channels)

    def run(self, folder: str | Path) -> Results:
        """Learn and evaluate in a folder, write `results.json` there, and return its content.

        The folder also holds the model, the split and `log.jsonl`. A run that was stopped resumes where it was.
        """
        folder = Path(folder)
        with locked(folder) if first_process() else nullcontext():
            return self._run(folder)

    def _run(self, folder: Path) -> Results:
        found = self._model_of(folder)
        self._prepare()
        splits = self.splits or {name: self._split(self.sites[name]) for name in self.rounds}
        self._check_splits(folder / "split.json", splits)
        self._check_parts(splits, found)
        if not any(split[self.part] for split in splits.values()):
            raise SmgError(f"no site has a subject in its {self.part} part; give more subjects, or a split of your own")
        meet()  # before any process of a job creates files that the others look for
        learner = found or Learner.create(folder / "model", self.config)
        learner.settle()  # otherwise done by a round, and none may be left
        log = self._logger(folder)
        if first_process():
            save_splits(folder / "split.json", splits, None if self.splits else self.config.seed)
        log(self._begin())
        rows: list[ResultRow] = []
        for number, name in enumerate(self.rounds, start=1):
            learned = None
            if name not in learner.sites:
                self.say(f"round {number} of {len(self.rounds)}: {name}")
                learned = learner.learn(
                    self.sites[name],
                    splits[name],
                    leave_out=self.leave_out,
                    unguarded=True,  # unguarded: a comparison of methods continues whatever a round did
                    checkpoint_seconds=self.checkpoint_seconds,
                    on_step=self._logging_steps(log, number, name),
                    say=self.say,
                    prepared=self._prepared[name],
                )
            rows += self._evaluated(folder, learner, number, splits, log, learned)
        results = self.results(rows).model_copy(update={"costs": costs_of(self._stream, learner.versions, rows)})
        if first_process():
            write_results(folder, results)
        log(End(measures=results.measures))
        return results

    def _split(self, site: Site) -> Split:
        seed, folds = self.config.seed, self.config.folds
        return split_site(site, seed) if folds is None else fold_site(site, seed, folds)

    def _prepare(self) -> None:
        """Prepare every site, and refuse a scan that is at two: it would be learned at one and tested at the other.

        Subjects that are left out are removed before the sites are split, so that they take no place in a part.
        """
        here = {name: self.sites[name] for name in self.rounds}
        self.say(f"looking through the scans of {', '.join(here)}")
        options = self.config.preparation, self.leave_out
        self._prepared = {
            name: PreparedSite(prepare_site(site, *options, progress=self.on_scan), self.config.preparation)
            for name, site in here.items()
        }
        prepared = [p for one in self._prepared.values() for p in one.subjects]
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

    def _check_parts(self, splits: dict[str, Split], found: Learner | None) -> None:
        """Raise an error, before the first round, for parts that a later round could not be learned or tested with.

        Sites that a resumed run has learned are not looked at.
        """
        if self.config.folds and not self.splits and self.part == "test" and found is None:
            check_folds([self.sites[name] for name in self.rounds], self.config.folds)
        to_learn = [name for name in self.rounds if found is None or name not in found.sites]
        check_selection(self.config, [name for name in to_learn if not splits[name]["validation"]])
        for name in to_learn:
            train = [p for p in self._prepared[name].subjects if p.subject.case in splits[name]["train"]]
            check_foreground(name, train, self.config.preparation)

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

    def _model_of(self, folder: Path) -> Learner | None:
        """Return the model of a run that is resumed, or None; raise an error if it is the model of another run."""
        if not (folder / "model" / "model.json").exists():
            return None
        learner = Learner(folder / "model")
        if learner.is_encrypted:  # a run keeps case names and prepared scans in the clear
            raise SmgError(f"{folder / 'model'}: encrypted, and a run is not; give another folder, or use `smg learn`")
        if learner.config != self.config or learner.sites != self.rounds[: len(learner.sites)]:
            raise SmgError(f"{folder}: holds a run of another configuration; give another folder")
        return learner

    def _evaluated(
        self,
        folder: Path,
        learner: Learner,
        number: int,
        splits: dict[str, Split],
        log: Listener,
        learned: RoundRecord | None,
    ) -> list[ResultRow]:
        """Return the rows of one round, from its file if the file covers all current sites."""
        path = folder / "evaluations" / self.part / f"{number:03d}.json"
        if path.exists():
            kept = read_rows(path)
            if {row.site for row in kept} >= {site for site in self.rounds if splits[site][self.part]}:
                return kept
        rows = self.evaluate(learner, number, splits, learned)
        name, first = self.rounds[number - 1], self.config.preparation.labels.names[0]
        means = {metric: of[name] for metric, of in means_of_sites(self._stream, rows, first).items()}
        log(Evaluation(round=number, site=name, means=means))
        if first_process():
            write_rows(path, rows)  # after the event was logged, since rows read from a file are not logged again
        return rows

    def evaluate(
        self, learner: Learner, number: int, splits: dict[str, Split], learned: RoundRecord | None = None
    ) -> list[ResultRow]:
        """Return the rows of a round's network on every site's part, also long after the round.

        After the last round of the order no subject of the unseen site has been learned, so its training part is
        evaluated too. Its validation part is not: settings may have been chosen by it. If the round was just learned,
        its record (`learned`) has the rows of its own site's test part, which are not computed again.
        """
        last = number == len(self.order) and self.part == "test"
        return [
            ResultRow(round=self.rounds[number - 1], site=site, part=part, subject=case, classes=classes)
            for site in self.rounds
            for part in ([self.part, "train"] if last and site == self.unseen else [self.part])
            for case, classes in self._of_part(learner, number, site, part, splits[site], learned)
        ]

    def _of_part(
        self, learner: Learner, number: int, site: str, part: str, split: Split, learned: RoundRecord | None
    ) -> list[tuple[str, dict[str, dict[str, float | None]]]]:
        """Return (case, metrics of each class) of each subject of a site's part."""
        if learned is not None and (learned.site, part) == (site, "test"):
            case_of = {alias(self.config.seed, site, case): case for case in split["test"]}
            return [(case_of[row.subject], row.classes) for row in learned.test]
        options = self.leave_out, number, self.on_subject, self._prepared.get(site)
        rows = learner.evaluate(self.sites[site], part, split, *options)
        return [(row.case, row.metrics()) for row in rows]

    def results(self, rows: list[ResultRow]) -> Results:
        """Return the results of the run; matrices and measures are of the first class where there are several."""
        return summarise(self._begin(), self.config, rows)

"""The runs that a settings file and the command line plan: every method on every stream with every seed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from smg.errors import Misuse
from smg.learner.config import LearnerConfig
from smg.learner.config_layers import Tree, configuration, laid, over, to_yaml, typed
from smg.settings_file import SettingsFile, StreamPlan, plain, read_settings, single_model, stream_plan
from smg.sites.site import Aliases
from smg.sites.split import twice


@dataclass(frozen=True)
class PlannedRun:
    """One method on one stream with one seed."""

    name: str  # of the method, or of its variant
    stream_name: str
    stream: StreamPlan
    config: LearnerConfig
    part: str
    aliases: Aliases = field(default_factory=dict)

    @property
    def seed(self) -> int:
        """The seed of split, first weights and batches."""
        return self.config.seed

    @property
    def label(self) -> str:
        """The run's name in messages."""
        return f"{self.name}, {self.stream_name}, seed {self.seed}"

    def folder(self, bench: Path) -> Path:
        """Return the run's folder in a bench's folder."""
        return bench / self.stream_name / self.name / f"seed-{self.seed}"

    def as_file(self) -> str:
        """Return the settings file with which `smg run` makes this run again; it names no path."""
        settings = self.config.model_dump(mode="json", exclude={"method", "options", "seed"})
        method = {"name": self.name, "method": self.config.method, "options": self.config.options}
        stream = {"order": list(self.stream.order), "unseen": self.stream.unseen, "methods": [method]}
        aliases = {"aliases": {site: list(names) for site, names in self.aliases.items()}} if self.aliases else {}
        return to_yaml(stream | {"seeds": [self.seed], "part": self.part} | aliases | settings)


@dataclass(frozen=True)
class Plan:
    """A grid of runs: every method on every stream with every seed."""

    streams: dict[str, StreamPlan] = field(default_factory=dict)
    methods: dict[str, Tree] = field(default_factory=dict)  # name -> the settings that are its own
    seeds: tuple[int, ...] = ()  # if empty: seed 0
    part: str = "test"
    settings: Tree = field(default_factory=dict)  # of every method
    words: Tree = field(default_factory=dict)  # settings of the command line, laid over all others
    data: Path | None = None
    configured: Tree = field(default_factory=dict)  # method and options of a --config laid over the plan
    aliases: Aliases = field(default_factory=dict)  # other names of the sites' folders

    def runs(self) -> list[PlannedRun]:
        """Return the runs seed by seed, so that the first seed's table is complete before the next seed begins."""
        if not self.streams:
            raise Misuse("no stream is named; give --order SITE,SITE,... and --unseen SITE")
        if not self.methods:
            raise Misuse("no method is named; give --method NAME")
        return [
            PlannedRun(name, stream_name, stream, self._configuration(own, seed), self.part, self.aliases)
            for seed in self.seeds or (0,)
            for stream_name, stream in self.streams.items()
            for name, own in self.methods.items()
        ]

    def _configuration(self, own: Tree, seed: int) -> LearnerConfig:
        return configuration(self.settings, own, self.words, {"seed": seed})

    def under(self, other: SettingsFile) -> Plan:
        """Return the plan with a file's settings and aliases laid over it, and its only method and seed if any."""
        if other.aliases:
            return self.known_as(other.aliases).under(replace(other, aliases={}))
        seeds = other.seeds if len(other.seeds) == 1 else self.seeds
        if len(other.methods) != 1:
            methods = {name: laid(own, other.settings) for name, own in self.methods.items()}
            return replace(self, settings=over(self.settings, other.settings), methods=methods, seeds=seeds)
        whole = laid(single_model(self.settings, self.methods, self.seeds), other.layer())
        (name,) = other.methods
        own: Tree = {key: whole.pop(key) for key in ("method", "options") if key in whole}
        whole.pop("seed", None)
        return replace(self, settings=whole, methods={name: own}, seeds=seeds, configured=own)

    def known_as(self, aliases: Aliases) -> Plan:
        """Return the plan with more aliases, and its streams under the names that these give to their sites."""
        every = {**self.aliases, **aliases}
        streams = {name: stream_plan(stream.order, stream.unseen, every) for name, stream in self.streams.items()}
        return replace(self, aliases=every, streams=streams)

    def only(
        self, streams: Iterable[str] | None = None, methods: Iterable[str] | None = None, seeds: Sequence[int] = ()
    ) -> Plan:
        """Return the plan for some of its streams, for these methods (its own variants, or any), and these seeds."""
        cut = self
        if streams:
            cut = replace(cut, streams={name: self._stream(name) for name in streams})
        if methods:
            # A method that is no variant of the plan takes the options of a --config that names the same method.
            named = [
                (plain(name), self.methods.get(name) or laid(self.configured, typed({"method": name})))
                for name in methods
            ]
            for name in twice(name for name, _ in named):
                raise Misuse(f"two methods are called {name!r}; give one of them another `name` in a file")
            cut = replace(cut, methods=dict(named))
        for seed in twice(seeds):
            raise Misuse(f"seed {seed} is given twice; give it once")
        return replace(cut, seeds=tuple(seeds)) if seeds else cut

    def _stream(self, name: str) -> StreamPlan:
        if name not in self.streams:
            raise Misuse(f"no stream {name!r}; choose from {', '.join(self.streams) or 'none: the file has no stream'}")
        return self.streams[name]


def read_plan(source: str) -> Plan:
    """Read the plan in a settings file, or in the ready configuration of that name."""
    read = read_settings(source)
    return Plan(
        streams=read.streams,
        methods=read.methods,
        seeds=read.seeds,
        part=read.part,
        settings=read.settings,
        data=read.data,
        aliases=read.aliases,
    )

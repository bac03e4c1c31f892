"""What to run: a file, or a ready configuration, that names sites, methods and seeds beside any settings.

    data: path/to/sites                      # or --data
    order: [RUNMC, HCRUDB, UCL, BIDMC]       # one stream; several under `streams: {NAME: {order, unseen}}`
    unseen: HK
    aliases: {RUNMC: [ISBI, SiteA]}          # other names of a site's folder; or a configuration that lists them
    methods: [finetune, jm, {name: sga adam, method: sga, options: {inner: adam}}]
    seeds: [0, 1, 2]
    part: test                               # what is evaluated; `validation` while settings are being chosen
    iterations: 1500                         # and any other setting, for every method
    preparation: {size: 64}

One format serves `smg run` (one of its runs), `smg bench` (all of them) and `--config` (its settings).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Any

from smg.errors import Misuse, SmgError
from smg.learner.config import LearnerConfig
from smg.learner.configure import Tree, configuration, from_yaml, laid, over, read_yaml, to_yaml
from smg.sites.site import Aliases, canonical
from smg.sites.split import PARTS, twice

KEYS = ("data", "order", "unseen", "streams", "aliases", "methods", "seeds", "part")


@dataclass(frozen=True)
class StreamPlan:
    """The sites in the order they come, and one that is kept for the end."""

    order: tuple[str, ...]
    unseen: str | None = None

    @property
    def sites(self) -> tuple[str, ...]:
        return (*self.order, self.unseen) if self.unseen else self.order

    @property
    def label(self) -> str:
        return " ".join(self.order) + (f" | {self.unseen}" if self.unseen else "")


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
        return self.config.seed

    @property
    def label(self) -> str:
        return f"{self.name}, {self.stream_name}, seed {self.seed}"

    def folder(self, bench: Path) -> Path:
        return bench / self.stream_name / self.name / f"seed-{self.seed}"

    def as_file(self) -> str:
        """The run as a file for `smg run`, which makes it again; it names no path."""
        settings = self.config.model_dump(mode="json", exclude={"method", "options", "seed"})
        method = {"name": self.name, "method": self.config.method, "options": self.config.options}
        told = {"order": list(self.stream.order), "unseen": self.stream.unseen, "methods": [method]}
        aliases = {"aliases": {site: list(names) for site, names in self.aliases.items()}} if self.aliases else {}
        return to_yaml(told | {"seeds": [self.seed], "part": self.part} | aliases | settings)


@dataclass(frozen=True)
class Plan:
    """A grid of runs: every method on every stream with every seed."""

    streams: dict[str, StreamPlan] = field(default_factory=dict)
    methods: dict[str, Tree] = field(default_factory=dict)  # name -> settings that make it
    seeds: tuple[int, ...] = ()  # none named: 0
    part: str = "test"
    settings: Tree = field(default_factory=dict)
    words: Tree = field(default_factory=dict)  # settings of the command line, over those of the file and its methods
    data: Path | None = None
    configured: Tree = field(default_factory=dict)  # the method and options of a configuration laid over it
    aliases: Aliases = field(default_factory=dict)  # other names of its sites' folders

    def runs(self) -> list[PlannedRun]:
        """Seed by seed, so that the first seed's table is whole when the others are still to come."""
        if not self.streams:
            raise Misuse("no stream is named: give --order SITE,SITE,... and --unseen SITE")
        if not self.methods:
            raise Misuse("no method is named: give --method NAME")
        return [
            PlannedRun(name, stream_name, stream, self._configuration(made, seed), self.part, self.aliases)
            for seed in self.seeds or (0,)
            for stream_name, stream in self.streams.items()
            for name, made in self.methods.items()
        ]

    def _configuration(self, made: Tree, seed: int) -> LearnerConfig:
        return configuration(self.settings, made, self.words, {"seed": seed})

    def layer(self) -> Tree:
        """What it says of a single model: its settings, and method and seed where it names just one."""
        method = next(iter(self.methods.values())) if len(self.methods) == 1 else {}
        return over(self.settings, method) | ({"seed": self.seeds[0]} if len(self.seeds) == 1 else {})

    def under(self, other: Plan) -> Plan:
        """The plan with another's settings and aliases over it, and its method and seed where it names just one."""
        if other.aliases:
            return self.known_as(other.aliases).under(replace(other, aliases={}))
        seeds = other.seeds if len(other.seeds) == 1 else self.seeds
        if len(other.methods) != 1:
            methods = {name: laid(made, other.settings) for name, made in self.methods.items()}
            return replace(self, settings=over(self.settings, other.settings), methods=methods, seeds=seeds)
        whole = laid(self.layer(), other.layer())
        (name,) = other.methods
        own: Tree = {key: whole.pop(key) for key in ("method", "options") if key in whole}
        whole.pop("seed", None)
        return replace(self, settings=whole, methods={name: own}, seeds=seeds, configured=own)

    def known_as(self, aliases: Aliases) -> Plan:
        """Return the plan with more aliases, and its streams under the names that these give their sites."""
        every = {**self.aliases, **aliases}
        streams = {name: stream_plan(stream.order, stream.unseen, every) for name, stream in self.streams.items()}
        return replace(self, aliases=every, streams=streams)

    def only(
        self, streams: Iterable[str] | None = None, methods: Iterable[str] | None = None, seeds: Sequence[int] = ()
    ) -> Plan:
        """The plan for some of its streams, for these methods (its own variants, or any method), for these seeds."""
        cut = self
        if streams:
            cut = replace(cut, streams={name: _named(name, self.streams, "stream") for name in streams})
        if methods:
            made = [
                (plain(name), self.methods.get(name) or laid(self.configured, {"method": name})) for name in methods
            ]
            for name in twice(name for name, _ in made):
                raise Misuse(f"two methods are called {name!r}; a file can give one of them another `name`")
            cut = replace(cut, methods=dict(made))
        for seed in twice(seeds):
            raise Misuse(f"seed {seed} stands twice")
        return replace(cut, seeds=tuple(seeds)) if seeds else cut

    def _made(self, name: str) -> Tree:
        """One of its own variants, or any method, with the options of a configuration that has the same."""
        return self.methods.get(name) or laid(self.configured, {"method": name})


def read_plan(source: str) -> Plan:
    """The plan in a YAML file, or the ready one of that name."""
    path = Path(source)
    there = path.exists() and not path.is_dir()  # a folder may well be called as a ready one is
    if not there and path.suffix not in (".yaml", ".yml"):
        return _parsed(from_yaml(_ready(source)), source, None)
    return _parsed(read_yaml(path), source, path.parent)


def ready() -> list[str]:
    """The names of the ready configurations."""
    return sorted(p.name.removesuffix(".yaml") for p in _configs().iterdir() if p.name.endswith(".yaml"))


def _configs() -> Any:
    return resources.files("smg") / "configs"


def _ready(name: str) -> str:
    if name not in ready():
        close = get_close_matches(name, ready(), n=1)
        meant = f"did you mean {close[0]}? " if close else ""
        raise Misuse(f"{name}: no such file, and no ready configuration; {meant}Ready are {', '.join(ready())}")
    return str((_configs() / f"{name}.yaml").read_text())


def _parsed(told: Tree, where: str, folder: Path | None) -> Plan:
    settings = {key: value for key, value in told.items() if key not in KEYS}
    for key in settings:
        if not isinstance(key, str):
            raise SmgError(f"{where}: no setting {key!r}; `smg settings` lists them")
        if key not in LearnerConfig.model_fields and (
            close := get_close_matches(key, [*KEYS, *LearnerConfig.model_fields], 1)
        ):
            raise SmgError(f"{where}: no setting {key!r}; did you mean {close[0]}?")
    method = settings.pop("method", None)
    seed = settings.pop("seed", None)
    streams = told.get("streams") or {}
    if not isinstance(streams, dict):
        raise SmgError(f"{where}: streams are `NAME: {{order: [SITE, SITE, ...], unseen: SITE}}`")
    streams = dict(streams)
    if "unseen" in told and "order" not in told:
        raise SmgError(f"{where}: `unseen` goes with `order`; a stream of several names its own")
    if "order" in told:
        streams["stream"] = {"order": told["order"], "unseen": told.get("unseen")}
    part = told.get("part", "test")
    if part not in PARTS:
        raise SmgError(f"{where}: part is one of {', '.join(PARTS)}, not {part!r}")
    methods = told.get("methods") or ([method] if method else [])
    if not isinstance(methods, list):
        raise SmgError(f"{where}: methods are a list, such as [jm, sga+c]")
    named = [_method(entry, where) for entry in methods]
    for name in twice(name for name, _ in named):
        raise SmgError(f"{where}: two methods are called {name!r}; give one of them another `name`")
    data = told.get("data")
    aliases = _aliases(told.get("aliases") or {}, where, folder)
    plan = Plan(
        streams={
            _folder_name(str(n), "stream", where): _stream(stream, where, aliases) for n, stream in streams.items()
        },
        methods=dict(named),
        seeds=_seeds(told.get("seeds", [] if seed is None else [seed]), where),
        part=part,
        settings=settings,
        data=None if data is None else (folder or Path()) / str(data),
        aliases=aliases,
    )
    try:
        configuration({key: value for key, value in settings.items() if key != "options"})  # those are a method's
        for made in plan.methods.values():
            configuration(over(settings, made))
    except SmgError as error:
        raise SmgError(f"{where}: {error}") from None
    return plan


def plain(method: str) -> str:
    """A method's name without the file it is in: `mine.py:mine` is `mine`."""
    return method.rpartition(":")[2]


def stream_plan(order: Sequence[str], unseen: str | None, aliases: Aliases | None = None) -> StreamPlan:
    """Return the stream of these sites, each under its own name where an alias was given."""
    if not order:
        raise Misuse("a stream has at least one site; give --order SITE,SITE,...")
    return StreamPlan(tuple(canonical(site, aliases) for site in order), canonical(unseen, aliases) if unseen else None)


def _aliases(given: Any, where: str, folder: Path | None) -> Aliases:
    """Return the aliases of each site: listed here, or in another file or ready configuration that is named."""
    if isinstance(given, str):
        beside = (folder or Path()) / given
        return read_plan(str(beside) if beside.is_file() else given).aliases
    if not isinstance(given, dict) or not all(isinstance(names, list) for names in given.values()):
        raise SmgError(f"{where}: aliases are `SITE: [OTHER NAME, ...]`, or the configuration that lists them")
    aliases = {str(site): tuple(str(name) for name in names) for site, names in given.items()}
    for name in twice(name.upper() for site, names in aliases.items() for name in (site, *names)):
        raise SmgError(f"{where}: aliases: {name} stands for two sites; give it to one of them")
    return aliases


def _stream(told: Any, where: str, aliases: Aliases) -> StreamPlan:
    order = told.get("order") if isinstance(told, dict) else None
    if not isinstance(order, list) or not order or set(told) - {"order", "unseen"}:
        raise SmgError(f"{where}: a stream is `order: [SITE, SITE, ...]` and `unseen: SITE`")
    unseen = told.get("unseen")
    return stream_plan([str(site) for site in order], None if unseen is None else str(unseen), aliases)


def _method(entry: Any, where: str) -> tuple[str, Tree]:
    if isinstance(entry, str):
        return plain(entry), {"method": entry}
    if isinstance(entry, dict) and "method" in entry:
        made = dict(entry)
        name = str(made.pop("name", plain(str(made["method"]))))
        if "seed" in made:
            raise SmgError(f"{where}: a method has no seed of its own; `seeds: [0, 1, 2]` are those of all")
        return _folder_name(name, "method", where), made
    raise SmgError(f"{where}: a method is a name, or `{{name: ..., method: ..., any setting: ...}}`, not {entry!r}")


def _folder_name(name: str, what: str, where: str) -> str:
    if not name or "/" in name or name.startswith("."):
        raise SmgError(f"{where}: {name!r} cannot be a folder's name; name the {what} otherwise")
    return name


def _seeds(told: Any, where: str) -> tuple[int, ...]:
    if not isinstance(told, list) or not all(isinstance(seed, int) and seed >= 0 for seed in told):
        raise SmgError(f"{where}: seeds are a list of whole numbers, such as [0, 1, 2]")
    for seed in twice(told):
        raise SmgError(f"{where}: seed {seed} stands twice")
    return tuple(told)


def _named(name: str, known: dict[str, StreamPlan], kind: str) -> StreamPlan:
    if name not in known:
        raise Misuse(f"no {kind} {name!r}; there is {', '.join(known) or 'none'}")
    return known[name]

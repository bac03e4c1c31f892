"""Read a settings file: any settings, and for a comparison also its sites, methods and seeds.

    data: path/to/sites                      # or --data
    order: [RUNMC, HCRUDB, UCL, BIDMC]       # one stream; several under `streams: {NAME: {order, unseen}}`
    unseen: HK                               # the held-out site: evaluated before it is learned
    aliases: {RUNMC: [ISBI, SiteA]}          # other names of a site's folder; or a configuration that lists them
    methods: [finetune, jm, {name: sga adam, method: sga, options: {inner: adam}}]
    seeds: [0, 1, 2]
    part: test                               # the part that is evaluated; `validation` while settings are being chosen
    iterations: 1500                         # and any other setting, for every method
    preparation: {size: 64}

One format serves `smg run` (one of its runs), `smg bench` (all of them) and `--config` (its settings).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Any

from smg.errors import Misuse, SmgError
from smg.learner.config import LearnerConfig
from smg.learner.config_layers import Tree, configuration, from_yaml, over, read_yaml, typed
from smg.sites.site import Aliases, canonical
from smg.sites.split import PARTS, twice

KEYS = ("data", "order", "unseen", "streams", "aliases", "methods", "seeds", "part")  # every other key is a setting


@dataclass(frozen=True)
class StreamPlan:
    """The sites in the order they are learned, and the held-out site, which is learned last."""

    order: tuple[str, ...]
    unseen: str | None = None

    @property
    def sites(self) -> tuple[str, ...]:
        """All sites, the held-out one last."""
        return (*self.order, self.unseen) if self.unseen else self.order

    @property
    def label(self) -> str:
        """The stream as one line: `RUNMC HCRUDB | HK`."""
        return " ".join(self.order) + (f" | {self.unseen}" if self.unseen else "")


@dataclass(frozen=True)
class SettingsFile:
    """The content of a settings file, checked."""

    streams: dict[str, StreamPlan] = field(default_factory=dict)
    methods: dict[str, Tree] = field(default_factory=dict)  # name -> the settings that are its own
    seeds: tuple[int, ...] = ()
    part: str = "test"
    settings: Tree = field(default_factory=dict)  # of every method
    data: Path | None = None
    aliases: Aliases = field(default_factory=dict)  # other names of the sites' folders

    def layer(self) -> Tree:
        """Return the settings of a single model, with method and seed if the file names exactly one."""
        return single_model(self.settings, self.methods, self.seeds)


def single_model(settings: Tree, methods: Mapping[str, Tree], seeds: Sequence[int]) -> Tree:
    """Return settings with the method laid over them and the seed added, if there is exactly one of each."""
    method = next(iter(methods.values())) if len(methods) == 1 else {}
    return over(settings, method) | ({"seed": seeds[0]} if len(seeds) == 1 else {})


def read_settings(source: str) -> SettingsFile:
    """Read a YAML file, or the ready configuration of that name."""
    path = Path(source)
    is_file = path.exists() and not path.is_dir()  # a folder may have the name of a ready configuration
    if not is_file and path.suffix not in (".yaml", ".yml"):
        return _checked(from_yaml(_ready_text(source)), source, None)
    if not is_file:
        raise SmgError(f"{source}: No such file; give a YAML file, or a ready configuration: {', '.join(ready())}")
    return _checked(read_yaml(path), source, path.parent)


def ready() -> list[str]:
    """Return the names of the ready configurations, sorted."""
    return sorted(p.name.removesuffix(".yaml") for p in _configs().iterdir() if p.name.endswith(".yaml"))


def stream_plan(order: Sequence[str], unseen: str | None, aliases: Aliases | None = None) -> StreamPlan:
    """Return the stream of these sites, each under its own name if an alias was given; a site can come only once."""
    if not order:
        raise Misuse("a stream has no site; give --order SITE,SITE,...")
    sites = tuple(canonical(site, aliases) for site in order)
    plan = StreamPlan(sites, canonical(unseen, aliases) if unseen else None)
    if plan.unseen in plan.order:
        raise Misuse(f"site {plan.unseen} is both in the order and unseen; name it in one of them only")
    for _ in twice(plan.order):
        raise Misuse(f"a stream names a site twice: {', '.join(plan.order)}; name each site once")
    return plan


def plain(method: str) -> str:
    """Return a method's name without the file that defines it: `mine.py:mine` is `mine`."""
    return method.rpartition(":")[2]


# --- checks -----------------------------------------------------------------------------------------------------------


def _configs() -> Any:
    return resources.files("smg") / "configs"


def _ready_text(name: str) -> str:
    if name not in ready():
        close = get_close_matches(name, ready(), n=1)
        meant = f"did you mean {close[0]}? " if close else ""
        raise Misuse(f"{name}: no such file, and no ready configuration; {meant}Ready are {', '.join(ready())}")
    return str((_configs() / f"{name}.yaml").read_text())


def _checked(content: Tree, source: str, folder: Path | None) -> SettingsFile:
    """Return the file's content, or raise an error that names the file."""
    settings = {key: value for key, value in content.items() if key not in KEYS}
    _check_names(settings, source)
    method, seed = settings.pop("method", None), settings.pop("seed", None)
    part = content.get("part", "test")
    if part not in PARTS:
        raise SmgError(f"{source}: part {part!r} does not exist; give one of {', '.join(PARTS)}")
    data = content.get("data")
    aliases = _aliases(content.get("aliases") or {}, source, folder)
    read = SettingsFile(
        streams=_streams(content, source, aliases),
        methods=_methods(content.get("methods") or ([method] if method else []), source),
        seeds=_seeds(content.get("seeds", [] if seed is None else [seed]), source),
        part=part,
        settings=settings,
        data=None if data is None else (folder or Path()) / str(data),
        aliases=aliases,
    )
    try:
        # Options belong to a method, so they are checked with the methods alone.
        configuration(typed({key: value for key, value in settings.items() if key != "options"}))
        for own in read.methods.values():
            configuration(typed(over(settings, own)))
    except SmgError as error:
        raise SmgError(f"{source}: {error}") from None
    return read


def _check_names(settings: Tree, source: str) -> None:
    """Refuse a key that is no setting, if another key is close; `configuration` refuses the rest."""
    for key in settings:
        if not isinstance(key, str):
            raise SmgError(f"{source}: no setting {key!r}; `smg settings` lists them")
        if key not in LearnerConfig.model_fields and (
            close := get_close_matches(key, [*KEYS, *LearnerConfig.model_fields], 1)
        ):
            raise SmgError(f"{source}: no setting {key!r}; did you mean {close[0]}?")


def _aliases(value: Any, source: str, folder: Path | None) -> Aliases:
    """Return the aliases of each site: listed in the file, or in another file or ready configuration it names."""
    if isinstance(value, str):
        beside = (folder or Path()) / value
        listed = (read_yaml(beside) if beside.is_file() else from_yaml(_ready_text(value))).get("aliases")
        if not isinstance(listed, dict):  # nor does a file that is named name another, perhaps the first one again
            raise SmgError(f"{source}: aliases: {value} lists none; name a configuration that has `aliases: {{...}}`")
        return _aliases(listed, value, None)
    if not isinstance(value, dict) or not all(isinstance(names, list) for names in value.values()):
        raise SmgError(f"{source}: aliases cannot be read; write `SITE: [OTHER NAME, ...]`, or a configuration's name")
    aliases = {str(site): tuple(str(name) for name in names) for site, names in value.items()}
    for name in twice(name.upper() for site, names in aliases.items() for name in (site, *names)):
        raise SmgError(f"{source}: aliases: {name} stands for two sites; give it to one of them")
    return aliases


def _streams(content: Tree, source: str, aliases: Aliases) -> dict[str, StreamPlan]:
    streams = content.get("streams") or {}
    if not isinstance(streams, dict):
        raise SmgError(f"{source}: streams cannot be read; write `NAME: {{order: [SITE, SITE, ...], unseen: SITE}}`")
    streams = dict(streams)
    if "unseen" in content and "order" not in content:
        raise SmgError(f"{source}: `unseen` without `order`; write both, or `unseen` inside each of the streams")
    if "order" in content:
        streams["stream"] = {"order": content["order"], "unseen": content.get("unseen")}
    return {
        _folder_name(str(name), "stream", source): _stream(value, source, aliases) for name, value in streams.items()
    }


def _stream(value: Any, source: str, aliases: Aliases) -> StreamPlan:
    order = value.get("order") if isinstance(value, dict) else None
    if not isinstance(order, list) or not order or set(value) - {"order", "unseen"}:
        raise SmgError(f"{source}: a stream cannot be read; write `order: [SITE, SITE, ...]` and `unseen: SITE`")
    unseen = value.get("unseen")
    try:
        return stream_plan([str(site) for site in order], None if unseen is None else str(unseen), aliases)
    except Misuse as error:
        raise SmgError(f"{source}: {error}") from None


def _methods(entries: Any, source: str) -> dict[str, Tree]:
    if not isinstance(entries, list):
        raise SmgError(f"{source}: methods cannot be read; write a list, such as [jm, sga+c]")
    named = [_method(entry, source) for entry in entries]
    for name in twice(name for name, _ in named):
        raise SmgError(f"{source}: two methods are called {name!r}; give one of them another `name`")
    return dict(named)


def _method(entry: Any, source: str) -> tuple[str, Tree]:
    if isinstance(entry, str):
        return plain(entry), {"method": entry}
    if isinstance(entry, dict) and "method" in entry:
        own = dict(entry)
        name = str(own.pop("name", plain(str(own["method"]))))
        if "seed" in own:
            raise SmgError(f"{source}: method {name!r} has a seed; the seeds of all methods are `seeds: [0, 1, 2]`")
        return _folder_name(name, "method", source), own
    if isinstance(entry, list):
        raise SmgError(f"{source}: `method` is one method's name; write a list as `methods: [jm, sga+c]`")
    raise SmgError(f"{source}: {entry!r} is not a method; write a name, or `{{name: ..., method: ..., setting: ...}}`")


def _folder_name(name: str, what: str, source: str) -> str:
    if not name or "/" in name or name.startswith("."):
        raise SmgError(f"{source}: {name!r} cannot be a folder's name; give the {what} another name")
    return name


def _seeds(value: Any, source: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(isinstance(seed, int) and seed >= 0 for seed in value):
        raise SmgError(f"{source}: seeds cannot be read; write whole numbers, such as [0, 1, 2]")
    for seed in twice(value):
        raise SmgError(f"{source}: seed {seed} is listed twice; list it once")
    return tuple(value)

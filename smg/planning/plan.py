"""A plan: settings for some sites on this machine, each with its reason, as a file that is read like any other."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from typing import Any

from smg.learner.config import LearnerConfig
from smg.learner.config_layers import Tree, configuration, from_yaml, laid
from smg.planning.facts import Facts
from smg.planning.machine import Cost, cost_of, here

MINUTES = 60.0  # a round, by default
# Of the field around what is needed, by the number of sites looked at: the next patient's organ is larger, or lies
# further out. Of the real prostate sites one alone needs 67 to 100 mm, all five 100 mm.
ROOM = {1: 1.5, 2: 1.35}
ROOM_OF_SEVERAL = 1.2
CENTRAL = 0.8  # of the view, at most, where foreground counts as central
CONTEXT = 1.5  # of a window's side, at least, over the organ's
ENOUGH = 2000  # iterations that a larger candidate must still make: chosen by hand, as the next two
PLENTY = 6000  # no round has more
FEWEST = 200  # no round has fewer, whatever the minutes
LONG = 1000  # iterations from which on augmentation is strong: the rounds of prostate-recommended have as many
# (pixels of the window's side, width of the network), from cheap to dear.
CANDIDATES = (
    (64, 8), (96, 8), (96, 16), (128, 16), (160, 16), (192, 16), (192, 32), (256, 32), (320, 32), (384, 32),
)  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """One line of a plan."""

    key: str  # dotted
    value: Any
    reason: str


@dataclass(frozen=True)
class Made:
    """A plan: its settings, and what to expect of them."""

    settings: tuple[Setting, ...]
    facts: Facts
    minutes: float  # asked for, a round
    machine: str
    cost: Cost

    def tree(self) -> Tree:
        """Return the settings as a configuration's layer."""
        whole: Tree = {}
        for setting in self.settings:
            inner: Any = setting.value
            for part in reversed(setting.key.split(".")):
                inner = {part: inner}
            whole = laid(whole, inner)
        return whole

    def configuration(self) -> LearnerConfig:
        return configuration(self.tree())

    @property
    def expected(self) -> float:
        """Minutes of a round's training, from the second round on."""
        return self.tree()["iterations"] * self.cost.seconds / 60

    def as_file(self) -> str:
        """Return YAML with the reason beside each line; it names no path and no patient."""
        count = f"{len(self.facts.subjects)} subjects, {self.facts.slices} slices"
        lines = [
            f"# Made by `smg plan` from {', '.join(self.facts.sites)} ({count})",
            f"# for {self.minutes:g} minutes a round on {self.machine}. The same file gives the same model anywhere.",
        ]
        section = ""
        for setting in self.settings:
            *above, name = setting.key.split(".")
            if above and above[0] != section:
                lines.append(f"{above[0]}:")
            section = above[0] if above else ""
            lines.append(f"{'  ' * len(above) + f'{name}: {_yaml(setting.value)}':<34}  # {setting.reason}")
        return "\n".join(lines) + "\n"

    def in_short(self) -> list[str]:
        """Return the plan in five lines."""
        config = self.configuration()
        p, n = config.preparation, config.network
        assert p.spacing is not None
        seen = f"the central {p.field:g} mm" if p.field else "windows"
        million = self.cost.parameters / 1e6
        return [
            f"scans:    {len(self.facts.subjects)} of {', '.join(self.facts.sites)}; pixels about "
            f"{self.facts.pixel:.2f} mm, foreground within the central {self.facts.needed:.0f} mm",
            f"input:    {seen} at {p.spacing:g} mm, {p.size} x {p.size} pixels",
            f"network:  U-Net of width {n.width}, depth {n.depth} ({million:.2f} M parameters)",
            f"training: {config.method}, {config.iterations} iterations of {config.batch} slices a round, rate "
            f"{config.optimiser.rate:g} falling as a {config.optimiser.schedule}",
            f"expect:   {self.expected:.1f} minutes a round on {self.machine}; the first, without replay, is shorter; "
            f"about {self._gigabytes(config):.1f} GB",
        ]

    def _gigabytes(self, config: LearnerConfig) -> float:
        """Estimate the memory of a step: torch itself, and some 40 maps of the window's size for each sample."""
        maps = 40 * config.network.width * math.prod(config.preparation.shape) * 2 * config.batch * 4
        return 0.5 + (maps + 8 * 4 * self.cost.parameters) / 1e9


def make_plan(
    facts: Facts, minutes: float = MINUTES, say: Callable[[str], None] | None = None, given: Tree | None = None
) -> Made:
    """Choose settings for these scans and this machine; `given` settings (method, labels) are taken as they are."""
    base = laid(recommended(), given or {})
    untried = laid({"augment": "strong"}, base)  # augmentation counts in the time of a step
    field = _field(facts)
    chosen: tuple[list[Setting], Cost] | None = None
    for size, width in CANDIDATES:
        scale = _scale(facts, field, size)
        if scale is None and chosen is not None:
            break  # finer than the scans are: nothing more to see
        settings = [*_input(facts, field, size, scale or facts.pixel), *_network(size, width)]
        trial = Made(tuple(settings), facts, minutes, "", Cost(0, 0)).tree()
        config = configuration(laid(untried, trial, {"iterations": 1000, "batch": 5})).with_channels(facts.channels)
        cost = cost_of(config, 2 * size)
        if say:
            say(f"tried {size} x {size}, width {width}: {cost.seconds:.2f} s an iteration")
        fit = int(60 * minutes / cost.seconds)
        if chosen is None or fit >= ENOUGH:
            chosen = settings, cost
        if fit < ENOUGH:
            break
    assert chosen is not None
    settings, cost = chosen
    iterations = max(FEWEST, min(PLENTY, int(60 * minutes / cost.seconds))) // 50 * 50
    whole = (*_method(base), *_augmentation(base, iterations), *settings, *_training(iterations, cost, base))
    return Made(whole, facts, minutes, here(), cost)


def recommended() -> Tree:
    """Return the recommended method's settings, the ready configuration `recommended`, but for augmentation."""
    text = (resources.files("smg") / "configs" / "recommended.yaml").read_text()
    (method,) = from_yaml(text)["methods"]
    return {key: value for key, value in method.items() if key not in ("name", "augment")}


def _field(facts: Facts) -> float | None:
    """Return the central field, rounded to 10 mm, or None where foreground lies too far out for one.

    It has room for the next patients as far as the narrowest view has.
    """
    if facts.needed > CENTRAL * facts.view:
        return None
    roomy = math.ceil(facts.needed * ROOM.get(len(facts.sites), ROOM_OF_SEVERAL) / 10)
    return 10.0 * max(min(roomy, math.floor(facts.view / 10)), math.ceil(facts.needed / 10))


def _scale(facts: Facts, field: float | None, size: int) -> float | None:
    """Return the spacing of a window of that size, or None where it would be finer than the scans' own pixels."""
    wanted = field / size if field else max(facts.pixel, CONTEXT * facts.organ / size)
    if field and wanted < 0.9 * facts.pixel:
        return None
    return math.ceil(100 * wanted - 1e-6) / 100


def _input(facts: Facts, field: float | None, size: int, spacing: float) -> list[Setting]:
    p = "preparation."
    why = f"{field:g} mm in {size} pixels; " if field else ""
    settings = [
        Setting(p + "spacing", spacing, f"mm; {why}the scans' own pixels are about {facts.pixel:.2f} mm"),
        Setting(p + "size", size, f"pixels of the window's side: {size * spacing:.0f} mm"),
    ]
    if field:
        why = f"mm; all foreground lies in the central {facts.needed:.0f} mm, views are {facts.view:.0f} mm and more"
        settings.append(Setting(p + "field", field, why))
    else:
        why = f"no field: foreground needs the central {facts.needed:.0f} mm, views are {facts.view:.0f} mm and more"
        settings.append(Setting(p + "foreground", 0.5, f"share of windows on foreground; {why}"))
    if facts.outlying:
        why = f"percentiles; {facts.outlying} subjects have a few voxels far brighter than the rest"
        settings.append(Setting(p + "clip", [0.5, 99.5], why))
    if len(facts.channels) > 1:
        settings.append(Setting(p + "channels", list(facts.channels), "each normalised on its own"))
    if facts.labels.classes:
        settings.append(Setting(p + "labels", facts.labels.model_dump(mode="json"), "as given"))
    return settings


def _network(size: int, width: int) -> list[Setting]:
    depth = max(2, min(5, int(math.log2(size / 6))))
    smallest = size // 2**depth
    return [
        Setting("network.width", width, "filters of the first level; twice as many after each halving"),
        Setting("network.depth", depth, f"halvings: {smallest} x {smallest} pixels at the bottleneck"),
    ]


def _method(base: Tree) -> list[Setting]:
    settings = [Setting("method", base["method"], "recommended: see docs/methods")]
    if base.get("options"):
        settings.append(Setting("options", base["options"], "inner steps as large as the optimiser's own"))
    return settings


def _augmentation(base: Tree, iterations: int) -> list[Setting]:
    """Return augmentation by the length of a round, and mirrored passes; as given where they are."""
    if iterations >= LONG:
        augment = Setting("augment", "strong", "with mirrored passes better than mild on real sites, most at a new one")
    else:
        augment = Setting("augment", "mild", f"strong has been tried in rounds of {LONG} iterations and more")
    mirror = Setting("mirror", True, "average with the prediction left for right: better, at twice the passes")
    return [Setting(s.key, base[s.key], "as given") if s.key in base else s for s in (augment, mirror)]


def _training(iterations: int, cost: Cost, base: Tree) -> list[Setting]:
    why = f"{iterations * cost.seconds / 60:.1f} minutes at {cost.seconds:.2f} s"
    why += "; a plan takes no more" if iterations == PLENTY else ""
    return [
        Setting("iterations", iterations, why),
        Setting("batch", 5, "slices of the incoming site, and as many replayed: the paper's"),
        Setting("select", base.get("select", "average"), "the mean of the second half's weights closes a round"),
        Setting("validate_every", max(1, iterations // 4), "a curve of four points a round"),
        Setting(
            "share",
            True,
            "slices asked for at the same weights are passed once and together: the same but for rounding",
        ),
        Setting("optimiser.rate", 2e-3, "the rate of the trials on real sites, since it falls"),
        Setting("optimiser.schedule", "cosine", "to zero at the round's end"),
    ]


def _yaml(value: Any) -> str:
    """Write a value in one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_yaml(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_yaml(inner) for inner in value) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}" if "e" not in f"{value:g}" else f"{value:.1e}"
    return "null" if value is None else str(value)

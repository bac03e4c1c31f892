"""A plan: settings for some sites on this machine, each with its reason, as a file that is read like any other."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

from smg.learner.config import LearnerConfig
from smg.learner.config_layers import Tree, configuration, from_yaml, laid, over, to_yaml_line
from smg.learner.processes import agreed
from smg.planning.facts import Facts
from smg.planning.looks import Look, looks
from smg.planning.machine import Cost, cost_of, here

MINUTES = 60.0  # a round, by default
ENOUGH = 2000  # iterations that a larger candidate must still make: chosen by hand, as the next two
PLENTY = 6000  # no round has more
FEWEST = 200  # no round has fewer, whatever the minutes
LONG = 1000  # iterations from which on augmentation is strong: the rounds of prostate-recommended have as many
BATCH = 5  # the paper's
DEFAULT_LOSS = str(LearnerConfig.model_fields["loss"].default)


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
        return _tree(self.settings)

    def configuration(self) -> LearnerConfig:
        return configuration(self.tree())

    @property
    def expected(self) -> float:
        """Minutes of a round's training, from the second round on."""
        return self.tree()["iterations"] * self.cost.seconds / 60

    def as_file(self) -> str:
        """Return YAML with the reason beside each line; it names no path and no patient."""
        count = f"{len(self.facts.subjects)} subjects{self._part}, {self.facts.slices} slices"
        lines = [
            _one_line(f"# Made by `smg plan` from {', '.join(self.facts.sites)} ({count})"),
            f"# for {self.minutes:g} minutes a round on {self.machine}. The same file gives the same model anywhere.",
            *(_one_line(f"# Warning: {line}") for line in self.facts.warnings()),
        ]
        section = ""
        for setting in self.settings:
            *above, name = setting.key.split(".")
            if above and above[0] != section:
                lines.append(f"{above[0]}:")
            section = above[0] if above else ""
            line = f"{'  ' * len(above)}{name}: {to_yaml_line(setting.value)}"
            lines.append(f"{line:<34}  # {_one_line(setting.reason)}")
        return "\n".join(lines) + "\n"

    def in_short(self) -> list[str]:
        """Return the plan in five lines, and a warning for each site that it does not suit."""
        config = self.configuration()
        p, n = config.preparation, config.network
        assert p.spacing is not None
        seen = f"the central {p.field:g} mm" if p.field else "windows"
        million = self.cost.parameters / 1e6
        lines = [
            f"scans:    {len(self.facts.subjects)} of {', '.join(self.facts.sites)}{self._part}; pixels about "
            f"{self.facts.pixel:.2f} mm, foreground within the central {self.facts.needed:.0f} mm",
            f"input:    {seen} at {p.spacing:g} mm, {p.size} x {p.size} pixels",
            f"network:  U-Net of width {n.width}, depth {n.depth} ({million:.2f} M parameters)",
            f"training: {config.method}, {config.iterations} iterations of {config.batch} slices a round, rate "
            f"{config.optimiser.rate:g} falling as a {config.optimiser.schedule}",
            f"expect:   {self.expected:.1f} minutes a round{self._more} on {self.machine}; the first, without "
            f"replay, is shorter; about {self._gigabytes(config):.1f} GB",
            *(f"warning:  {line}" for line in self.facts.warnings()),
        ]
        return [_one_line(line) for line in lines]

    @property
    def _more(self) -> str:
        """Say why the minutes asked for are not kept, where they are not."""
        is_least = self.tree()["iterations"] == FEWEST and self.expected > self.minutes
        return f" ({FEWEST} iterations, the least of a round, do not fit in {self.minutes:g})" if is_least else ""

    @property
    def _part(self) -> str:
        """Say which subjects were looked at, if not all."""
        return " for training and validation" if self.facts.is_part else ""

    def _gigabytes(self, config: LearnerConfig) -> float:
        """Estimate the memory of a step: torch itself, and some 40 maps of the window's size for each sample."""
        maps = 40 * config.network.width * math.prod(config.preparation.shape) * 2 * config.batch * 4
        return 0.5 + (maps + 8 * 4 * self.cost.parameters) / 1e9


def make_plan(
    facts: Facts, minutes: float = MINUTES, say: Callable[[str], None] | None = None, given: Tree | None = None
) -> Made:
    """Choose settings for these scans and this machine; `given` settings (method, iterations) are taken as they are."""
    given = given or {}
    base = laid(recommended() if "method" not in given else {}, given)
    look, cost = _largest_affordable(facts, minutes, base, say)
    iterations = max(FEWEST, min(PLENTY, int(60 * minutes / cost.seconds))) // 50 * 50
    iterations = int(base.get("iterations", iterations))
    chosen = (
        *_method(base),
        *_augmentation(facts, iterations),
        *_input(facts, look),
        *_network(look),
        *_training(iterations, cost, base),
        *_loss(facts, base),
        *_prediction(facts),
    )
    settings = [_as_given(setting, given, base) for setting in chosen]
    return Made(tuple(_with_the_rest(settings, given)), facts, minutes, here(), cost)


def _largest_affordable(
    facts: Facts, minutes: float, base: Tree, say: Callable[[str], None] | None
) -> tuple[Look, Cost]:
    """Return the largest candidate that makes enough iterations in the time, or else the first, and its cost."""
    enough = max(ENOUGH, int(base.get("iterations", 0)))
    chosen: tuple[Look, Cost] | None = None
    for look in looks(facts):
        measured = _cost(facts, look, base)
        cost = replace(measured, seconds=agreed(measured.seconds))
        if say:
            say(f"tried {look.size} x {look.size}, width {look.width}: {cost.seconds:.2f} s an iteration")
        is_affordable = 60 * minutes / cost.seconds >= enough
        if chosen is None or is_affordable:
            chosen = look, cost
        if not is_affordable:
            break
    assert chosen is not None
    return chosen


def _cost(facts: Facts, look: Look, base: Tree) -> Cost:
    """Return the measured cost of a candidate's step; augmentation counts in it."""
    untried = laid({"augment": "strong", "batch": BATCH}, base)
    trial = _tree([*_input(facts, look), *_network(look)])
    config = configuration(laid(untried, trial, {"iterations": 1000})).with_channels(facts.channels)
    return cost_of(config, 2 * look.size)


def _as_given(setting: Setting, given: Tree, base: Tree) -> Setting:
    """Return a setting with the value that the user gave, if one was given."""
    if setting.key not in given or setting.key == "iterations":  # which were given to the plan itself
        return setting
    value = laid({setting.key: setting.value}, {setting.key: base[setting.key]})[setting.key]
    return replace(setting, value=value, reason="as given")


def _with_the_rest(settings: Sequence[Setting], given: Tree) -> list[Setting]:
    """Return the settings and those given that a plan does not choose, such as the seed, each in its section."""
    whole, chosen = list(settings), {setting.key for setting in settings}
    for key, value in given.items():
        if key in chosen:
            continue
        inner = {f"{key}.{name}": one for name, one in value.items()} if isinstance(value, dict) else {key: value}
        rest = [Setting(name, one, "as given") for name, one in inner.items() if name not in chosen]
        section = [place for place, setting in enumerate(whole) if setting.key.startswith(f"{key}.")]
        end = section[-1] + 1 if section else len(whole)
        whole[end:end] = rest
    return whole


def _tree(settings: Iterable[Setting]) -> Tree:
    """Return settings as a configuration's layer."""
    whole: Tree = {}
    for setting in settings:
        inner: Any = setting.value
        for part in reversed(setting.key.split(".")):
            inner = {part: inner}
        whole = over(whole, inner)
    return whole


def recommended() -> Tree:
    """Return the recommended method's settings, the ready configuration `recommended`, but for augmentation."""
    text = (resources.files("smg") / "configs" / "recommended.yaml").read_text()
    (method,) = from_yaml(text)["methods"]
    return {key: value for key, value in method.items() if key not in ("name", "augment")}


def _input(facts: Facts, look: Look) -> list[Setting]:
    p = "preparation."
    seen = look.field or facts.view
    is_filled = look.window < 1.1 * seen
    why = f"{look.field:g} mm in {look.size} pixels; " if look.field and is_filled else ""
    beyond = "" if is_filled else f"; the {seen:.0f} mm to see have too few pixels to fill it"
    settings = [
        Setting(p + "spacing", look.spacing, f"mm; {why}the scans' own pixels are about {facts.pixel:.2f} mm"),
        Setting(p + "size", look.size, f"pixels of the window's side: {look.window:.0f} mm{beyond}"),
    ]
    views = f"views are {facts.view:.0f} mm and more"
    if look.field:
        why = f"mm; all foreground lies in the central {facts.needed:.0f} mm, {views}"
        settings.append(Setting(p + "field", look.field, why))
    else:
        why = f"no field: foreground needs the central {facts.needed:.0f} mm, {views}"
        settings.append(Setting(p + "foreground", 0.5, f"share of windows on foreground; {why}"))
        if len(facts.labels.names) > 1:
            settings.append(Setting(p + "even_classes", True, "a small class is drawn as often as a large one"))
    if facts.outlying:
        why = f"percentiles; {facts.outlying} subjects have a few voxels far brighter than the rest"
        settings.append(Setting(p + "clip", [0.5, 99.5], why))
    if len(facts.channels) > 1:
        settings.append(Setting(p + "channels", list(facts.channels), "each normalised on its own"))
    if facts.labels.classes:
        settings.append(Setting(p + "labels", facts.labels.model_dump(mode="json"), "as given"))
    return settings


def _network(look: Look) -> list[Setting]:
    depth = max(2, min(5, int(math.log2(look.size / 6))))
    smallest = look.size // 2**depth
    return [
        Setting("network.width", look.width, "filters of the first level; twice as many after each halving"),
        Setting("network.depth", depth, f"halvings: {smallest} x {smallest} pixels at the bottleneck"),
    ]


def _method(base: Tree) -> list[Setting]:
    settings = [Setting("method", base["method"], "recommended: see docs/methods")]
    if base.get("merge"):
        why = "share of a round's own weights, the rest are those before it: forgets less, at no cost"
        settings.append(Setting("merge", base["merge"], why))
    if base.get("options"):
        settings.append(Setting("options", base["options"], "inner steps as large as the optimiser's own"))
    return settings


def _augmentation(facts: Facts, iterations: int) -> list[Setting]:
    """Return augmentation by the length of a round, and mirrored passes; neither mirrors classes that have a side."""
    if iterations >= LONG:
        preset, why = "strong", "with mirrored passes better than mild on real sites, most at a new one"
    else:
        preset, why = "mild", f"strong has been tried in rounds of {LONG} iterations and more"
    sides = facts.on_two_sides
    if sides is None:
        mirrored = "average with the prediction left for right: better, at twice the passes"
        return [Setting("augment", preset, why), Setting("mirror", True, mirrored)]
    unflipped = {"preset": preset, "flip": {"probability": 0}}
    ordered = f"{sides.left} lies to the left of {sides.right} in {sides.subjects} of {sides.both} subjects"
    return [
        Setting("augment", unflipped, f"no flips left for right, see mirror; {why}"),
        Setting("mirror", False, f"{ordered}: a mirrored scan would exchange them"),
    ]


def _training(iterations: int, cost: Cost, base: Tree) -> list[Setting]:
    why = f"{iterations * cost.seconds / 60:.1f} minutes at {cost.seconds:.2f} s"
    if "iterations" in base:
        why = f"as given; {why}"
    elif iterations == PLENTY:
        why += "; a plan takes no more"
    elif iterations == FEWEST:
        why += "; a plan takes no fewer"
    return [
        Setting("iterations", iterations, why),
        Setting("batch", BATCH, "slices of the incoming site, and as many replayed: the paper's"),
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


def _loss(facts: Facts, base: Tree) -> list[Setting]:
    """Return that Dice leaves out classes that a slice does not have, where there are several classes."""
    if len(facts.labels.names) < 2 or base.get("loss", DEFAULT_LOSS) not in (DEFAULT_LOSS, "dice+focal"):
        return []
    why = "Dice of the classes that a slice has: otherwise small organs that most slices lack may not be learned"
    return [Setting("loss_options", {"absent": False}, why)]


def _prediction(facts: Facts) -> list[Setting]:
    """Return that all components are kept, where masks have classes of several pieces."""
    pieces = facts.in_pieces
    if pieces is None:
        return []
    why = f"{pieces.name} has several pieces: its largest holds {100 * pieces.share:.0f} % of it (median)"
    return [Setting("largest_component", False, why)]


def _one_line(text: str) -> str:
    """Return a text for a comment: names of sites and classes may hold line breaks."""
    return "".join(c if c.isprintable() else " " for c in text)

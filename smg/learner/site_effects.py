"""What each round did to every site: its DSC before and after, and by what evidence.

History, commands and reports read it from the rounds' records. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from smg.learner.guard import GuardConfig, SliceFalls
from smg.learner.records import RoundRecord, SubjectRow

Kind = Literal["test part", "sentinels", "held-out scans", "own network", "none"]
WORDS = {"sentinels": "sentinel", "held-out scans": "held-out scan"}  # of one subject


@dataclass(frozen=True)
class Effect:
    """The effect of one round on one site, in fractions of DSC."""

    round: int
    site: str
    evidence: Kind
    subjects: int = 0  # that were measured
    before: float | None = None  # None at the site that the round learned
    after: float | None = None
    best: float | None = None  # after any earlier round
    error: float | None = None  # standard error of the change
    exemplars: tuple[float, float] | None = None  # before and after; trained on, so no evidence
    slices: SliceFalls | None = None  # of the same subjects
    classes: dict[str, float] = field(default_factory=dict)  # at the site that the round learned: after, by class
    lost: bool = False  # fell by more than the tolerance, or lies far below its best

    @property
    def change(self) -> float | None:
        """Return after - before, where both were measured."""
        return None if self.before is None or self.after is None else self.after - self.before

    @property
    def grounds(self) -> str:
        """Return the evidence in words: `1 sentinel`, `test part (4)`, `not measured`."""
        if self.evidence == "none":
            return "not measured"
        if self.evidence == "own network":
            return "has its own network"
        if self.evidence == "test part":
            classes = ", ".join(f"{name} {100 * dsc:.1f}" for name, dsc in self.classes.items())
            return f"test part ({self.subjects})" + (f": {classes}" if len(self.classes) > 1 else "")
        return f"{self.subjects} {WORDS[self.evidence]}{'s' * (self.subjects != 1)}"

    def as_json(self) -> dict[str, Any]:
        """Return the effect for JSON, with the evidence of an unmeasured site as `not measured`."""
        whole = {name: value for name, value in asdict(self).items() if name != "round"}
        whole["slices"] = self.slices.model_dump() if self.slices else None
        return whole | {"change": self.change, "evidence": self.grounds if self.evidence == "none" else self.evidence}


def effects_of(record: RoundRecord, earlier: Sequence[str]) -> list[Effect]:
    """Return what a round did to its own site, and then to each site learned before it."""
    after, classes = mean_dsc(record.test), dsc_by_class(record.test)
    own = Effect(record.round, record.site, "test part", len(record.test), after=after, classes=classes)
    return [own, *(_earlier(record, site) for site in dict.fromkeys(earlier) if site != record.site)]


def _earlier(record: RoundRecord, site: str) -> Effect:
    both = record.earlier.get(site)
    exemplars = None if both is None or both.before is None or both.after is None else (both.before, both.after)
    judged = record.guard.sites.get(site) if record.guard else None
    if judged is None:
        # The guard judges every earlier site, except where each site has a network of its own.
        return Effect(record.round, site, "own network" if record.guard else "none", exemplars=exemplars)
    return Effect(
        record.round,
        site,
        judged.evidence,
        judged.subjects,
        judged.before,
        judged.after,
        judged.best,
        judged.error,
        judged.exemplars or exemplars,
        judged.slices,
        lost=judged.lost(tolerance_of(record)),
    )


def tolerance_of(record: RoundRecord) -> float:
    """Return the points of DSC that a round was allowed to cost; of an unguarded round, those of its settings."""
    if record.guard and record.guard.tolerance is not None:
        return record.guard.tolerance
    settings = record.config.tree().get("guard") or {}
    return float(settings.get("tolerance", GuardConfig().tolerance))


def mean_dsc(rows: Iterable[SubjectRow]) -> float | None:
    """Return the mean DSC over subjects and classes; None where there is none."""
    values = [dsc for row in rows for metrics in row.classes.values() if (dsc := metrics["dsc"]) is not None]
    return sum(values) / len(values) if values else None


def dsc_by_class(rows: Sequence[SubjectRow]) -> dict[str, float]:
    """Return the mean DSC of each class over subjects."""
    found: dict[str, list[float]] = {}
    for row in rows:
        for name, metrics in row.classes.items():
            if (dsc := metrics["dsc"]) is not None:
                found.setdefault(name, []).append(dsc)
    return {name: sum(values) / len(values) for name, values in found.items()}


# --- what a version knows ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Standing:
    """What is known of a learned site at a version: whether it still knows the site, and since when."""

    site: str
    state: Literal["known", "lost", "not measured"]
    round: int  # the last round that measured the site
    best: float | None = None
    after: float | None = None  # by the last measurement

    def __str__(self) -> str:
        if self.state == "lost":
            best, after = (100 * (dsc or 0.0) for dsc in (self.best, self.after))
            fell = f"DSC {best:.1f} % at its best, {after:.1f} % when it was last measured"
            return f"it has lost {self.site}: {fell} (round {self.round})"
        if self.state == "not measured":
            return f"it cannot tell whether it still knows {self.site}: not measured since round {self.round}"
        return f"it knows {self.site}"


def standings(records: Sequence[RoundRecord]) -> list[Standing]:
    """Return the standing of every site after these rounds, which led to one version, in the order of learning.

    A site is lost if a round lowered its DSC by more than was tolerated and no later round restored it. Where the last
    rounds could not measure a site, nothing is known of it, unless it was lost before.
    """
    found: dict[str, Standing] = {}
    for number, record in enumerate(records):
        for effect in effects_of(record, [one.site for one in records[:number]]):
            found[effect.site] = _after(effect, found.get(effect.site))
    return list(found.values())


def _after(effect: Effect, before: Standing | None) -> Standing:
    """Return a site's standing after a round."""
    if before is None or effect.evidence == "test part":
        return Standing(effect.site, "known", effect.round, effect.after, effect.after)
    if effect.evidence == "own network" or (effect.evidence == "none" and before.state != "known"):
        return before
    if effect.evidence == "none":
        return Standing(effect.site, "not measured", before.round, before.best, before.after)
    is_lost = effect.lost and effect.best is not None and effect.after is not None
    return Standing(effect.site, "lost" if is_lost else "known", effect.round, effect.best, effect.after)

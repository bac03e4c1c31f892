"""The guard: judge whether a round harmed an earlier site, by subjects that were never trained on.

Exemplars cannot show it, since the round trains on them. So a model also keeps *sentinels* of each site, subjects of
its validation part. Each sentinel's DSC after the round is compared with that before it and with its best so far:

    fall of a subject   f = before - after
    fall of the site    F = mean of f over its n subjects,  standard error s / √n
    below its best      B = mean of (best - after) over the same subjects
    s²                  (ν σ² + Σ (f - F)²) / (ν + n - 1)

A round is held where F of any site exceeds the tolerance, where B exceeds twice the tolerance, and where a site cannot
be measured at all. B finds losses that add up over rounds. Its bound is wider because the best of several noisy scores
lies above the true one: with the same bound for both, a third of harmless rounds would be held (results/guard.md).

Falls of the single slices of these subjects are recorded beside them, with their standard error: they tell how sure the
fall of one patient is, and no more of the site than that (results/guard.md).

A few subjects give a poor estimate of the spread between patients, so s is shrunk towards σ, which counts as ν further
subjects. σ is of the size of the medians in the published runs, 1.6 to 5.7 points (results/guard.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from smg.json_records import Record

SPREAD = 0.05  # σ, of DSC, between a site's patients in one round
WORTH = 4  # ν, subjects that σ counts as
BELOW_BEST = 2.0  # tolerances that a site may lie below its best
Evidence = Literal["sentinels", "held-out scans", "none"]


class GuardConfig(BaseModel):
    """How many sentinels are kept, and how much DSC a site may lose."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    subjects: int = Field(1, ge=0, description="sentinels kept of each site, to judge later rounds by")
    tolerance: float = Field(
        5.0, ge=0, allow_inf_nan=False, description="points of DSC that an earlier site may lose before a round is held"
    )


class SliceFalls(Record):
    """Falls of DSC over single slices: how sure the fall of these patients is, not that of the site."""

    count: int
    fall: float  # mean over the slices with foreground
    error: float  # its standard error


class Judged(Record):
    """The effect of a round on one site: DSC of its sentinels, or of held-out scans."""

    evidence: Evidence
    subjects: int = 0
    before: float | None = None  # DSC with the network of the round before
    after: float | None = None
    best: float | None = None  # the highest after any earlier round
    fall: float | None = None  # F
    below_best: float | None = None  # B; None in a record of an older smg, whose `fall` was the larger of the two
    error: float | None = None  # its standard error
    exemplars: tuple[float, float] | None = None  # before and after, of subjects that the round trained on
    slices: SliceFalls | None = None  # of the same subjects; None where only whole subjects were measured

    @property
    def measured(self) -> bool:
        """Return whether the site could be measured."""
        return self.fall is not None

    def lost(self, tolerance: float) -> bool:
        """Return whether the site fell by more than `tolerance` (points of DSC), or lies far below its best."""
        if self.fall is None:
            return False
        return not 100 * self.fall <= tolerance or not 100 * (self.below_best or 0.0) <= max(BELOW_BEST * tolerance, 0)


def judge(
    evidence: Evidence,
    before: Sequence[float],
    after: Sequence[float],
    best: Sequence[float] = (),
    exemplars: tuple[float, float] | None = None,
    slices: Sequence[tuple[float, float]] = (),
) -> Judged:
    """Compare a site's subjects, one by one, before and after a round and with their best so far.

    `slices` has the DSC of each of their slices before and after; it is recorded, and holds no round.
    """
    if not before or any(map(math.isnan, (*before, *after))):
        return Judged(evidence="none", exemplars=exemplars)
    n = len(before)
    highest = [max(b, h) for b, h in zip(before, best or before, strict=True)]
    falls = [b - a for b, a in zip(before, after, strict=True)]
    fall = sum(falls) / n
    variance = (WORTH * SPREAD**2 + sum((f - fall) ** 2 for f in falls)) / (WORTH + n - 1)
    return Judged(
        evidence=evidence,
        subjects=n,
        before=sum(before) / n,
        after=sum(after) / n,
        best=sum(highest) / n,
        fall=fall,
        below_best=sum(h - a for h, a in zip(highest, after, strict=True)) / n,
        error=math.sqrt(variance / n),
        exemplars=exemplars,
        slices=_over_slices(slices),
    )


def _over_slices(slices: Sequence[tuple[float, float]]) -> SliceFalls | None:
    """Return the mean fall over slices and its standard error, which takes two."""
    n = len(slices)
    if n < 2:
        return None
    falls = [before - after for before, after in slices]
    fall = sum(falls) / n
    return SliceFalls(count=n, fall=fall, error=math.sqrt(sum((f - fall) ** 2 for f in falls) / (n - 1) / n))


def reasons_to_hold(judged: Mapping[str, Judged], tolerance: float) -> list[str]:
    """Return a sentence for each earlier site that was harmed or could not be measured."""
    reasons = []
    for site, one in judged.items():
        if not one.measured:
            reasons.append(
                f"{site} was not measured: nothing of it is kept that the round did not train on; give held-out scans "
                "of it by --guard DIR"
            )
        elif one.lost(tolerance):
            assert one.fall is not None  # it was measured
            assert one.error is not None
            if 100 * one.fall > tolerance:
                what, allowed = f"fell by {100 * one.fall:.1f} points of DSC", tolerance
            else:
                below = 100 * (one.below_best or 0.0)
                what, allowed = f"is {below:.1f} points of DSC below its best", BELOW_BEST * tolerance
            reasons.append(f"{site} {what} (± {100 * one.error:.1f}; {allowed:g} are tolerated)")
    return reasons


def best_so_far(measured: Iterable[Mapping[str, Mapping[str, float | None]]]) -> dict[str, dict[str, float]]:
    """Return each sentinel's highest DSC after any of the rounds: {site: {alias: DSC}}.

    `measured` holds, for each round, the DSC of the sentinels after it, in the same form.
    """
    best: dict[str, dict[str, float]] = {}
    for sites in measured:
        for site, scores in sites.items():
            for name, dsc in scores.items():
                if dsc is not None:
                    best.setdefault(site, {})[name] = max(dsc, best.get(site, {}).get(name, dsc))
    return best

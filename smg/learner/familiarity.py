"""Measure how far a scan is from every site that a model has learned, and whether it is unlike all of them.

A scan's features m(s) are the average and the deviation over space of every bottleneck feature, averaged over its
slices, taken from the passes that predict it. Its distance from site k, in units of the spread within a site:

    d(s, k)² = mean over features c of (m(s) - μ_k)² / σ²  /  (1 + 1/n_k)

μ_k is the mean of the site's n_k subjects: all training subjects for the round just closed, the exemplars for an
earlier site. σ² is the variance within sites, pooled over all sites, plus a hundredth of its mean over features, so
that a constant feature does not get an infinite weight. The mean of n subjects has variance σ²/n, hence the last
factor. So a new subject of a learned site is at about 1, whatever the network, and rounds can be compared. (The cosine
that chooses exemplars separates little here: after a norm and a ReLU all averages are similar, and pure noise came out
as near as patients did.)

A scan is unlike when it is farther from every site than validation subjects were from their own. Of their n distances,
over all rounds, the threshold is

    the ⌈0.95 (n + 1)⌉-th smallest, or the largest where there are not so many (n < 19)

so that a new subject of a learned site is marked in no more than one case in twenty, or one in n + 1 while n < 19. This
holds for any distribution if new subjects and validation subjects are exchangeable (Vovk's conformal prediction). With
fewer than two validation subjects there is no threshold.

A scan without the mark may still be segmented badly: the more sites a network has learned, the fewer scans are far
from all of them. In three orders of the real sites, counted after every round, 7 of 135 test subjects were marked. Of
an unseen site's subjects, nearly all were marked after the first site and hardly any after the fourth.

Features of different networks cannot be compared. So every round measures all sites again. A site without stored
exemplars (they were dropped, or the method keeps none) has no distance until it is learned again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from smg.learner.elsewhere import Summary
from smg.learner.exemplars import as_numbers
from smg.learner.records import FamiliarRecord, SiteFeatures

LEVEL = 0.95
FLOOR = 0.01


@dataclass(frozen=True)
class Familiar:
    """The feature statistics of the learned sites, measured with a round's network."""

    means: dict[str, Tensor | None]  # [2F] of every site learned; None where no subject was available
    counts: dict[str, int]
    spread: Tensor | None  # σ, [2F]; None where no site had two subjects
    threshold: float | None
    validated: int = 0  # subjects that the threshold was learned from

    @classmethod
    def of(cls, moments: dict[str, Tensor], elsewhere: Mapping[str, Summary] | None = None) -> Familiar:
        """Return the statistics from each site's moments [N, 2F], or from their sums if the subjects are elsewhere."""
        others = elsewhere or {}
        means = {site: rows.double().mean(dim=0) for site, rows in moments.items()}
        means |= {site: one.mean for site, one in others.items()}
        counts = {site: len(rows) for site, rows in moments.items()}
        counts |= {site: one.subjects for site, one in others.items()}
        return cls(dict(means), counts, _spread(moments, others.values()), None)

    @classmethod
    def read(cls, line: Sequence[tuple[str, FamiliarRecord | None]]) -> Familiar:
        """Return the statistics in the records (site, record) of a version's rounds; an older smg wrote none."""
        last = line[-1][1] if line else None
        known = last.sites if last and last.spread else {}
        validation = [d for _, record in line if record for d in record.validation]
        return cls(
            {site: _tensor(known[site].mean) if site in known else None for site, _ in line},
            {site: one.subjects for site, one in known.items()},
            _tensor(last.spread) if last and last.spread else None,
            threshold_of(validation),
            len(validation),
        )

    def as_record(self, validation: Sequence[float]) -> FamiliarRecord:
        """Return the round's record, with the distances of its validation subjects: numbers without names."""
        sites = {
            site: SiteFeatures(mean=as_numbers(mean), subjects=self.counts[site])
            for site, mean in self.means.items()
            if mean is not None
        }
        spread = None if self.spread is None else as_numbers(self.spread)
        return FamiliarRecord(sites=sites, spread=spread, validation=tuple(validation))

    def distance(self, moments: Tensor, site: str) -> float | None:
        """Return d(s, k) for a scan's moments [2F]."""
        mean = self.means[site]
        if mean is None or self.spread is None:
            return None
        squares = ((moments.double().cpu() - mean) / self.spread).square().mean()
        return math.sqrt(float(squares) / (1 + 1 / self.counts[site]))

    def distances(self, moments: Tensor) -> dict[str, float | None]:
        """Return the distance from every site learned, in the order of learning."""
        return {site: self.distance(moments, site) for site in self.means}

    def unlike(self, distances: dict[str, float | None]) -> bool | None:
        """Return whether a scan is unlike every site; None where that is unknown."""
        there = [d for d in distances.values() if d is not None]
        return min(there) > self.threshold if there and self.threshold is not None else None


def nearest(distances: dict[str, float | None]) -> str | None:
    """Return the site that a scan is most like."""
    there = {site: d for site, d in distances.items() if d is not None}
    return min(there, key=lambda site: there[site]) if there else None


def threshold_of(distances: Sequence[float]) -> float | None:
    """Return the threshold for the given distances of validation subjects; None for fewer than two."""
    n = len(distances)
    return sorted(distances)[min(math.ceil(LEVEL * (n + 1)), n) - 1] if n > 1 else None


def summary_of(moments: Tensor) -> Summary:
    """Return the sums of a site's moments [N, 2F]."""
    mean = moments.double().mean(dim=0)
    return Summary(len(moments), mean, (moments.double() - mean).square().sum(dim=0))


def _spread(moments: dict[str, Tensor], elsewhere: Iterable[Summary] = ()) -> Tensor | None:
    deviations = torch.cat([rows.double() - rows.double().mean(dim=0) for rows in moments.values()])
    squares, freedom = deviations.square().sum(dim=0), len(deviations) - len(moments)
    for one in elsewhere:
        squares, freedom = squares + one.squares, freedom + one.subjects - 1
    if freedom < 1:
        return None
    variance = squares / freedom
    floored = variance + FLOOR * variance.mean()
    return floored.sqrt() if bool((floored > 0).all()) else None


def _tensor(numbers: Sequence[float]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)

"""What the replay buffer chose: the scores R, V, H of the exemplars, and a map of all candidates in two dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from smg.report.collect import Record
from smg.sites.formats import Array

SAME = 0.001  # range of a score, which is a cosine or a sum of two, within which it cannot tell candidates apart


@dataclass(frozen=True)
class Exemplar:
    """A subject that the buffer kept, by its pseudonym, with its scores."""

    site: str
    alias: str
    r: float  # how typical it is of its site
    v: float  # how unlike the exemplars of earlier sites it is
    h: float  # R + λV, by which exemplars are chosen
    rank: int  # by H, among the candidates of the site
    candidates: int


@dataclass(frozen=True)
class FeatureMap:
    """The features of the candidates in two dimensions, and which candidates were kept."""

    points: dict[str, Array]  # site -> [N, 2]
    chosen: dict[str, list[bool]]
    explained: float  # share of the variance in the two dimensions


def exemplars(rounds: Sequence[Record]) -> list[Exemplar]:
    """Return the exemplars of all rounds, in the order they were chosen."""
    kept = []
    for record in rounds:
        selection = record.selection
        ranked = sorted(selection.H, reverse=True)
        for name in selection.chosen:
            at = selection.candidates.index(name)
            # V of the first site is 0, never -0
            r, v, h = (scores[at] + 0.0 for scores in (selection.R, selection.V, selection.H))
            kept.append(Exemplar(record.site, name, r, v, h, 1 + ranked.index(h), len(ranked)))
    return kept


def indistinct(rounds: Sequence[Record]) -> list[str]:
    """Return a sentence for each round whose deciding score is nearly the same for all its candidates."""
    sentences = []
    for name, record in zip(_labels(rounds), rounds, strict=True):
        selection = record.selection
        score, values = {"representative": ("R", selection.R), "comprehensive": ("H", selection.H)}.get(
            selection.policy, ("", ())
        )
        if selection.chosen and len(values) > 1 and max(values) - min(values) < SAME:
            between = f"{min(values):.4f} and {max(values):.4f}".replace("-", "−")
            sentences.append(f"{name}: {score} of all {len(values)} candidates is between {between}")
    return sentences


def feature_map(rounds: Sequence[Record]) -> FeatureMap | None:
    """Return the candidates on the first two principal components of their features.

    Features are scaled to unit length first, since the scores are cosines. None where there are fewer than three
    candidates, or where networks of different width made the features.
    """
    with_features = [r for r in rounds if r.selection.features]
    if not with_features:
        return None
    stacked = [np.asarray(record.selection.features, float) for record in with_features]
    if sum(map(len, stacked)) < 3 or len({rows.shape[1] for rows in stacked}) != 1:
        return None
    whole = np.concatenate(stacked)
    whole = whole / np.maximum(np.linalg.norm(whole, axis=1, keepdims=True), 1e-12)
    _, sizes, directions = np.linalg.svd(whole - whole.mean(axis=0), full_matrices=False)
    flat = (whole - whole.mean(axis=0)) @ directions[:2].T
    parts = np.split(flat, np.cumsum([len(rows) for rows in stacked])[:-1])
    names = _labels(with_features)
    chosen = {
        name: [case in r.selection.chosen for case in r.selection.candidates]
        for name, r in zip(names, with_features, strict=True)
    }
    total = float((sizes**2).sum())
    points = dict(zip(names, parts, strict=True))
    return FeatureMap(points, chosen, float((sizes[:2] ** 2).sum()) / total if total else 1.0)


def _labels(rounds: Sequence[Record]) -> list[str]:
    """Return the site of each round, with the round's number where a site was learned more than once."""
    sites = [record.site for record in rounds]
    return [r.site if sites.count(r.site) == 1 else f"{r.site}, round {r.round}" for r in rounds]

"""What the buffer chose: every candidate's R, V and H, the chosen ones, and all features on a map of two dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from smg.report.collect import Record
from smg.sites.formats import Array


@dataclass(frozen=True)
class Exemplar:
    """A subject the buffer kept, by its alias, with its scores."""

    site: str
    alias: str
    r: float
    v: float
    h: float
    rank: int  # by H, among the site's candidates
    candidates: int


@dataclass(frozen=True)
class FeatureMap:
    """Candidates' features, site by site, in two dimensions, and which of them were kept."""

    points: dict[str, Array]  # site -> [N, 2]
    chosen: dict[str, list[bool]]
    told: float  # share of the variance that the two directions hold


def exemplars(rounds: Sequence[Record]) -> list[Exemplar]:
    """Site by site, in the order of choice."""
    kept = []
    for record in rounds:
        told = record["selection"]
        ranked = sorted(told["H"], reverse=True)
        for name in told["chosen"]:
            at = told["candidates"].index(name)
            r, v, h = (told[score][at] + 0.0 for score in "RVH")  # the zero of a first site has no sign
            kept.append(Exemplar(record["site"], name, r, v, h, 1 + ranked.index(h), len(ranked)))
    return kept


def feature_map(rounds: Sequence[Record]) -> FeatureMap | None:
    """Principal directions of the features at unit length, since the scores are cosines."""
    with_features = [r for r in rounds if r["selection"].get("features")]
    if not with_features:
        return None
    stacked = [np.asarray(record["selection"]["features"], float) for record in with_features]
    if sum(map(len, stacked)) < 3 or len({rows.shape[1] for rows in stacked}) != 1:
        return None
    whole = np.concatenate(stacked)
    whole = whole / np.maximum(np.linalg.norm(whole, axis=1, keepdims=True), 1e-12)
    _, sizes, directions = np.linalg.svd(whole - whole.mean(axis=0), full_matrices=False)
    flat = (whole - whole.mean(axis=0)) @ directions[:2].T
    parts = np.split(flat, np.cumsum([len(rows) for rows in stacked])[:-1])
    sites = [record["site"] for record in with_features]
    names = [r["site"] if sites.count(r["site"]) == 1 else f"{r['site']}, round {r['round']}" for r in with_features]
    chosen = {
        name: [case in r["selection"]["chosen"] for case in r["selection"]["candidates"]]
        for name, r in zip(names, with_features, strict=True)
    }
    total = float((sizes**2).sum())
    points = dict(zip(names, parts, strict=True))
    return FeatureMap(points, chosen, float((sizes[:2] ** 2).sum()) / total if total else 1.0)

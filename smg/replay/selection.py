"""Choose the exemplars of a site by a policy over features, independent of the methods that replay them.

    R(s) = sim(f(s), μ),  μ the mean feature of the site                                      representativeness (Eq. 7)
    V(s) = mean over previous sites k of  min over their exemplars e of  -sim(f(s), f(e))     diversity (Eq. 8)
    H(s) = R(s) + λ V(s)                                                                      (Eq. 9)

where sim is the cosine. Features of earlier exemplars are computed with the current network.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import normalize

from smg.errors import SmgError
from smg.randomness import numpy_generator
from smg.registry import Registry


@dataclass(frozen=True)
class Scores:
    """R, V and H of every candidate, for the policy and for the report."""

    representativeness: Tensor  # [N]
    diversity: Tensor  # [N], zero where there is no previous site
    hybrid: Tensor  # [N]


@dataclass(frozen=True)
class Choice:
    """The chosen candidates, best first, and the scores of all."""

    chosen: tuple[int, ...]
    scores: Scores


@dataclass(frozen=True)
class Candidates:
    """The inputs of a policy."""

    features: Tensor  # f(s) of each candidate, [N, F]
    scores: Scores
    seed: int
    round: int


Policy = Callable[[Candidates, int], list[int]]
POLICIES: Registry[Policy] = Registry("replay policy")


def policy(name: str) -> Callable[[Policy], Policy]:
    """Register a policy under a name: a function from candidates and a count to that many of their indices."""
    return partial(POLICIES.add, name)


def known(name: str) -> Policy:
    """Return the policy of that name, or, as `mine.py:mine`, the one that a user's file registers."""
    return POLICIES.find(name)


def select(
    name: str,
    features: Tensor,
    previous: Sequence[Tensor],
    count: int = 2,
    weight: float = 1.0,
    seed: int = 0,
    round: int = 0,
    nearest: Sequence[Tensor] = (),
) -> Choice:
    """Return `count` (N_e) of the candidates, given the features of each previous site's exemplars; `weight` is λ.

    For sites whose exemplars are at another hospital, `nearest` has the minimum of Eq. 8 for each candidate.
    """
    choose, count = known(name), min(count, len(features))
    scores = score(features, previous, weight, nearest)
    chosen = tuple(choose(Candidates(features, scores, seed, round), count)) if count else ()
    if len(set(chosen)) != count:
        raise SmgError(f"replay policy {name!r}: chose {list(chosen)}; return {count} different indices")
    return Choice(chosen, scores)


def score(features: Tensor, previous: Sequence[Tensor], weight: float = 1.0, nearest: Sequence[Tensor] = ()) -> Scores:
    """Return R, V and H of every candidate."""
    unit = normalize(features.double(), dim=1)
    r = unit @ normalize(features.double().mean(dim=0), dim=0)
    v = torch.zeros_like(r)
    sites = len(previous) + len(nearest)
    for exemplars in previous:
        v += least_likeness(unit, exemplars) / sites
    for least in nearest:
        v += least / sites
    return Scores(r, v, r + weight * v)


def least_likeness(unit: Tensor, exemplars: Tensor) -> Tensor:
    """Return min over exemplars e of -sim(f(s), f(e)), for each unit vector f(s)."""
    return (-(unit @ normalize(exemplars.double(), dim=1).T)).amin(dim=1)


@policy("random")
def _random(candidates: Candidates, count: int) -> list[int]:
    rng = numpy_generator("random exemplars", candidates.seed, candidates.round)
    return [int(i) for i in rng.permutation(len(candidates.features))[:count]]


@policy("representative")
def _representative(candidates: Candidates, count: int) -> list[int]:
    """Return the candidates of the highest R: nearest in direction to the site's mean."""
    return _highest(candidates.scores.representativeness, count)


@policy("comprehensive")
def _comprehensive(candidates: Candidates, count: int) -> list[int]:
    """Return the candidates of the highest H: typical of their site and unlike the exemplars of other sites."""
    return _highest(candidates.scores.hybrid, count)


@policy("k-center")
def _k_center(candidates: Candidates, count: int) -> list[int]:
    """Return candidates farthest first (Sener and Savarese, 2018): the most representative, then the worst covered."""
    features = candidates.features.double()
    chosen = _highest(candidates.scores.representativeness, 1)
    nearest = torch.cdist(features, features[chosen])[:, 0]
    while len(chosen) < count:
        nearest[chosen[-1]] = -math.inf  # exclude the chosen one itself, even if others are as near
        chosen.append(int(nearest.argmax()))
        nearest = torch.minimum(nearest, torch.cdist(features, features[chosen[-1:]])[:, 0])
    return chosen


def _highest(values: Tensor, count: int) -> list[int]:
    """Return the indices of the highest values; of equal values the first."""
    return [int(i) for i in torch.sort(values, descending=True, stable=True).indices[:count]]

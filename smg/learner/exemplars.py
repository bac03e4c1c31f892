"""Choose exemplars of a site, and store them as prepared arrays under pseudonyms, without any file name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from smg.learner.config import LearnerConfig
from smg.learner.pseudonyms import own_pseudonyms
from smg.learner.records import Selection
from smg.prepare.cache import Prepared
from smg.prepare.grid import Grid
from smg.replay.selection import select
from smg.sites.site import Subject

NOWHERE = Path()  # an exemplar has no file


def alias(seed: int, site: str, case: str) -> str:
    """Return a subject's pseudonym, which only its hospital can resolve (smg.learner.pseudonyms)."""
    return own_pseudonyms().subject(seed, site, case)


def choose(
    config: LearnerConfig,
    number: int,
    site: str,
    candidates: Sequence[Prepared],
    features: Tensor,
    previous: Sequence[Tensor],
    outputs_of: Callable[[Prepared], Tensor],
    nearest: Sequence[Tensor] = (),
) -> tuple[dict[str, Tensor], Selection]:
    """Return a round's exemplars, packed, and every candidate's scores.

    Scores come from the candidates' features and those of each earlier site's exemplars (`previous`). If the method
    asks for them, the network's outputs are packed with the exemplars.
    """
    recipe, seed = config.recipe(), config.seed
    count = {"everything": len(candidates), "nothing": 0, "exemplars": config.replay.subjects}[recipe.method.keeps]
    choice = select(recipe.policy, features, previous, count, config.replay.weight, seed, number, nearest)
    names = [alias(seed, site, p.subject.case) for p in candidates]
    scored = Selection(
        policy=recipe.policy,
        chosen=tuple(names[i] for i in choice.chosen),
        candidates=tuple(names),
        R=as_numbers(choice.scores.representativeness),
        V=as_numbers(choice.scores.diversity),
        H=as_numbers(choice.scores.hybrid),
        features=tuple(as_numbers(row) for row in features),
    )
    packed = pack([candidates[i] for i in choice.chosen], [names[i] for i in choice.chosen])
    if recipe.method.stores_outputs:
        packed |= {
            f"{place:04d}.{names[i]}.outputs": outputs_of(candidates[i]).half() for place, i in enumerate(choice.chosen)
        }
    return packed, scored


def pack(subjects: list[Prepared], aliases: list[str]) -> dict[str, Tensor]:
    """Return the exemplars' arrays by alias, in the order of choice."""
    packed = {}
    for place, (subject, name) in enumerate(zip(subjects, aliases, strict=True)):
        packed[f"{place:04d}.{name}.images"] = subject.images.clone()
        packed[f"{place:04d}.{name}.labels"] = subject.labels.clone()
    return packed


def unpack(site: str, packed: dict[str, Tensor]) -> list[Prepared]:
    """Return packed exemplars as prepared subjects without a file."""
    subjects = []
    for key in sorted(k.removesuffix(".images") for k in packed if k.endswith(".images")):
        images, labels = packed[f"{key}.images"], packed[f"{key}.labels"]
        if images.ndim == 3:  # of a model made before subjects had channels
            images = images[:, None]
        slices, rows, columns = labels.shape
        grid = Grid((slices, rows, columns), np.eye(4), rows, spacing=1.0)
        foreground = tuple(bool(f) for f in labels.flatten(1).any(dim=1))
        about = Subject(site, key.split(".")[1], (NOWHERE,), NOWHERE)
        outputs = packed.get(f"{key}.outputs")
        subjects.append(Prepared(about, images, labels, foreground, grid, content="", outputs=outputs))
    return subjects


def count_of(packed: dict[str, Tensor]) -> int:
    """Return how many subjects are packed."""
    return sum(name.endswith(".images") for name in packed)


def size_of(packed: dict[str, Tensor]) -> int:
    """Return the size of packed exemplars in bytes."""
    return sum(t.numel() * t.element_size() for t in packed.values())


def as_numbers(values: Tensor) -> tuple[float, ...]:
    """Return a vector as a list of numbers for a record."""
    return tuple(values.to(torch.float64).tolist())

"""Check, before a round is trained, that its subjects, its exemplars and its settings fit each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from smg.errors import SmgError
from smg.learner.config import LearnerConfig
from smg.learner.history import History
from smg.methods import Method
from smg.prepare.cache import Prepared
from smg.prepare.prepare_options import Preparation
from smg.prepare.slices import drawable


def check_foreground(
    site: str,
    train: Sequence[Prepared],
    options: Preparation,
    has_learned: bool = False,
    say: Callable[[str], None] | None = None,
) -> None:
    """Raise an error if preparation left no foreground in any training mask; name the subjects if it is in some.

    A structure of few pixels vanishes when slices are made much smaller. A model that has learned keeps its size.
    """
    lost = [p.subject.case for p in train if not any(p.foreground)]
    setting = "a finer preparation.spacing" if options.spacing else "a larger preparation.size"
    advice = f"{'begin a new model with' if has_learned else 'set'} {setting}"
    if lost and len(lost) == len(train):
        raise SmgError(f"site {site}: no foreground is left in any training mask at this size; {advice}")
    if lost and say:
        named = ", ".join(lost[:3]) + ", ..." * (len(lost) > 3)
        count = f"{len(lost)} of {len(train)} training masks ({named})"
        say(f"site {site}: no foreground is left in {count} at this size; {advice}")


def check_selection(config: LearnerConfig, sites: Sequence[str]) -> None:
    """Raise an error if the best weights are to close a round, and these sites have no validation part."""
    if sites and config.select == "best":
        raise SmgError(
            f"site {', '.join(sites)}: no subject in the validation part, by which select=best chooses the weights; "
            "set select=last, give more subjects, or a split of your own (--split)"
        )


def check_drawable(
    folder: Path, method: Method, options: Preparation, replay: Mapping[str, Sequence[Prepared]]
) -> None:
    """Raise an error if a method draws exemplars of each site, and those of a site have no slice to draw."""
    for site, exemplars in replay.items() if method.keeps == "exemplars" else ():
        if not any(drawable(one, options) for one in exemplars):
            raise SmgError(
                f"{folder}: exemplars of {site} have no slice with foreground, and preparation.empty_slices=false "
                f"draws no other; set it to true, or give them up: `smg replay drop {folder} {site}`"
            )


def check_outputs(history: History, method: Method, replay: Mapping[str, Sequence[Prepared]]) -> None:
    """Raise an error if a method needs outputs stored with exemplars, and those of a site have none."""
    if not method.stores_outputs:
        return
    folder, kept_by = history.store.folder, {record.site: record.config.method for record in history.records()}
    lacking = [site for site, exemplars in replay.items() if any(one.outputs is None for one in exemplars)]
    for site in lacking[:1]:
        drop = f", or give them up: `smg replay drop {folder} {site}`" if len(lacking) < len(replay) else ""
        raise SmgError(
            f"{folder}: exemplars of {site} have no stored outputs, which method {method.name} needs: "
            f"method {kept_by[site]} kept them; go on with {kept_by[site]}, or begin a new model with "
            f"{method.name}{drop}"
        )

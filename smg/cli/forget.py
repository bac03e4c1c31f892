"""`smg forget`: remove what a model keeps of one person."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from smg.cli.options import Json, Model
from smg.cli.past import ask
from smg.errors import Misuse
from smg.report.text import print_json, print_line

if TYPE_CHECKING:
    from smg.learner.forget import Traces


def forget(
    model: Model,
    case: Annotated[str | None, typer.Option(metavar="NAME", help="The case's name, or its alias.")] = None,
    scan: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="The scan itself; once for each channel, in order.")
    ] = None,
    site: Annotated[str | None, typer.Option(help="The site, if several have a case of this name.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Delete what every round keeps of one person: exemplars, sentinels, outputs, rows of the records, cached copies.

    Weights that were trained with the person stay, and are named. This cannot be undone.

    Example: `smg forget model --case Case00 --site RUNMC --yes`
    """
    from smg.learner.forget import find, person_of, refuse_under_way
    from smg.learner.forget import forget as remove
    from smg.learner.history import History

    if case is None and not scan:
        raise Misuse("forget: nobody is named; give --case NAME or --scan FILE")
    past = History(model)
    refuse_under_way(past)
    person = person_of(case, scan or [], site)
    if not yes:
        found = find(past, person)
        numbers = ", ".join(str(one.round) for one in reversed(found.rounds) if one.said) or "none"
        ask(f"Delete what {model} keeps of this person (rounds: {numbers})? It cannot be undone.")
    removed = remove(past, person)
    if as_json:
        print_json(_as_json(removed))
    else:
        _print(removed, model, by_scan=bool(scan))


def _as_json(removed: Traces) -> dict[str, object]:
    return {
        "removed": {str(one.round): list(one.said) for one in reversed(removed.rounds) if one.said},
        "cached_copies": len(removed.cached),
        "trained": list(removed.trained),
        "later": list(removed.later),
        "spectra": list(removed.spectra),
        "hashes_stay": removed.hashes_stay,
    }


def _print(removed: Traces, model: Path, by_scan: bool) -> None:
    from smg.learner.forget import HASHES
    from smg.prepare.cache import cache_path, is_cache_empty

    for one in reversed(removed.rounds):
        if one.said:
            print_line(f"round {one.round}: removed {', '.join(one.said)}")
        if one.said == (HASHES,):
            print_line(
                f"round {one.round}: knew the scan, but no case of this name; was it mistyped? Forget the right one"
            )
    if removed.cached:
        print_line(f"prepared copies removed from the cache: {len(removed.cached)}")
    if removed.trained:
        numbers = ", ".join(map(str, removed.trained))
        later = f"; rounds that go on from them: {', '.join(map(str, removed.later))}" if removed.later else ""
        print_line(f"weights trained with this person, which cannot be taken back: round {numbers}{later}")
    else:
        print_line("no weights were trained with this person, as far as the records still say")
    for site in removed.spectra:
        print_line(
            f"spectra of {site} cannot be separated by person: `smg replay drop {model} {site}` removes them all"
        )
    if removed.hashes_stay:
        print_line("a keyed hash of the scan may still be in the records: --scan FILE beside --case removes it")
    if not by_scan and not is_cache_empty():
        print_line(f"prepared copies may still be in the cache: --scan FILE removes them, or delete {cache_path()}")
    print_line("take the scan out of the site's folder, or the site's next round learns it again")

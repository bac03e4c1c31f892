"""`smg export` and `smg card`: write a model for other programs, and its model card."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from smg.cli.options import Model, TrustCode
from smg.cli.terminal import say
from smg.errors import Misuse, SmgError
from smg.export import KINDS, Kind
from smg.report.text import print_line, printable

Round = Annotated[int | None, typer.Option("--round", help="Which round. [default: the current one]", min=0)]


def export(
    model: Model,
    kind: Annotated[str, typer.Option("--as", metavar="KIND", help=f"`{'`, `'.join(KINDS[:-1])}` or `{KINDS[-1]}`.")],
    out: Annotated[Path, typer.Option(help="The folder to make.")],
    number: Round = None,
    trust_code: TrustCode = False,
) -> None:
    """Write the model for other programs, with its card, how to prepare a scan, and a script that needs no smg.

    Nothing of a patient is in it: no exemplar, no alias, no feature, no spectrum. The model's journal notes it.

    Example: `smg export model --as monai-bundle --out bundle`
    """
    from smg.export.release import release
    from smg.export.write import export as write

    checked, version = _kind(kind), release(model, number)
    for path in write(version, checked, out):
        print_line(out / path)
    _note(model, checked, version.number)


def _note(model: Path, kind: Kind, number: int) -> None:
    """Note an export in the journal; where that cannot be written now, the export stands, and a warning says so."""
    from smg.learner.store import Store

    store = Store(model)
    try:
        with store.locked():
            store.note("exported", round=number, kind=kind)
    except SmgError as error:
        say(f"the journal does not note this export: {error}")


def card(model: Model, number: Round = None, trust_code: TrustCode = False) -> None:
    """Print the model card: sites learned, DSC at each, limits, settings, versions and the hash of the weights.

    Example: `smg card model --round 2`
    """
    from smg.export.card import card as written
    from smg.export.release import release

    print(printable(written(release(model, number))), end="")


def _kind(word: str) -> Kind:
    for kind in KINDS:
        if kind == word:
            return kind
    raise Misuse(f"--as {word}: no such kind; give {', '.join(KINDS[:-1])} or {KINDS[-1]}")

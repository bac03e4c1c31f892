"""`smg verify`: whether a model is as smg wrote it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from smg.cli.options import Json, Model
from smg.report.text import one_line, print_json, print_line


def verify(
    model: Model,
    key: Annotated[
        Path | None,
        typer.Option(help="PEM file of the ed25519 key, public or private, that signed the journal. [default: none]"),
    ] = None,
    adopt: Annotated[
        bool,
        typer.Option("--adopt", help="Take model.json and the rounds' records as they are now; the journal says so."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Check every file of a model and the journal's chain of hashes, offline, and list what differs.

    Exit code 1 if anything differs. A journal is signed where SMG_SIGNING_KEY names a private key; without a signature
    the chain shows accidents and careless changes, not those of someone who writes the whole journal again.

    Example: `smg verify model`
    """
    from smg.learner.store import Store
    from smg.learner.verify import verify as check

    if adopt:
        for name in Store(model).adopt():
            print_line(f"{name}: taken as it is now")
    found = check(model, key)
    if as_json:
        print_json({"files": found.files, "lines": found.lines, "faults": found.faults, "uncovered": found.uncovered})
    else:
        print_line(f"{found.files} files are as they were written; the journal has {found.lines} lines")
        for name in found.uncovered:
            print_line(f"{name}: not in the journal (an older smg, or another program, wrote it)")
    for fault in found.faults:
        print(one_line(f"smg: {model}/{fault}"), file=sys.stderr)
    if found.faults:
        raise typer.Exit(1)

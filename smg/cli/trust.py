"""`smg trust`: let model folders name code of your own."""

from __future__ import annotations

from typing import Annotated

import typer

from smg.cli.options import Json
from smg.errors import Misuse, SmgError
from smg.report.text import print_json, print_table


def trust_code(
    code: Annotated[
        list[str] | None,
        typer.Argument(metavar="CODE...", help="Files such as `mine.py`, or networks as `package.module:factory`."),
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Trust the code no longer.")] = False,
    as_json: Json = False,
) -> None:
    """Trust code of your own as it is now, so that models may name it; without CODE, list what is trusted.

    A model folder is data: a method, loss, policy or network that it names and smg does not have runs only if you gave
    it on the call, trust it here, or give --trust-code. Read the code first. A file that changes has to be trusted
    again. The list is `smg/trusted.json` in your configuration folder (XDG_CONFIG_HOME), outside of every model.

    Example: `smg trust mine.py`
    """
    from smg.trust import distrust, trust, trusted, trusted_file

    if remove and not code:
        raise Misuse("--remove: name the code that is trusted no longer; `smg trust` lists it")
    for name in code or []:
        if remove:
            if not distrust(name):
                raise SmgError(f"{name}: was not trusted; `smg trust` lists what is")
            print(f"{name} is trusted no longer")
        else:
            print(f"{name} is trusted as it is now (sha256 {trust(name)[:16]})")
    if code:
        return
    if as_json:
        print_json(trusted())
    elif entries := trusted():
        print_table(("code", "since", "sha256"), [(e["code"], e["when"][:16], h[:16]) for h, e in entries.items()])
    else:
        print(f"no code is trusted ({trusted_file()})")

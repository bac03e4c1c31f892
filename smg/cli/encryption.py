"""`smg init`, `smg rekey`, and the key of an encrypted model on the command line."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from smg.cli.options import (
    Configs,
    Iterations,
    Json,
    LabelWords,
    Model,
    Settings,
    TrustCode,
    methods_by_prefix,
    with_options,
)
from smg.cli.terminal import say
from smg.errors import SmgError
from smg.report.text import print_json

if TYPE_CHECKING:
    from smg.vault.vault import NewModel

Encrypt = Annotated[
    bool,
    typer.Option("--encrypt", help="Encrypt what a new model keeps of patients, and the prepared scans in the cache."),
]
_key_files: list[Path] = []  # of this call


def with_key(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with `--key-file`, the key of an encrypted model."""
    option = typer.Option(
        "--key-file",
        metavar="FILE",
        help="Key of an encrypted model. [default: SMG_KEY_FILE, SMG_KEY or SMG_PASSPHRASE, or asked for]",
    )

    @functools.wraps(command)
    def wrapped(*args: Any, key_file: Path | None, **options: Any) -> None:
        from smg.vault import keyring
        from smg.vault.key import Key

        keyring.begin_call(_ask if sys.stdin is not None and sys.stdin.isatty() else None)
        _key_files[:] = [key_file] if key_file else []
        if key_file and (key_file.exists() or not options.get("encrypt")):  # a new model's key may have to be made
            keyring.use(Key.from_file(key_file))
        try:
            command(*args, **options)
        finally:
            keyring.begin_call()

    return with_options(command, wrapped, {"key_file": (Annotated[Path | None, option], None)})


def new_model(model: Path) -> NewModel:
    """Return the key and the vault of a model that is about to be made; a key file that is not there is made."""
    from smg.vault.keyring import new_key, use
    from smg.vault.vault import NewModel

    path = _key_files[0] if _key_files else None
    key, made = new_key(model, path)
    if path:
        use(key)
    if made:
        say(f"{path}: made a new key; keep a copy elsewhere: without it what {model} keeps of patients is lost")
    return NewModel.under(key)


def init(
    model: Model,
    method: Annotated[
        str | None,
        typer.Option(
            help="Method of its rounds. [default: the recommended one, if the first `smg learn` plans; else `sga+c`]",
            autocompletion=methods_by_prefix,
        ),
    ] = None,
    iterations: Iterations = None,
    configs: Configs = None,
    labels: LabelWords = None,
    settings: Settings = None,
    encrypt: Encrypt = False,
    trust_code: TrustCode = False,
) -> None:
    """Make a model that has learned nothing yet.

    Its first `smg learn` plans the settings, unless --config or --set gives an input, a network or an optimiser here.
    With --encrypt, a --key-file that is not there is made.

    Example: `smg init model --config plan.yaml --encrypt --key-file model.key`
    """
    from smg.cli.open_model import given_settings, says_what_to_train
    from smg.learner.config_layers import configuration, laid, to_yaml
    from smg.learner.learner import Learner
    from smg.learner.store import Store

    if model.exists() and not (model.is_dir() and (not any(model.iterdir()) or Store(model).abandoned)):
        raise SmgError(f"{model}: exists; give a new folder")
    given = given_settings(method, iterations, configs, labels, settings)
    chosen = f"# Given to `smg init`.\n{to_yaml(laid(*given))}" if says_what_to_train(given) else None
    new = new_model(model) if encrypt else None
    learner = Learner.create(model, configuration(*given), plan=chosen, encrypt=new, given=laid(*given))
    how = "encrypted, " if learner.is_encrypted else ""
    what = f"method {learner.config.method}" if chosen or method else "no settings yet"
    print(f"{model}: {how}{what}, no site learned; `smg learn {model} SITE` teaches it one")


def rekey(
    model: Model,
    to: Annotated[
        Path | None,
        typer.Option(
            "--new-key-file",
            metavar="FILE",
            help="The new key; a file that is not there is made. [default: SMG_NEW_KEY_FILE, SMG_NEW_KEY or "
            "SMG_NEW_PASSPHRASE, or a passphrase that is asked for]",
        ),
    ] = None,
    again: Annotated[
        bool,
        typer.Option("--encrypt-again", help="Encrypt every file again, where the old key may be known to others."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Change the key of an encrypted model. Killed at any moment, the old key or the new one opens it; run it again.

    Example: `smg rekey model --key-file old.key --new-key-file new.key`
    """
    from smg.learner.history import History
    from smg.learner.rekey import change_key, encryption_of
    from smg.vault.keyring import new_key

    history = History(model)
    encryption_of(history)
    if to and not to.exists():
        _ = history.store.vault  # no new key is made if the old one is not at hand
    key, made = new_key(model, to, before="SMG_NEW_", option="--new-key-file")
    changed = change_key(history, key, again)
    if made:
        say(f"{to}: made a new key; keep a copy elsewhere: without it what {model} keeps of patients is lost")
    if as_json:
        print_json({"key": changed.key, "files": changed.files})
        return
    files = f"; {changed.files} files encrypted again" if again or changed.files else ""
    print(f"{model}: opened by key {changed.key} ({key.source}) from now on{files}")


def _ask(question: str) -> str:
    """Ask for a passphrase on the terminal, without showing it."""
    from getpass import getpass

    return getpass(question)

"""The commands: parse, call, print. The work is done elsewhere, and imported only by the command that needs it."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from smg import __version__
from smg.cli import model, sites
from smg.cli.demo import demo
from smg.errors import SmgError, validation_line

app = typer.Typer(
    name="smg",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Learn to segment at one hospital after another, without forgetting, and work at the next one too.",
)
app.command()(demo)
app.command()(model.learn)
app.command()(model.evaluate)
app.command()(model.predict)
app.command()(model.history)
app.command()(model.rollback)
app.command()(model.accept)
app.add_typer(model.replay, name="replay")
app.add_typer(sites.app, name="sites")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"smg {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run a command; a user's mistake is one line on standard error and exit 1."""
    try:
        app()
    except SmgError as error:
        _fail(str(error))
    except ValueError as error:
        from pydantic import ValidationError

        if not isinstance(error, ValidationError):
            raise
        _fail(validation_line(error))
    except BrokenPipeError:  # the reader of our output has gone, as `head` does: nothing is wrong
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        if error.filename is None:
            raise
        _fail(f"{error.filename}: {error.strerror}")


def _fail(message: str) -> None:
    print(f"smg: {message}", file=sys.stderr)
    sys.exit(1)

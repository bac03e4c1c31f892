"""The commands: parse, call, print. The work is done elsewhere, and imported only by the command that needs it."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from types import FrameType
from typing import Annotated

import typer

from smg import __version__
from smg.cli import model, past, runs, sites, terminal
from smg.cli.demo import demo
from smg.cli.export import card, export
from smg.cli.job import one_voice, processes, together
from smg.cli.options import speaking
from smg.cli.plan import plan
from smg.cli.predict import predict
from smg.cli.report import report
from smg.cli.settings import settings
from smg.cli.watch import watch
from smg.errors import Misuse, SmgError, Stopped, validation_line

MISUSE, STOPPED = 2, 130
TOGETHER = ("learn", "run")  # the commands that torchrun may start

app = typer.Typer(
    name="smg",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Learn to segment at one hospital after another, without forgetting, and work at the next one too.",
)
app.command()(speaking(demo))
app.command()(speaking(plan))
app.command()(speaking(together(model.learn)))
app.command()(speaking(model.evaluate))
app.command()(speaking(predict))
app.command()(speaking(export))
app.command()(speaking(card))
app.command()(speaking(past.history))
app.command()(speaking(past.rollback))
app.command()(speaking(past.accept))
app.command()(speaking(together(runs.run)))
app.command()(speaking(runs.bench))
app.command()(speaking(watch))
app.command()(speaking(report))
app.command()(speaking(settings))
app.add_typer(past.replay, name="replay")
app.add_typer(sites.app, name="sites")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"smg {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if processes() > 1 and context.invoked_subcommand not in TOGETHER:
        raise Misuse(
            f"{context.invoked_subcommand} is work for one process; under torchrun only learn and run share theirs"
        )


def main() -> None:
    """Run a command; a user's mistake is one line on standard error and exit 1."""
    terminal.set_loudness(0)
    signal.signal(signal.SIGTERM, _as_ctrl_c)
    try:
        with one_voice():
            app()
    except Misuse as error:
        _fail(str(error), MISUSE)
    except Stopped as error:
        _fail(str(error), STOPPED)
    except SmgError as error:
        _fail(str(error))
    except KeyboardInterrupt:  # before a command had begun
        _fail("stopped", STOPPED)
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


def _as_ctrl_c(_signal: int, frame: FrameType | None) -> None:
    """A scheduler or `docker stop` asks as Ctrl-C does: what is under way leaves its checkpoint."""
    asked = signal.getsignal(signal.SIGINT)
    if not callable(asked):
        raise KeyboardInterrupt
    asked(signal.SIGINT, frame)


def _fail(message: str, code: int = 1) -> None:
    terminal.clear()
    if terminal.loudness > 0:
        traceback.print_exc()
    print(f"smg: {message}", file=sys.stderr)
    sys.exit(code)

"""The commands: parse, call, print. A command imports the packages that do its work only when it runs."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Annotated

import typer

from smg import __version__
from smg.cli import federation, past, sites, terminal
from smg.cli.bench import bench
from smg.cli.demo import demo
from smg.cli.encryption import init, rekey, with_key
from smg.cli.evaluate import evaluate
from smg.cli.export import card, export
from smg.cli.forget import forget
from smg.cli.learn import learn
from smg.cli.list_settings import settings
from smg.cli.options import with_limit, with_loudness
from smg.cli.plan import plan
from smg.cli.predict import predict
from smg.cli.report import report
from smg.cli.run import run
from smg.cli.serve import serve
from smg.cli.torchrun_job import one_voice, processes, together
from smg.cli.trust import trust_code
from smg.cli.verify import verify
from smg.cli.watch import watch
from smg.errors import Misuse, SmgError, Stopped, validation_line
from smg.report.text import one_line
from smg.signals import STOPPED, handle_signals, was_interrupted
from smg.trust import begin_call

MISUSE = 2
TOGETHER = ("learn", "run")  # the commands that torchrun may start

app = typer.Typer(
    name="smg",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Learn to segment at one hospital after another, without forgetting, and work at the next one too.",
)
app.command()(with_loudness(demo))
app.command()(with_loudness(with_limit(plan)))
app.command()(with_loudness(with_key(init)))
app.command()(with_loudness(with_key(with_limit(together(learn)))))
app.command()(with_loudness(with_key(with_limit(evaluate))))
app.command()(with_loudness(with_limit(predict)))
app.command()(with_loudness(export))
app.command()(with_loudness(serve))
app.command()(with_loudness(card))
app.command()(with_loudness(past.history))
app.command()(with_loudness(past.rollback))
app.command()(with_loudness(past.accept))
app.command()(with_loudness(past.abandon))
app.command()(with_loudness(with_key(with_limit(forget))))
app.command()(with_loudness(with_key(rekey)))
app.command()(with_loudness(with_limit(together(run))))
app.command()(with_loudness(with_limit(bench)))
app.command()(with_loudness(watch))
app.command()(with_loudness(with_limit(report)))
app.command()(with_loudness(settings))
app.command()(with_loudness(verify))
app.command("trust")(with_loudness(trust_code))
app.add_typer(past.replay, name="replay")
app.add_typer(sites.app, name="sites")
app.add_typer(federation.app, name="federation")


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
            f"{context.invoked_subcommand} runs in one process; start it without torchrun (only learn and run use it)"
        )


def main() -> None:
    """Run a command; a user's mistake is one line on standard error, and exit 1."""
    terminal.set_loudness(0)
    handle_signals()
    begin_call()
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
    except Exception as error:
        _fail_by(error)


def _fail_by(error: Exception) -> None:
    """End with one line on standard error, or raise the error again if no user can act on it."""
    if was_interrupted(error):
        _fail("stopped", STOPPED)
    if isinstance(error, BrokenPipeError):  # the reader of the output has ended, as `head` does: this is no error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    if isinstance(error, OSError) and error.filename is not None:
        _fail(f"{error.filename}: {error.strerror}")
    if isinstance(error, MemoryError):
        _fail("not enough memory; close other programs, or give smaller settings (preparation.size, batch)")
    if isinstance(error, RecursionError):
        _fail("a file is nested too deeply to be read; correct it")
    if isinstance(error, ValueError):
        from pydantic import ValidationError

        if isinstance(error, ValidationError):
            _fail(validation_line(error))
    raise error


def _fail(message: str, code: int = 1) -> None:
    terminal.clear()
    if terminal.loudness > 0:
        traceback.print_exc()
    print(f"smg: {one_line(message)}", file=sys.stderr)
    sys.exit(code)

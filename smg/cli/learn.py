"""The command that lets a model learn a site."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from smg.cli.data_sites import SplitFile, refuse_few, site_at, split_in
from smg.cli.encryption import Encrypt, new_model
from smg.cli.federation import Absent, hospitals_of
from smg.cli.open_model import given_settings, learner_for, start_model
from smg.cli.options import (
    Configs,
    Iterations,
    Json,
    LabelWords,
    LeaveOut,
    Model,
    Roi,
    Settings,
    Track,
    TrustCode,
    methods_by_prefix,
    model_first,
    tracked,
)
from smg.cli.round_output import as_event, passing_on, print_round, trackers
from smg.cli.terminal import TrainingProgress, detail, say
from smg.errors import Misuse
from smg.report.text import print_json, printable

if TYPE_CHECKING:
    from smg.federation.peers import Peers
    from smg.learner.learner import Learner
    from smg.prepare.prepared_site import PreparedSite

HELD = 3  # exit code of a round that made an earlier site worse
MINUTES = 60.0  # of a round, if the model is planned

SiteName = Annotated[
    str | None, typer.Option("--site", metavar="NAME", help="Site to learn, if the folder holds several.")
]
Called = Annotated[
    str | None,
    typer.Option("--as", metavar="NAME", help="Name of the site in the model. [default: the folder's name]"),
]


def learn(
    model: Model,
    data: Annotated[
        Path | None,
        typer.Argument(
            metavar="[SITE]",
            help="Folder of the site, or a CSV file. Without it, --from makes a model and stops.",
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="Method of this round. [default: the model's own; a new model's plan takes the recommended one]",
            autocompletion=methods_by_prefix,
        ),
    ] = None,
    iterations: Iterations = None,
    minutes: Annotated[
        float | None,
        typer.Option(help="Training time of a round in minutes, to plan a new model. [default: 60]", min=0.1),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="WEIGHTS",
            help="A new model's first weights: a .safetensors file; another model's folder, or `nnunet:FOLDER[:FOLD]` "
            "for one of nnU-Net, with its settings.",
        ),
    ] = None,
    configs: Configs = None,
    labels: LabelWords = None,
    settings: Settings = None,
    site: SiteName = None,
    called: Called = None,
    roi: Roi = None,
    split: SplitFile = None,
    tolerance: Annotated[
        float | None,
        typer.Option(help="Points of DSC that an earlier site may lose; beyond it the round is held. [default: 5]"),
    ] = None,
    guard: Annotated[
        Path | None,
        typer.Option(
            help="Folder of sites learned before, with scans kept apart that judge the round. [default: sentinels]"
        ),
    ] = None,
    unguarded: Annotated[
        bool, typer.Option("--unguarded", help="Never hold the round, whatever it did to earlier sites.")
    ] = False,
    again: Annotated[bool, typer.Option("--again", help="Learn a site again that was learned before.")] = False,
    other_preparation: Annotated[
        bool, typer.Option("--other-preparation", help="Allow a preparation of scans that differs from earlier rounds.")
    ] = False,
    few: Annotated[
        bool, typer.Option("--few", help="Learn a site of a single subject, on which nothing can be tested.")
    ] = False,
    leave_out: LeaveOut = False,
    encrypt: Encrypt = False,
    trust_code: TrustCode = False,
    federation: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="This hospital's folder of a federation: others answer for their sites."),
    ] = None,
    absent: Annotated[
        Absent,
        typer.Option(help="Without a hospital of the federation: `hold` waits for it, `drop` leaves its rows out."),
    ] = "hold",
    patience: Annotated[
        float, typer.Option(help="Seconds to wait for a hospital before the round stops, resumable.", min=0)
    ] = 600.0,
    timeout: Annotated[
        float, typer.Option(help="Seconds in which a hospital of the federation answers, or counts as away.", min=1)
    ] = 120.0,
    secure: Annotated[
        bool, typer.Option("--secure-sums", help="Hide each hospital's gradients in the federation's sum, by masks.")
    ] = False,
    rate: Annotated[
        float, typer.Option("--line", help="The line's rate in Mbit/s, by which a federation's cost is given.", min=0.1)
    ] = 100.0,
    track: Track = None,
    as_json: Json = False,
) -> None:
    """Learn a site: the first one creates the model, each further one adds a round. The same command resumes it.

    A new model's settings are planned from its first site and this machine (`smg plan`), unless --config or --set gives
    the input, the network or the optimiser. A plan keeps --iterations and every other setting given, and does not look
    at the subjects that will be tested on. `--config paper` has the paper's settings. With --from no plan
    is made: a file's weights need the network they were made for, set by --config or --set.

    Example: `smg learn model data/RUNMC --minutes 30`
    """
    if tolerance is not None and not 0 <= tolerance < math.inf:
        raise Misuse(f"--tolerance {tolerance:g}: not a tolerance; give points of DSC, zero or more")
    from smg.learner.store import Store
    from smg.sites.layouts import find_sites

    given = given_settings(method, iterations, configs, labels, settings)
    if data is None:
        if start is None:
            raise Misuse("no SITE; give the folder of the site to learn")
        start_model(model, given, start, new_model(model) if encrypt else None)
        return
    model_first(model, [data], "smg learn MODEL SITE")
    if not data.exists() and model.is_dir() and not (model / "model.json").exists():
        raise Misuse(f"{data}: no such site, while {model} exists; give the model first: smg learn MODEL SITE")
    found = site_at(data, site, called).with_roi(roi or [])
    held_out = {name: one.with_roi(roi or []) for name, one in find_sites(guard).items()} if guard else None
    parts = split_in(found, split)
    planned_for = None if start else minutes or MINUTES
    refuse_few(found, len(found.subjects), parts, few)
    had_plan = Store(model).has_plan
    with hospitals_of(federation, model, absent, patience, timeout, secure) as peers:
        learner, prepared = learner_for(
            model, given, other_preparation, found, parts, leave_out, again, few, planned_for, start, encrypt
        )
        detail(f"settings: {learner.config.model_dump_json()}")
        if minutes is not None and (had_plan or not learner.store.has_plan):
            say(f"--minutes {minutes:g}: no plan was made, since the settings are given or the model has them")
        if peers:
            _greet(peers, learner, prepared, rate)
        with TrainingProgress(learner.config.iterations) as on_step:
            if peers:
                peers.roster.say = on_step.heard
            from smg.learner.events import End

            listeners = trackers(tracked(track), learner, model)
            record = learner.learn(
                found,
                split=parts,
                again=again,
                leave_out=leave_out,
                tolerance=tolerance,
                unguarded=unguarded,
                held_out=held_out,
                on_step=on_step if not listeners else passing_on(listeners, on_step, learner, found.name),
                say=say,
                elsewhere=peers,
                prepared=prepared,
            )
            for listener in listeners:
                listener(as_event(record))
                listener(End(measures={}))
        if peers:
            peers.roster.say = say
            has_it = peers.distribute()
            say(f"round {record.round} is now at {', '.join(has_it) or 'no other hospital yet'}")
    if as_json:
        print_json(record.model_dump(mode="json"))
    else:
        print_round(record, learner.history.effects(record.round))
    if record.held and record.guard:
        held = record.round
        line = (
            f"round {held} is held: {'; '.join(record.guard.reasons)}. The model has not changed. "
            f"To use the round anyway: `smg accept {model} {held}`; to leave it, do nothing"
        )
        print(printable(line), file=sys.stderr)
        raise typer.Exit(HELD)


def _greet(peers: Peers, learner: Learner, prepared: PreparedSite, rate: float) -> None:
    """Greet the hospitals of a round, and say what it will send over a line of `rate` Mbit/s."""
    from smg.prepare.slices import Slices

    peers.greet(learner.config)
    slices = len(Slices(prepared.subjects, learner.config.preparation))
    if cost := peers.cost(learner.config, slices):
        say(cost.line(len([rows for rows in peers.rows.values() if rows.count]), rate))

"""The commands of a federation: hospitals that learn one model while exemplars stay at home."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from smg.cli.encryption import with_key
from smg.cli.options import Json, Model, with_loudness
from smg.cli.terminal import say
from smg.errors import SmgError
from smg.report.text import print_json, print_table

if TYPE_CHECKING:
    from smg.federation.kit import Kit
    from smg.federation.peers import Peers

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Learn over hospitals whose exemplars stay at home; needs `smg-learning[federation]`.",
)

Own = Annotated[
    Path, typer.Option("--federation", metavar="FOLDER", help="This hospital's folder, from `smg federation init`.")
]
Absent = Literal["hold", "drop"]


def init(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="New folder for the folders of all participants.")],
    hospitals: Annotated[
        list[str], typer.Option("--hospital", metavar="NAME", help="Name of a hospital; once for each.")
    ],
    host: Annotated[str, typer.Option(help="Name of the relay's machine, as the hospitals reach it.")] = "localhost",
    port: Annotated[int, typer.Option(help="The relay's port.", min=1, max=65535)] = 8002,
) -> None:
    """Make the folders of a federation, with certificates: one for the relay and one for each hospital.

    Give each folder to its participant alone: it holds a private key.

    Example: `smg federation init federation --hospital A --hospital B --hospital C --host relay.example.org`
    """
    require_nvflare()
    from smg.federation.kit import provision

    for folder in provision(out, hospitals, host, port):
        print(folder)


def serve(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The relay's folder.")],
) -> None:
    """Run the relay, until Ctrl-C: it hands on messages between hospitals and cannot read them.

    Example: `smg federation serve federation/relay`
    """
    require_nvflare()
    from smg.federation.flare import keep_running
    from smg.federation.kit import Kit

    kit = Kit.open(folder, relay=True)
    _end_if_asked()
    say(f"relay at {kit.host}:{kit.port} for {', '.join(kit.hospitals)}; Ctrl-C stops it")
    try:
        keep_running(kit, "server", say)
    except KeyboardInterrupt:
        say("the relay has stopped")


def join(
    model: Model,
    federation: Own,
    data: Annotated[
        Path | None,
        typer.Option(
            "--site",
            metavar="DIR",
            help="This hospital's scans: those never trained on judge rounds. [default: the sentinels do]",
        ),
    ] = None,
) -> None:
    """Answer for this hospital's exemplars in MODEL, until Ctrl-C: then the hospital has left.

    MODEL is this hospital's own folder of the model; it is made when the first round arrives. What the hospital allows
    is in `limits.json` of its folder, and every answer is a line of `answers.jsonl` there.

    Example: `smg federation join model --federation federation/A`
    """
    require_nvflare()
    from smg.federation.flare import keep_running
    from smg.federation.kit import Kit
    from smg.federation.limits import Audit
    from smg.federation.local_socket import ANSWERS
    from smg.federation.service import Service, answer_at
    from smg.files import locked
    from smg.learner.store import Store
    from smg.sites.site import Site

    kit = Kit.open(federation)
    _end_if_asked()
    if (store := Store(model)).exists:
        _ = store.vault  # so that a missing key is said now, and not to the hospital that asks
    site = Site.find(data) if data else None
    audit = Audit(kit.folder / "answers.jsonl")
    service = Service(kit.name, model, kit.secret(), kit.limits(), audit, site)
    with locked(kit.folder):
        listening = answer_at(kit.folder / ANSWERS, service)
        say(f"hospital {kit.name} answers for {model}, over {kit.host}:{kit.port}; Ctrl-C leaves the federation")
        try:
            keep_running(kit, "client", say)
        except KeyboardInterrupt:
            say(f"hospital {kit.name} has left")
        finally:
            listening.close()
            (kit.folder / ANSWERS).unlink(missing_ok=True)


def status(federation: Own, as_json: Json = False) -> None:
    """Show who is connected to the relay, and what this hospital has answered so far.

    Example: `smg federation status --federation federation/A`
    """
    require_nvflare()
    from smg.federation.flare_job import connected, session
    from smg.federation.kit import Kit
    from smg.federation.limits import Audit

    kit = Kit.open(federation)
    limits, answered = kit.limits(), Audit(kit.folder / "answers.jsonl").answered
    try:
        with session(kit, 5.0) as made:
            there, fault = connected(made), None
    except SmgError as error:
        there, fault = [], str(error)
    facts: dict[str, Any] = {
        "hospital": kit.name,
        "relay": f"{kit.host}:{kit.port}",
        "connected": {name: name in there for name in kit.hospitals},
        "fault": fault,
        "answered": answered,
        "limits": vars(limits),
    }
    if limits.clip and limits.noise:
        from smg.federation.privacy import Noise

        facts["epsilon"] = Noise(limits.clip, limits.noise, limits.delta).epsilon(answered) if answered else 0.0
    if as_json:
        print_json(facts)
        return
    print_table(("hospital", "connected"), [(name, "yes" if on else "no") for name, on in facts["connected"].items()])
    print(f"relay {facts['relay']}{': ' + fault if fault else ''}")
    of = f" of {limits.budget} allowed" if limits.budget is not None else ""
    print(f"{kit.name} has given {answered} answers{of}; {kit.folder / 'answers.jsonl'} lists them")
    if "epsilon" in facts:
        of_what = "for each slice, of gradients; features and DSC are answered without noise"
        print(f"noise: ε = {facts['epsilon']:.3g} at δ = {limits.delta:g}, {of_what}")


for command in (init, serve, join, status):
    app.command()(with_loudness(with_key(command) if command is join else command))


@contextmanager
def hospitals_of(
    folder: Path | None, model: Path, absent: Absent, patience: float, timeout: float, secure: bool
) -> Iterator[Peers | None]:
    """Give the other hospitals of a round, if the command names a federation."""
    if folder is None:
        yield None
        return
    require_nvflare()
    from smg.federation.incoming import federated
    from smg.federation.kit import Kit

    kit: Kit = Kit.open(folder)
    with federated(kit, model, absent, patience, timeout, say, secure) as peers:
        yield peers


def require_nvflare() -> None:
    """Raise an error that says how to install NVFLARE, if it is not installed."""
    from importlib.util import find_spec

    if find_spec("nvflare") is None:
        raise SmgError("a federation needs NVFLARE; pip install 'smg-learning[federation]' installs it")


def _end_if_asked() -> None:
    """End with the parent where the environment says so: who starts a demo's hospitals leaves none behind."""
    import os

    from smg.federation.family import WITH_PARENT, end_with_parent

    if os.environ.get(WITH_PARENT):
        end_with_parent()

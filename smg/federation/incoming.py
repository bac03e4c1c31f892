"""The incoming hospital's side of a round, as a context: connect, synchronise versions, distribute the new round."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from smg.errors import SmgError
from smg.federation.carried import Carried
from smg.federation.flare_job import connected, session
from smg.federation.kit import Kit
from smg.federation.peers import Peers
from smg.federation.roster import OnAbsent, Roster
from smg.federation.round_exchange import pseudonyms

FIRST = 60.0  # seconds in which this hospital's own service may connect


@contextmanager
def federated(
    kit: Kit,
    model: Path,
    absent: OnAbsent = "hold",
    patience: float = 600.0,
    timeout: float = 120.0,
    say: Callable[[str], None] = lambda _line: None,
    secure: bool = False,
) -> Iterator[Peers]:
    """Connect to the other hospitals in the block, with the same rounds in every folder of the model."""
    _wait_for_own_service(kit, min(patience, FIRST))
    way = Carried(kit, timeout, say)
    try:
        peers = Peers(Roster(way, absent, patience, say, secure=secure), kit.others, model, pseudonyms(kit.secret()))
        peers.bring_together()
        yield peers
    finally:
        way.close()


def _wait_for_own_service(kit: Kit, seconds: float) -> None:
    begun = time.monotonic()
    while True:
        try:
            with session(kit) as made:
                if kit.name in connected(made):
                    return
            error: SmgError = SmgError(f"{kit.folder}: {kit.name} has not joined; `smg federation join` has to run")
        except SmgError as reason:
            error = reason
        if time.monotonic() - begun > seconds:
            raise error
        time.sleep(1.0)

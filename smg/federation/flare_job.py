"""Jobs of NVFLARE: one attempt at a round each, submitted by the incoming hospital."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from smg.errors import SmgError
from smg.federation.kit import Kit
from smg.files import write_json


def write_job(folder: Path, incoming: str, members: Sequence[str], secure: bool = True) -> Path:
    """Write a job that names smg's carriers and brings no code; return its folder."""
    about = {
        "name": "smg",
        "resource_spec": {},
        "min_clients": 1,
        "mandatory_clients": [incoming],
        "deploy_map": {"app": ["server", *members]},
    }
    server = {
        "format_version": 2,
        "workflows": [
            {
                "id": "controller",
                "path": "nvflare.collab.runtime.controller.CollabController",
                "args": {"server_obj_id": "relay", "sync_task_timeout": 20},
            }
        ],
        "components": [{"id": "relay", "path": "smg.federation.carrier.Relay", "args": {"incoming": incoming}}],
    }
    executor = {"path": "nvflare.collab.runtime.executor.CollabExecutor", "args": {"client_obj_id": "port"}}
    client = {
        "format_version": 2,
        "executors": [{"tasks": ["*"], "executor": executor}],
        "components": [{"id": "port", "path": "smg.federation.carrier.Port", "args": {"secure": secure}}],
    }
    config = folder / "app" / "config"
    config.mkdir(parents=True, exist_ok=True)
    write_json(folder / "meta.json", about)
    write_json(config / "config_fed_server.json", server)
    write_json(config / "config_fed_client.json", client)
    return folder


@contextlib.contextmanager
def session(kit: Kit, seconds: float = 10.0) -> Iterator[Any]:
    """Log in at the relay as this hospital's lead."""
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    logging.getLogger("nvflare").setLevel(logging.ERROR)
    try:
        with _silent():
            made = new_secure_session(kit.user, str(kit.lead), timeout=seconds)
    except Exception as error:  # of many kinds, and NVFLARE's own base of them is Exception
        raise SmgError(
            f"relay {kit.host}:{kit.port}: cannot be reached ({error}); `smg federation serve` runs it"
        ) from None
    try:
        yield made
    finally:
        with contextlib.suppress(Exception):
            made.close()


def connected(made: Any) -> list[str]:
    """Return the hospitals whose clients are connected to the relay."""
    return sorted(client.name for client in made.get_connected_client_list())


def submit(made: Any, kit: Kit, members: Sequence[str], secure: bool = True) -> str:
    """Start a job of some hospitals; return its id."""
    folder = write_job(kit.folder / "scratch" / f"job-{os.getpid()}-{time.monotonic_ns()}", kit.name, members, secure)
    return str(made.submit_job(str(folder)))


def status(made: Any, job: str) -> str:
    """Return a job's status, such as RUNNING or FINISHED:EXECUTION_EXCEPTION."""
    return str(made.get_job_meta(job).get("status", ""))


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Keep what NVFLARE prints when it logs in off the terminal."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield

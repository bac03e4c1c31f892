"""NVFLARE's long-running processes, as children of smg's: `python -m smg.federation.flare server|client FOLDER`.

NVFLARE's own start scripts restart what dies and leave it running in the background. Here the parent decides, and a
process ends when its parent is gone. So no process is left running, whichever process was killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from smg.errors import SmgError
from smg.federation.family import descendants, end_with_parent
from smg.federation.kit import Kit, org_of, settle
from smg.federation.local_socket import FOLDER

MODULES = {
    "server": "nvflare.private.fed.app.server.server_train",
    "client": "nvflare.private.fed.app.client.client_train",
}


def start(kit: Kit, kind: str) -> subprocess.Popen[bytes]:
    """Start NVFLARE's server or client of a kit; it writes into the kit's folder only."""
    settle(kit.flare)
    scratch = kit.folder / "scratch"
    scratch.mkdir(exist_ok=True)
    environment = os.environ | {FOLDER: str(kit.folder), "TMPDIR": str(scratch), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "smg.federation.flare", kind, str(kit.folder)]
    with (kit.folder / "flare.log").open("ab") as log:
        return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def stop(process: subprocess.Popen[bytes], seconds: float = 5.0) -> None:
    """End NVFLARE's process and the jobs that it started."""
    family = descendants(process.pid)
    process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pid in family:  # jobs have sessions of their own
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def keep_running(kit: Kit, kind: str, say: Callable[[str], None]) -> None:
    """Run NVFLARE's process until this one is interrupted; start it again when it dies."""
    quick = 0
    while True:
        begun, process = time.monotonic(), start(kit, kind)
        try:
            code = process.wait()
        finally:
            stop(process)
        quick = quick + 1 if time.monotonic() - begun < 10 else 0
        if quick > 5:
            raise SmgError(f"{kit.folder}/flare.log: NVFLARE's process ends at once; its last lines may say why")
        say(f"NVFLARE's process ended ({code}) and is started again")
        time.sleep(min(2.0**quick, 30.0))


def main(kind: str, folder: str) -> None:
    """Run NVFLARE's server or client of a kit in this process."""
    import runpy

    end_with_parent()
    kit = Kit.open(Path(folder), relay=kind == "server")
    settings = ["secure_train=true", f"org={org_of(kit.name)}", "config_folder=config"]
    if kind == "client":
        settings.append(f"uid={kit.name}")
    sys.argv = [MODULES[kind], "-m", str(kit.flare), "-s", f"fed_{kind}.json", "--set", *settings]
    runpy.run_module(MODULES[kind], run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])

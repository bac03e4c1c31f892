"""A Slurm of one node on this machine, started as root without systemd, with folders of its own, for tests.

It needs Debian's slurm-wlm and munge. Everything listens on 127.0.0.1, and nothing outside `folder` is written.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

PARTS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "scancel")
CPUS = 2

CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
SlurmctldPort={port}
SlurmdPort={slurmd_port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=30
MinJobAge=2
ReturnToService=2
MpiDefault=none
SwitchType=switch/none
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=500 State=UNKNOWN
PartitionName=low Nodes={host} Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=0
PartitionName=high Nodes={host} MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""


def installed() -> bool:
    """Return whether a Slurm node can be started here."""
    return os.geteuid() == 0 and all(shutil.which(part) for part in PARTS)


@contextlib.contextmanager
def slurm_node(folder: Path) -> Iterator[dict[str, str]]:
    """Start munge, a controller and a node; yield the environment in which Slurm's commands find them."""
    for name in ("munge", "state", "spool"):
        (folder / name).mkdir(parents=True)
    (folder / "munge").chmod(0o755)
    host = socket.gethostname().split(".")[0]
    port, slurmd_port = _free_port(), _free_port()
    config = CONFIG.format(folder=folder, host=host, port=port, slurmd_port=slurmd_port, cpus=CPUS)
    (folder / "slurm.conf").write_text(config.lstrip())
    key = folder / "munge/key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf")}
    files = [f"--{name}={folder}/munge/{name.split('-')[0]}" for name in ("key-file", "socket", "pid-file", "log-file")]
    munge = ["munged", "--foreground", "--force", *files, f"--seed-file={folder}/munge/seed"]
    commands = [munge, ["slurmctld", "-D", "-c"], ["slurmd", "-D", "-N", host]]
    started: list[subprocess.Popen[bytes]] = []
    with (folder / "printed.log").open("wb") as printed:
        try:
            for command in commands:
                started.append(subprocess.Popen(command, env=environment, stdout=printed, stderr=printed))
                if command is munge:
                    _wait_for(lambda: (folder / "munge/socket").exists(), folder)
            _wait_for(lambda: "idle" in _said(["sinfo", "-h", "-o", "%T"], environment), folder)
            yield environment
        finally:
            for process in reversed(started):
                process.terminate()
            for process in reversed(started):
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def _said(command: list[str], environment: dict[str, str]) -> str:
    return subprocess.run(command, env=environment, capture_output=True, text=True).stdout


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _wait_for(true: object, folder: Path, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not true():  # type: ignore[operator]
        if time.monotonic() > end:
            logs = "\n".join(file.read_text(errors="replace")[-2000:] for file in folder.glob("*.log"))
            raise AssertionError(f"Slurm did not start:\n{logs}")
        time.sleep(0.1)

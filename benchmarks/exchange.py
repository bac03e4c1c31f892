"""Milliseconds of an exchange: Θ to two hospitals over NVFLARE with mutual TLS on loopback, and as many numbers back.

    python benchmarks/exchange.py
    python benchmarks/exchange.py --parameters 120000 1900000 --json

The hospitals compute nothing, so what is measured is the way alone: smg's messages, the sockets, NVFLARE's processes
and the encryption between hospitals. Beside it stands the way within one process.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import tempfile
import time
from pathlib import Path

import torch

from smg.federation import flare
from smg.federation.carried import Carried
from smg.federation.job import connected, session
from smg.federation.kit import Kit, provision
from smg.federation.local_socket import ANSWERS
from smg.federation.messages import Ask, Message, Query, Sums
from smg.federation.service import answer_at
from smg.federation.transport import InProcess, Transport

HOSPITALS = ["Amber", "Birch", "Cedar"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=int, nargs="+", default=[120_000, 1_900_000, 7_800_000])
    parser.add_argument("--exchanges", type=int, default=10)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON, last")
    words = parser.parse_args()
    near = InProcess(dict.fromkeys(HOSPITALS[1:], echo))
    with tempfile.TemporaryDirectory() as folder:
        figures = over_nvflare(Path(folder), words.parameters, words.exchanges)
    rows = []
    for parameters, far in figures.items():
        here = exchange(near, parameters, words.exchanges)
        rows.append({"parameters": parameters, "nvflare_ms": far, "in_process_ms": here, "ratio": far / here})
    if words.json:
        print(json.dumps(rows))
        return
    for row in rows:
        print(
            f"{row['parameters']:>10,} parameters: {row['nvflare_ms']:8.1f} ms over NVFLARE, "
            f"{row['in_process_ms']:7.1f} ms in one process"
        )


def over_nvflare(folder: Path, sizes: list[int], exchanges: int) -> dict[int, float]:
    """Return the median milliseconds for each number of parameters, over real processes."""
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        port = int(made.getsockname()[1])
    provision(folder / "fed", HOSPITALS, "localhost", port)
    kits = {name: Kit.open(folder / "fed" / name) for name in HOSPITALS}
    processes = [flare.start(Kit.open(folder / "fed" / "relay", relay=True), "server")]
    listening = [answer_at(kit.folder / ANSWERS, echo) for kit in kits.values()]  # type: ignore[arg-type]
    try:
        processes += [flare.start(kit, "client") for kit in kits.values()]
        _wait(kits["Amber"])
        way = Carried(kits["Amber"], timeout=60)
        try:
            return {size: exchange(way, size, exchanges) for size in sizes}
        finally:
            way.close()
    finally:
        for process in processes:
            flare.stop(process)
        for one in listening:
            one.close()


def exchange(way: Transport, parameters: int, exchanges: int) -> float:
    """Return the median milliseconds of an exchange with all hospitals at once."""
    theta = torch.randn(parameters)
    seconds = []
    for number in range(exchanges + 1):
        begun = time.monotonic()
        data = Ask((0, 1, number), False, (theta,), (Query(0, ((0, 0),)),)).message().to_bytes()
        for coming in [way.ask(name, data) for name in HOSPITALS[1:]]:
            Sums.of(Message.from_bytes(coming.result()))
        seconds.append(time.monotonic() - begun)
    return 1000 * statistics.median(seconds[1:])  # the first one starts a job


def echo(_caller: str, question: bytes) -> bytes:
    """Answer with as many numbers as were sent."""
    ask = Ask.of(Message.from_bytes(question))
    return Sums(ask.thetas, (torch.zeros(()),)).message().to_bytes()


def _wait(kit: Kit) -> None:
    for _ in range(120):
        try:
            with session(kit) as made:
                if len(connected(made)) == len(HOSPITALS):
                    return
        except Exception:
            pass
        time.sleep(0.5)
    raise SystemExit("the hospitals did not connect")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()

"""What an exchange costs: Θ to two hospitals over NVFLARE with mutual TLS on loopback, and as many numbers back.

    python benchmarks/exchange.py
    python benchmarks/exchange.py --parameters 120000 1900000 --json

The hospitals compute nothing, so what is measured is the way alone. Beside smg's exchange stand four of NVFLARE's
Collab alone, in a job of their own, which send as many bytes and touch nothing of smg:

    relay       from the relay to the hospitals: one hop
    hospital    from a hospital to the others, over the relay: two hops
    encrypted   the same, with messages encrypted between the hospitals, which is how smg asks
    array       the same, with a numpy array in place of bytes, which NVFLARE lets the receiver fetch

The ways take turns, so a busy machine slows all of them. Time is the median of the turns. Processor time is that of all
processes of the federation, and depends less on what else the machine does.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from nvflare.collab import collab

from smg.federation import flare, kit
from smg.federation.carried import Carried
from smg.federation.carrier import DAYS
from smg.federation.family import end_with_parent
from smg.federation.flare_job import connected, session, write_job
from smg.federation.kit import Kit, provision
from smg.federation.local_socket import ANSWERS, FOLDER, Frames, connect, listen
from smg.federation.loopback import free_port
from smg.federation.messages import Ask, Message, Query, Sums
from smg.federation.service import answer_at
from smg.federation.transport import InProcess, Transport

HOSPITALS = ["Amber", "Birch", "Cedar"]
RAW = "raw.socket"
Figures = dict[str, dict[str, float]]  # way -> milliseconds of time and of processor time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=int, nargs="+", default=[120_000, 1_900_000, 7_800_000])
    parser.add_argument("--exchanges", type=int, default=10)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON, last")
    words = parser.parse_args()
    figures: dict[int, Figures] = {}
    with tempfile.TemporaryDirectory() as folder, running(Path(folder)) as ways:
        for size in words.parameters:
            figures[size] = in_turns(ways, size, words.exchanges)
            print(f"{size:,} parameters: {in_words(figures[size])}", flush=True)
    if words.json:
        print(json.dumps(figures))


def in_words(of: Figures) -> str:
    """Return the figures of one size as lines."""
    lines = [
        f"smg {of['smg']['ratio']:.2f} of Collab encrypted in time, {of['smg']['cpu_ratio']:.2f} in processor time"
    ]
    for way, one in of.items():
        lines.append(f"    {way:<11}{one['ms']:>9.0f} ms {one['cpu_ms']:>9.0f} ms of processor time")
    return "\n".join(lines)


def in_turns(ways: dict[str, Callable[[int], None]], size: int, exchanges: int) -> Figures:
    """Return the median times of each way, which take turns; the first turn starts jobs and does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    worked: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(1 + exchanges):
        for name, exchange in ways.items():
            before, begun = processor_seconds(), time.monotonic()
            exchange(size)
            if turn:
                seconds[name].append(time.monotonic() - begun)
                worked[name].append(processor_seconds() - before)
    made = {
        name: {"ms": 1000 * statistics.median(seconds[name]), "cpu_ms": 1000 * statistics.mean(worked[name])}
        for name in ways
    }
    for one in made.values():
        one["ratio"] = one["ms"] / made["encrypted"]["ms"]
        one["cpu_ratio"] = one["cpu_ms"] / made["encrypted"]["cpu_ms"]
    return made


def processor_seconds() -> float:
    """Return the processor time of this process and of all its descendants so far."""
    own = psutil.Process()
    total = 0.0
    for one in (own, *own.children(recursive=True)):
        try:
            times = one.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


# --- smg --------------------------------------------------------------------------------------------------------------


def asked(way: Transport, parameters: int) -> None:
    """Ask both hospitals for gradients, as an iteration of `jm` does."""
    theta = torch.ones(parameters)
    coming = []
    for name in HOSPITALS[1:]:
        ask = Ask((0, 1, 0), False, (theta,), (Query(0, ((0, 0),)),))
        coming.append(way.ask(name, ask.message().to_bytes()))
    for answer in coming:
        Sums.of(Message.from_bytes(answer.result()))


def echo(_caller: str, question: bytes) -> bytes:
    """Answer with as many numbers as were sent."""
    ask = Ask.of(Message.from_bytes(question))
    return Sums(ask.thetas, (torch.zeros(()),)).message().to_bytes()


# --- Collab alone -----------------------------------------------------------------------------------------------------


class RawRelay:
    """The relay's side of a job that measures Collab alone."""

    def __init__(self, incoming: str) -> None:
        self.incoming = incoming

    @collab.init  # type: ignore[untyped-decorator]
    def begin(self) -> None:
        end_with_parent()

    @collab.main  # type: ignore[untyped-decorator]
    def run(self) -> None:
        peers = [proxy for proxy in collab.clients if proxy.name != self.incoming]
        threading.Thread(target=_measure, args=(peers,), daemon=True).start()
        (port,) = collab.get_clients([self.incoming])
        port(timeout=DAYS).carry()


class RawPort:
    """A hospital's side of it."""

    def __init__(self, secure: bool = True) -> None:
        self.secure = secure

    @collab.init  # type: ignore[untyped-decorator]
    def begin(self) -> None:
        end_with_parent()

    @collab.publish  # type: ignore[untyped-decorator]
    def echo(self, question: Any) -> Any:
        return question

    @collab.publish  # type: ignore[untyped-decorator]
    def carry(self) -> None:
        _measure(list(collab.other_clients))


def _measure(peers: list[Any]) -> None:
    """Send bytes to all peers at once and get them back, as often as the benchmark asks for it."""
    driver = connect(Path(os.environ[FOLDER]) / RAW)
    driver.send({})
    with ThreadPoolExecutor(len(peers)) as threads:
        while True:
            try:
                header, _ = driver.receive()
            except EOFError:
                return
            body = np.zeros(header["bytes"] // 4, np.float32) if header["array"] else bytes(header["bytes"])
            calls = [threads.submit(peer(timeout=60, secure=header["secure"]).echo, body) for peer in peers]
            driver.send({"back": [len(call.result()) for call in calls]})


def write_raw_job(folder: Path, members: list[str]) -> Path:
    """Write the job of the two classes above."""
    write_job(folder, members[0], members)
    for name, own in (("server", "RawRelay"), ("client", "RawPort")):
        path = folder / "app" / "config" / f"config_fed_{name}.json"
        about = json.loads(path.read_text())
        about["components"][0]["path"] = f"exchange.{own}"
        path.write_text(json.dumps(about))
    return folder


def sent(frames: Frames, secure: bool, parameters: int, array: bool = False) -> None:
    """Let a job's process send as many bytes as there are in so many numbers, or an array of the numbers."""
    frames.send({"bytes": 4 * parameters, "secure": secure, "array": array})
    assert frames.receive()[0]["back"] == [parameters if array else 4 * parameters] * 2


# --- processes --------------------------------------------------------------------------------------------------------


@contextmanager
def running(folder: Path) -> Iterator[dict[str, Callable[[int], None]]]:
    """Run a federation of three hospitals in the block; give the ways of an exchange."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    kit.CLASSES += ["exchange.RawPort", "exchange.RawRelay"]
    provision(folder / "fed", HOSPITALS, "localhost", free_port())
    kits = {name: Kit.open(folder / "fed" / name) for name in HOSPITALS}
    relay = Kit.open(folder / "fed" / "relay", relay=True)
    sockets = {name: listen(one.folder / RAW) for name, one in (("relay", relay), ("hospital", kits["Amber"]))}
    processes = [flare.start(relay, "server")]
    listening = [answer_at(one.folder / ANSWERS, echo) for one in kits.values()]  # type: ignore[arg-type]
    way = None
    try:
        processes += [flare.start(one, "client") for one in kits.values()]
        _wait(kits["Amber"])
        with session(kits["Amber"]) as made:
            made.submit_job(str(write_raw_job(folder / "raw", HOSPITALS)))
        raw = {}
        for name, one in sockets.items():
            one.settimeout(120)
            raw[name] = Frames(one.accept()[0])
            raw[name].receive()
        way = Carried(kits["Amber"], timeout=60)
        yield {
            "smg": lambda size: asked(way, size),
            "encrypted": lambda size: sent(raw["hospital"], True, size),
            "array": lambda size: sent(raw["hospital"], True, size, array=True),
            "hospital": lambda size: sent(raw["hospital"], False, size),
            "relay": lambda size: sent(raw["relay"], False, size),
            "in process": lambda size: asked(InProcess(dict.fromkeys(HOSPITALS[1:], echo)), size),
        }
    finally:
        if way:
            way.close()
        for process in processes:
            flare.stop(process)
        for closing in (*listening, *sockets.values()):
            closing.close()


def _wait(own: Kit) -> None:
    for _ in range(120):
        try:
            with session(own) as made:
                if len(connected(made)) == len(HOSPITALS):
                    return
        except Exception:
            pass
        time.sleep(0.5)
    raise SystemExit("the hospitals did not connect")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()

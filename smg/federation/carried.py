"""The learner's transport over NVFLARE: jobs are started as they are needed, and each is one attempt.

A hospital cannot join a job that has begun, and a job may or may not end when the process of one hospital dies. So a
job that ended, or in which a hospital did not answer, is followed by a new job of the hospitals that are connected at
that time. Pending questions fail with `Absent`, and the caller asks again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from threading import Event, Lock, Thread

from smg.errors import SmgError
from smg.federation.flare_job import connected, session, status, submit
from smg.federation.kit import Kit
from smg.federation.local_socket import LEARNER, Frames, listen
from smg.federation.transport import Absent, Traffic

LOOK_AGAIN = 5.0  # seconds between two checks whether a hospital is connected
TO_START = 60.0  # seconds that a job may take to start


class Link:
    """The connection of one job: questions are numbered, and answers arrive in any order."""

    def __init__(self, frames: Frames) -> None:
        self._frames = frames
        self.members: list[str] = frames.receive()[0]["members"]
        self._waiting: dict[int, tuple[str, Future[bytes]]] = {}
        self._numbers, self._lock = count(), Lock()
        self.ended = Event()
        Thread(target=self._listen, name="answers", daemon=True).start()

    def ask(self, hospital: str, question: bytes, timeout: float) -> Future[bytes]:
        """Send a question."""
        coming: Future[bytes] = Future()
        with self._lock:
            number = next(self._numbers)
            self._waiting[number] = hospital, coming
        try:
            self._frames.send({"number": number, "hospital": hospital, "timeout": timeout}, question)
        except OSError:
            self._end()
        if self.ended.is_set():
            self._end()
        return coming

    def close(self) -> None:
        """End the connection, and the job with it."""
        self._frames.close()

    def _listen(self) -> None:
        try:
            while True:
                header, answer = self._frames.receive()
                with self._lock:
                    hospital, coming = self._waiting.pop(header["number"])
                if "absent" in header:
                    coming.set_exception(Absent(hospital, header["absent"]))
                else:
                    coming.set_result(answer)
        except EOFError:
            self._end()

    def _end(self) -> None:
        self.ended.set()
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        for hospital, coming in waiting.values():
            coming.set_exception(Absent(hospital, "the job ended before the answer"))


class Carried:
    """Transport of questions to other hospitals over NVFLARE's Collab, on the learner's side."""

    def __init__(
        self, kit: Kit, timeout: float = 120.0, say: Callable[[str], None] = lambda _line: None, keeps: bool = False
    ) -> None:
        self.kit, self.timeout, self.say = kit, timeout, say
        self.traffic = Traffic(keeps)
        self.jobs = 0  # started so far
        self._listening = listen(kit.folder / LEARNER)
        self._link: Link | None = None
        self._lock, self._looked = Lock(), 0.0
        self._failed: set[str] = set()  # hospitals that did not answer in the job of the link
        self._threads = ThreadPoolExecutor(4 * len(kit.hospitals), thread_name_prefix="asking")

    def ask(self, hospital: str, question: bytes) -> Future[bytes]:
        return self._threads.submit(self._asked, hospital, question)

    def close(self) -> None:
        """End the job, and send nothing more."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._link:
            self._link.close()
        self._listening.close()
        (self.kit.folder / LEARNER).unlink(missing_ok=True)

    def _asked(self, hospital: str, question: bytes) -> bytes:
        link = self._linked(hospital)
        begun = time.monotonic()
        self.traffic.note(self.kit.name, hospital, question)
        try:
            answer = link.ask(hospital, question, self.timeout).result()
        except Absent:
            self._failed.add(hospital)
            raise
        self.traffic.note(hospital, self.kit.name, answer)
        self.traffic.journeys += 1
        self.traffic.sent += len(question)
        self.traffic.received += len(answer)
        self.traffic.seconds += time.monotonic() - begun
        return answer

    def _linked(self, hospital: str) -> Link:
        """Return the connection of a job in which a hospital takes part; start a job if there is none."""
        with self._lock:
            link = self._link
            if link and not link.ended.is_set():
                if hospital in link.members and hospital not in self._failed:
                    return link
                if time.monotonic() - self._looked < LOOK_AGAIN:
                    raise Absent(hospital, "is not connected to the relay")
            self._looked = time.monotonic()
            try:
                with session(self.kit) as made:
                    there = connected(made)
                    if hospital not in there or self.kit.name not in there:
                        away = hospital if hospital not in there else f"{self.kit.name}'s own service"
                        raise Absent(hospital, f"{away} is not connected to the relay; `smg federation join` runs it")
                    if link:
                        link.close()
                    self._link = self._started(made, there)
                    self._failed.clear()
            except Absent:
                raise
            except SmgError as error:
                raise Absent(hospital, str(error)) from None
            except Exception as error:  # NVFLARE's have no common base
                raise Absent(hospital, f"the relay started no job ({type(error).__name__}: {error})") from None
            if hospital not in self._link.members:
                raise Absent(hospital, "did not take part in the job")
            return self._link

    def _started(self, made: object, members: list[str]) -> Link:
        self.jobs += 1
        job = submit(made, self.kit, members)
        self.say(f"job {self.jobs} with {', '.join(name for name in members if name != self.kit.name)}")
        self._listening.settimeout(1.0)
        for _ in range(int(TO_START)):
            try:
                return Link(Frames(self._listening.accept()[0]))
            except EOFError:  # of an earlier job, whose process has died
                continue
            except TimeoutError:
                if status(made, job).startswith("FINISHED"):
                    break
        raise SmgError(f"relay {self.kit.host}: job {job} did not start; {self.kit.flare}/log.txt may say why")

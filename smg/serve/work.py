"""The queue of a node: one prediction at a time, a bound on those that wait, and a record of the last ones."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from smg.errors import SmgError

REMEMBERED = 20  # jobs that the page shows


class Busy(SmgError):
    """As many scans wait as may wait."""


@dataclass(eq=False)
class Job:
    """One scan to predict: where it came from, what became of it."""

    number: int
    source: str  # "http", or the AE title of the sender
    do: Callable[[], str]  # predicts and delivers; returns what to say of it
    begun: datetime = field(default_factory=lambda: datetime.now(UTC))
    ended: datetime | None = None
    said: str = ""  # of a job that went well
    failure: str = ""
    finished: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True)
class Standing:
    """The queue at one moment."""

    waiting: int
    current: Job | None
    done: int
    failed: int
    last: tuple[Job, ...]  # that went well, newest first
    failures: tuple[Job, ...]  # newest first


class Work:
    """A worker thread and the jobs that wait for it."""

    def __init__(self, bound: int, log: Callable[[str], None]) -> None:
        self.bound, self.log = bound, log
        self.lock = threading.Lock()
        self.jobs: queue.Queue[Job | None] = queue.Queue()
        self.waiting, self.numbers, self.done, self.failed = 0, 0, 0, 0
        self.current: Job | None = None
        self.last: deque[Job] = deque(maxlen=REMEMBERED)
        self.failures: deque[Job] = deque(maxlen=REMEMBERED)
        self.closing = False
        self.thread = threading.Thread(target=self._run, name="smg-predict", daemon=True)
        self.thread.start()

    def submit(self, source: str, do: Callable[[], str]) -> Job:
        """Add a job, or raise Busy; it is finished when its event is set."""
        with self.lock:
            if self.waiting >= self.bound or self.closing:
                raise Busy(f"{self.waiting} scans wait already; send it again later")
            self.numbers += 1
            self.waiting += 1
            job = Job(self.numbers, source, do)
            self.jobs.put(job)
        return job

    def note_failure(self, source: str, sentence: str) -> None:
        """Record a scan that did not become a job, as a series that broke off."""
        with self.lock:
            self.numbers += 1
            job = Job(self.numbers, source, lambda: "")
            self._fail(job, sentence)

    def standing(self) -> Standing:
        """Return the queue as it is now."""
        with self.lock:
            last, failures = tuple(reversed(self.last)), tuple(reversed(self.failures))
            return Standing(self.waiting, self.current, self.done, self.failed, last, failures)

    def close(self) -> None:
        """Give up what waits, and end after the job under way."""
        with self.lock:
            self.closing = True
            while not self.jobs.empty():
                job = self.jobs.get()
                if job is not None:
                    self.waiting -= 1
                    self._fail(job, "the node was stopped; send it again")
            self.jobs.put(None)
        self.thread.join()

    def _run(self) -> None:
        while (job := self.jobs.get()) is not None:
            with self.lock:
                self.waiting, self.current = self.waiting - 1, job
            begun = time.monotonic()
            try:
                said, failure = job.do(), ""
            except SmgError as error:
                said, failure = "", str(error)
            except Exception as error:  # the node goes on; the text of an unknown exception may quote a header
                said, failure = (
                    "",
                    f"failed by an unexpected {type(error).__name__}; see the node's versions and report it",
                )
            with self.lock:
                self.current = None
                if failure:
                    self._fail(job, failure)
                    continue
                job.said, job.ended = f"{said}, {time.monotonic() - begun:.1f} s", datetime.now(UTC)
                self.done += 1
                self.last.append(job)
                self.log(f"job {job.number} from {job.source}: {job.said}")
                job.finished.set()

    def _fail(self, job: Job, sentence: str) -> None:
        job.failure, job.ended = sentence, datetime.now(UTC)
        self.failed += 1
        self.failures.append(job)
        self.log(f"job {job.number} from {job.source} failed: {sentence}")
        job.finished.set()

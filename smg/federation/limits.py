"""A hospital's limits on the use of its data, and the audit log of its answers."""

from __future__ import annotations

import json
import math
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from smg.errors import SmgError
from smg.federation.transport import Refused
from smg.files import append_line

if TYPE_CHECKING:  # NVFLARE's processes open a kit, and need no torch
    from smg.federation.messages import Query


@dataclass(frozen=True)
class Limits:
    """Rules that a hospital sets for itself. Nobody outside can change them.

    least_rows: smallest number of different slices in a gradient. A gradient of one slice reveals most of that slice.
    a_minute: answers in any 60 seconds; None for no limit. Each gradient of a message is an answer.
    budget: total number of answers, counted over restarts in the audit log; None for no limit.
    clip: norm that a row's gradient is clipped to, with noise (smg.federation.privacy); None for neither.
    noise: standard deviation of the noise, in units of `clip`.
    delta: the δ for which ε is computed.
    """

    least_rows: int = 1
    a_minute: int | None = None
    budget: int | None = None
    clip: float | None = None
    noise: float | None = None
    delta: float = 1e-5

    def __post_init__(self) -> None:
        """Refuse limits that would not limit as they read."""
        for name, least in (("least_rows", 1), ("a_minute", 0), ("budget", 0)):
            value = getattr(self, name)
            is_off = value is None and name != "least_rows"
            if not is_off and (type(value) is not int or value < least):
                raise SmgError(f"{name} is {value!r}; give a whole number")
        for name, limit in (("clip", math.inf), ("noise", math.inf), ("delta", 1.0)):
            value = getattr(self, name)
            is_off = value is None and name != "delta"
            if not is_off and (type(value) not in (int, float) or not 0 < value < limit):
                below = "" if limit == math.inf else f" and below {limit:g}"
                raise SmgError(f"{name} is {value!r}; give a number above zero{below}")
        if (self.clip is None) != (self.noise is None):
            raise SmgError("of clip and noise one is given, and each needs the other; give both or neither")


@dataclass
class Audit:
    """A hospital's record of its answers: one JSON line each, in a file of its own."""

    path: Path | None = None  # None keeps it in memory only
    answered: int = 0
    entries: list[dict[str, object]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.path is not None and self.path.exists():
            self.answered = sum(map(_answers_in, self.path.read_bytes().splitlines()))

    def note(self, **what: object) -> None:
        """Add one line."""
        entry = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **what}
        self.answered += _count(what)
        if self.path is None:
            self.entries.append(entry)
        else:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            append_line(self.path, entry)


def _answers_in(line: bytes) -> int:
    """Return how many answers a line of the log says were given; none if a process died while it wrote the line."""
    try:
        return _count(json.loads(line))
    except ValueError:
        return 0


def _count(entry: Mapping[str, object]) -> int:
    """Return how many answers an entry says were given; an older entry lists the rows of each gradient instead."""
    if not entry.get("answered"):
        return 0
    rows = entry.get("rows")
    answers = entry.get("answers", sum(map(bool, rows)) if isinstance(rows, list) else 1)
    return answers if isinstance(answers, int) else 0


class Gate:
    """Allow or refuse a question by the hospital's limits."""

    def __init__(self, site: str, limits: Limits, audit: Audit) -> None:
        self.site, self.limits, self.audit = site, limits, audit
        self._recent: deque[float] = deque()

    def check_rows(self, queries: tuple[Query, ...]) -> None:
        """Refuse a gradient of fewer slices than the hospital allows; a query without rows needs no answer."""
        fewest = min((len({slice_ for slice_, _ in one.rows}) for one in queries), default=self.limits.least_rows)
        if fewest < self.limits.least_rows:
            raise Refused(
                f"hospital {self.site}: answers for no fewer than {self.limits.least_rows} slices, and was asked "
                f"for {fewest}; agree on a lower limit with the hospital, or begin again with a larger replay.batch"
            )

    def count(self, answers: int = 1) -> None:
        """Refuse more answers than the hospital allows, in a minute or in all."""
        limits, now = self.limits, time.monotonic()
        if limits.budget is not None and self.audit.answered + answers > limits.budget:
            raise Refused(
                f"hospital {self.site}: has given {self.audit.answered} of the {limits.budget} answers that it allows; "
                "ask the hospital for more"
            )
        while self._recent and now - self._recent[0] >= 60:
            self._recent.popleft()
        if limits.a_minute is not None and len(self._recent) + answers > limits.a_minute:
            ever = answers <= limits.a_minute
            then = "go on later with the same command" if ever else f"this method asks {answers} at once"
            raise Refused(f"hospital {self.site}: allows {limits.a_minute} answers a minute; {then}", later=ever)
        self._recent.extend([now] * answers)

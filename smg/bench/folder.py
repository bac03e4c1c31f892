"""The record of a bench's folder: what is planned in it.

bench.json                      streams, methods and seeds, every run planned so far, and the runs of the last command
STREAM/METHOD/seed-N/           a run's folder
    failure.txt                 everything it printed, if it failed
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import ConfigDict, JsonValue

from smg.errors import SmgError
from smg.json_records import FileRecord, Record, Tree, read_record, write_record
from smg.learner.results import StreamRecord

BENCH = "bench.json"
FAILURE = "failure.txt"


class NamedStream(StreamRecord):
    """A stream of the bench, by its name."""

    name: str


class NamedMethod(Record):
    """A method or a variant of one, by its name, with the settings that are its own."""

    model_config = ConfigDict(extra="allow")

    name: str


class BenchRecord(FileRecord):
    """bench.json."""

    FORMAT: ClassVar[int] = 1

    format: int = 1
    settings: dict[str, JsonValue]  # of every method
    part: str
    streams: tuple[NamedStream, ...]
    methods: tuple[NamedMethod, ...]
    seeds: tuple[int, ...]
    runs: tuple[str, ...]  # folders of all runs planned so far
    now: tuple[str, ...]  # folders of the runs of the last command

    @classmethod
    def upgrade(cls, tree: Tree, format: int) -> Tree:
        """List the runs, which older files did not: every method on every stream with every seed."""
        every = [
            f"{stream['name']}/{method['name']}/seed-{seed}"
            for seed in tree["seeds"]
            for stream in tree["streams"]
            for method in tree["methods"]
        ]
        return {"runs": every, "now": every} | tree


def read_bench(folder: Path) -> BenchRecord:
    """Read a bench's record."""
    return read_record(folder / BENCH, BenchRecord, "give another --out")


def write_bench(folder: Path, record: BenchRecord) -> None:
    """Write a bench's record."""
    write_record(folder / BENCH, record)


def bench_in(folder: Path) -> BenchRecord | None:
    """Return a bench's record; None if the folder is not a bench, or has a `bench.json` of another tool."""
    try:
        return read_bench(folder)
    except SmgError:
        return None


def planned_in(folder: Path, now: bool = False) -> list[Path]:
    """Return the folders of all runs ever planned, or of the last command's (`now`); none if it is not a bench."""
    record = bench_in(folder)
    return [folder / run for run in (record.now if now else record.runs)] if record else []

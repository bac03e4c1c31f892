"""The results of a run, `results.json`: configuration, matrices, measures, costs and the metrics of every subject."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import TypeAdapter, ValidationError

from smg.errors import SmgError
from smg.files import write_json
from smg.json_records import FileRecord, Record, Settings, Tree, first_fault, read_record, write_record
from smg.learner.records import PackageVersions, SubjectRow

RESULTS = "results.json"
Measures = dict[str, float | None]  # BM, BT, FM and FT
MatrixRecord = dict[str, dict[str, float | None]]  # round's site -> site -> mean


class StreamRecord(Record):
    """The sites of a run in the order they were learned, and the held-out site."""

    order: tuple[str, ...]
    unseen: str | None

    @property
    def sites(self) -> list[str]:
        """Return the learned sites in order, then the held-out site."""
        return [*self.order, *([self.unseen] if self.unseen else [])]


class ResultRow(SubjectRow):
    """The metrics of one subject of a site after a round; the round is named by the site that it learned."""

    round: str
    site: str
    part: str | None = None  # None in results of older versions: the part of the run


class Costs(Record):
    """The costs of a run's rounds, and plasticity where it is known."""

    plasticity: dict[str, float | None]
    replay_subjects: int
    replay_bytes: int
    state_bytes: int
    parameters: int
    seconds: dict[str, float]  # of each round, by its site
    sentinel_subjects: int | None = None  # not among the replay's; None in results of older versions
    sentinel_bytes: int | None = None


class Results(FileRecord):
    """results.json. Matrices and measures are of the first class; `classes` has the measures of every class."""

    format: int = 1
    name: str  # of the method, or of its variant
    method: str
    stream: StreamRecord
    seed: int
    part: str
    matrix: dict[str, MatrixRecord]  # by metric
    measures: dict[str, Measures]  # by metric
    formulas: dict[str, str]
    classes: dict[str, dict[str, Measures]]
    missing: dict[str, dict[str, dict[str, int]]]  # subjects without a value: metric -> round -> site -> count
    subjects: tuple[ResultRow, ...]
    config: Settings
    versions: PackageVersions
    costs: Costs | None = None  # None in results of older versions, and of rounds evaluated afterwards

    FORMAT: ClassVar[int] = 1

    @classmethod
    def upgrade(cls, tree: Tree, format: int) -> Tree:
        """Add the fields that runs of older versions did not record."""
        unknown = {"name": tree["method"], "part": "test", "formulas": {}, "classes": {}, "missing": {}}
        return unknown | tree


def read_results(folder: Path, name: str = RESULTS) -> Results:
    """Return the results of a finished run."""
    return read_record(folder / name, Results, "move the file out of the folder if it is no run's")


def results_of(folder: Path) -> Results | None:
    """Return a finished run's results, or None if it has not finished."""
    return read_results(folder) if (folder / RESULTS).exists() else None


def write_results(folder: Path, results: Results, name: str = RESULTS) -> None:
    """Write the results of a run into its folder."""
    write_record(folder / name, results)


ROWS = TypeAdapter(list[ResultRow])


def read_rows(path: Path) -> list[ResultRow]:
    """Return the rows of one evaluation."""
    try:
        return ROWS.validate_json(path.read_bytes())
    except OSError as error:
        raise SmgError(f"{path}: {error.strerror}; delete it to evaluate the round again") from None
    except ValidationError as error:
        raise SmgError(f"{path}: damaged ({first_fault(error)}); delete it to evaluate the round again") from None


def write_rows(path: Path, rows: list[ResultRow]) -> None:
    """Write the rows of one evaluation."""
    write_json(path, [row.model_dump(mode="json") for row in rows])

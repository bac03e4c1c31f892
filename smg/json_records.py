"""Records: JSON files with a schema and a format number, checked when they are read and written whole.

A record is a frozen pydantic model. `read_record` turns every fault of a file into one line that names the file and the
first thing wrong with it. A file of an older format is upgraded in memory, and written in the present format when it is
written next; a file of a newer format is refused.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from smg.errors import SmgError
from smg.files import json_file, write_json

Tree = dict[str, Any]  # parsed JSON, before its schema is checked
Kind = TypeVar("Kind", bound="FileRecord")


class Record(BaseModel):
    """A part of a record: exact types, no unknown keys, no NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class FileRecord(Record):
    """A whole file."""

    FORMAT: ClassVar[int] = 1
    NEWEST: ClassVar[int | None] = None  # format that can be read, if some files are written in a later one
    format: int

    def written_format(self) -> int:
        """Return the format in which the record is written."""
        return self.FORMAT

    @classmethod
    def upgrade(cls, tree: Tree, format: int) -> Tree:
        """Return the content of a file of an older format as the present one has it."""
        return tree


class Settings(Record):
    """The configuration that a record repeats, with every setting as it was; `LearnerConfig` checks it where needed."""

    model_config = ConfigDict(extra="allow")

    method: str
    iterations: int
    seed: int

    def tree(self) -> Tree:
        """Return all settings by section, as `LearnerConfig` takes them."""
        return self.model_dump()


def read_record(path: Path, kind: type[Kind], advice: str = "restore it from a backup", first_format: int = 1) -> Kind:
    """Read a record from its file; `first_format` is that of a file that does not name its format."""
    try:
        text = path.read_bytes().decode()
    except OSError as error:
        raise SmgError(f"{path}: {error.strerror}; {advice}") from None
    except UnicodeDecodeError:
        raise SmgError(f"{path}: damaged (not text); {advice}") from None
    return parse_record(text, kind, str(path), advice, first_format)


def parse_record(text: str, kind: type[Kind], name: str, advice: str, first_format: int = 1) -> Kind:
    """Parse and check a record; `name` is how a message calls it."""
    tree, constants = _parsed(text, name, advice)
    format = tree.get("format", first_format)
    if type(format) is not int:
        raise SmgError(f"{name}: damaged (format: not a whole number); {advice}")
    if format > (kind.NEWEST or kind.FORMAT):
        raise SmgError(f"{name}: made by a newer version of smg (format {format}); update smg to use it")
    if constants and format >= kind.FORMAT:
        raise SmgError(f"{name}: damaged ({constants[0]} is not JSON); {advice}")
    try:
        if format < kind.FORMAT or "format" not in tree:
            tree = kind.upgrade(tree | {"format": format}, format)
        # Checked as JSON text, in which a list may stand for a tuple though types are strict.
        return kind.model_validate_json(json.dumps(tree))
    except ValidationError as error:
        raise SmgError(f"{name}: damaged ({first_fault(error)}); {advice}") from None
    except (KeyError, TypeError, AttributeError, ValueError):
        raise SmgError(f"{name}: damaged (not the content of such a file); {advice}") from None


def _parsed(text: str, name: str, advice: str) -> tuple[Tree, list[str]]:
    """Return the JSON object in a text, and the NaN and infinities in it, in whose place is None."""
    constants: list[str] = []
    try:
        tree = json.loads(text, parse_constant=constants.append)
    except (ValueError, RecursionError):
        raise SmgError(f"{name}: damaged (not JSON); {advice}") from None
    if not isinstance(tree, dict):
        raise SmgError(f"{name}: damaged (not a JSON object); {advice}")
    return tree, constants


def first_fault(error: ValidationError) -> str:
    """Return where a record is wrong first and how, such as `rounds.0.site: Field required`."""
    one = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(str(part) for part in one["loc"])
    reason = one["msg"].removeprefix("Value error, ")
    return f"{place}: {reason}" if place else reason


def write_record(path: Path, record: FileRecord) -> None:
    """Write a record in the present format, whole or not at all."""
    write_json(path, _present(record))


def record_file(record: FileRecord) -> bytes:
    """Return the content of the file that `write_record` writes."""
    return json_file(_present(record))


def _present(record: FileRecord) -> Tree:
    return record.model_dump(mode="json") | {"format": record.written_format()}

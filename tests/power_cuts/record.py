"""Run a command in a forked process and return its operations on files, in order."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

from smg.learner import pseudonyms
from tests.kills.operations import Half, Operation, Operations
from tests.kills.processes import in_child, run_main, wait

RECORDED = "recorded.jsonl"  # beside the desk


def recorded(words: list[str], desk: Path, environment: Mapping[str, str]) -> tuple[int, list[Operation]]:
    """Run a command on a desk; return its exit code and what it did to files there."""
    process = os.fork()
    if not process:
        in_child(desk, environment, lambda: _record(words, desk))
    code = wait(process)
    assert code is not None
    return code, [_read(line) for line in desk.with_name(RECORDED).read_text().splitlines()]


def same_secret() -> None:
    """Make every secret the same, so that a model can be compared with one that was made again."""
    pseudonyms.secrets = SimpleNamespace(token_bytes=bytes)  # type: ignore[assignment]


def _record(words: list[str], desk: Path) -> None:
    same_secret()
    contents = {path.stat().st_ino: path.read_bytes() for path in desk.rglob("*") if path.is_file()}
    seen: list[Operation] = []

    def on_operation(operation: Operation, when: str, half: Half | None) -> None:
        if when == "before" and operation.kind in ("rename", "link") and os.path.isfile(operation.path):
            _unseen(operation.path)
        if when == "after":
            seen.append(operation)
            if operation.kind in ("make", "write", "resize") and not operation.is_folder:
                contents[operation.inode] = Path(operation.path).read_bytes()

    def _unseen(path: str) -> None:
        """Add a write of what a library has written unseen."""
        inode, whole = os.stat(path).st_ino, Path(path).read_bytes()
        if contents.get(inode) != whole:
            seen.append(Operation("resize", path, inode=inode, at=0))
            seen.append(Operation("write", path, inode=inode, data=whole))
            contents[inode] = whole

    Operations(desk, on_operation)
    try:
        run_main(words)
    finally:
        lines = [json.dumps(asdict(one) | {"data": base64.b64encode(one.data).decode()}) for one in seen]
        desk.with_name(RECORDED).write_text("".join(f"{line}\n" for line in lines))


def _read(line: str) -> Operation:
    fields = json.loads(line)
    return Operation(**fields | {"data": base64.b64decode(fields["data"])})

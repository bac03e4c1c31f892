"""Things that are found by name, and that a user's file can add to: methods, replay policies, losses.

A name is taken once. What a user's file registers belongs to that file, and is asked for as `mine.py:mine`; so two
files may use one name, and neither replaces what smg has under it. A file runs only if it is trusted (smg.trust).
"""

from __future__ import annotations

import sys
from difflib import get_close_matches
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from smg import trust
from smg.errors import Misuse, SmgError

T = TypeVar("T")
Entries = dict[tuple[str, str], Any]  # (kind, name) -> what is registered
_FILES: dict[Path, Entries] = {}  # of each file that was run
_running: list[Entries] = []  # of the file that is being run


class Registry(dict[str, T]):
    """Things of one kind, by name."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def add(self, name: str, thing: Any) -> Any:
        """Enter a thing and return it; from a user's file, for that file alone."""
        entries = _running[-1] if _running else {}
        before = self.get(name, entries.get((self.kind, name)))
        if before is not None and _identity(before) != _identity(thing):  # a notebook's cell may be run twice
            raise Misuse(f"{self.kind} {name!r} is registered already ({before.__module__}); choose another name")
        if _running:
            entries[self.kind, name] = thing
        else:
            self[name] = thing
        return thing

    def find(self, name: str, more: str = "") -> T:
        """Return the thing of that name; `more` is said behind the list of names that there are."""
        file, _, known = name.rpartition(":")
        if file:
            trust.require(self.kind, name)
        own = {n: thing for (kind, n), thing in run_file(Path(file)).items() if kind == self.kind} if file else {}
        there: dict[str, T] = {**self, **own}
        if known not in there:
            close = get_close_matches(known, there, n=1)
            meant = f"did you mean {close[0]}? It is one of" if close else "it is one of"
            raise Misuse(f"no {self.kind} {name!r}; {meant} {', '.join(there)}{more}")
        return there[known]


def _identity(thing: Any) -> tuple[str, str]:
    """Return where a thing is defined: a file may have been imported, and run as a user's own as well."""
    file = getattr(sys.modules.get(thing.__module__), "__file__", None)
    return str(Path(file).resolve()) if file else thing.__module__, thing.__qualname__


def run_file(path: Path) -> Entries:
    """Run a user's file, once, and return what it registers."""
    where = path.resolve()
    if where in _FILES:
        return _FILES[where]
    if path.suffix != ".py" or not path.is_file():
        raise SmgError(f"{path}: no such Python file; something of your own is named as mine.py:mine")
    module, entries = ModuleType(f"smg_own_{path.stem}_{sha256(str(where).encode()).hexdigest()[:8]}"), Entries()
    module.__file__ = str(where)
    sys.modules[module.__name__] = module  # where dataclasses look up what annotations name
    _running.append(entries)
    try:
        # From the bytes of the file itself: Python's import would run a compiled copy beside it, which may be another.
        exec(compile(path.read_bytes(), str(where), "exec"), module.__dict__)
    except SmgError as error:
        raise type(error)(f"{path}: {error}") from None
    except Exception as error:
        raise SmgError(f"{path}: {type(error).__name__}: {error}") from error
    finally:
        _running.pop()
    _FILES[where] = entries
    return entries

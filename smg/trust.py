"""Decide which of the user's own code may run: a name in a model folder is data until the user trusts it.

A folder's settings may name a method, a loss, a replay policy (`mine.py:mine`) or a network (`package.module:factory`).
Such a name runs in three cases:

- the user gave it on this call (`allow`): `--method mine.py:mine`, `LearnerConfig(method="mine.py:mine")`;
- the user trusts everything on this call (`allow_everything`): `--trust-code`, `Learner(folder, trust_code=True)`;
- the user trusts the file as it is now (`smg trust mine.py`): its hash stands in `trusted.json` in the user's
  configuration folder, outside of every model. A file that is changed is trusted no longer.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from smg.errors import SmgError
from smg.files import write_json

_SETTINGS = {"method": "method", "loss": "loss", "replay.policy": "replay policy", "network.name": "network"}  # -> kind
_allowed: set[str] = set()  # names of this call, as `_known_as` writes them
_everything = False


def code_named_in(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of code in a tree of settings, by kind: `{"method": "mine.py:mine"}`."""
    found = {}
    for setting, kind in _SETTINGS.items():
        value: Any = settings
        for part in setting.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if isinstance(value, str) and ":" in value:
            found[kind] = value.removesuffix("+c") if kind == "method" else value
    return found


def allow(*names: str) -> None:
    """Trust names that the user gave, for this process."""
    _allowed.update(_known_as(name) for name in names)


def allow_everything() -> None:
    """Trust every name, for this process."""
    global _everything
    _everything = True


def begin_call() -> None:
    """Forget the code allowed by the call before: each call has its own arguments."""
    global _everything
    _everything = False
    _allowed.clear()


def require(kind: str, name: str) -> None:
    """Raise an error that names the code, unless it is trusted."""
    if _everything or _known_as(name) in _allowed or _hash_is_trusted(name):
        return
    code = _code_of(name)
    raise SmgError(
        f"{kind} {name}: a model folder is data, and the code it names does not run; read {code}, then `smg trust "
        f"{code}`, or give --trust-code for this call"
    )


# --- trust that lasts -------------------------------------------------------------------------------------------------


def trusted_file() -> Path:
    """Return where hashes of trusted code are kept: `smg/trusted.json` in the user's configuration folder."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "smg" / "trusted.json"


def trusted() -> dict[str, dict[str, str]]:
    """Return what is trusted by hash: {hash: {"code": name, "when": date}}."""
    path = trusted_file()
    try:
        entries = json.loads(path.read_text())["trusted"]
        return {str(key): {str(k): str(v) for k, v in value.items()} for key, value in entries.items()}
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise SmgError(f"{path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise SmgError(f"{path}: damaged; delete it and trust your files again") from None


def trust(code: str) -> str:
    """Trust a file, or a `package.module:factory`, as it is now; return its hash."""
    sha256 = _hash_of(code)
    if sha256 is None:
        raise SmgError(f"{code}: no such Python file or module; give mine.py, or package.module:factory")
    entry = {"code": _code_of(code), "when": datetime.now(UTC).isoformat(timespec="seconds")}
    write_json(trusted_file(), {"trusted": trusted() | {sha256: entry}})
    return sha256


def distrust(code: str) -> int:
    """Remove a name, whatever its file holds now; return how many entries there were."""
    kept = {sha256: entry for sha256, entry in trusted().items() if entry.get("code") != _code_of(code)}
    count = len(trusted()) - len(kept)
    if count:
        write_json(trusted_file(), {"trusted": kept})
    return count


def digest(source: bytes) -> str:
    """Return the hash under which a file with this content is trusted."""
    return hashlib.sha256(b"file " + source).hexdigest()


def _hash_is_trusted(name: str) -> bool:
    known = trusted()
    return bool(known) and (_hash_of(name) or "") in known


def _hash_of(name: str) -> str | None:
    """Return the hash of a file's content, or of a factory's name with every file that importing it runs first."""
    try:
        if _is_file(name):
            return digest(_file_of(name).read_bytes())
        sources = _module_files(name.partition(":")[0])
        whole = hashlib.sha256(f"factory {name}".encode())
        for path in sources:
            whole.update(hashlib.sha256(path.read_bytes()).digest())
        return whole.hexdigest() if sources and ":" in name else None
    except OSError:
        return None


def _module_files(module: str) -> list[Path]:
    """Return the files of a module and of the packages around it, found without running any of them."""
    files, folders, name = [], None, ""
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        spec = PathFinder.find_spec(name, folders)
        if spec is None or not spec.origin or not spec.has_location:
            return []
        files.append(Path(spec.origin))
        folders = list(spec.submodule_search_locations or [])
    return files


def _is_file(name: str) -> bool:
    return name.endswith(".py") or ".py:" in name or "/" in name


def _file_of(name: str) -> Path:
    return Path(name if name.endswith(".py") else name.rpartition(":")[0])


def _code_of(name: str) -> str:
    """Return what is trusted as one: a whole file, or one factory of a module."""
    return str(_file_of(name)) if _is_file(name) else name


def _known_as(name: str) -> str:
    return str(_file_of(name).resolve()) if _is_file(name) else name

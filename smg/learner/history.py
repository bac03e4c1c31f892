"""Read-only history of a model: every round, what is kept of each, and the one under way.

All of it is read off JSON and the headers of arrays, without torch, so that it is there at once; and a round that is
damaged hides no other.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smg.errors import SmgError
from smg.files import left_alone, safetensors_header
from smg.learner.guard import Judged
from smg.learner.store import Store

KEPT, SPECTRA = "exemplars.safetensors", "spectra.safetensors"
STATES = ("state.safetensors", "merging.safetensors")


@dataclass(frozen=True)
class Round:
    """One round, by its entry in the model and by its folder."""

    number: int
    parent: int
    site: str
    record: dict[str, Any] | None  # None where it cannot be read
    kept: dict[str, int] | None  # subjects and bytes
    fault: str | None  # what is wrong with its folder


class History:
    """What there is to tell of one model."""

    def __init__(self, folder: Path) -> None:
        self.store = Store(folder)
        self.model = self.store.read()
        self.journal = self.store.journal()
        self.current = int(self.model["current"])
        self.origin: dict[str, Any] | None = self.model.get("origin")  # where its first weights came from, if given

    def rounds(self) -> list[Round]:
        return [self._round(entry) for entry in self.model["rounds"]]

    def held(self, record: dict[str, Any]) -> bool:
        """Whether a round still waits to be accepted."""
        accepted = [event["round"] for event in self.journal if event["event"] == "accepted"]
        return bool(record["held"]) and record["round"] not in accepted

    def lost(self) -> dict[str, tuple[float, float]]:
        """Return the sites that the current version has lost: their best DSC so far, and the one after its rounds.

        A site is lost once an accepted round took more of it than was tolerated, until a later one wins it back.
        """
        lost: dict[str, tuple[float, float]] = {}
        for entry in line_of(self.model, self.current):
            guard = self.store.read_round(entry["round"]).get("guard") or {}
            tolerance = guard.get("tolerance")
            for site, one in guard.get("sites", {}).items():
                judged = Judged.model_validate(one)
                if not judged.measured or tolerance is None:
                    continue
                if judged.lost(tolerance):
                    lost[site] = one["best"], one["after"]
                else:
                    lost.pop(site, None)
            lost.pop(entry["site"], None)  # learned again
        return lost

    def stored(self) -> list[dict[str, Any]]:
        """How many subjects and bytes each round holds of its site, and whether the next round would replay them.

        Beside them the bytes of the method's state, and what of patients the method says is in it.
        """
        used = {entry["site"]: entry["round"] for entry in line_of(self.model, self.current)}
        return [
            {
                "site": site,
                "round": number,
                **self.kept(number),
                "in_use": used.get(site) == number,
                **self.state(number),
            }
            for site, number in ((entry["site"], entry["round"]) for entry in self.model["rounds"])
        ]

    def kept(self, number: int) -> dict[str, int]:
        """How many subjects, spectra (of one slice each) and bytes a round holds of its site."""
        exemplars, spectra = self._header(number, KEPT), {}
        if SPECTRA in self.store.read_round(number)["files"]:
            spectra = self._header(number, SPECTRA)
        arrays = [entry["data_offsets"] for entry in (*exemplars.values(), *spectra.values())]
        return {
            "subjects": sum(name.endswith(".images") for name in exemplars),
            "spectra": sum(entry["shape"][0] for entry in spectra.values()),
            "bytes": sum(end - begin for begin, end in arrays),
        }

    def state(self, number: int) -> dict[str, Any]:
        """How many bytes a round's method and its merging remember, and what they hold of patients."""
        record = self.store.read_round(number)
        headers = [self._header(number, name) for name in STATES if name in record["files"]]
        if not headers:
            return {"state_bytes": 0, "state_of_patients": ""}
        sizes = [end - begin for one in headers for begin, end in (e["data_offsets"] for e in one.values())]
        return {"state_bytes": sum(sizes), "state_of_patients": record["keeps_of_patients"]}

    def under_way(self) -> dict[str, Any] | None:
        """The round that was begun and is no version yet: its site, and how far it was at its last checkpoint."""
        found = []
        for path in (self.store.folder / "progress").glob("[!.]*.safetensors"):
            try:
                found.append(json.loads(safetensors_header(path)[1]["about"]))
            except (OSError, ValueError, KeyError, TypeError, AttributeError):
                continue
        about = max(found, key=lambda one: one["iteration"], default=None)
        if about is None or about["round"] in [entry["round"] for entry in self.model["rounds"]]:
            return None
        facts = {key: about.get(key) for key in ("round", "site", "iteration", "iterations", "parent")}
        folder = self.store.folder
        return facts | {"at_work": (folder / "lock").exists() and not left_alone(folder)}

    def _round(self, entry: dict[str, Any]) -> Round:
        number, parent, site = entry["round"], entry["parent"], entry["site"]
        try:
            record = self.store.read_round(number)
        except SmgError as error:
            return Round(number, parent, site, None, None, str(error))
        try:
            for name in record["files"]:
                self._header(number, name)
            return Round(number, parent, site, record, self.kept(number), None)
        except SmgError as error:
            return Round(number, parent, site, record, None, str(error))

    def _header(self, number: int, name: str) -> dict[str, Any]:
        """Of a round's file, if the file is as long as it says."""
        path = self.store.round_folder(number) / name
        try:
            return safetensors_header(path)[0]
        except OSError as error:
            raise SmgError(f"{path}: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise SmgError(f"{path}: cut short or altered since it was written; restore it from a backup") from None


def described(origin: dict[str, Any]) -> str:
    """Return in a few words where a model's first weights came from (smg.learner.origin)."""
    where = f"{origin['name']} (sha256 {origin['sha256'][:16]})"
    if origin["kind"] == "nnunet":
        return f"nnU-Net's {origin['dataset']}/{where}, fold {origin['fold']}"
    if origin["kind"] != "model":
        return f"the file {where}"
    return f"the model {where}, round {origin['round']}, which had learned {', '.join(origin['sites']) or 'no site'}"


def line_of(model: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """The entries of the rounds that led to a version, first to last."""
    entries, line = {entry["round"]: entry for entry in model["rounds"]}, []
    while number:
        line.append(entries[number])
        number = entries[number]["parent"]
    return line[::-1]

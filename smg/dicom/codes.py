"""Codes that say in DICOM what a class is: from the settings, else from a small table by the class's name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from smg.errors import Misuse


@dataclass(frozen=True)
class Code:
    """A coded concept: `SCT:41216001:Prostate` is SNOMED CT's code of the prostate."""

    scheme: str
    value: str
    meaning: str

    @classmethod
    def parse(cls, word: str) -> Code:
        """Return the code that is written SCHEME:VALUE:MEANING."""
        parts = [part.strip() for part in word.split(":", 2)]
        if len(parts) != 3 or not all(parts) or len(parts[0]) > 16 or len(parts[1]) > 16 or len(parts[2]) > 64:
            raise Misuse(f"code {word!r}: not a code; write SCHEME:VALUE:MEANING, such as SCT:41216001:Prostate")
        return cls(*parts)


STRUCTURE = Code("SCT", "123037004", "Anatomical Structure")  # the category of every class; the type of one unknown
PROSTATE = Code("SCT", "41216001", "Prostate")
PERIPHERAL = Code("SCT", "279706003", "Peripheral zone of the prostate")
TRANSITION = Code("SCT", "399384005", "Transition zone of the prostate")
TABLE = {
    "prostate": PROSTATE,
    "whole gland": PROSTATE,
    "peripheral": PERIPHERAL,
    "peripheral zone": PERIPHERAL,
    "pz": PERIPHERAL,
    "transition": TRANSITION,
    "transition zone": TRANSITION,
    "tz": TRANSITION,
}


def code_of(name: str, given: Mapping[str, str]) -> Code:
    """Return the code of a class: as given for it, else by its name, else that of any anatomical structure."""
    if name in given:
        return Code.parse(given[name])
    return TABLE.get(name.casefold().replace("_", " ").replace("-", " ").strip(), STRUCTURE)

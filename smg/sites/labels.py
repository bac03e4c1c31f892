"""Which values of a mask mean what: any non-zero is foreground, unless the user lists values or names classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from smg.errors import Misuse, validation_line
from smg.sites.formats import Array

ANY = "any"


class Labels(BaseModel):
    """`any`, a list of values that are foreground, or classes by name: `{central: [1], peripheral: [2]}`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    classes: dict[str, tuple[int, ...]] | None = None  # None: any non-zero; else in the order of their first values
    background: tuple[int, ...] = (0,)

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, given: Any) -> Any:
        if given is None or given == ANY:
            return {}
        if isinstance(given, int):
            given = [given]
        if isinstance(given, list | tuple):
            return {"classes": {"foreground": given}}
        if isinstance(given, dict) and given and not {"classes", "background"} & set(given):
            return {"classes": {name: [v] if isinstance(v, int) else v for name, v in given.items()}}
        return given

    @model_validator(mode="after")
    def _one_meaning_each(self) -> Labels:
        """A value means one thing; and a class has its index from its value, however the user has listed them."""
        if self.classes is None:
            if self.background != (0,):
                raise ValueError("which values are background is said beside those that are not; name a class too")
            return self
        values = [*self.background, *(value for of in self.classes.values() for value in of)]
        for place, value in enumerate(values):
            if value in values[:place]:
                raise ValueError(f"value {value} means two things; give it to one class")
        if not all(self.classes.values()):
            raise ValueError("a class has at least one value")
        ordered = dict(sorted(self.classes.items(), key=lambda named: named[1][0]))
        object.__setattr__(self, "classes", ordered)
        return self

    @classmethod
    def parse(cls, words: list[str]) -> Labels:
        """From the command line: `any`, `1,2`, or one `name=1,2` for each class, and for the background if not 0."""
        if not words or words == [ANY]:
            return cls()
        try:
            named = [word.partition("=") for word in words]
            if all(equals for _, equals, _ in named):
                if len({name for name, _, _ in named}) < len(named):
                    raise Misuse(f"labels {' '.join(words)!r}: a class stands twice; list its values, as 'zone=1,2'")
                told = {name: _values(values) for name, _, values in named}
                background = {"background": told.pop("background")} if "background" in told else {}
                return cls.model_validate({"classes": told or None, **background})
            if len(words) == 1:
                return cls(classes={"foreground": _values(words[0])})
        except ValidationError as error:
            raise Misuse(f"labels {' '.join(words)!r}: {validation_line(error)}") from None
        except ValueError:
            pass
        raise Misuse(f"labels {' '.join(words)!r}: give 'any', values such as '1,2', or classes such as 'zone=1'")

    @property
    def names(self) -> tuple[str, ...]:
        """The foreground classes, in the order of their index from 1."""
        return tuple(self.classes) if self.classes is not None else ("foreground",)

    def index(self, mask: Array) -> Array:
        """The mask as class indices, 0 for background."""
        if self.classes is None:
            return (mask != 0).astype(np.uint8)
        indexed = np.zeros(mask.shape, np.uint8)
        for number, values in enumerate(self.classes.values(), start=1):
            indexed[np.isin(mask, values)] = number
        return indexed

    def values(self, indexed: Array) -> Array:
        """Class indices as the mask's own values again, each class by its first; 1 where any value is foreground."""
        told = [self.background[0], *(of[0] for of in self.classes.values())] if self.classes else [0, 1]
        kind = np.uint8 if min(told) >= 0 and max(told) < 256 else np.int32
        return np.array(told, kind)[indexed]

    def unexpected(self, mask: Array, known: frozenset[int] | None = None) -> list[float]:
        """Values that are neither foreground nor background; where any will do, those that are no whole number >= 0.

        `known` are the values a data set's own description lists, if it has one.
        """
        values = _present(mask)
        if self.classes is not None:
            known = frozenset(self.background).union(*self.classes.values())
        if known is not None:
            return [float(v) for v in values if v not in known]
        return [float(v) for v in values if not (v >= 0 and v == np.floor(v))]


def first_class(told: Mapping[str, Any]) -> str:
    """The class that the tables of a run, or of a round, are of, by the configuration it tells."""
    return Labels.model_validate(told.get("config", {}).get("preparation", {}).get("labels")).names[0]


def _values(words: str) -> tuple[int, ...]:
    return tuple(int(word) for word in words.split(","))


def _present(mask: Array) -> Array:
    """The values in a mask. A look for each small number takes a tenth of the sort that `np.unique` does."""
    if mask.dtype.kind in "iu" and mask.min(initial=0) >= 0 and mask.max(initial=0) < 16:
        return np.array([value for value in range(int(mask.max(initial=0)) + 1) if (mask == value).any()])
    return np.unique(mask)

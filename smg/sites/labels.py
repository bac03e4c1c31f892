"""The meaning of mask values: any non-zero value is foreground, unless the user lists values or names classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from smg.errors import Misuse, validation_line
from smg.sites.formats import Array

ANY = "any"


class Labels(BaseModel):
    """Foreground of a mask: `any`, a list of values, or classes by name such as `{central: [1], peripheral: [2]}`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    classes: dict[str, tuple[int, ...]] | None = None  # in the order of their first values; None: any non-zero value
    background: tuple[int, ...] = (0,)

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, given: Any) -> Any:
        """Return the fields that `any`, a value, a list or a mapping of classes stands for."""
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
        """Refuse a value with two meanings, and order the classes by value, whatever order the user has given."""
        if self.classes is None:
            if self.background != (0,):
                raise ValueError("background values need classes beside them; name a class too")
            return self
        values = [*self.background, *(value for of in self.classes.values() for value in of)]
        for place, value in enumerate(values):
            if value in values[:place]:
                raise ValueError(f"value {value} means two things; give it to one class")
        if not all(self.classes.values()):
            raise ValueError("a class has no value; give it at least one")
        ordered = dict(sorted(self.classes.items(), key=lambda named: named[1][0]))
        object.__setattr__(self, "classes", ordered)
        return self

    @classmethod
    def parse(cls, words: list[str]) -> Labels:
        """Return the labels that a command's words give: `any`, `1,2`, or `name=1,2` for each class and background."""
        if not words or words == [ANY]:
            return cls()
        try:
            named = [word.partition("=") for word in words]
            if all(equals for _, equals, _ in named):
                if len({name for name, _, _ in named}) < len(named):
                    raise Misuse(f"labels {' '.join(words)!r}: a class is named twice; list its values, as 'zone=1,2'")
                classes = {name: _values(values) for name, _, values in named}
                background = {"background": classes.pop("background")} if "background" in classes else {}
                return cls.model_validate({"classes": classes or None, **background})
            if len(words) == 1:
                return cls(classes={"foreground": _values(words[0])})
        except ValidationError as error:
            raise Misuse(f"labels {' '.join(words)!r}: {validation_line(error)}") from None
        except ValueError:
            pass
        raise Misuse(
            f"labels {' '.join(words)!r}: cannot be read; give 'any', values such as '1,2', or classes such as 'zone=1'"
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the foreground classes, in the order of their index from 1."""
        return tuple(self.classes) if self.classes is not None else ("foreground",)

    def index(self, mask: Array) -> Array:
        """Return the mask as class indices, 0 for background."""
        if self.classes is None:
            return (mask != 0).astype(np.uint8)
        indexed = np.zeros(mask.shape, np.uint8)
        for number, values in enumerate(self.classes.values(), start=1):
            indexed[np.isin(mask, values)] = number
        return indexed

    def values(self, indexed: Array) -> Array:
        """Return class indices as the values that a mask is written with."""
        values = self.written
        kind = np.uint8 if min(values) >= 0 and max(values) < 256 else np.int32
        return np.array(values, kind)[indexed]

    @property
    def written(self) -> tuple[int, ...]:
        """Return the value that a mask is written with for the background, and for each class in order.

        A class has its first value, or 1 if any value is foreground. The background has 0, or if 0 is not one of its
        values, the first of them.
        """
        if not self.classes:
            return 0, 1
        background = 0 if 0 in self.background else self.background[0]
        return background, *(values[0] for values in self.classes.values())

    def unexpected(self, mask: Array, known: frozenset[int] | None = None) -> list[float]:
        """Return the values of a mask that are neither foreground nor background.

        If any non-zero value is foreground, these are the values that are not whole numbers >= 0, or, where the data
        set's own description lists its values (`known`), all others.
        """
        values = present(mask)
        if self.classes is not None:
            known = frozenset(self.background).union(*self.classes.values())
        if known is not None:
            return [float(v) for v in values if v not in known]
        return [float(v) for v in values if not (np.isfinite(v) and v >= 0 and v == np.floor(v))]


def first_class(settings: Mapping[str, Any]) -> str:
    """Return the first class of a run's or a round's settings, which is the class that tables show."""
    return Labels.model_validate((settings.get("preparation") or {}).get("labels")).names[0]


def _values(words: str) -> tuple[int, ...]:
    """Return the values in `1,2`."""
    return tuple(int(word) for word in words.split(","))


def present(mask: Array) -> Array:
    """Return the values in a mask, in order; testing each small number takes a tenth of the time of `np.unique`."""
    if mask.dtype.kind in "iu" and mask.min(initial=0) >= 0 and mask.max(initial=0) < 16:
        return np.array([value for value in range(int(mask.max(initial=0)) + 1) if (mask == value).any()])
    return np.unique(mask)

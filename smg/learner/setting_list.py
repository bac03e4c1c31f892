"""List every setting of the configuration, from its fields."""

from __future__ import annotations

import dataclasses
from typing import Literal, get_args, get_origin

from pydantic import BaseModel

from smg.learner.config import LearnerConfig
from smg.methods import METHODS

FOLLOW = ("network.channels", "network.classes")  # set from the preparation, not by the user


def all_settings() -> list[tuple[str, str, str]]:
    """Return (key, default, meaning) in the order of the configuration; methods' options are listed by method."""
    rows = _of(LearnerConfig, "")
    place = next(n for n, row in enumerate(rows) if row[0] == "options")
    return rows[: place + 1] + _options() + rows[place + 1 :]


def _of(model: type[BaseModel], above: str) -> list[tuple[str, str, str]]:
    rows = []
    for name, field in model.model_fields.items():
        key, inner = above + name, field.annotation
        if key in FOLLOW:
            continue
        section = isinstance(inner, type) and issubclass(inner, BaseModel) and name != "labels"
        if section and not above:
            if name == "augment":
                rows.append((key, "none", field.description or ""))
            rows += _of(inner, f"{key}.")  # type: ignore[arg-type]
        else:
            choices = f" ({', '.join(map(str, get_args(inner)))})" if get_origin(inner) is Literal else ""
            default = _shown(field.get_default(call_default_factory=True))
            rows.append((key, default, f"{field.description}{choices}"))
    return rows


def _options() -> list[tuple[str, str, str]]:
    methods: dict[tuple[str, str], list[str]] = {}
    for name, method in METHODS.items():
        if method.__module__.startswith("smg.methods"):
            for field in dataclasses.fields(method):
                methods.setdefault((field.name, _shown(field.default)), []).append(name)
    return [(f"options.{key}", default, f"of {', '.join(names)}") for (key, default), names in methods.items()]


def _shown(value: object) -> str:
    """Return a value approximately as it would be written in YAML."""
    if isinstance(value, BaseModel):
        return "any" if "classes" in type(value).model_fields else "off"
    if isinstance(value, float):
        return f"{value:.4g}"
    return "-" if value is None or value == {} else str(value).lower() if isinstance(value, bool) else str(value)

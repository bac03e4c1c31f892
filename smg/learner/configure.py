"""A configuration from a YAML file and from `key=value` words, with one line for each mistake."""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from smg import trust
from smg.errors import Misuse, SmgError, validation_line
from smg.learner.config import LearnerConfig, spelled

Tree = dict[str, Any]
FOLLOWS = {"network.channels": "preparation.adjacent", "network.classes": "preparation.labels"}


def configuration(*layers: Tree) -> LearnerConfig:
    """Return the configuration that the layers make together, checked.

    Some layers may be a folder's: code that they name has to be trusted. What a user gave is (`typed`).
    """
    whole = laid(*layers)
    _check_keys(whole, LearnerConfig, ())
    for kind, name in trust.code_named_in(whole).items():
        trust.require(kind, name)
    try:
        return LearnerConfig.model_validate(whole)
    except ValidationError as error:
        raise Misuse(validation_line(error)) from None


def typed(layer: Tree) -> Tree:
    """Return settings that the user gave on this call, and trust the code that they name."""
    trust.allow(*trust.code_named_in(layer).values())
    return layer


def laid(*layers: Tree) -> Tree:
    """Later layers over earlier ones, key by key; with another method or loss the options of the one before go."""
    whole: Tree = {}
    for layer in layers:
        if "method" in whole and _plain(layer.get("method", whole["method"])) != _plain(whole["method"]):
            whole.pop("options", None)
        if layer.get("loss", whole.get("loss")) != whole.get("loss"):
            whole.pop("loss_options", None)
        whole = over(whole, layer)
    return whole


def _plain(method: Any) -> str:
    return spelled(str(method))[0]


def read_yaml(path: Path) -> Tree:
    """A YAML file's mapping."""
    try:
        tree = from_yaml(path.read_text())
    except OSError as error:
        raise SmgError(f"{path}: {error.strerror}") from None
    except (yaml.YAMLError, ValueError) as error:  # bytes that are no text, or a date that is none
        where = getattr(error, "problem_mark", None)
        raise SmgError(f"{path}: not YAML{f' (line {where.line + 1})' if where else ''}") from None
    if not isinstance(tree, dict):
        raise SmgError(f"{path}: a configuration is a mapping of keys to values")
    return tree


class _Loader(yaml.SafeLoader):
    """YAML as everyone writes it: `5e-4` is a number, which PyYAML by itself takes for a word."""


class _Dumper(yaml.SafeDumper):
    """Quotes a word that `_Loader` would take for a number."""


_BARE = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+$")
for _kind in (_Loader, _Dumper):
    _kind.add_implicit_resolver("tag:yaml.org,2002:float", _BARE, list("-+.0123456789"))


def from_yaml(text: str) -> Any:
    """What a YAML text says; nothing but plain values can be made by it."""
    try:
        return yaml.load(text, _Loader)
    except RecursionError:
        raise yaml.YAMLError("it is nested too deeply") from None


def to_yaml(tree: Tree) -> str:
    """A text that `from_yaml` reads back as it was."""
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False)


def from_words(words: list[str]) -> Tree:
    """`network.width=8` and the like; a value is read as YAML."""
    tree: Tree = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise Misuse(f"{word!r}: settings are given as key=value, such as network.width=8")
        try:
            inner: Any = from_yaml(value)
        except (yaml.YAMLError, ValueError):
            raise Misuse(f"{word!r}: the value cannot be read; write a mapping as {{key: value, key: value}}") from None
        if key in FOLLOWS:
            raise Misuse(f"{key} follows from {FOLLOWS[key]}; set that")
        for part in reversed(key.split(".")):
            inner = {part: inner}
        tree = over(tree, inner, layers=False)
    return typed(tree)


def over(below: Tree, above: Tree, layers: bool = True) -> Tree:
    """One tree laid over another, key by key; between layers what is one thing takes the old one's place."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        both = isinstance(old, dict) and isinstance(value, dict) and not (layers and _one_thing(key, value))
        merged[key] = over(dict(old or {}), value, layers) if both else value
    return merged


def _one_thing(key: str, value: Tree) -> bool:
    """Nothing; named classes, in either form; a preset of augmentation, with what differs from it."""
    classes = key == "classes" or (key == "labels" and not {"classes", "background"} & set(value))
    return not value or classes or (key == "augment" and "preset" in value)


def _check_keys(tree: Tree, model: type[BaseModel], above: tuple[str, ...]) -> None:
    """A key that does not exist, with the one that was probably meant."""
    for key, value in tree.items():
        if key not in model.model_fields:
            close = get_close_matches(str(key), model.model_fields, n=1)
            meant = f"did you mean {'.'.join([*above, close[0]])}?" if close else "`smg settings` lists them"
            raise Misuse(f"no setting {'.'.join([*above, str(key)])!r}; {meant}")
        inner = model.model_fields[key].annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel) and key not in ("augment", "labels"):
            if isinstance(value, dict):
                _check_keys(value, inner, (*above, key))
            elif value is not None:
                first = ".".join([*above, key, next(iter(inner.model_fields))])
                raise Misuse(f"{key} is made of several settings; name one of them, such as {first}")

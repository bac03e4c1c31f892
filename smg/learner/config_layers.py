"""Read a configuration from a YAML file and from `key=value` words, with a one-line error for each mistake."""

from __future__ import annotations

import math
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
    """Return the checked configuration that results from the layers.

    Code named by a layer that was read from a folder must be trusted first. Code named by the user (`typed`) is
    trusted already.
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
    """Return the layers merged key by key, the last one on top; a new method or loss removes the old one's options."""
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
    """Return the mapping in a YAML file."""
    try:
        tree = from_yaml(path.read_text())
    except OSError as error:
        raise SmgError(f"{path}: {error.strerror}") from None
    except (yaml.YAMLError, ValueError) as error:  # bytes that are not text, or an impossible date
        where = getattr(error, "problem_mark", None)
        raise SmgError(f"{path}: not YAML{f' (line {where.line + 1})' if where else ''}; correct it") from None
    if not isinstance(tree, dict):
        raise SmgError(f"{path}: not a mapping of keys to values; write one `key: value` a line")
    return tree


class _Loader(yaml.SafeLoader):
    """Load `5e-4` as a number, which PyYAML by default reads as a string."""


class _Dumper(yaml.SafeDumper):
    """Quote a string that `_Loader` would read as a number."""


class _LineDumper(_Dumper):
    """Write a string with line breaks in one line."""

    def represent_text(self, text: str) -> yaml.ScalarNode:
        """Return a string's node, quoted with escapes if it has line breaks."""
        return self.represent_scalar("tag:yaml.org,2002:str", text, style='"' if "\n" in text else None)


_LineDumper.add_representer(str, _LineDumper.represent_text)
_BARE = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+$")
for _kind in (_Loader, _Dumper):
    _kind.add_implicit_resolver("tag:yaml.org,2002:float", _BARE, list("-+.0123456789"))


def from_yaml(text: str) -> Any:
    """Return the content of a YAML text, which can hold plain values only."""
    try:
        return yaml.load(text, _Loader)
    except RecursionError:
        raise yaml.YAMLError("it is nested too deeply") from None


def to_yaml(tree: Tree) -> str:
    """Return a YAML text from which `from_yaml` restores the value."""
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False)


def to_yaml_line(value: Any) -> str:
    """Return a value as one line of YAML, to stand behind a key, from which `from_yaml` restores it."""
    text = yaml.dump([value], Dumper=_LineDumper, sort_keys=False, default_flow_style=True, width=math.inf)
    return text.strip()[1:-1]  # without the list's brackets; a value alone would be dumped with an end mark


def from_words(words: list[str]) -> Tree:
    """Return the settings in words such as `network.width=8`; each value is read as YAML."""
    tree: Tree = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise Misuse(f"{word!r}: not a setting; write key=value, such as network.width=8")
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
    """Return one tree merged over another key by key; between layers, a value that is a unit replaces the old one.

    Effects of augmentation change the preset below them: `strong` under `{flip: {probability: 0}}` is strong without
    flips.
    """
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        if key == "augment" and isinstance(old, str):
            old = {"preset": old}
        both = isinstance(old, dict) and isinstance(value, dict) and not (layers and _one_thing(key, value))
        merged[key] = over(dict(old or {}), value, layers) if both else value
    return merged


def _one_thing(key: str, value: Tree) -> bool:
    """Return whether a mapping is a unit: empty, named classes in either form, or a changed preset of augmentation."""
    classes = key == "classes" or (key == "labels" and not {"classes", "background"} & set(value))
    return not value or classes or (key == "augment" and "preset" in value)


def _check_keys(tree: Tree, model: type[BaseModel], above: tuple[str, ...]) -> None:
    """Raise an error for an unknown key, with the key that was probably meant."""
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

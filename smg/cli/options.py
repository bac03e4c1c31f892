"""Options that several commands share, and what a shell may complete them with."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import typer

from smg.cli.terminal import set_loudness
from smg.errors import Misuse, Stopped

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="The model's folder.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
LeaveOut = Annotated[bool, typer.Option("--leave-out", help="Go on without subjects that have faults.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any setting, such as `network.width=8`.")
]
Iterations = Annotated[int | None, typer.Option(help="Iterations of a round; as `--set iterations=N`.", min=1)]
LabelWords = Annotated[
    list[str] | None,
    typer.Option(
        "--labels", help="Foreground values: `any`, `1,2`, or `name=1` for each class (and `background=0,3`)."
    ),
]
Roi = Annotated[
    list[str] | None,
    typer.Option(
        "--roi",
        metavar="NAME",
        help="Structure of masks that are DICOM SEG or RTSTRUCT; several get the values 1, 2, ... in their order.",
    ),
]


def worded(iterations: int | None, words: list[str] | None) -> dict[str, Any]:
    """What `--iterations` and `--set` say, which is over every file."""
    from smg.learner.configure import from_words, over

    return over({} if iterations is None else {"iterations": iterations}, from_words(words or []))


def ending_in(path: Path, *suffixes: str) -> Path:
    """A file to write; a slip of the finger must not name a scan."""
    if path.suffix.lower() not in suffixes:
        raise Misuse(f"{path}: what is written there has to end in {' or '.join(suffixes)}")
    return path


def methods_by_prefix(prefix: str) -> list[str]:
    """Return names as their files register them: importing these would import torch, and a shell waits for no one."""
    files = [file for file in (resources.files("smg") / "methods").iterdir() if file.name.endswith(".py")]
    names = {name for file in files for name in re.findall(r'^@register\("(.+)"\)$', file.read_text(), re.MULTILINE)}
    return sorted(name for name in names | {"sga+c"} if name.startswith(prefix))


def ready_by_prefix(prefix: str) -> list[str]:
    """The ready configurations."""
    files = [file.name for file in (resources.files("smg") / "configs").iterdir() if file.name.endswith(".yaml")]
    return sorted(name.removesuffix(".yaml") for name in files if name.startswith(prefix))


Configs = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        help="A YAML file with settings, or a ready configuration; the later of several over the earlier.",
        autocompletion=ready_by_prefix,
    ),
]


def speaking(command: Callable[..., None]) -> Callable[..., None]:
    """The command with `--quiet` and `--verbose` added: every one has them, and none needs to know of it."""
    added = {
        "quiet": Annotated[bool, typer.Option("--quiet", "-q", help="Print results and faults alone.")],
        "verbose": Annotated[bool, typer.Option("--verbose", "-v", help="Print details, and a fault's traceback.")],
    }

    @functools.wraps(command)
    def spoken(*args: Any, quiet: bool, verbose: bool, **options: Any) -> None:
        set_loudness(-1 if quiet else int(verbose))
        try:
            command(*args, **options)
        except KeyboardInterrupt:  # typer would end without a word
            raise Stopped("stopped; what was done by then is there") from None

    own = inspect.signature(command, eval_str=True)
    more = [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=t) for n, t in added.items()]
    spoken.__signature__ = own.replace(parameters=[*own.parameters.values(), *more])  # type: ignore[attr-defined]
    spoken.__annotations__ = {n: p.annotation for n, p in spoken.__signature__.parameters.items()}  # type: ignore[attr-defined]
    return spoken

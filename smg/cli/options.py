"""Options that several commands share, and shell completion for them."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import typer

from smg.cli.terminal import set_loudness
from smg.errors import Misuse, Stopped

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of the model.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Baseline = Annotated[
    str | None,
    typer.Option(metavar="METHOD", help="Method the others are compared with. [default: `jm`, `finetune` or `sga+c`]"),
]
RoundNumber = Annotated[
    int | None,
    typer.Option("--round", metavar="N", help="Round whose network answers. [default: the current one]", min=0),
]
LeaveOut = Annotated[bool, typer.Option("--leave-out", help="Leave out subjects that have faults.")]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="A setting, such as `network.width=8`; `smg settings` lists them all."
    ),
]
Iterations = Annotated[int | None, typer.Option(help="Iterations of a round; the same as `--set iterations=N`.", min=1)]
LabelWords = Annotated[
    list[str] | None,
    typer.Option(
        "--labels",
        help="Foreground values: `any`, `1,2`, or `name=1` for each class (and `background=0,3`). [default: any]",
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

Codes = Annotated[
    list[str] | None,
    typer.Option(
        "--code", metavar="CLASS=CODE", help="What a class is in DICOM, such as `foreground=SCT:41216001:Prostate`."
    ),
]


def _trust_code(wanted: bool) -> bool:
    if wanted:
        from smg.trust import allow_everything

        allow_everything()
    return wanted


TrustCode = Annotated[
    bool,
    typer.Option(
        "--trust-code",
        callback=_trust_code,
        help="Run the code that the model names: a method, loss, policy or network that is not part of smg.",
    ),
]

Track = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TRACKER",
        help="Also pass losses and metrics on to `mlflow`, `wandb` or `tensorboard`. May be repeated.",
    ),
]


def tracked(names: list[str] | None, tensorboard: bool = False) -> list[str]:
    """Return the trackers that are asked for, each once."""
    chosen = list(dict.fromkeys([*(names or []), *(["tensorboard"] * tensorboard)]))
    for name in chosen:
        if name not in ("mlflow", "wandb", "tensorboard"):
            raise Misuse(f"--track {name}: no such tracker; give mlflow, wandb or tensorboard")
    return chosen


def worded(iterations: int | None, words: list[str] | None) -> dict[str, Any]:
    """Return the settings given by `--iterations` and `--set`, which are laid over those of every file."""
    from smg.learner.config_layers import from_words, over

    return over({} if iterations is None else {"iterations": iterations}, from_words(words or []))


def ending_in(path: Path, *suffixes: str) -> Path:
    """Return the path of a file to write, or refuse it: a typing mistake must not overwrite a scan."""
    if path.suffix.lower() not in suffixes:
        raise Misuse(f"{path}: wrong ending; give a file that ends in {' or '.join(suffixes)}")
    return path


def methods_by_prefix(prefix: str) -> list[str]:
    """Return the methods that begin with `prefix`, read from their files: an import would load torch, which is slow."""
    files = [file for file in (resources.files("smg") / "methods").iterdir() if file.name.endswith(".py")]
    names = {name for file in files for name in re.findall(r'^@register\("(.+)"\)$', file.read_text(), re.MULTILINE)}
    return sorted(name for name in names | {"sga+c"} if name.startswith(prefix))


def ready_by_prefix(prefix: str) -> list[str]:
    """Return the ready configurations that begin with `prefix`."""
    files = [file.name for file in (resources.files("smg") / "configs").iterdir() if file.name.endswith(".yaml")]
    return sorted(name.removesuffix(".yaml") for name in files if name.startswith(prefix))


Configs = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        help="A YAML file with settings, or a ready configuration; may be repeated, later ones win.",
        autocompletion=ready_by_prefix,
    ),
]


def parse_codes(words: list[str]) -> dict[str, str]:
    """Return the code of each class that the command line names."""
    from smg.dicom.codes import Code

    parts = [word.partition("=") for word in words]
    for name, _, code in parts:
        if not name or not code:
            raise Misuse(
                f"--code {name}: incomplete; write CLASS=SCHEME:VALUE:MEANING, as foreground=SCT:41216001:Prostate"
            )
        Code.parse(code)
    return {name: code for name, _, code in parts}


def model_first(model: Path, others: Iterable[str | Path], usage: str) -> None:
    """Refuse arguments in the wrong order: a model that is none before a folder that is one."""
    if (model / "model.json").exists():
        return
    found = next((other for other in others if (Path(other) / "model.json").is_file()), None)
    if found is not None:
        raise Misuse(f"{model} is not a model, and {found} is one; give the model first: {usage}")


def with_limit(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with `--limit`, the largest scan to read."""
    option = typer.Option(
        metavar="GIB", help="Largest scan to read, in GiB after unpacking. [default: SMG_LIMIT, or 2]"
    )

    @functools.wraps(command)
    def wrapped(*args: Any, limit: float | None, **options: Any) -> None:
        from smg.sites.size_limit import limited_to

        with limited_to(limit):
            command(*args, **options)

    return with_options(command, wrapped, {"limit": (Annotated[float | None, option], None)})


def with_loudness(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with `--quiet` and `--verbose` added to its options."""
    quiet_option = typer.Option("--quiet", "-q", help="Print only results and errors.")
    verbose_option = typer.Option("--verbose", "-v", help="Print details, and the traceback of errors.")

    @functools.wraps(command)
    def wrapped(*args: Any, quiet: bool, verbose: bool, **options: Any) -> None:
        set_loudness(-1 if quiet else int(verbose))
        try:
            command(*args, **options)
        except KeyboardInterrupt:  # typer would end without a message
            raise Stopped("stopped; what was finished before is kept") from None

    added = {"quiet": (Annotated[bool, quiet_option], False), "verbose": (Annotated[bool, verbose_option], False)}
    return with_options(command, wrapped, added)


def with_options(
    command: Callable[..., None], wrapped: Callable[..., None], added: dict[str, tuple[Any, Any]]
) -> Callable[..., None]:
    """Give `wrapped` the options of the command and those added: {name: (annotation, default)}."""
    own = inspect.signature(command, eval_str=True)
    keyword = inspect.Parameter.KEYWORD_ONLY
    more = [inspect.Parameter(name, keyword, default=value, annotation=kind) for name, (kind, value) in added.items()]
    wrapped.__signature__ = own.replace(parameters=[*own.parameters.values(), *more])  # type: ignore[attr-defined]
    wrapped.__annotations__ = {n: p.annotation for n, p in wrapped.__signature__.parameters.items()}  # type: ignore[attr-defined]
    return wrapped

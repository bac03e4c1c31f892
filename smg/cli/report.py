"""`smg report`: write one page about runs, a bench or a model, which opens offline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from smg.cli.effect_tables import standings_as_json
from smg.cli.options import Baseline, Json, ending_in
from smg.cli.terminal import say
from smg.report.text import print_json, print_line


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs, benches or models.")],
    out: Annotated[
        Path, typer.Option(help="HTML file to write; its figures are written into a folder beside it.")
    ] = Path("report.html"),
    pictures: Annotated[
        bool, typer.Option("--pictures", help="Include pictures of the patients' scans; needs --data.")
    ] = False,
    data: Annotated[Path | None, typer.Option(help="Folder of the sites that the runs used; for --pictures.")] = None,
    names: Annotated[
        bool, typer.Option("--names", help="Name the cases as their files are called; otherwise they are numbered.")
    ] = False,
    baseline: Baseline = None,
    as_json: Json = False,
) -> None:
    """Write one HTML page about runs, a bench or a model: tables, figures, every subject's numbers. It opens offline.

    Example: `smg report runs/prostate-lite --out report.html`
    """
    from smg.report.page import write_report

    written = write_report(folders, ending_in(out, ".html", ".htm"), pictures, data, say, baseline, names)
    if as_json:
        files = {"page": str(written.page), "figures": str(written.figures), "bytes": written.page.stat().st_size}
        histories = {str(folder): _history(folder) for folder in folders if (folder / "model.json").is_file()}
        print_json(
            files
            | {"histories": histories}
            | {"runs": written.runs, "models": written.models, "unfinished": written.unfinished}
        )
        return
    size = written.page.stat().st_size / 1e6
    print_line(f"The page: {written.page} ({size:.1f} MB{', with pictures of patients' if pictures else ''})")
    print_line(f"Its figures, PNG and PDF: {written.figures}")
    if written.unfinished:
        print_line(f"{written.unfinished} unfinished runs are left out; `smg watch` follows them")


def _history(folder: Path) -> dict[str, object]:
    """Return what each round of a model did to every site, and which sites it knows."""
    from smg.learner.history import History

    past = History(folder)
    rounds = {str(n): [effect.as_json() for effect in past.effects(n)] for n in past.model.numbers}
    return {"current": past.current, **standings_as_json(past.standings()), "rounds": rounds}

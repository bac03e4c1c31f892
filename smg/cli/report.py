"""`smg report`: write one page about runs, a bench or a model, which opens offline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from smg.cli.options import Baseline, Json, ending_in
from smg.cli.terminal import say
from smg.report.text import print_json


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs, benches or models.")],
    out: Annotated[
        Path, typer.Option(help="HTML file to write; its figures are written into a folder beside it.")
    ] = Path("report.html"),
    pictures: Annotated[
        bool, typer.Option("--pictures", help="Include pictures of the patients' scans; needs --data.")
    ] = False,
    data: Annotated[Path | None, typer.Option(help="Folder of the sites that the runs used; for --pictures.")] = None,
    baseline: Baseline = None,
    as_json: Json = False,
) -> None:
    """Write one HTML page about runs, a bench or a model: tables, figures, every subject's numbers. It opens offline.

    Example: `smg report runs/prostate-lite --out report.html`
    """
    from smg.report.page import write_report

    written = write_report(folders, ending_in(out, ".html", ".htm"), pictures, data, say, baseline)
    if as_json:
        files = {"page": str(written.page), "figures": str(written.figures), "bytes": written.page.stat().st_size}
        print_json(files | {"runs": written.runs, "models": written.models, "unfinished": written.unfinished})
        return
    size = written.page.stat().st_size / 1e6
    print(f"The page: {written.page} ({size:.1f} MB{', with pictures of patients' if pictures else ''})")
    print(f"Its figures, PNG and PDF: {written.figures}")
    if written.unfinished:
        print(f"{written.unfinished} unfinished runs are left out; `smg watch` follows them")

"""The report: folders in, one HTML file out that opens anywhere without a network, its figures' files beside it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from smg import __version__
from smg.errors import Misuse, SmgError
from smg.files import replacing
from smg.report import sections, settings, subjects
from smg.report.collect import Material, collect
from smg.report.costs import COLUMNS, written_as
from smg.report.figures import Figures
from smg.report.style import PALETTE
from smg.report.table import paper_tables, to_csv, to_latex

Say = Callable[[str], None]


@dataclass(frozen=True)
class Written:
    """What a report left behind."""

    page: Path
    figures: Path
    names: tuple[str, ...]  # of the figures, each as PNG and PDF
    runs: int
    models: int
    unfinished: int


def write_report(
    paths: Sequence[Path],
    out: Path,
    pictures: bool = False,
    data: Path | None = None,
    say: Say = lambda line: None,
) -> Written:
    """Collect, draw, render. With `pictures` the page holds pictures of patients, made from the scans in `data`."""
    if pictures and data is None:
        raise Misuse("--pictures needs the scans, which no run holds: give --data DIR as well")
    if data is not None and not data.exists():
        raise SmgError(f"{data}: no such file or folder")
    material = collect(paths)
    figures = Figures(out.with_name(f"{out.stem}_figures"))
    page = _page(material, figures, paths, data if pictures else None, say)
    try:
        with replacing(out) as temporary:
            temporary.write_text(_rendered(page), encoding="utf-8")
    except OSError as error:
        raise SmgError(f"{out}: {error.strerror}; give another --out") from None
    counts = len(material.runs), len(material.models), len(material.unfinished)
    return Written(out, figures.folder, tuple(figures.names), *counts)


def _page(material: Material, figures: Figures, paths: Sequence[Path], data: Path | None, say: Say) -> dict[str, Any]:
    """All that the template shows."""
    tables = paper_tables(material.runs)
    shared, own = settings.shared_and_own(material.runs)
    say("drawing figures")
    page: dict[str, Any] = {
        "version": __version__,
        "material": material,
        "folders": " ".join(path.name or "." for path in paths),  # no path of this machine
        "figures": figures.folder.name,
        "palette": PALETTE,
        "heads": sections.measure_heads(),
        "answer": sections.answer(material),
        "costs": sections.costs(material),
        "cost_columns": COLUMNS,
        "history": sections.history(material.models),
        "glance": sections.at_a_glance(material, figures),
        "hint": sections.hint(material, data is not None),
        "curves": sections.curves(material, figures),
        "matrices": sections.matrices(material, figures),
        "buffer": sections.buffer(material, figures),
        "objective": sections.objective(material, figures),
        "latex": to_latex(tables) + written_as("tex", material.runs) if tables else "",
        "csv": to_csv(tables) + written_as("csv", material.runs) if tables else "",
        "subjects": subjects.packed(material.runs) if material.runs else None,
        "failures": subjects.failures(material.runs),
        "shared": shared,
        "own": own,
        "versions": settings.made_with(material.runs),
        "splits": settings.splits(material.runs),
    }
    return page | _patients(material, page, data, say)


def _patients(material: Material, page: dict[str, Any], data: Path | None, say: Say) -> dict[str, Any]:
    """Pictures of patients and scans for the viewer: nothing at all, unless they were asked for."""
    if data is None:
        return {"pictures": False, "phantoms": False, "gallery": None, "viewer": None, "exemplar_pictures": {}}
    from smg.report.gallery import exemplar_pictures, gallery
    from smg.report.viewer import viewer

    say("segmenting test scans with the weights of each round")
    shown = gallery(material, data, say)
    return {
        "pictures": True,
        "phantoms": (data / "phantoms.json").is_file(),  # of nobody: `smg sites synth` leaves that file
        "gallery": shown.as_json() if shown.parts else None,
        "viewer": viewer(shown) if shown.parts else None,
        "exemplar_pictures": {part["slug"]: exemplar_pictures(part["folder"]) for part in page["buffer"]},
    }


def _rendered(page: dict[str, Any]) -> str:
    from jinja2 import Environment, FunctionLoader, StrictUndefined, select_autoescape

    environment = Environment(
        loader=FunctionLoader(asset),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["embedded"] = embedded
    environment.globals["asset"] = asset
    return environment.get_template("page.html").render(page)


def asset(name: str) -> str:
    """A file of the page, as it is packed with this module."""
    return (resources.files("smg.report") / "assets" / name).read_text(encoding="utf-8")


def embedded(value: object) -> str:
    """JSON that can stand in a script element: no `</script>` can come of it."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c").replace("\u2028", "\\u2028")

"""Write the report: one HTML file that opens offline, and its figures as files beside it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from smg import __version__
from smg.errors import Misuse, SmgError
from smg.evaluation.measures import COSTS, MEASURES
from smg.evaluation.metrics import COMPARED
from smg.files import replacing
from smg.report import figure_sections, sections, subject_table
from smg.report.collect import Material, collect
from smg.report.configuration import configuration_of
from smg.report.costs import COLUMNS, written_as
from smg.report.figures import Figures
from smg.report.focus import Focus, choose_focus
from smg.report.style import PALETTE
from smg.report.table import class_tables, to_csv, to_latex

Say = Callable[[str], None]


@dataclass(frozen=True)
class Written:
    """The files of a report, and how much it was made of."""

    page: Path
    figures: Path
    names: tuple[str, ...]  # of the figures, each written as PNG and PDF
    runs: int
    models: int
    unfinished: int


def write_report(
    paths: Sequence[Path],
    out: Path,
    pictures: bool = False,
    data: Path | None = None,
    say: Say = lambda line: None,
    baseline: str | None = None,
    names: bool = False,
) -> Written:
    """Write the page of the runs, benches and models in `paths`, and return where it is.

    pictures: put pictures of patients into the page, made from the scans in `data`.
    say: called with a line of progress.
    baseline: the method that the others are compared with; chosen by smg.report.focus if not given.
    names: name the cases, which a page with pictures does too. Otherwise they are numbered.
    """
    if pictures and data is None:
        raise Misuse("--pictures: the scans are needed, since no run holds them; add --data DIR")
    if data is not None and not data.exists():
        raise SmgError(f"{data}: no such file or folder; give the sites that the runs were made from")
    material = collect(paths)
    focus = choose_focus(material.runs, baseline)
    figures = Figures(out.with_name(f"{out.stem}_figures"))
    page = _page(material, focus, figures, paths, data if pictures else None, say, names or pictures)
    try:
        with replacing(out) as temporary:
            temporary.write_text(_rendered(page), encoding="utf-8")
    except OSError as error:
        raise SmgError(f"{out}: {error.strerror}; give another --out") from None
    counts = len(material.runs), len(material.models), len(material.unfinished)
    return Written(out, figures.folder, tuple(figures.names), *counts)


def _page(
    material: Material, focus: Focus, figures: Figures, paths: Sequence[Path], data: Path | None, say: Say, names: bool
) -> dict[str, Any]:
    """Return all that the template shows."""
    tables = class_tables(material.runs)
    say("drawing figures")
    page: dict[str, Any] = {
        "version": __version__,
        "material": material,
        "folders": " ".join(path.name or "." for path in paths),  # names only: no path of this machine
        "figures": figures.folder.name,
        "palette": PALETTE,
        "metrics": COMPARED,
        "measures": MEASURES,
        "cost_columns": COLUMNS,
        "beside": list(zip(sections.BESIDE_HEADS, (COLUMNS[n].head for n in sections.BESIDE), strict=True)),
        "cost_table": COSTS,
        "focus": focus,
        "compared_class": tables[0].of if tables else "",  # where there are several
        "answers": sections.stream_answers(material, focus),
        "measure_tables": sections.measure_tables(material),
        "costs": sections.stream_costs(material),
        "models": sections.model_histories(material),
        "differences": figure_sections.difference_figure(material, focus, figures),
        "marks": figure_sections.method_marks(material, focus),
        "measures_figures": figure_sections.measures_figures(material, figures),
        "why_no_pictures": _why_no_pictures(material, data is not None),
        "curves": figure_sections.curve_figures(material, figures),
        "matrices": figure_sections.matrix_figures(material, figures),
        "buffer": figure_sections.buffer_figures(material, figures),
        "objective": figure_sections.objective_figures(material, figures),
        "latex": to_latex(tables) + written_as("tex", material.runs) if tables else "",
        "csv": to_csv(tables) + written_as("csv", material.runs) if tables else "",
        "subjects": subject_table.packed(material.runs, names) if material.runs else None,
        "names": names,
        "failures": subject_table.failures(material.runs),
        "configuration": configuration_of(material.runs),
    }
    return page | _patients(material, page, data, say)


def _why_no_pictures(material: Material, asked: bool) -> str:
    """Return the text in the place of pictures; empty where there are no runs to make pictures with."""
    if not asked and any(material.records.values()):
        return "Pictures are left out, because they would show patients. To add them, give the scans of the runs:"
    return "No pictures: the models of these runs are not beside their results." if asked and material.runs else ""


def _patients(material: Material, page: dict[str, Any], data: Path | None, say: Say) -> dict[str, Any]:
    """Return the pictures of patients and the scans for the viewer; nothing unless `data` is given."""
    if data is None:
        return {"pictures": False, "phantoms": False, "gallery": None, "viewer": None, "exemplar_pictures": {}}
    from smg.report.gallery import exemplar_pictures, gallery
    from smg.report.viewer import viewer

    say("segmenting test scans with the weights of each round")
    shown = gallery(material, data, say)
    return {
        "pictures": True,
        "phantoms": (data / "phantoms.json").is_file(),  # written by `smg sites synth`: there are no patients
        "gallery": shown.as_json() if shown.parts else None,
        "viewer": viewer(shown) if shown.parts else None,
        "exemplar_pictures": {part.slug: exemplar_pictures(part.folder) for part in page["buffer"]},
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
    environment.filters["unbroken"] = unbroken
    environment.globals["asset"] = asset
    return environment.get_template("page.html").render(page)


def asset(name: str) -> str:
    """Return the text of a file in `assets`."""
    return (resources.files("smg.report") / "assets" / name).read_text(encoding="utf-8")


def unbroken(text: str) -> str:
    """Return a text in which a line never ends between a number and its per cent sign."""
    return text.replace(" %", "\u00a0%")


def embedded(value: object) -> str:
    """Return JSON for a script element, escaped so that it cannot contain `</script>`."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c").replace("\u2028", "\\u2028")

"""The gallery: the best, median and worst test subject of a few sites, with the contours of every method.

A slice is a small JPEG that all methods share. Contours are SVG paths over it, so that the page can hide each of them.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from smg.report.collect import Material
from smg.report.pictures import Seen, contours
from smg.report.runs import Run
from smg.report.site_picture import middle_slice
from smg.report.style import AFTER
from smg.sites.formats import Array

SIDE = 300  # pixels of a picture's longer side
FINE = 4  # steps in a pixel to which the points of a contour are rounded
RANKS = {1: ("the only one",), 2: ("best", "worst"), 3: ("best", "median", "worst")}
Points = list[Array]  # closed lines of points (x, y)


@dataclass(frozen=True)
class Shown:
    """One subject with the masks that each method predicted."""

    rank: str
    case: str
    seen: dict[str, Seen]  # method -> its masks


@dataclass(frozen=True)
class Part:
    """One site of one stream, with the two rounds whose contours are compared."""

    stream: str
    site: str
    title: str
    after: int  # right after the site was learned
    end: int  # after the stream's last site
    after_label: str
    subjects: tuple[Shown, ...]


@dataclass(frozen=True)
class Gallery:
    """All subjects of the gallery."""

    parts: tuple[Part, ...]
    seed: int

    def as_json(self) -> dict[str, Any]:
        """Return the gallery for the page's script."""
        several = len({part.stream for part in self.parts}) > 1
        return {"seed": self.seed, "parts": [_part_json(part, n, several) for n, part in enumerate(self.parts)]}


def gallery(material: Material, data: Path, say: Callable[[str], None] = lambda line: None) -> Gallery:
    """Return the first, the middle and the held-out site of each stream, as in the paper, with the first seed."""
    parts: list[Part] = []
    seed = material.seeds[0] if material.seeds else 0
    for stream in material.streams:
        runs = [
            run for name in material.methods for run in material.of(stream, name)[:1] if material.records[run.folder]
        ]
        if not runs:
            continue
        order = runs[0].order
        for site in dict.fromkeys([order[0], order[len(order) // 2 if len(order) > 2 else 0], runs[0].unseen]):
            if site is not None:
                say(f"  site {site}")
                part = _part(runs, data, site)
                if part.subjects:
                    parts.append(part)
                else:
                    say(f"  site {site}: no picture, since no test subject is in all runs")
    return Gallery(tuple(parts), seed)


def _part(runs: Sequence[Run], data: Path, site: str) -> Part:
    order = runs[0].order
    end = len(order)
    after = 1 + order.index(site) if site in order else end + 1
    cases = ranked_cases(runs, site)
    seen = {run.name: {s.case: s for s in contours(run.folder, data, site, sorted({after, end}), cases.values())}
            for run in runs}  # fmt: skip
    shown = tuple(Shown(rank, case, {name: by[case] for name, by in seen.items()}) for rank, case in cases.items())
    what = "the first learned" if site == order[0] else "held out" if site not in order else "learned in between"
    label = f"right after {site} was learned" if site in order else f"after {site} was learned too"
    return Part(runs[0].stream_title, site, f"Site {site}, {what}", after, end, label, shown)


def ranked_cases(runs: Sequence[Run], site: str) -> dict[str, str]:
    """Return rank -> case: best, median and worst test subject by mean DSC over all runs at the end of the stream."""
    scores: dict[str, list[float]] = {}
    for run in runs:
        for row in run.results.subjects:
            if row.site == site and row.round == run.order[-1]:
                scores.setdefault(row.subject, []).append(row.classes[run.first_class]["dsc"] or 0.0)
    common = {case: values for case, values in scores.items() if len(values) == len(runs)}
    ranked = sorted(common, key=lambda case: -sum(common[case]))
    chosen = ranked if len(ranked) < 3 else [ranked[0], ranked[len(ranked) // 2], ranked[-1]]
    return dict(zip(RANKS.get(len(chosen), ()), chosen, strict=True))


def _part_json(part: Part, number: int, several: bool) -> dict[str, Any]:
    return {
        "id": f"p{number}",
        "title": f"{part.title} ({part.stream})" if several else part.title,
        "after": part.after_label,
        "end": "at the end of the stream",
        "subjects": [_subject_json(shown, part) for shown in part.subjects],
    }


def _subject_json(shown: Shown, part: Part) -> dict[str, Any]:
    any_seen = next(iter(shown.seen.values()))
    box = any_seen.box()
    slices = any_seen.slices
    inside = any_seen.inside() or list(range(len(slices)))
    numbers = range(max(0, inside[0] - 1), min(len(slices), inside[-1] + 2))
    rows, columns = slices[0][box].shape
    low, high = np.percentile(slices[numbers.start : numbers.stop, box[0], box[1]], (1, 99.5))
    return {
        "rank": shown.rank,
        "case": shown.case,
        "box": [FINE * columns, FINE * rows],
        "first": numbers.start,
        "middle": inside[len(inside) // 2] - numbers.start,
        "slices": [jpeg(slices[n][box], low, high, any_seen.aspect) for n in numbers],
        "truth": [path_of(any_seen.axial(any_seen.truth)[n][box]) for n in numbers],
        "methods": [
            {
                "name": name,
                "dsc": [round(100 * seen.dsc(number), 1) for number in (part.after, part.end)],
                "after": [path_of(seen.axial(seen.predicted[part.after])[n][box]) for n in numbers],
                "end": [path_of(seen.axial(seen.predicted[part.end])[n][box]) for n in numbers],
            }
            for name, seen in shown.seen.items()
        ],
    }


# --- slices and contours -----------------------------------------------------------------------------------------


def jpeg(image: Array, low: float, high: float, aspect: float, lines: Points | None = None, side: int = SIDE) -> str:
    """Return a grey slice as a data URL, with lines drawn over it."""
    picture = _pixels(image, low, high, aspect, side)
    if lines:
        from PIL import ImageDraw

        picture = picture.convert("RGB")
        scale = picture.width / image.shape[1], picture.height / image.shape[0]
        for line in lines:
            ImageDraw.Draw(picture).line([(x * scale[0], y * scale[1]) for x, y in line], fill=AFTER, width=2)
    return data_url(picture)


def _pixels(image: Array, low: float, high: float, aspect: float, side: int) -> Any:
    from PIL import Image

    grey = np.clip((image.astype(np.float32) - low) / max(high - low, 1e-6), 0, 1)
    rows, columns = image.shape
    scale = side / max(rows * aspect, columns)
    size = max(1, round(columns * scale)), max(1, round(rows * aspect * scale))
    return Image.fromarray((255 * grey).astype(np.uint8)).resize(size, Image.Resampling.BICUBIC)


def data_url(picture: Any) -> str:
    """Return a Pillow image as the data URL of a JPEG."""
    written = io.BytesIO()
    picture.save(written, "JPEG", quality=80, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(written.getvalue()).decode()


def outlines(mask: Array) -> Points:
    """Return closed lines around the foreground of a mask, half-way between voxels and smoothed."""
    from contourpy import contour_generator
    from matplotlib.path import Path as Line

    if not mask.any():
        return []
    padded = np.pad(mask > 0, 1).astype(np.float32)
    lines = []
    for points in contour_generator(z=padded).lines(0.5):
        line = Line(np.asarray(points) - 0.5)
        line.should_simplify, line.simplify_threshold = True, 0.4
        kept = line.cleaned(simplify=True)
        lines.append(np.asarray(kept.vertices)[np.asarray(kept.codes) != Line.STOP])
    return lines


def path_of(mask: Array) -> str:
    """Return the outlines as an SVG path in quarters of a pixel; relative steps need only a few bytes a point."""
    paths = []
    for line in outlines(mask):
        points = np.rint(FINE * line).astype(int)
        steps = np.diff(points, axis=0)
        paths.append(f"M{points[0][0]} {points[0][1]}l" + " ".join(f"{x} {y}" for x, y in steps if x or y) + "z")
    return "".join(paths)


def exemplar_pictures(model: Path) -> dict[str, str]:
    """Return alias -> picture: the middle slice of every exemplar of a model, with the contour of its mask."""
    from smg.learner.exemplars import unpack
    from smg.learner.history import History

    history, pictures = History(model), {}
    for entry in history.model.rounds:
        for exemplar in unpack(entry.site, history.store.read_tensors(entry.round, "exemplars")):
            labels, images = exemplar.labels.numpy(), exemplar.images[:, 0].numpy()
            middle = middle_slice(labels)
            low, high = np.percentile(images[middle], (1, 99.5))
            pictures[exemplar.subject.case] = jpeg(images[middle], low, high, 1.0, outlines(labels[middle]), side=144)
    return pictures

"""Draw a figure once: as SVG whose colours follow the page's style sheet, and as PNG and PDF beside the page."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from smg.files import replacing
from smg.report.style import CARD, FAINT, GRID, INK, PALETTE, drawing

WIDTH, HEIGHT = 420, 300  # points, which are pixels of the page; a phone shows text at nearly this size
Draw = Callable[[Any], None]  # draws onto an axis or a figure

# Colours that the page's style sheet sets, so that figures follow the light or dark theme.
THEMED = {INK: "currentColor", FAINT: "var(--faint)", GRID: "var(--line)", CARD: "var(--raised)"} | {
    light: f"var(--m{place})" for place, (light, _) in enumerate(PALETTE)
}


@dataclass(frozen=True)
class Drawn:
    """A figure as the page shows it, and the name of its files without suffix."""

    name: str
    svg: str  # empty where the page shows a table instead
    alt: str


@dataclass
class Figures:
    """The figures of one report; each is written into one folder as it is drawn."""

    folder: Path
    names: list[str] = field(default_factory=list)

    def draw(self, name: str, alt: str, onto: Draw, height: int = HEIGHT, width: int = WIDTH) -> Drawn:
        """Draw a figure with one axis, and return it for the page."""

        def whole(figure: Any) -> None:
            onto(figure.subplots())

        return self.compose(name, alt, whole, width, height)

    def compose(
        self, name: str, alt: str, fill: Draw, width: int = WIDTH, height: int = HEIGHT, inline: bool = True
    ) -> Drawn:
        """Draw a figure that `fill` lays out itself, and return it for the page."""
        from matplotlib.figure import Figure

        with drawing(size=11):
            figure: Any = Figure(figsize=(width / 72, height / 72), layout="constrained")
            fill(figure)
            svg = io.StringIO()
            if inline:
                figure.savefig(svg, format="svg", transparent=True, metadata={"Date": None})
            figure.set_layout_engine("none")  # keep the layout for the other formats
            self._write(figure, name)
        self.names.append(name)
        return Drawn(name, for_page(svg.getvalue(), name, alt) if inline else "", alt)

    def _write(self, figure: Any, name: str) -> None:
        for suffix, about in (("png", {}), ("pdf", {"CreationDate": None})):
            with replacing(self.folder / f"{name}.{suffix}", durable=False) as temporary:
                figure.savefig(temporary, format=suffix, dpi=150, facecolor="white", metadata=about)


def for_page(svg: str, name: str, alt: str) -> str:
    """Return matplotlib's SVG for HTML: no prologue, no fixed size, unique ids, colours of the style sheet."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.S)
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.S)
    svg = re.sub(r"<style.*?</style>\s*", "", svg, flags=re.S)  # in a page it would apply to every drawing
    head, rest = svg.split(">", 1)
    box = re.search(r'viewBox="[^"]*"', head)
    assert box
    rest = re.sub(r' id="method-(\d+)"', r' class="method" data-method="\1"', rest)  # smg.report.charts.mark
    used = set(re.findall(r"#([\w.-]+)[\")]", rest))
    rest = re.sub(r' id="([^"]*)"', lambda m: f' id="{name}-{m[1]}"' if m[1] in used else "", rest)
    rest = re.sub(r'href="#', f'href="#{name}-', rest)
    rest = re.sub(r"url\(#", f"url(#{name}-", rest)
    rest = re.sub(r"<[^>]*>", lambda tag: _themed(tag[0]), rest)  # text between tags stays as it is
    label = escape(alt)
    return (
        f'<svg {box[0]} class="chart" role="img" aria-label="{label}" xmlns:xlink="http://www.w3.org/1999/xlink">{rest}'
    )


def _themed(tag: str) -> str:
    """Return a tag with the page's fonts and colours."""
    tag = re.sub(r"font: ?([\d.]+)px [^;\"]*", r"font-size: \1px", tag)
    tag = re.sub(r"font-family: ?[^;\"]*;?", "", tag)
    for colour, themed in THEMED.items():
        tag = re.sub(colour, themed, tag, flags=re.I)
    return re.sub(r"(\d+\.\d{2})\d+", r"\1", tag)  # hundredths of a pixel are enough

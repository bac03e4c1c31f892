"""Draw paired differences to joint minimisation with their intervals, all methods and both streams, as a small SVG.

Each training has a part of its own, one below the other. What lies outside the axis is drawn at its edge with its
number. The text follows the reader's light or dark mode.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape

from experiments.claims import STREAMS, Comparison, find, measure
from experiments.decide import MINIMAL, Found
from smg.report.runs import Run

BASELINE = "jm"
MEASURES = {"BM": "on the learned sites (BM)", "FM": "on the held-out site (FM)"}
LOW, HIGH = -10.0, 6.0  # points of DSC
LEFT, PANEL, GAP, ROW, HEAD, FOOT = 116, 300, 36, 30, 44, 52  # pixels
LEGEND = 52  # where the first part begins
STYLE = """text{font:13px system-ui,sans-serif;fill:#24292f}.small{font-size:12px}.head{font-weight:600}
.grid{stroke:#d0d7de}.zero{stroke:#57606a}.band{fill:#8c959f;opacity:.16}
.s0{stroke:#0b63c4;fill:#0b63c4}.s1{stroke:#bc4c00;fill:#bc4c00}path,line{stroke-width:1.6}.s1.dot{fill:#fff}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.grid{stroke:#3d444d}.zero{stroke:#9198a1}
.s0{stroke:#6cb6ff;fill:#6cb6ff}.s1{stroke:#ffa657;fill:#ffa657}.s1.dot{fill:#0d1117}}"""


def differences(runs: Sequence[Run], measures: Sequence[str] = tuple(MEASURES)) -> dict[tuple[str, str, str], Found]:
    """Return (method, measure, stream) -> the difference to joint minimisation, for every method with a common seed."""
    names = [name for name in dict.fromkeys(run.name for run in runs) if name != BASELINE]
    found = {
        (name, which, stream): find([(stream, Comparison(name, measure(which), BASELINE))], runs, "dsc", {})
        for name in names
        for which in measures
        for stream in STREAMS
    }
    return {key: one for key, one in found.items() if one}


def drawing(trainings: Mapping[str, Sequence[Run]]) -> str:
    """Return the figure as SVG, with a part for each training, given by its name and its runs."""
    found = {name: differences(runs) for name, runs in trainings.items()}
    methods = {name: list(dict.fromkeys(method for method, _, _ in of)) for name, of in found.items()}
    height = LEGEND + sum(HEAD + ROW * len(of) + FOOT for of in methods.values())
    title = f"Difference to {BASELINE} in points of DSC, with 95 % intervals"
    said = "; ".join(
        f"{training}, {name} {which} {stream} {one.text()}"
        for training, of in found.items()
        for (name, which, stream), one in of.items()
    )
    width = LEFT + 2 * PANEL + GAP + 16
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">',
        f"<title>{title}</title><desc>{escape(said)}</desc><style>{STYLE}</style>",
        f'<text class="head" x="0" y="16">{title}</text>',
        *_legend(),
    ]
    top = LEGEND
    for training, of in found.items():
        parts.append(f'<text class="head" x="0" y="{top + 16}">{escape(training)} ({_seeds(of)})</text>')
        parts += _part(top + HEAD, methods[training], of)
        top += HEAD + ROW * len(methods[training]) + FOOT
    return "\n".join([*parts, "</svg>"]) + "\n"


def _seeds(found: Mapping[tuple[str, str, str], Found]) -> str:
    seeds = sorted({one.seeds for one in found.values()})
    number = " to ".join(str(n) for n in dict.fromkeys((seeds[0], seeds[-1]))) if seeds else "no"
    return number + (" seed: other patients alone" if seeds == [1] else " seeds")


def _part(top: int, methods: Sequence[str], found: Mapping[tuple[str, str, str], Found]) -> Iterator[str]:
    """Yield one training's rows, below `top`."""
    for row, name in enumerate(methods):
        y = top + ROW * (row + 0.5) + 4
        yield f'<text x="{LEFT - 10}" y="{y:g}" text-anchor="end">{escape(name)}</text>'
    for panel, which in enumerate(MEASURES):
        yield from _axis(panel, top, MEASURES[which], len(methods))
        for row, name in enumerate(methods):
            for place, stream in enumerate(STREAMS):
                if one := found.get((name, which, stream)):
                    yield from _mark(panel, top + ROW * (row + 0.5) + (6.5 if place else -6.5), place, one)


def _x(panel: int, value: float) -> float:
    share = (min(max(value, LOW), HIGH) - LOW) / (HIGH - LOW)
    return round(LEFT + panel * (PANEL + GAP) + share * PANEL, 1)


def _legend() -> Iterator[str]:
    for place, stream in enumerate(STREAMS):
        x = LEFT + 100 * place
        yield f'<circle class="s{place} dot" cx="{x}" cy="34" r="4"/>'
        yield f'<text class="small" x="{x + 10}" y="38">{stream}</text>'
    yield f'<rect class="band" x="{LEFT + 196}" y="28" width="14" height="12"/>'
    yield f'<text class="small" x="{LEFT + 216}" y="38">less than {MINIMAL["dsc"]:g} points</text>'


def _axis(panel: int, top: int, title: str, rows: int) -> Iterator[str]:
    bottom, least = top + ROW * rows, MINIMAL["dsc"]
    left = _x(panel, -least)
    yield f'<rect class="band" x="{left}" y="{top}" width="{_x(panel, least) - left:.1f}" height="{ROW * rows}"/>'
    for value in range(int(LOW), int(HIGH) + 1, 2):
        x = _x(panel, value)
        yield f'<line class="{"grid" if value else "zero"}" x1="{x}" x2="{x}" y1="{top}" y2="{bottom}"/>'
        yield f'<text class="small" x="{x}" y="{bottom + 17}" text-anchor="middle">{value:+d}</text>'.replace("+0", "0")
    yield f'<text class="small head" x="{_x(panel, LOW)}" y="{top - 6}">{title}</text>'
    yield f'<text class="small" x="{_x(panel, HIGH)}" y="{bottom + 34}" text-anchor="end">better →</text>'


def _mark(panel: int, y: float, place: int, one: Found) -> Iterator[str]:
    ends = [_x(panel, one.low), _x(panel, one.high)]
    if not LOW <= one.mean <= HIGH:  # the mean as a number at the edge
        anchor, shift = ("start", 12) if one.mean < LOW else ("end", -12)
        x = _x(panel, one.mean) + shift
        yield f'<text class="small" x="{x:g}" y="{y + 4:g}" text-anchor="{anchor}">{one.mean:+.1f}</text>'
        ends = [max(ends[0], x + 38), ends[1]] if one.mean < LOW else [ends[0], min(ends[1], x - 38)]
    if ends[0] < ends[1]:
        yield f'<line class="s{place}" x1="{ends[0]:g}" x2="{ends[1]:g}" y1="{y}" y2="{y}"/>'
    if LOW <= one.mean <= HIGH:
        yield f'<circle class="s{place} dot" cx="{_x(panel, one.mean)}" cy="{y}" r="4"/>'
    for end in (one.low, one.high):
        if not LOW <= end <= HIGH:  # the interval goes on
            tip = 7 if end < LOW else -7
            yield f'<path class="s{place}" d="M{_x(panel, end)} {y}l{tip} -3.5v7z"/>'

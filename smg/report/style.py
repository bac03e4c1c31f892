"""The style of figures: colours that colour-blind readers can distinguish, a marker and a dash for every method."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

# (light theme, dark theme). The palette of Okabe and Ito without yellow, which is lost on white paper; the light ones
# are a shade darker, so that a thin line has a contrast of 3 : 1 on white.
PALETTE = (
    ("#0072b2", "#56b4e9"),
    ("#d55e00", "#ff8a3d"),
    ("#008f68", "#2fcf9f"),
    ("#b5568c", "#e79ac2"),
    ("#a97400", "#e6b422"),
    ("#3d86c6", "#a5d8ff"),
    ("#6b5bb5", "#b3a5f5"),
    ("#5f6368", "#b8bcc2"),
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p", "<", ">", "*", "h", "d")
DASHES: tuple[tuple[int, tuple[float, ...]], ...] = ((0, ()), (0, (5, 1.6)), (0, (1.2, 1.4)), (0, (5, 1.4, 1.2, 1.4)))
INK, FAINT, GRID = "#1b1f24", "#59616b", "#d5d9de"  # text, secondary text, grid lines
CARD = "#f6f7f9"  # behind a figure on the page
FIXED_COLOURS = ("sga+c", "finetune")  # methods that have the first colours in every report

# Contours over a grey scan: the true one, the prediction right after the site was learned, and that at the end.
# None of these is the colour of a method.
TRUTH, AFTER, END = "#ffffff", "#f0e442", "#ff5fd2"


@dataclass(frozen=True)
class Look:
    """One method's colour, marker and dash, the same in every figure."""

    place: int
    colour: str
    marker: str
    dash: tuple[int, tuple[float, ...]]
    rank: int = 0  # a number of its own, by which the page finds the method in a figure


def looks(names: Sequence[str]) -> dict[str, Look]:
    """Return a look for each method; methods with a fixed colour first, the others in their order."""
    ranked = sorted(dict.fromkeys(names), key=lambda n: FIXED_COLOURS.index(n) if n in FIXED_COLOURS else 9)
    made, kept, count = {}, len(FIXED_COLOURS), len(PALETTE)
    for place, name in enumerate(ranked):
        turn = place if place < count else kept + (place - count) % (count - kept)  # a fixed colour is used once
        dash = DASHES[(turn + (place >= count)) % len(DASHES)]
        made[name] = Look(turn, PALETTE[turn][0], MARKERS[place % len(MARKERS)], dash, place)
    return {name: made[name] for name in names}


@contextmanager
def drawing(size: float = 9) -> Iterator[None]:
    """Set matplotlib for the report's figures: plain sans-serif, no frame, text that stays text."""
    import matplotlib as mpl

    with mpl.rc_context(
        {
            "font.family": "sans-serif",
            "font.sans-serif": ["DejaVu Sans"],
            "font.size": size,
            "text.color": INK,
            "axes.edgecolor": FAINT,
            "axes.labelcolor": INK,
            "axes.titlesize": size + 1,
            "axes.titleweight": "bold",
            "axes.titlelocation": "left",
            "axes.linewidth": 0.8,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "axes.axisbelow": True,
            "grid.color": GRID,
            "grid.linewidth": 0.6,
            "xtick.color": FAINT,
            "ytick.color": FAINT,
            "xtick.labelsize": size - 0.5,
            "ytick.labelsize": size - 0.5,
            "legend.frameon": False,
            "legend.fontsize": size - 0.5,
            "lines.linewidth": 1.8,
            "lines.markersize": 6,
            "text.parse_math": False,  # a method may be called anything
            "svg.fonttype": "none",
            "svg.hashsalt": "smg",  # the same drawing gets the same ids
            "pdf.fonttype": 42,
        }
    ):
        yield

"""How figures look: colours that colour-blind readers tell apart, a marker and a dash of its own for every method."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

# Okabe and Ito's, without the yellow that white paper swallows; the light ones a shade darker, so that a thin line
# of each stands out from white by 3 : 1. Beside them what the dark page draws instead.
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
INK, FAINT, GRID = "#1b1f24", "#59616b", "#d5d9de"  # text, lesser text, lines of the grid
LINES_CHOSEN = ("sga+c", "finetune")  # the paper's own and the one it is measured against keep their colours

# Over a grey scan: the truth, the contour right after the site was learned, and the contour at the end.
# None of these is a method's colour.
TRUTH, AFTER, END = "#ffffff", "#f0e442", "#ff5fd2"


@dataclass(frozen=True)
class Look:
    """One method's colour, marker and dash, the same in every figure."""

    place: int
    colour: str
    marker: str
    dash: tuple[int, tuple[float, ...]]


def looks(names: Sequence[str]) -> dict[str, Look]:
    """A look for each method; those with a colour of their own first, the others in the order they come."""
    ranked = sorted(dict.fromkeys(names), key=lambda n: LINES_CHOSEN.index(n) if n in LINES_CHOSEN else 9)
    made, kept, count = {}, len(LINES_CHOSEN), len(PALETTE)
    for place, name in enumerate(ranked):
        turn = place if place < count else kept + (place - count) % (count - kept)  # the chosen's colours come once
        dash = DASHES[(turn + (place >= count)) % len(DASHES)]
        made[name] = Look(turn, PALETTE[turn][0], MARKERS[place % len(MARKERS)], dash)
    return {name: made[name] for name in names}


@contextmanager
def drawing(size: float = 9) -> Iterator[None]:
    """matplotlib set for our figures: plain sans-serif, no frame, text that stays text."""
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
            "svg.hashsalt": "smg",  # names of parts that are the same for the same drawing
            "pdf.fonttype": 42,
        }
    ):
        yield

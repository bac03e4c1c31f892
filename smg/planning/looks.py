"""Choose what the network looks at: a central field or windows, at sizes that the scans' pixels fill."""

from __future__ import annotations

import math
from dataclasses import dataclass

from smg.planning.facts import Facts

# Of the field around what is needed, by the number of sites looked at: the next patient's organ is larger, or lies
# further out. Of the real prostate sites one alone needs 67 to 100 mm, all five 100 mm.
ROOM = {1: 1.5, 2: 1.35}
ROOM_OF_SEVERAL = 1.2
CENTRAL = 0.8  # of the view, at most, where foreground counts as central
CONTEXT = 1.5  # of a window's side, at least, over the organ's, as far as the view reaches
FINEST = 0.9  # of the scans' own pixels: a finer spacing shows nothing more
# (pixels of the window's side, width of the network), from cheap to dear.
CANDIDATES = (
    (64, 8), (96, 8), (96, 16), (128, 16), (160, 16), (192, 16), (192, 32), (256, 32), (320, 32), (384, 32),
)  # fmt: skip
SMALL = ((48, 8), (32, 8))  # for scans whose pixels do not fill the first of the candidates, the larger one first
SMALLEST = SMALL[-1]


@dataclass(frozen=True)
class Look:
    """What the network looks at."""

    size: int  # pixels of the window's side
    spacing: float  # mm
    width: int  # of the network
    field: float | None  # mm

    @property
    def window(self) -> float:
        """The window's side in mm."""
        return self.size * self.spacing


def looks(facts: Facts) -> list[Look]:
    """Return what a network may look at, from cheap to dear: windows that the scans' pixels fill.

    The last one sees all of the field, or of the narrowest view, as finely as the scans show it.
    """
    field = choose_field(facts)
    fitting = _fitting(facts, field, CANDIDATES) or _fitting(facts, field, SMALL)[:1]
    if fitting:
        return fitting
    size, width = SMALLEST  # even this one reaches beyond the view
    return [Look(size, _rounded_up(facts.pixel), width, field)]


def choose_field(facts: Facts) -> float | None:
    """Return the central field in mm, rounded, or None where foreground lies too far out for one.

    It has room for the next patients, and fills the smallest window, both as far as the narrowest view allows.
    """
    if facts.needed > CENTRAL * facts.view:
        return None
    step = min(10.0, 10.0 ** (math.floor(math.log10(facts.view)) - 1))  # 10 mm in views of 100 mm and more
    wanted = max(facts.needed * ROOM.get(len(facts.sites), ROOM_OF_SEVERAL), FINEST * facts.pixel * SMALLEST[0])
    within = min(math.ceil(wanted / step), math.floor(facts.view / step + 1e-6))
    return round(step * max(within, math.ceil(facts.needed / step)), 6)


def _fitting(facts: Facts, field: float | None, candidates: tuple[tuple[int, int], ...]) -> list[Look]:
    """Return the candidates whose pixels are not finer than the scans' own."""
    found = []
    for size, width in candidates:
        seen = field or min(facts.view, max(size * facts.pixel, CONTEXT * facts.organ))
        if seen / size >= FINEST * facts.pixel:
            found.append(Look(size, _rounded_up(seen / size), width, field))
    return found


def _rounded_up(spacing: float) -> float:
    """Return a spacing rounded up to 0.01 mm; a small one to 0.0001 mm."""
    digits = 2 if spacing >= 0.1 else 4
    return math.ceil(10**digits * spacing - 1e-6) / 10**digits

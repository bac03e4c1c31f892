"""The batches of an iteration: D of the incoming site, P of replay, P_k of each previous site, halves of D ∪ P.

A batch is a list of rows. Rows become arrays only when a gradient needs them, so a process of a data-parallel job loads
its share alone, and a method does not depend on batches being in memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, pairwise

import torch

from smg.prepare.augment import Augmentation, augment_along, margin_of
from smg.prepare.slices import Samples, Slices, draw_indices, endless
from smg.prepare.styles import Styles
from smg.prepare.windows import Sides
from smg.randomness import numpy_generator

Row = tuple[int, int, int]  # source (0 the incoming site, k the k-th previous one), its slice, place in the iteration


@dataclass(frozen=True)
class Batch:
    """Some rows of an iteration, with a name that reports of a step use."""

    name: str
    rows: tuple[Row, ...]
    iteration: Iteration = field(repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.rows)

    def load(self, share: slice = slice(None)) -> Samples:
        """Return the rows, or a share of them, as arrays."""
        return self.iteration.load(self.rows[share])


@dataclass
class Iteration:
    """The batches of one iteration, as a method sees them.

    A batch is drawn when it is first used. The draw depends only on the seed, the round and the number of the
    iteration, so it does not matter which other batches a method uses. `site` is the name of the incoming site, and
    `earlier` is the number of rounds before this one.
    """

    incoming_site: Slices
    previous_sites: Sequence[Sized]  # slices of each: its exemplars or all; a number where they lie elsewhere
    size: int
    seed: int
    round: int
    number: int
    augmentation: Augmentation = field(default_factory=Augmentation)
    replay_size: int | None = None  # Default: that of the incoming batch
    window: Sides | None = None  # of the windows, where slices are seen through them
    site: str = ""  # name of the incoming site
    earlier: int = 0  # number of rounds that led to this one
    styles: Styles | None = None  # amplitudes of earlier sites, applied to incoming slices
    _loaded: dict[Row, tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]] = field(default_factory=dict, repr=False)

    @cached_property
    def incoming(self) -> Batch:
        """D: a batch of the incoming site."""
        return Batch("incoming", self._rows(0, self.incoming_site, self.size, first=0), self)

    @cached_property
    def replay(self) -> Batch | None:
        """P: a batch drawn evenly from all previous sites; None in the first round."""
        return self._replay("replay", first=self.size)

    @cached_property
    def second_replay(self) -> Batch | None:
        """P': a second batch like P, drawn independently of it; None in the first round."""
        replayed = self.replay_size or self.size
        return self._replay("second replay", first=3 * self.size + (2 + len(self.previous_sites)) * 2 * replayed)

    def _replay(self, name: str, first: int) -> Batch | None:
        sites = len(self.previous_sites)
        if sites == 0:
            return None
        count = self.size if self.replay_size is None else self.replay_size
        rows = []
        for offset in range(count):
            turn, place = divmod(self.number * count + offset, sites)  # in each turn every site comes once
            site = endless(sites, turn * sites + place, f"{name} sites", self.seed, self.round)
            source = self.previous_sites[site]
            index = endless(len(source), turn, f"{name} of {site}", self.seed, self.round)
            rows.append((1 + site, index, first + offset))
        return Batch(name, tuple(rows), self)

    @cached_property
    def exemplars(self) -> tuple[Batch, ...]:
        """P_k: one batch of each previous site, each as large as P."""
        first, count = 2 * self.size + (self.replay_size or 0), self.replay_size or self.size
        return tuple(
            Batch(f"site {k}", self._rows(k, source, count, first + (k - 1) * count), self)
            for k, source in enumerate(self.previous_sites, start=1)
        )

    @cached_property
    def pooled(self) -> Batch:
        """A batch drawn from all slices of the incoming and the previous sites, as large as D and P together."""
        sources = [self.incoming_site, *self.previous_sites]
        starts = list(accumulate((len(source) for source in sources), initial=0))
        replayed = self.replay_size or self.size
        count, first = self.size + replayed, 2 * self.size + (self.replay_size or 0) + len(sources) * replayed
        rows = []
        for offset, index in enumerate(draw_indices(starts[-1], count, "pooled", self.seed, self.round, self.number)):
            source = bisect_right(starts, index) - 1
            rows.append((source, index - starts[source], first + offset))
        return Batch("pooled", tuple(rows), self)

    def each(self, size: int = 1) -> Iterator[Batch]:
        """Yield every slice of the incoming site once, in order, in batches of `size`.

        No array is kept in memory after its batch. If the settings cut windows out of slices, each slice is one window,
        drawn as in any other batch of this iteration.
        """
        for start in range(0, len(self.incoming_site), size):
            indices = range(start, min(start + size, len(self.incoming_site)))
            alone = replace(self, _loaded={})
            yield Batch("each slice", tuple((0, index, index) for index in indices), alone)

    def union(self, *batches: Batch) -> Batch:
        """Return the rows of several batches as one batch, such as C = D ∪ P."""
        return Batch("union", tuple(row for batch in batches for row in batch.rows), self)

    def split(self, *batches: Batch) -> tuple[Batch, Batch]:
        """Return two random halves, C_tr and C_te, of the union of batches; drawn again in every iteration."""
        rows = self.union(*batches).rows
        order = numpy_generator("split", self.seed, self.round, self.number).permutation(len(rows))
        half = len(rows) // 2
        halves = order[:half], order[half:]
        train, test = (tuple(rows[i] for i in part) for part in halves)
        return Batch("virtual train", train, self), Batch("virtual test", test, self)

    def shuffled(self, batches: Sequence[Batch]) -> list[Batch]:
        """Return batches in a random order, drawn again in every iteration."""
        order = numpy_generator("order", self.seed, self.round, self.number).permutation(len(batches))
        return [batches[i] for i in order]

    def load(self, rows: Sequence[Row]) -> Samples:
        """Return rows as arrays; a row of two batches is read and augmented once."""
        for source in {row[0] for row in rows}:
            missing = [row for row in dict.fromkeys(rows) if row[0] == source and row not in self._loaded]
            for start, stop in _runs([row[2] for row in missing]):
                self._fetch(source, missing[start:stop])
        images, labels, outputs = zip(*(self._loaded[row] for row in rows), strict=True)
        stored = torch.stack(outputs) if all(one is not None for one in outputs) else None
        return Samples(torch.stack(images), torch.stack(labels), stored)

    def _fetch(self, source: int, rows: list[Row]) -> None:
        """Read and augment rows of one source at consecutive places."""
        site = self.incoming_site if source == 0 else self.previous_sites[source - 1]
        assert isinstance(site, Slices)  # other hospitals answer for their rows
        here = (self.seed, self.round, self.number)
        margin = 0 if self.window is None else margin_of(self.augmentation, self.window)
        places = [(*here, row[2]) for row in rows]
        samples = site.gather([row[1] for row in rows], places, margin)
        pixels, first, stored = samples.images, rows[0][2], samples.outputs
        if source == 0 and self.styles is not None:
            pixels = self.styles.lend(pixels, places, margin)
        images, labels, outputs = augment_along(
            pixels, samples.labels, stored, self.augmentation, *here, first=first, margin=margin
        )
        of_rows = [None] * len(rows) if outputs is None else outputs
        self._loaded.update(zip(rows, zip(images, labels, of_rows, strict=True), strict=True))

    def _rows(self, number: int, source: Sized, count: int, first: int) -> tuple[Row, ...]:
        """Return `count` rows drawn from a source, at the places from `first` on."""
        purpose = f"site {number}" if number else "incoming"
        indices = draw_indices(len(source), count, purpose, self.seed, self.round, self.number)
        return tuple((number, index, first + offset) for offset, index in enumerate(indices))


def _runs(places: list[int]) -> list[tuple[int, int]]:
    """Return where runs of consecutive numbers start and stop; each run is augmented in one call."""
    cuts = [0, *(i for i in range(1, len(places)) if places[i] != places[i - 1] + 1), len(places)]
    return [(a, b) for a, b in pairwise(cuts) if a < b]

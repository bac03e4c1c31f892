"""What a round needs of exemplars and sentinels that stay at other hospitals: questions, and the types of the answers.

Who asks them is in `smg.federation`. Without it everything is in the model's folder, and nothing here is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn

from smg.gradients.oracle import GradientSource


@dataclass(frozen=True)
class Rows:
    """Slices of a site's exemplars that lie elsewhere: how many may be drawn, and the hash of what they are."""

    count: int
    exemplars: str

    def __len__(self) -> int:
        return self.count


@dataclass(frozen=True)
class Summary:
    """How a network sees a site's exemplars, in sums over subjects."""

    subjects: int
    mean: Tensor  # [2F], of the subjects' moments
    squares: Tensor  # [2F], summed squared deviations from it


@dataclass(frozen=True)
class Scores:
    """DSC of a site's subjects with the networks before and after a round."""

    exemplars: tuple[float, float] | None  # means
    sentinels: Mapping[str, tuple[float, float]]  # by pseudonym


class Elsewhere(Protocol):
    """Other hospitals that answer for the sites they hold."""

    @property
    def rows(self) -> Mapping[str, Rows]:
        """Return what each site that lies elsewhere has."""

    def source(self, own: GradientSource, sites: Sequence[str]) -> GradientSource:
        """Return who answers `grad`, where the k-th previous site is the k-th of `sites`."""

    def nearest(self, network: nn.Module, unit: Tensor) -> Mapping[str, Tensor]:
        """Return of each site the least of -sim(f(s), f(e)) over its exemplars e, for each unit vector f(s)."""

    def summaries(self, network: nn.Module) -> Mapping[str, Summary]:
        """Return how a network sees each site; a site with one exemplar says nothing of it."""

    def scores(self, before: nn.Module, after: nn.Module) -> Mapping[str, Scores]:
        """Return what two networks reach at each site."""

    def about(self) -> dict[str, Any]:
        """Return what the round's record says of the hospitals: who answered, and who was away when."""

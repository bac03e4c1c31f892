"""Questions about exemplars and sentinels that stay at other hospitals, and the types of the answers.

`smg.federation` implements them. Without a federation all data are in the model's folder, and this module is not used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn

from smg.gradients.oracle import GradientSource


@dataclass(frozen=True)
class Rows:
    """Slices of a site's exemplars at another hospital: how many may be drawn, and the hash of their content."""

    count: int
    exemplars: str

    def __len__(self) -> int:
        return self.count


@dataclass(frozen=True)
class Summary:
    """The network's features of a site's exemplars, as sums over subjects."""

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
        """Return the rows of each site that another hospital holds."""

    def source(self, own: GradientSource, sites: Sequence[str]) -> GradientSource:
        """Return the source of gradients for a round whose k-th previous site is the k-th of `sites`."""

    def nearest(self, network: nn.Module, unit: Tensor) -> Mapping[str, Tensor]:
        """Return for each site the minimum of -sim(f(s), f(e)) over its exemplars e, for each unit vector f(s)."""

    def summaries(self, network: nn.Module) -> Mapping[str, Summary]:
        """Return the feature sums of each site; a site with a single exemplar gives none."""

    def scores(self, before: nn.Module, after: nn.Module) -> Mapping[str, Scores]:
        """Return the DSC of two networks at each site."""

    def about(self) -> dict[str, Any]:
        """Return which hospitals answered and when some were unavailable, for the round's record."""

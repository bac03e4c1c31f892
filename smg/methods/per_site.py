"""Per-site: a separate network for every site, as a reference. It forgets nothing and shares nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from smg.methods.base import register
from smg.methods.finetune import FineTune


@register("per-site")
@dataclass(frozen=True)
class PerSite(FineTune):
    """g(Θ_t; D), with fresh Θ_t in every round t"""

    one_network_a_site: ClassVar[bool] = True

"""SMG-Learning: continual segmentation across hospitals that neither forgets nor overfits to those it has seen.

import smg

learner = smg.Learner.create("model", method="sga+c")
learner.learn(smg.Site.find("data/RUNMC"))
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from smg import methods
    from smg.learner.config import LearnerConfig
    from smg.learner.learner import Learner
    from smg.learner.stream import Stream
    from smg.sites.site import Site
    from smg.vault.key import Key

__all__ = ["Key", "Learner", "LearnerConfig", "Site", "Stream", "methods"]

# Imported when first asked for: torch takes a second, and `smg --help` needs none of it.
_HOMES = {
    "Key": "smg.vault.key",
    "Learner": "smg.learner.learner",
    "LearnerConfig": "smg.learner.config",
    "Site": "smg.sites.site",
    "Stream": "smg.learner.stream",
}


def __getattr__(name: str) -> Any:
    if name == "methods":
        return import_module("smg.methods")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'smg' has no attribute {name!r}")

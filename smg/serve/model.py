"""The model that a node serves: opened once, and again when its current round has changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from smg.errors import SmgError
from smg.learner.learner import Learner
from smg.learner.outputs import MaskWriter
from smg.learner.predictor import Prediction, Predictor
from smg.sites.labels import Labels
from smg.sites.volume import read_volume


@dataclass(frozen=True)
class _Opened:
    round: int
    predictor: Predictor
    writer: MaskWriter


class ServedModel:
    """A model's current round. Used by one thread at a time, the queue's."""

    def __init__(self, folder: Path, codes: Mapping[str, str]) -> None:
        self.folder, self.codes = folder, codes
        self.learner = Learner(folder)
        self.opened = self._open()
        if self.opened.predictor.config.preparation.n_channels > 1:
            raise SmgError(
                f"{folder}: the model takes several channels, and over the network a scan has one; "
                "use `smg predict` for it"
            )

    @property
    def name(self) -> str:
        """Return the name by which callers choose the model."""
        return self.folder.resolve().name

    @property
    def labels(self) -> Labels:
        return self.opened.predictor.config.preparation.labels

    def predict(self, scan: Path) -> Prediction:
        """Predict a scan by the round that is current now: after a rollback, the one rolled back to."""
        if self.learner.store.read().current != self.opened.round:
            self.learner = Learner(self.folder)
            self.opened = self._open()
        return self.opened.predictor.predict(read_volume(scan))

    def write_seg(self, scan: Path, made: Prediction, target: Path) -> None:
        """Write a prediction of a DICOM series as SEG."""
        self.opened.writer.write(scan, made, {"seg": target})

    def _open(self) -> _Opened:
        return _Opened(self.learner.current, self.learner.predictor(), MaskWriter.of(self.learner, self.codes))


def summary(made: Prediction) -> str:
    """Return what a log and the page say of a prediction."""
    nearest = f", nearest to {made.nearest}" if made.nearest else ""
    return f"{made.millilitres:.1f} ml{nearest}{', UNLIKE every site learned' if made.unlike else ''}"

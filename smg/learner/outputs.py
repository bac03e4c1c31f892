"""Write predicted masks as files: in the scan's format, as NIfTI, or as DICOM SEG and RTSTRUCT of the scan's series."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import smg
from smg.dicom.codes import code_of
from smg.dicom.outgoing import Origin, Structure, check_series
from smg.dicom.rtstruct import write_rtstruct
from smg.dicom.seg import write_seg
from smg.dicom.series import is_series, read_series
from smg.errors import Misuse, SmgError
from smg.learner.learner import Learner
from smg.learner.predictor import Prediction
from smg.sites.labels import Labels
from smg.sites.split import twice
from smg.sites.volume import Volume, naming, write_volume

SUFFIXES = {"nifti": ".nii.gz", "seg": ".seg.dcm", "rtstruct": ".rtstruct.dcm"}  # format -> end of a mask's file
DICOM = {"seg": write_seg, "rtstruct": write_rtstruct}


@dataclass(frozen=True)
class MaskWriter:
    """Writer of the masks that a model predicts."""

    labels: Labels
    structures: tuple[Structure, ...]  # a class each, in the order of their indices from 1
    round: int
    digest: str  # of the round's weights

    @classmethod
    def of(cls, learner: Learner, codes: Mapping[str, str], number: int | None = None) -> MaskWriter:
        """Return the writer for a round, by default the current one; `codes` override those of its settings."""
        config = learner.predictor(number).config
        labels, given = config.preparation.labels, {**config.codes, **codes}
        if unknown := [name for name in codes if name not in labels.names]:
            raise Misuse(f"--code {unknown[0]}: no such class; the model has {', '.join(labels.names)}")
        structures = tuple(Structure(name, code_of(name, given)) for name in labels.names)
        number = learner.current if number is None else number
        digest = learner.store.files_of(number)["weights.safetensors"]
        return cls(labels, structures, number, digest)

    def write(self, scan: Path, made: Prediction, targets: Mapping[str, Path]) -> None:
        """Write a scan's mask to each target; the keys are formats, '' for the scan's own."""
        check_target(scan, targets)
        series = None
        with naming(scan):
            for form in DICOM.keys() & targets.keys():  # before any is written
                series = series or read_series(scan)
                check_series(series, form.upper())
        for form, target in targets.items():
            if series is None or form not in DICOM:
                write_volume(target, made.mask, like=scan)
                continue
            with naming(target):
                target.parent.mkdir(parents=True, exist_ok=True)
                origin = Origin(smg.__version__, self.round, self.digest, made.unlike)
                DICOM[form](target, series, self.labels.index(made.mask.array), self.structures, origin)

    @property
    def probability_suffixes(self) -> tuple[str, ...]:
        """Return the end of the name of each class's map of probabilities."""
        plain = ["".join(c if c.isalnum() or c in "-_" else "-" for c in name) for name in self.labels.names]
        for name in twice(plain):
            raise Misuse(f"two classes would have the file name {name!r}: predict without --probabilities")
        return tuple(f".{name}.probability.nii.gz" for name in plain)

    def write_probabilities(self, made: Prediction, targets: Mapping[str, Path]) -> None:
        """Write the probability of each class to its target, if the prediction has them."""
        if made.probabilities is None:
            return
        for number, suffix in enumerate(self.probability_suffixes, start=1):
            write_volume(targets[suffix], Volume(made.probabilities[number], made.mask.affine))


def check_target(scan: Path, forms: Iterable[str]) -> None:
    """Raise an error if a scan's mask cannot be written in a format."""
    for form in forms:
        if form in DICOM and not is_series(scan):
            raise SmgError(f"{scan}: no DICOM series, to which a {form.upper()} would refer; use --as nifti for it")

"""What SEG and RTSTRUCT files share when they are written: the patient, the study, and who made them.

Such a file belongs to the patient's study and must carry the identifiers of the series it was made from. They are
copied from file to file and never pass through a message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smg.dicom.codes import Code
from smg.dicom.dicom_files import no_header_values, open_dicom
from smg.dicom.series import Series
from smg.errors import SmgError
from smg.files import replacing

MAKER = "SMG-Learning"
REQUIRED = (  # present, and empty where they are not known
    "PatientName", "PatientID", "PatientBirthDate", "PatientSex", "StudyDate", "StudyTime", "ReferringPhysicianName",
    "StudyID", "AccessionNumber",
)  # fmt: skip
COPIED = (
    *REQUIRED,
    "IssuerOfPatientID", "IssuerOfPatientIDQualifiersSequence", "TypeOfPatientID", "PatientBirthTime",
    "OtherPatientIDs", "OtherPatientIDsSequence", "OtherPatientNames", "EthnicGroup", "PatientComments",
    "PatientIdentityRemoved", "DeidentificationMethod", "DeidentificationMethodCodeSequence", "PatientAge",
    "PatientSize", "PatientWeight", "StudyDescription", "IssuerOfAccessionNumberSequence",
    "ClinicalTrialSponsorName", "ClinicalTrialProtocolID", "ClinicalTrialProtocolName", "ClinicalTrialSiteID",
    "ClinicalTrialSiteName", "ClinicalTrialSubjectID", "ClinicalTrialSubjectReadingID", "ClinicalTrialTimePointID",
)  # fmt: skip


@dataclass(frozen=True)
class Structure:
    """A class of a mask: its name and what it is."""

    name: str
    code: Code


@dataclass(frozen=True)
class Origin:
    """What made a mask: version of smg, round of the model, hash of its weights; whether the scan is like no site."""

    version: str
    round: int
    digest: str
    unlike: bool | None

    @property
    def version_line(self) -> str:
        return f"{self.version}, round {self.round}"[:64]

    @property
    def parameters(self) -> dict[str, str]:
        return {"weights_sha256": self.digest, "round": str(self.round), "unlike": str(self.unlike).lower()}

    @property
    def description(self) -> str:
        """Return the line that archives and viewers show."""
        mark = ", UNLIKE all sites learned: check it" if self.unlike else ""
        return f"{MAKER} segmentation{mark}"


def check_series(series: Series, kind: str) -> None:
    """Refuse a series that a SEG or RTSTRUCT cannot refer to."""
    for keyword, value in (("FrameOfReferenceUID", series.frame_of_reference), ("StudyInstanceUID", series.study)):
        if not value:
            raise SmgError(f"the series has no {keyword}, without which a {kind} cannot be placed; "
                           "export it again with it, or write NIfTI (--as nifti)")  # fmt: skip


def copy_patient(series: Series, target: Any, words: Sequence[str]) -> None:
    """Copy patient and study from the series' first file; `words` is the text of our own that the target holds."""
    source = open_dicom(series.planes[0].file, ("SpecificCharacterSet", *COPIED))
    with no_header_values("the patient's and study's attributes cannot be copied; export the series again"):
        source.decode()
        if "SpecificCharacterSet" in source:
            target.SpecificCharacterSet = source.SpecificCharacterSet
        if not all(word.isascii() for word in words):
            target.SpecificCharacterSet = "ISO_IR 192"  # UTF-8
        for keyword in REQUIRED:
            setattr(target, keyword, "")
        for keyword in COPIED:
            if keyword in source:
                target[keyword] = source[keyword]


def save(target: Any, path: Path) -> None:
    """Write a data set as a DICOM file, whole or not at all."""
    with replacing(path) as temporary, no_header_values("cannot be written as DICOM"):
        target.save_as(temporary, enforce_file_format=True)

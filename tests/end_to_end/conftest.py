"""A reader's desk, on which the documentation is tried."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

import smg.bench.planned_runs
import smg.phantom.phantom
from smg.bench.planned_runs import Plan
from smg.dicom.codes import STRUCTURE
from smg.dicom.outgoing import Origin, Structure
from smg.dicom.rtstruct import write_rtstruct
from smg.dicom.series import read_series
from tests.conftest import scan, write_site
from tests.dicom.made import write_series
from tests.nnunet_folders import write_nnunet

SITES = ("RUNMC", "HCRUDB", "UCL", "BIDMC", "HK")


def _write_dicom(folder: Path) -> None:
    """Write series to predict, a study of two series, and a site of series with RTSTRUCT masks."""
    for number in range(2):
        write_series(folder / "series" / f"p{number}", scan(40 + number)[0].array.clip(0))
        write_series(
            folder / "study", scan(50 + number)[0].array.clip(0), series=f"1.2.826.0.1.3680043.2.1143.{7 + number}"
        )
    for number in range(4):
        image, mask = scan(60 + number)
        series = read_series(write_series(folder / "clinic" / f"c{number}", image.array.clip(0)))
        structures = [Structure(name, STRUCTURE) for name in ("Prostate", "Bladder")]
        origin = Origin("0", 1, "ab" * 32, None)
        write_rtstruct(folder / "clinic" / f"c{number}_segmentation.dcm", series, mask.array, structures, origin)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a user's data in it; phantoms are few, and the demo's training is short."""
    for place, name in enumerate(SITES):
        write_site(tmp_path / "data" / name, 4, first_seed=10 * place)
    write_site(tmp_path / "my" / "data" / "here", 3)
    write_site(tmp_path / "scans", 3)
    for mask in (tmp_path / "scans").glob("*_segmentation*"):
        mask.unlink()
    _write_dicom(tmp_path)
    write_nnunet(tmp_path / "nnUNet_results/Dataset042_Prostate/nnUNetTrainer__nnUNetPlans__2d")
    monkeypatch.setattr(smg.phantom.phantom, "SMALL", 3)
    monkeypatch.setattr(import_module("smg.cli.demo"), "SUBJECTS", 4)
    whole = smg.bench.planned_runs.read_plan

    def short(source: str) -> Plan:
        plan = whole(source)
        tiny = {"iterations": 2, "batch": 2, "preparation": {"size": 32}, "network": {"width": 4, "depth": 2}}
        return replace(plan, settings=plan.settings | tiny) if source == "demo" else plan

    monkeypatch.setattr(smg.bench.planned_runs, "read_plan", short)
    return tmp_path

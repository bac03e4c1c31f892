"""A reader's desk, on which the documentation is tried."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

import smg.bench.plan
import smg.phantom.phantom
from smg.bench.plan import Plan
from tests.conftest import write_site

SITES = ("RUNMC", "HCRUDB", "UCL", "BIDMC", "HK")


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a user's data in it; phantoms are few, and the demo's training is short."""
    for place, name in enumerate(SITES):
        write_site(tmp_path / "data" / name, 4, first_seed=10 * place)
    write_site(tmp_path / "my" / "data" / "here", 3)
    write_site(tmp_path / "scans", 3)
    for mask in (tmp_path / "scans").glob("*_segmentation*"):
        mask.unlink()
    monkeypatch.setattr(smg.phantom.phantom, "SMALL", 3)
    monkeypatch.setattr(import_module("smg.cli.demo"), "SUBJECTS", 3)
    whole = smg.bench.plan.read_plan

    def short(source: str) -> Plan:
        plan = whole(source)
        tiny = {"iterations": 2, "batch": 2, "preparation": {"size": 32}, "network": {"width": 4, "depth": 2}}
        return replace(plan, settings=plan.settings | tiny) if source == "demo" else plan

    monkeypatch.setattr(smg.bench.plan, "read_plan", short)
    return tmp_path

"""The tools of Debian's dicom3tools, where they are installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Validate = Callable[..., None]  # (object, series, parts of lines that are known)
IOD = ("Segmentation", "RTStructureSet")  # dciodvfy says what it found


@pytest.fixture(scope="session")
def validate() -> Validate:
    """Return a check that a DICOM object is valid, and consistent with the series that it was made from."""
    if not (shutil.which("dciodvfy") and shutil.which("dcentvfy")):
        if os.environ.get("SMG_DICOM3TOOLS"):
            pytest.fail("SMG_DICOM3TOOLS is set, and dciodvfy and dcentvfy are not installed")
        pytest.skip("dciodvfy and dcentvfy are not installed (Debian's package dicom3tools)")

    def check(made: Path, series: Path, *known: str) -> None:
        sources = sorted(str(file) for file in series.iterdir())
        for words in (["dciodvfy", str(made)], ["dcentvfy", str(made), *sources]):
            said = subprocess.run(words, capture_output=True, text=True, check=False)
            assert said.returncode == 0, said.stderr
            lines = [line for line in (said.stdout + said.stderr).splitlines() if line not in IOD]
            assert [line for line in lines if not any(part in line for part in known)] == []

    return check

"""From nothing to checked, prepared sites: phantoms, and the real ones where they are."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.commands import smg


def test_the_real_sites_are_sound(real_data: Path) -> None:
    result = smg("sites", "check", real_data, "--json")
    assert result.returncode == 0
    checked = json.loads(result.stdout)
    assert checked["faults"] == []
    assert {name: (site["subjects"], site["foreground_slices"]) for name, site in checked["sites"].items()} == {
        "RUNMC": (30, 422),
        "HCRUDB": (19, 468),
        "UCL": (13, 175),
        "BIDMC": (12, 261),
        "HK": (12, 158),
    }

"""What a model holds of patients: the command, the documentation and the folder agree."""

from __future__ import annotations

from pathlib import Path

import pytest

from smg.learner.history import History
from smg.learner.holdings import KINDS, holdings
from smg.learner.learner import Learner
from smg.sites.site import Site
from tests.cli.commands import smg
from tests.learner.streams import TINY, write_sites

DOCUMENTED = (Path(__file__).parents[2] / "docs/privacy.md").read_text()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_documentation_has_every_kind(kind: object) -> None:
    rows = [line for line in DOCUMENTED.splitlines() if line.startswith("| a model: ")]
    assert len(rows) == len(KINDS)
    (row,) = [row for row in rows if f"| {kind.what}" in row]
    assert f"`{kind.file}`" in row
    assert row.endswith(f"| {kind.removal} |")


def test_counts_are_those_of_the_folder_and_drop_to_nothing(tmp_path: Path) -> None:
    data = write_sites(tmp_path / "sites")
    model = Learner.create(tmp_path / "model", **TINY)
    model.learn(Site.find(data, "A"))
    counts = {one.kind.name: one for one in holdings(History(tmp_path / "model"))}
    record = model.store.read_round(1)
    assert (counts["exemplars"].count, counts["sentinels"].count) == (2, 1)
    assert counts["rows"].count == len(Site.find(data, "A").subjects)
    assert counts["hashes"].count == len(record.scans)
    assert counts["weights"].bytes == (tmp_path / "model/rounds/001/weights.safetensors").stat().st_size
    assert counts["spectra"].count == counts["state"].count == counts["checkpoint"].count == 0
    shown = smg("replay", "show", "model", cwd=tmp_path).stdout
    assert "slices and masks of sentinels" in shown
    assert "amplitudes" not in shown
    assert max(map(len, shown.splitlines())) <= 90
    model.drop("A")
    counts = {one.kind.name: one for one in holdings(History(tmp_path / "model"))}
    assert counts["exemplars"].count == counts["sentinels"].count == 0
    assert counts["rows"].count > 0  # which `forget` removes, person by person

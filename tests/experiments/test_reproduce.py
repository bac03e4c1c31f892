"""A published run is run again by its own command, and what differs is named."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from experiments import reproduce
from smg.bench.workers import Bench
from tests.bench.grids import grid, run_all
from tests.learner.streams import write_sites


def test_a_run_is_made_again_to_the_bit_and_an_altered_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_sites(tmp_path / "sites")
    run_all(Bench(grid(tmp_path, methods=["sga+c"]), tmp_path / "out", data, workers=1, threads=1))
    made = tmp_path / "out/stream/sga+c/seed-0"
    published, altered = tmp_path / "published", tmp_path / "altered"
    published.mkdir()
    for name in ("results.json", "run.yaml", "split.json"):  # what experiments.publish takes
        shutil.copyfile(made / name, published / name)
    shutil.copytree(published, altered)

    def judged(run: Path) -> tuple[int, list[str]]:
        monkeypatch.setattr(sys, "argv", ["reproduce.py", str(run), "--data", str(data)])
        with pytest.raises(SystemExit) as ended:
            reproduce.main()
        return int(ended.value.code or 0), capsys.readouterr().out.splitlines()

    assert judged(published) == (0, [f"{published}: the same to the bit"])

    changed = json.loads((altered / "results.json").read_text())
    cpu = changed["versions"]["cpu"]
    changed["subjects"][0]["classes"]["foreground"]["dsc"] += 1e-12
    changed["versions"]["cpu"] = "abacus"
    (altered / "results.json").write_text(json.dumps(changed))
    as_it_was = json.loads((made / "results.json").read_text())
    monkeypatch.setattr(reproduce, "again", lambda run, data, threads: (as_it_was, []))
    code, (warning, verdict) = judged(altered)
    assert code == 1
    assert warning.startswith(f"{altered}: cpu abacus, here {cpu}")
    assert verdict == f"{altered}: differs in subjects"

"""A published run is made again by its own command, and what differs is told."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

from smg.bench.workers import Bench
from tests.bench.test_workers import gone_through, grid
from tests.learner.streams import write_sites


@pytest.fixture
def reproduce() -> ModuleType:
    sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("reproduce")


def test_a_run_is_made_again_to_the_bit_and_an_altered_one_is_not(
    reproduce: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_sites(tmp_path / "sites")
    gone_through(Bench(grid(tmp_path, methods=["sga+c"]), tmp_path / "out", data, workers=1, threads=1))
    made = tmp_path / "out/stream/sga+c/seed-0"
    published, altered = tmp_path / "published", tmp_path / "altered"
    published.mkdir()
    for name in ("results.json", "run.yaml", "split.json"):  # what benchmarks/publish.py takes
        shutil.copyfile(made / name, published / name)
    shutil.copytree(published, altered)

    def judged(run: Path) -> tuple[int, list[str]]:
        monkeypatch.setattr(sys, "argv", ["reproduce.py", str(run), "--data", str(data)])
        with pytest.raises(SystemExit) as ended:
            reproduce.main()
        return int(ended.value.code or 0), capsys.readouterr().out.splitlines()

    assert judged(published) == (0, [f"{published}: the same to the bit"])

    told = json.loads((altered / "results.json").read_text())
    cpu = told["versions"]["cpu"]
    told["subjects"][0]["classes"]["foreground"]["dsc"] += 1e-12
    told["versions"]["cpu"] = "abacus"
    (altered / "results.json").write_text(json.dumps(told))
    as_it_was = json.loads((made / "results.json").read_text())
    monkeypatch.setattr(reproduce, "again", lambda run, data, threads: (as_it_was, []))
    assert judged(altered) == (
        1,
        [
            f"{altered}: cpu abacus, here {cpu}: rounding will differ, and all that follows from it",
            f"{altered}: differs in subjects",
        ],
    )

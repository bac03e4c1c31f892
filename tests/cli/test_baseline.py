"""`--baseline METHOD`: which method the others are compared with."""

from __future__ import annotations

from pathlib import Path

import pytest

from smg.report.bench_tables import write_tables
from tests.cli.commands import smg
from tests.report.benches import make_bench


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    return make_bench(folder / "bench", ("finetune", "jm", "sga+c"), seeds=(0, 1), subjects=2, reports=3)


@pytest.mark.parametrize(("asked", "chosen"), [(None, "jm"), ("finetune", "finetune"), ("sga+c", "sga+c")])
def test_the_tables_have_differences_to_it(asked: str | None, chosen: str, bench: Path) -> None:
    written = write_tables(bench, asked)
    assert written.baseline == chosen
    assert written.differences is not None
    text = written.differences.read_text()
    assert f"minus {chosen}, with 95 % intervals" in text
    assert f"\n| {chosen} |" not in text
    assert text.count("\n| ") == 1 + 2  # the head, and the other two methods


def test_one_that_did_not_run_is_misuse(bench: Path, tmp_path: Path) -> None:
    refused = smg("report", str(bench), "--baseline", "ewc", "--out", str(tmp_path / "page.html"))
    assert refused.returncode == 2
    assert "--baseline ewc: no finished run of that method; choose from finetune, jm, sga+c" in refused.stderr
    (tmp_path / "grid.yaml").write_text("order: [A]\nunseen: B\nmethods: [jm, sga]\ndata: nowhere\n")
    refused = smg("bench", str(tmp_path / "grid.yaml"), "--baseline", "ewc")
    assert refused.returncode == 2
    assert "--baseline ewc: not a method of this bench; it has jm, sga" in refused.stderr

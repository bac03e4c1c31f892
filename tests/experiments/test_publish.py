"""What is published of a bench: numbers and tables, and nothing that a command makes again."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.publish import publish
from smg.errors import SmgError
from smg.report.runs import find_runs
from tests.report.benches import make_bench

ROOT = Path(__file__).parents[2]
NUMBERS = {".json", ".yaml", ".csv", ".md", ".tex"}


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    made = make_bench(tmp_path / "bench", seeds=(0, 1))
    for run in find_runs([made]):
        (run.folder / "run.yaml").write_text("order: [A]\n")
    (made / "report.html").write_text("<p>a page</p>")
    return made


def test_numbers_are_published_and_no_page_picture_or_model(bench: Path, tmp_path: Path) -> None:
    out = tmp_path / "results" / "bench"
    assert publish(bench, out) == 6
    files = [path for path in out.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == NUMBERS
    assert not [path for path in files if "model" in path.relative_to(out).parts]
    assert [run.results for run in find_runs([out])] == [run.results for run in find_runs([bench])]
    assert "sga+c" in (out / "table.csv").read_text()
    assert "jm" in (out / "differences.md").read_text()


def test_a_second_publication_keeps_the_written_page_and_drops_what_is_gone(bench: Path, tmp_path: Path) -> None:
    out = tmp_path / "bench-published"
    publish(bench, out)
    (out / "README.md").write_text("# bench\n")
    (out / "stale.json").write_text("{}")
    publish(bench, out)
    assert (out / "README.md").read_text() == "# bench\n"
    assert not (out / "stale.json").exists()


def test_a_folder_that_is_not_a_bench_is_refused(bench: Path, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    with pytest.raises(SmgError, match=r"notes: .*no bench.json"):
        publish(tmp_path / "notes", tmp_path / "out")
    with pytest.raises(SmgError, match=r"notes: .*another folder"):
        publish(bench, tmp_path / "notes")


def test_the_repository_keeps_numbers_alone_in_results() -> None:
    suffixes = {path.suffix for path in (ROOT / "results").rglob("*") if path.is_file()}
    assert suffixes <= NUMBERS

"""The table in the paper's form, against means and deviations computed by hand."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path

import pytest

from smg.errors import SmgError
from smg.learner.config import LearnerConfig
from smg.learner.results import write_results
from smg.report.runs import Run, find_runs
from smg.report.table import class_tables, paper_tables, to_csv, to_latex, to_markdown
from tests.report.benches import make_bench
from tests.report.random_runs import as_results, changed


def write_run(bench: Path, name: str, seed: int, dsc: float, asd: float | None, stream: str = "one") -> None:
    measures = {metric: dict.fromkeys(("BM", "BT", "FM", "FT"), v) for metric, v in (("dsc", dsc), ("asd", asd))}
    results = as_results(name=name, seed=seed, measures=measures)
    folder = bench / stream / name / f"seed-{seed}"
    folder.mkdir(parents=True)
    write_results(folder, results)


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    write_run(tmp_path, "sga_x", 0, 0.80, 1.0)
    write_run(tmp_path, "sga_x", 1, 0.90, 2.0)
    write_run(tmp_path, "jm", 0, 0.70, 3.0)
    write_run(tmp_path, "jm", 1, 0.50, None)
    plan = {"streams": [{"name": "one", "order": ["A", "B"], "unseen": "F"}], "seeds": [0, 1], "part": "test"}
    plan |= {"settings": {}, "methods": [{"name": "sga_x"}, {"name": "jm"}]}
    (tmp_path / "bench.json").write_text(json.dumps(plan))
    return tmp_path


def test_means_spreads_and_the_best(bench: Path) -> None:
    (table,) = paper_tables(find_runs([bench]))
    assert table.stream == "A B | F"
    assert list(table.rows) == ["sga_x", "jm"]  # in the bench's order
    ours, theirs = table.rows["sga_x"], table.rows["jm"]
    assert ours["dsc", "BM"].mean == pytest.approx(85)
    assert ours["dsc", "BM"].spread == pytest.approx(50**0.5)  # sample deviation of 80 and 90
    assert ours["dsc", "BM"].best
    assert not theirs["dsc", "BM"].best
    assert not ours["asd", "FM"].best  # jm's mean is over one of its two seeds
    assert theirs["asd", "FM"].text(digits=2) == "3.00 (1 of 2)"
    assert (theirs["asd", "FM"].mean, theirs["asd", "FM"].spread, theirs["asd", "FM"].seeds) == (3.0, None, 1)


def test_markdown_latex_and_csv(bench: Path) -> None:
    tables = paper_tables(find_runs([bench]))
    markdown = to_markdown(tables)
    assert "**A B unseen F**, 2 seeds, mean ± sd" in markdown
    assert "| sga_x | **85.0 ± 7.1** |" in markdown
    assert "| jm | 60.0 ± 14.1 |" in markdown
    latex = to_latex(tables)
    assert r"sga\\_x & \boldmath\textbf{$85.0 \pm 7.1$}".replace(r"\\_", r"\_") in latex
    assert latex.count(r"\\") == 5  # two lines of head, the stream's title, two methods
    rows = list(csv.DictReader(io.StringIO(to_csv(tables))))
    assert len(rows) == 2 * 2 * 4
    assert rows[0] == {
        "stream": "A B | F", "method": "sga_x", "metric": "dsc", "measure": "BM", "mean": "85.0000", "sd": "7.0711",
        "seeds": "2",
    }  # fmt: skip


def test_a_single_seed_has_no_spread(tmp_path: Path) -> None:
    write_run(tmp_path, "jm", 0, 0.5, 1.0)
    assert "| jm | 50.0 |" in to_markdown(paper_tables(find_runs([tmp_path])))


def test_a_missing_folder_and_a_foreign_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SmgError, match="nowhere: no such folder; give"):
        find_runs([tmp_path / "nowhere"])
    (tmp_path / "results.json").write_text("{}")
    with pytest.raises(SmgError, match=r"results.json: .*; move the file out of the folder"):
        find_runs([tmp_path])


def test_two_experiments_do_not_become_one_row(tmp_path: Path) -> None:
    make_bench(tmp_path / "one", ["jm"], seeds=[0, 1])
    make_bench(tmp_path / "two", ["jm"], seeds=[1])
    with pytest.raises(SmgError, match="two runs called 'jm' with seed 1"):
        find_runs([tmp_path])
    shutil.rmtree(tmp_path / "two")
    make_bench(tmp_path / "three", ["jm"], seeds=[2])
    assert len(find_runs([tmp_path])) == 3
    path = next((tmp_path / "three").rglob("results.json"))
    results = json.loads(path.read_text())
    path.write_text(json.dumps(results | {"config": results["config"] | {"iterations": 7}}))
    with pytest.raises(SmgError, match="two runs called 'jm' with different settings"):
        find_runs([tmp_path])
    for key, value in (("options", {"inner": "adam"}), ("replay", results["config"]["replay"] | {"policy": "random"})):
        path.write_text(json.dumps(results | {"config": results["config"] | {key: value}}))
        with pytest.raises(SmgError, match="with different settings"):
            find_runs([tmp_path])
    older = {key: value for key, value in results["config"].items() if key != "compile"}
    path.write_text(json.dumps(results | {"config": older}))
    assert len(find_runs([tmp_path])) == 3
    path.write_text(json.dumps(results | {"part": "validation"}))
    with pytest.raises(SmgError, match="test part, the other on the validation part"):
        find_runs([tmp_path])


def test_a_reference_method_under_another_name_is_not_ranked() -> None:
    def made(name: str, method: str, value: float) -> Run:
        numbers = dict.fromkeys(("BM", "BT", "FM", "FT"), value)
        stream = {"order": ["A"], "unseen": "F"}
        both = {"dsc": numbers, "asd": numbers}
        return Run(Path(name), as_results(name=name, method=method, stream=stream, measures=both))

    (table,) = paper_tables([made("joint", "pooled", 0.9), made("jm", "jm", 0.7), made("sga", "sga", 0.8)])
    assert [name for name, row in table.rows.items() if row["dsc", "BM"].best] == ["sga"]
    for written in (to_markdown([table]), to_latex([table])):
        assert "joint (keeps every scan) is a reference, not ranked" in written


def test_methods_with_different_seeds_are_not_compared(bench: Path) -> None:
    write_run(bench, "sga_x", 2, 0.99, 0.5)
    (table,) = paper_tables(find_runs([bench]))
    assert not any(cell.best for row in table.rows.values() for cell in row.values())
    assert "2 to 3 seeds, mean ± sd; methods have different seeds" in to_markdown([table])


def test_a_table_of_several_classes_names_the_class(bench: Path) -> None:
    config = {"preparation": {"labels": {"classes": {"zone": [1], "rest": [2]}}}}
    for path in bench.glob("one/*/*/results.json"):
        results = json.loads(path.read_text())
        more = {"classes": {"zone": {}, "rest": {}}, "config": results["config"] | config}
        path.write_text(json.dumps(results | more))
    tables = paper_tables(find_runs([bench]))
    assert "**A B unseen F**, class zone, 2 seeds, mean ± sd" in to_markdown(tables)
    assert "class zone" in to_latex(tables)


def test_odd_names_break_no_table(tmp_path: Path) -> None:
    write_run(tmp_path, "a|b ^x ~\\y", 0, 0.8, 1.0)
    write_run(tmp_path, "jm", 0, 0.7, 1.0)
    tables = paper_tables(find_runs([tmp_path]))
    assert "| a\\|b ^x ~\\y | " in to_markdown(tables)
    assert r"a|b \textasciicircum{}x \textasciitilde{}\textbackslash{}y & " in to_latex(tables)


def test_a_bench_json_of_another_tool_is_ignored(bench: Path) -> None:
    (bench / "other").mkdir()
    (bench / "other/bench.json").write_text('{"benchmarks": []}')
    assert len(find_runs([bench])) == 4


def test_a_reference_method_may_have_other_seeds(bench: Path) -> None:
    write_run(bench, "pooled", 7, 0.99, 0.5)
    (table,) = paper_tables(find_runs([bench]))
    assert (table.has_equal_seeds, table.common_seeds, table.ranked) == (True, [0, 1], ["sga_x", "jm"])
    assert table.rows["sga_x"]["dsc", "BM"].best


def test_values_equal_in_the_digits_shown_are_in_bold_together(tmp_path: Path) -> None:
    for name, dsc, asd in (("jm", 0.80012, 1.004), ("gem", 0.80049, 0.996), ("sga", 0.79, 1.006)):
        write_run(tmp_path, name, 0, dsc, asd)
    tables = paper_tables(find_runs([tmp_path]))
    bold = {(m, name) for name, row in tables[0].rows.items() for (m, _), cell in row.items() if cell.best}
    assert bold == {("dsc", "jm"), ("dsc", "gem"), ("asd", "jm"), ("asd", "gem")}  # 80.0 %, and 1.00 mm
    assert to_markdown(tables).count("**80.0**") == to_latex(tables).count(r"\textbf{$80.0$}") == 2 * 4


def test_a_zero_has_no_sign(tmp_path: Path) -> None:
    write_run(tmp_path, "jm", 0, -0.0001, 1.0)
    write_run(tmp_path, "sga", 0, 0.0001, 1.0)
    markdown = to_markdown(paper_tables(find_runs([tmp_path])))
    assert "-0.0" not in markdown
    assert markdown.count("**0.0**") == 2 * 4


def test_runs_from_before_a_metric_or_measure_have_no_value_of_it(bench: Path) -> None:
    path = bench / "one/jm/seed-0/results.json"
    results = json.loads(path.read_text())
    del results["measures"]["asd"]
    path.write_text(json.dumps(results))
    (table,) = paper_tables(find_runs([bench]))
    assert table.rows["jm"]["asd", "BM"].mean is None  # the other seed has none either
    assert table.rows["jm"]["dsc", "BM"].mean == pytest.approx(60)


def test_every_class_has_a_table_of_its_own() -> None:
    means = {"zone": 0.7, "gland": 0.9}
    by_class = {name: {"dsc": {"BM": bm, "BT": 0.0, "FM": 0.4, "FT": 0.0}} for name, bm in means.items()}
    labels = {"classes": {"zone": [1], "gland": [2]}}
    config = LearnerConfig.model_validate({"preparation": {"labels": labels}}).model_dump(mode="json")
    runs = [
        Run(Path(), as_results(name=name, seed=0, measures=by_class["zone"], classes=by_class, config=config))
        for name in ("jm", "sga")
    ]
    tables = class_tables(runs)
    assert [table.of for table in tables] == ["class zone", "class gland"]
    assert [table.rows["jm"]["dsc", "BM"].mean for table in tables] == pytest.approx([70, 90])
    lines = to_csv(tables).splitlines()
    assert lines[0].endswith(",class")
    assert [line for line in lines if line.endswith(",gland")]
    assert class_tables([changed(run, classes={}) for run in runs])[0].of == ""

"""The content of the page, from benches with made-up numbers: what it shows and what it leaves out."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from smg.cli import app
from smg.errors import SmgError
from smg.learner.config import LearnerConfig
from smg.learner.records import RoundRecord
from smg.report.bench_tables import write_tables
from smg.report.charts import legend_below, site_ticks
from smg.report.figures import HEIGHT, WIDTH, Figures, for_page
from smg.report.objective import round_starts
from smg.report.page import embedded, write_report
from smg.report.paired import paired_differences
from smg.report.runs import Run, find_runs
from smg.report.subject_table import failures
from tests.report.benches import CHARACTER, TWO_STREAMS, add_costs, make_bench, make_record, make_run
from tests.report.random_runs import as_results

VOID = {"meta", "br", "img", "input", "link", "hr", "use", "path"}


class Nesting(HTMLParser):
    """Check that every element is closed in the right place, and collect the ids."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids += [value for name, value in attrs if name == "id" and value]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag, f"</{tag}> closes another element"


def between(page: str, one: str, other: str) -> str:
    return page[page.index(f'id="{one}"') : page.index(f'id="{other}"')]


def sections(page: str) -> list[str]:
    """Return the ids of the sections, which are those that the navigation links to."""
    found = re.findall(r'<section id="(\w+)"', page)
    assert re.findall(r'<a href="#(\w+)">', page.split("</nav>")[0].split("<nav")[1]) == found
    return found


def script(page: str, name: str) -> object:
    found = re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', page, re.S)
    assert found
    return json.loads(found[1])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("report")
    bench = make_bench(folder / "bench", ("finetune", "sga+c"), seeds=(0, 1), subjects=3)
    return bench, write_report([bench], folder / "out" / "report.html").page


def test_the_same_runs_make_the_same_page(whole: tuple[Path, Path], tmp_path: Path) -> None:
    bench, page = whole
    assert write_report([bench], tmp_path / "report.html").page.read_bytes() == page.read_bytes()


def test_it_is_one_sound_file_that_asks_for_nothing(whole: tuple[Path, Path]) -> None:
    page = whole[1].read_text()
    nesting = Nesting()
    nesting.feed(page)
    assert nesting.open == []
    assert len(nesting.ids) == len(set(nesting.ids))
    assert "default-src 'none'" in page
    outside = [
        url
        for url in re.findall(r'(?:src|href)="([^"]+)"', page)
        if not url.startswith(("#", "data:", "report_figures/"))
    ]
    assert outside == []
    assert not re.search(r"url\((?!#)", page)


def test_the_answer_comes_first_in_the_paper_s_form(whole: tuple[Path, Path]) -> None:
    bench, path = whole
    page = path.read_text()
    results = [json.loads(p.read_text()) for p in sorted((bench / "A-E" / "sga+c").rglob("results.json"))]
    mean = 100 * sum(r["measures"]["dsc"]["BM"] for r in results) / 2
    answer = between(page, "answer", "glance")
    assert f"<b>{mean:.1f}</b>" in answer
    assert f"sga+c ends with a mean DSC of {mean:.1f}\u00a0% over the learned sites, finetune with" in answer
    assert "a[T][unseen] - a[T+1][unseen], over its test part" in answer  # the formula, on hover and below
    assert page.index("Did it forget?") < page.index("Does it work at a new site?") < page.index('id="answer"')
    verdicts = page.split('class="verdicts"')[1].split("</header>")[0]
    assert "\u00a0%" in verdicts
    assert " %" not in verdicts  # no line ends between a number and its sign
    latex, csv = str(script(page, "latex")), str(script(page, "csv"))
    assert latex.startswith(r"\begin{tabular}")
    assert len(csv.splitlines()) == 1 + 2 * 2 * 4


@pytest.mark.usefixtures("no_files")
def test_the_first_table_shows_what_each_method_forgot(tmp_path: Path) -> None:
    bench = make_bench(tmp_path / "bench", ("finetune", "sga+c", "pooled"), seeds=(0, 1), subjects=2, reports=3)
    page = write_report([bench], tmp_path / "report.html").page.read_text()
    opening = between(page, "answer", "measures")
    runs = [json.loads(p.read_text())["matrix"]["dsc"] for p in sorted((bench / "A-E/finetune").rglob("results.json"))]
    end, learned = (100 * sum(run[r]["B"] for run in runs) / 2 for r in "DB")
    assert f"{end:.1f} <small>−{learned - end:.1f}</small>" in opening
    assert opening.count('title="D at the end: ') == 3  # the last site cannot have been forgotten yet
    assert opening.count("since it was learned") == 3 * 3
    assert "F <small>held out</small>" in opening
    assert "pooled <small>reference</small>" in opening
    assert "not ranked: pooled (keeps every scan) " in opening  # beside the sentence that names the best
    measures = between(page, "measures", "glance")
    assert "pooled (keeps every scan) is a reference, not ranked" in measures
    assert 'best"' not in measures[measures.index('class="reference"') : measures.index("</tbody>")]
    assert "Hollow points are reference methods" in between(page, "glance", "curves")
    assert "pooled (reference)" in between(page, "glance", "curves")


def test_every_subject_is_in_the_page_and_failures_are_counted(whole: tuple[Path, Path]) -> None:
    bench, path = whole
    rows = script(path.read_text(), "rows")
    assert isinstance(rows, dict)
    subjects = [row for p in bench.rglob("results.json") for row in json.loads(p.read_text())["subjects"]]
    assert len(rows["rows"]) == len(subjects) == 4 * 5 * 5 * 3
    empty = sum(row[7] is None for row in rows["rows"])
    assert empty == sum(row["classes"]["foreground"]["asd"] is None for row in subjects)
    assert rows["ends"] == ["D"]


@pytest.mark.usefixtures("no_files")
def test_cases_are_numbered_unless_their_names_are_asked_for(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "jm", ("A", "B"), "F", subjects=2, reports=3)
    page = write_report([run], tmp_path / "report.html").page.read_text()
    assert "Case0" not in page
    rows = script(page, "rows")
    assert isinstance(rows, dict)
    assert rows["words"][5] == ["subject-1", "subject-2"]
    page = write_report([run], tmp_path / "named.html", names=True).page.read_text()
    assert {"Case00", "Case01"} == set(re.findall(r"Case0\d", page))


def test_every_figure_is_beside_the_page(whole: tuple[Path, Path]) -> None:
    path = whole[1]
    linked = set(re.findall(r'href="(report_figures/[^"]+)"', path.read_text()))
    assert len(linked) >= 20
    for link in linked:
        assert (path.parent / link).stat().st_size > 1000
    assert (path.parent / "report_figures" / "measures-1.pdf").read_bytes().startswith(b"%PDF")


def test_charts_follow_the_theme_and_keep_their_text(whole: tuple[Path, Path]) -> None:
    charts = re.findall(r"<svg.*?</svg>", whole[1].read_text(), re.S)
    assert len(charts) >= 8
    for chart in charts:
        assert "var(--m" in chart
        assert "currentColor" in chart
        assert "<text" in chart
        assert 'aria-label="' in chart


def test_no_picture_of_a_patient_unless_asked_for(whole: tuple[Path, Path]) -> None:
    page = whole[1].read_text()
    assert "data:image" not in page
    assert "pictures of patients" not in page.split("<main>")[0]
    assert "smg report RUN... --pictures --data DIR" in between(page, "pictures", "buffer")
    with pytest.raises(SmgError, match="--data"):
        write_report([whole[0]], whole[1], pictures=True)


@pytest.fixture
def no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw figures for the page only: PNG and PDF take most of the time, and other tests check them."""
    monkeypatch.setattr(Figures, "_write", lambda *_: None)


@pytest.mark.usefixtures("no_files")
def test_sections_with_nothing_to_show_are_not_there(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "jm", ("A", "B"), "F", subjects=2, reports=3)
    model = write_report([run / "model"], tmp_path / "model.html").page.read_text()
    assert sections(model) == ["answer", "buffer", "objective"]
    (run / "log.jsonl").unlink()
    shutil.rmtree(run / "model")
    page = write_report([run], tmp_path / "report.html").page.read_text()
    assert sections(page) == ["answer", "measures", "curves", "matrices", "subjects"]
    assert "Only seed 0" in between(page, "measures", "curves")
    assert "Best in bold" not in page  # there is only one method


@pytest.mark.usefixtures("no_files")
def test_a_model_s_folder_shows_its_history(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "sga+c", ("A", "B", "C"), "F", subjects=2, reports=3)
    page = write_report([run / "model"], tmp_path / "report.html").page.read_text()
    answer = between(page, "answer", "buffer")
    assert "86.0 → 70.0" in answer  # what the fourth round did to an earlier site's exemplars
    assert answer.count("not measured</td>") == 1 + 2 + 3  # exemplars are no evidence, and nothing else was kept
    assert "cannot tell whether it still knows A: not measured since round 1" in answer
    assert "<svg" in between(page, "buffer", "objective")
    assert "cos(G_D, G_P)" in page[page.index('id="objective"') :]
    last = run / "model" / "rounds" / "004" / "round.json"  # a round may have a method of its own
    record = json.loads(last.read_text())
    config, selection = record["config"] | {"method": "jm"}, record["selection"] | {"policy": "representative"}
    last.write_text(json.dumps(record | {"config": config, "selection": selection}))
    page = write_report([run / "model"], tmp_path / "report.html").page.read_text()
    assert "sga+c, then jm" in page[page.index('id="objective"') :]
    assert "comprehensive, then representative" in between(page, "buffer", "objective")
    assert between(page, "answer", "buffer").count('<td class="text">sga+c</td>') == 3


@pytest.mark.usefixtures("no_files")
def test_unfinished_runs_are_mentioned_and_not_included(tmp_path: Path) -> None:
    bench = make_bench(tmp_path / "bench", ("finetune", "sga+c"), seeds=(0,), subjects=2, reports=3)
    (bench / "A-E" / "sga+c" / "seed-0" / "results.json").unlink()
    written = write_report([bench], tmp_path / "report.html")
    assert (written.runs, written.unfinished) == (1, 1)
    assert "1 run is not finished" in re.sub(r"\s+", " ", written.page.read_text())


@pytest.mark.usefixtures("no_files")
def test_names_from_outside_cannot_break_out_of_the_page(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "jm", ("A", "B"), "F", subjects=1, reports=3)
    results = json.loads((run / "results.json").read_text())
    results["name"] = "</script><b>x"
    (run / "results.json").write_text(json.dumps(results))
    page = write_report([run], tmp_path / "report.html").page.read_text()
    assert "</script><b>x" not in page
    assert embedded("</script>") == '"\\u003c/script>"'


def test_nothing_of_the_machine_is_in_the_page(whole: tuple[Path, Path]) -> None:
    assert str(whole[0].parent) not in whole[1].read_text()


@pytest.mark.usefixtures("no_files")
def test_the_command_says_where_the_page_is(whole: tuple[Path, Path], tmp_path: Path) -> None:
    runner = CliRunner()
    run = next(whole[0].rglob("seed-0"))
    done = runner.invoke(app, ["report", str(run), "--out", str(tmp_path / "page.html"), "--json"])
    assert done.exit_code == 0, done.output
    written = json.loads(done.stdout)
    assert written["runs"] == 1
    assert Path(written["page"]).stat().st_size == written["bytes"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(SmgError, match="no finished run and no model"):
        write_report([tmp_path / "empty"], tmp_path / "page.html")


@pytest.mark.usefixtures("no_files")
def test_two_models_of_one_name_and_a_site_learned_twice_are_distinguished(tmp_path: Path) -> None:
    for hospital in ("one", "two"):
        run = make_run(tmp_path / hospital, "sga+c", ("A", "B"), "F", subjects=2, reports=3)
        again, model = run / "model" / "rounds" / "003" / "round.json", run / "model" / "model.json"
        again.write_text(json.dumps(json.loads(again.read_text()) | {"site": "A"}))
        about = json.loads(model.read_text())
        about["rounds"][2]["site"] = "A"
        model.write_text(json.dumps(about))
    page = write_report([tmp_path / h / "model" for h in ("one", "two")], tmp_path / "report.html").page.read_text()
    buffer = between(page, "buffer", "objective")
    assert "one/model" in buffer
    assert "two/model" in buffer
    names = re.findall(r'data-name="([^"]*)"', buffer)
    assert len(set(names)) == len(names) == 2
    assert "A, round 1" in buffer
    assert "A, round 3" in buffer


def test_numbers_in_names_stay_as_they_are_in_figures() -> None:
    svg = '<svg viewBox="0 0 1 1"><text x="1.23456">sga lr 0.0005</text></svg>'
    drawn = for_page(svg, "name", "alt")
    assert "sga lr 0.0005" in drawn
    assert 'x="1.23"' in drawn


def test_figures_have_room_for_long_names() -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH / 72, HEIGHT / 72), layout="constrained")
    axis = figure.subplots()
    for n in range(5):
        axis.plot([0, 1], label=f"a method by a longer name {n}")
    legend_below(axis)
    (legend,) = figure.legends
    assert legend.get_window_extent().width <= figure.bbox.width
    site_ticks(axis, [0, 1], ["A", "B"])
    assert {tick.get_rotation() for tick in axis.get_xticklabels()} == {0}
    site_ticks(axis, [0, 1, 2], ["Radboud University Nijmegen Medical Centre"] * 3)
    ticks = axis.get_xticklabels()
    assert {(tick.get_text(), tick.get_rotation()) for tick in ticks} == {("Radboud Univ…al Centre", 25)}


def test_rounds_of_one_site_have_their_own_places() -> None:
    config, rng = LearnerConfig().model_dump(mode="json"), np.random.default_rng(0)
    made = [make_record(rng, config, n, site, 3, "AB") for n, site in enumerate(("A", "B", "A"), start=1)]
    trees = [RoundRecord.upgrade(record | {"log": [{"iteration": 100}], "format": 3}, 3) for record in made]
    rounds = [RoundRecord.model_validate_json(json.dumps(tree)) for tree in trees]
    assert round_starts(rounds) == [("A", 0.0), ("B", 100.0), ("A", 200.0)]


def test_methods_with_different_seeds_are_compared_by_those_they_share(tmp_path: Path) -> None:
    bench = make_bench(tmp_path / "bench", ("finetune", "sga+c"), seeds=(0, 1), subjects=2, reports=3)
    make_run(bench / "A-E/finetune/seed-3", "finetune", ("A", "B", "C", "D"), "F", 3, 2, 3)
    page = write_report([bench], tmp_path / "report.html").page.read_text()
    answer = between(page, "answer", "glance")
    assert "By seed 0, 1, which both have: sga+c ends with a mean DSC of" in answer
    assert "finetune <small>seed 0, 1, 3</small>" in answer
    assert "The methods have different seeds" in answer
    assert 'best"' not in answer
    shutil.rmtree(bench / "A-E/finetune/seed-0")
    shutil.rmtree(bench / "A-E/finetune/seed-1")
    page = write_report([bench], tmp_path / "report.html").page.read_text()
    assert "sga+c and finetune have no seed in common, so they cannot be compared yet" in between(
        page, "answer", "glance"
    )


def test_a_method_with_different_settings_on_two_streams_is_listed_twice(tmp_path: Path) -> None:
    make_run(tmp_path / "one", "jm", ("A", "B"), "F", subjects=1, reports=3)
    other = make_run(tmp_path / "two", "jm", ("B", "A"), "F", subjects=1, reports=3) / "results.json"
    results = json.loads(other.read_text())
    results["config"]["batch"] = 3
    other.write_text(json.dumps(results))
    page = write_report([tmp_path], tmp_path / "report.html").page.read_text()
    settings = page[page.index("Settings that differ") : page.index("Settings that all methods share")]
    assert "<dt>jm, A B | F</dt><dd><code>batch=5</code>" in settings
    assert "<dt>jm, B A | F</dt><dd><code>batch=3</code>" in settings
    assert "<dt>batch</dt>" not in page[page.index("Settings that all methods share") :]


def test_a_folder_named_twice_has_no_unfinished_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_bench(tmp_path / "bench", ("jm",), seeds=(0,), subjects=1, reports=3)
    monkeypatch.chdir(tmp_path)
    assert write_report([Path("bench"), tmp_path / "bench"], tmp_path / "report.html").unfinished == 0


def test_a_subject_of_several_classes_is_one_subject() -> None:
    good, poor, empty = ({"dsc": d, "asd": a} for d, a in ((0.9, 1.0), (0.3, 5.0), (0.0, None)))
    rows = [
        {"round": "B", "site": "A", "subject": "Case0", "classes": {"zone": zone, "rest": good}}
        for zone in (good, poor, empty)
    ]
    results = as_results(name="jm", stream={"order": ["A", "B"], "unseen": None}, subjects=rows)
    (counted,) = failures([Run(Path(), results)])
    assert (counted.subjects, counted.empty, counted.poor) == (3, 1, 2)


def test_nothing_predicted_where_nothing_is_is_no_failure() -> None:
    classes = {"zone": {"dsc": 0.9, "asd": 1.0}, "lesion": {"dsc": 1.0, "asd": None}}
    rows = [{"round": "B", "site": "A", "subject": "Case0", "classes": classes}]
    results = as_results(name="jm", stream={"order": ["A", "B"], "unseen": None}, subjects=rows)
    (counted,) = failures([Run(Path(), results)])
    assert (counted.subjects, counted.empty, counted.poor) == (1, 0, 0)


@pytest.mark.usefixtures("no_files")
def test_one_figure_has_the_differences_of_all_methods_on_all_streams(tmp_path: Path) -> None:
    bench = make_bench(tmp_path / "bench", ("finetune", "jm", "sga+c"), TWO_STREAMS, (0, 1), subjects=2, reports=3)
    page = write_report([bench], tmp_path / "report.html").page.read_text()
    section = between(page, "differences", "glance")
    assert "Differences to jm" in section
    assert section.count("<svg") == 1
    found = paired_differences(find_runs([bench]), "jm", metrics=("dsc",))
    for one in found:
        if one.measure in ("BM", "FM"):
            assert f"{one.method} {one.measure} {one.mean:+.1f} [{one.low:+.1f}, {one.high:+.1f}] on " in section
    other = write_report([bench], tmp_path / "other.html", baseline="finetune").page.read_text()
    assert "Differences to finetune" in between(other, "differences", "glance")
    assert "The headline is about sga+c, with finetune as its baseline" in other
    alone = make_bench(tmp_path / "alone", ("jm",), seeds=(0,), subjects=2, reports=3)
    assert 'id="differences"' not in write_report([alone], tmp_path / "alone.html").page.read_text()


@pytest.mark.usefixtures("no_files")
def test_of_several_classes_every_part_names_the_one_it_shows(tmp_path: Path) -> None:
    bench = make_bench(tmp_path / "bench", ("finetune", "jm"), seeds=(0, 1), subjects=2, reports=3)
    for path in bench.rglob("results.json"):
        results = json.loads(path.read_text())
        results["config"]["preparation"]["labels"] = {"classes": {"zone": [1], "rest": [2]}}
        for row in results["subjects"]:
            row["classes"] = {"zone": row["classes"]["foreground"], "rest": {"dsc": 0.5, "asd": 1.0}}
        results["classes"] = {"zone": results["measures"], "rest": results["measures"]}
        path.write_text(json.dumps(results))
    page = write_report([bench], tmp_path / "report.html").page.read_text()
    assert page.split("</header>")[0].count("<small>class zone</small></p>") == 2
    for section in ("differences", "glance", "curves", "matrices"):
        assert re.search(rf'<h2 id="{section}-head">[^<]*, class zone</h2>', page), section
    write_tables(bench)
    assert ", class zone**: minus jm" in (bench / "differences.md").read_text()


@pytest.mark.usefixtures("no_files")
def test_a_mean_of_some_seeds_says_of_how_many(tmp_path: Path) -> None:
    bench = make_bench(tmp_path / "bench", ("jm", "sga"), seeds=(0, 1), subjects=2, reports=3)
    path = next(bench.rglob("sga/seed-1/results.json"))
    results = json.loads(path.read_text())
    results["measures"]["asd"]["BM"] = None
    path.write_text(json.dumps(results))
    page = write_report([bench], tmp_path / "report.html").page.read_text()
    assert between(page, "measures", "curves").count("<small>(1 of 2)</small>") == 1


@pytest.mark.usefixtures("no_files")
def test_with_many_methods_two_are_highlighted_and_with_few_none(tmp_path: Path) -> None:
    bench = make_bench(tmp_path / "bench", tuple(CHARACTER), seeds=(0, 1), subjects=2, reports=3)
    page = write_report([bench], tmp_path / "report.html").page.read_text()
    chosen = re.findall(r'data-highlight="(\d+)" checked><span[^>]*></span>([^<]+)<', page)
    assert [name for _, name in chosen] == ["jm", "sga+c"]
    curves = between(page, "curves", "matrices")
    assert {rank for rank, _ in chosen} < set(re.findall(r'data-method="(\d+)"', curves))
    assert len(set(re.findall(r'data-method="(\d+)"', curves))) == len(CHARACTER)
    few = make_bench(tmp_path / "few", ("jm", "sga+c"), seeds=(0,), subjects=2, reports=3)
    assert "data-highlight=" not in write_report([few], tmp_path / "few.html").page.read_text()


@pytest.mark.usefixtures("no_files")
def test_what_a_method_gives_and_costs_stands_beside_its_measures(tmp_path: Path) -> None:
    bench = make_bench(tmp_path / "bench", ("jm", "sga+c"), seeds=(0,), subjects=2, reports=3)
    page = write_report([bench], tmp_path / "report.html").page.read_text()
    assert "gives and costs" not in page  # these runs store none
    add_costs(bench, 81_000, 21.0)
    page = write_report([bench], tmp_path / "report.html").page.read_text()
    row = between(page, "measures", "differences").split('<th scope="row">sga+c')[1].split("</tr>")[0]
    assert re.findall(r"<td[^>]*>([^<]+)</td>", row)[-4:] == ["–", "8", "0.08", "21"]


@pytest.mark.usefixtures("no_files")
def test_scores_that_cannot_tell_candidates_apart_are_named(tmp_path: Path) -> None:
    bench = make_bench(tmp_path / "bench", ("sga+c",), seeds=(0,), subjects=2, reports=3)
    page = write_report([bench], tmp_path / "report.html").page.read_text()
    assert "cannot tell candidates apart" not in page
    path = next(bench.rglob("001/round.json"))
    record = json.loads(path.read_text())
    count = len(record["selection"]["H"])
    record["selection"]["H"] = [0.9998 + 0.0001 * n / (count - 1) for n in range(count)]
    path.write_text(json.dumps(record))
    page = write_report([bench], tmp_path / "report.html").page.read_text()
    assert f"A: H of all {count} candidates is between 0.9998 and 0.9999. So close together" in page
    assert page.count("candidates is between") == 1

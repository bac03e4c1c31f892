"""The courses of a demo's two methods are those of its results and of its first tile."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.demo_story import cells, courses
from smg.report.pictures import contours
from smg.report.runs import find_runs
from tests.learner.streams import tiny_stream, write_sites


def test_courses_are_those_of_the_results_and_of_the_first_tile(tmp_path: Path) -> None:
    data = write_sites(tmp_path / "data")
    for method in ("sga+c", "finetune"):
        tiny_stream(data, method=method).run(tmp_path / "runs" / method)
    runs = {run.name: run for run in find_runs([tmp_path / "runs"])}
    found = dict(zip(("finetune", "sga+c"), courses(list(runs.values()), data), strict=True))
    for name, course in found.items():
        matrix = runs[name].results.matrix["dsc"]
        assert course.then == pytest.approx(100 * matrix["A"]["A"])
        assert course.now == pytest.approx(100 * matrix["B"]["A"])
        (seen, *_) = contours(runs[name].folder, data, "A", (1, 2))
        slices = [100 * 2 * ((p := seen.axial(seen.predicted[2])[n] == 1) & (t := seen.axial(seen.truth)[n] == 1)).sum()
                  / (p.sum() + t.sum()) for n in seen.inside()]  # fmt: skip
        assert any(course.tile_now == pytest.approx(one) for one in slices)
        assert cells(course)[0] == f"{course.then:.1f} to {course.now:.1f}"

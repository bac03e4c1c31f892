"""The demo, cut short: phantoms drawn, two methods run, a picture, a page, and three lines that follow the numbers."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from smg.report.runs import Run
from smg.settings_file import read_settings
from tests.cli.commands import smg
from tests.report.random_runs import as_results


def test_the_demo_ends_with_a_picture_a_page_and_three_lines(desk: Path) -> None:
    result = smg("demo", "--out", "demo", cwd=desk)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert [line.split(":")[0] for line in lines[:2]] == ["finetune", "sga+c"]
    (stream,) = read_settings("demo").streams.values()
    assert re.match(rf"On {stream.unseen}, .*: finetune \d", lines[2])
    assert (desk / "demo/demo.png").stat().st_size > 100_000
    page = (desk / "demo/report.html").read_text()
    assert re.search(r"pictures on this page .*phantoms", page)
    assert "pictures of patients" not in page
    assert "<title>" in page
    bench = desk / "demo/runs/bench.json"
    bench.write_text(bench.read_text().replace('"G"', '"E"'))  # as of a version with another stream
    (desk / "demo/sites.png").unlink()
    result = smg("demo", "--out", "demo", cwd=desk)
    assert result.returncode == 1
    assert result.stderr.startswith("smg: demo: holds a demo that cannot go on with these sites and settings; delete")
    assert not (desk / "demo/sites.png").exists()


@pytest.mark.long
def test_the_federated_demo_says_how_far_it_is_from_the_centralised_run(desk: Path) -> None:
    result = smg("demo", "--federation", "--out", "federated", cwd=desk)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    pairs = [re.findall(r"DSC ([\d.]+) % over the federation, ([\d.]+) % centralised", line) for line in lines[:4]]
    assert all(abs(float(over) - float(at_once)) < 5 for ((over, at_once),) in pairs)
    assert "rounding" in lines[4]
    assert (desk / "federated/report.html").stat().st_size > 50_000
    assert (desk / "federated/federation/E/answers.jsonl").exists()
    again = smg("demo", "--federation", "--out", "federated", cwd=desk)
    assert again.returncode == 1
    assert "--out" in again.stderr


def test_it_states_points_and_does_not_judge() -> None:
    sentences = import_module("smg.cli.demo").sentences
    lines = sentences([_run("finetune", 0.80, 0.51), _run("sga+c", 0.80, 0.74), _run("jm", 0.80, 0.8125)])
    assert lines[0] == "finetune: learned A to a DSC of 80.0 %; after E and F, 51.0 %: 29.0 points lost."
    assert lines[1].endswith("after E and F, 74.0 %: 6.0 points lost, with 2 subjects of each hospital kept.")
    assert lines[2].endswith("after E and F, 81.2 %: 1.2 points gained, with 2 subjects of each hospital kept.")
    assert re.match(r"On D, .*: finetune 50.0 %, sga\+c 50.0 %, jm 50.0 %\.$", lines[3])
    assert not any("forg" in line or "remember" in line for line in lines)


def _run(name: str, then: float, now: float) -> Run:
    matrix: dict[str, Any] = {"A": {"A": then}, "F": {"A": now, "D": 0.5}}
    stream = {"order": ["A", "E", "F"], "unseen": "D"}
    return Run(Path(), as_results(name=name, stream=stream, matrix={"dsc": matrix}))

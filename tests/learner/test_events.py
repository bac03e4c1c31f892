"""What a run tells while it goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from smg.learner.events import End, Standing, appending, read_events, standing
from tests.learner.streams import tiny_stream, write_sites


def test_a_run_tells_every_step_and_every_evaluation(tmp_path: Path) -> None:
    heard: list[dict[str, object]] = []
    stream = tiny_stream(write_sites(tmp_path / "sites"), method="sga+c")
    stream.listeners = [heard.append]
    results = stream.run(tmp_path / "run")
    events = list(read_events(tmp_path / "run"))
    assert [event.model_copy(update={"time": ""}) for event in events] == heard
    rounds = [*["step"] * 4, "evaluation"] * 3  # of four iterations each, every one logged
    assert [event.event for event in events] == ["begin", *rounds, "end"]
    assert events[0].rounds == ("A", "B", "C")
    assert events[7].round == 2
    assert set(events[7].cosines) == {"cos_incoming_replay", "cos_train_test"}
    assert events[5].means["dsc"] == results.matrix["dsc"]["A"]
    assert events[-1].measures == results.measures


def test_where_a_run_stands(tmp_path: Path) -> None:
    assert standing(tmp_path, 3, 10) == Standing()
    lines = [{"event": "begin"}, {"event": "step", "round": 2, "site": "B", "iteration": 5}]
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, lines)) + '\n{"event": "st')  # cut short by a kill
    assert standing(tmp_path, 3, 10) == Standing(2, "B", 5, pytest.approx(0.5))
    appending(tmp_path)(End(measures={}))
    assert standing(tmp_path, 3, 10).share == 1.0


def test_tensorboard_files_hold_the_same_numbers(tmp_path: Path) -> None:
    loading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    from smg.learner.tensorboard import to_tensorboard

    stream = tiny_stream(write_sites(tmp_path / "sites"), method="jm")
    stream.listeners = [to_tensorboard(tmp_path / "tb", stream.config.iterations)]
    results = stream.run(tmp_path / "run")
    found = loading.EventAccumulator(str(tmp_path / "tb"))
    found.Reload()
    assert [event.step for event in found.Scalars("losses/incoming")] == list(range(1, 13))
    assert found.Scalars("dsc/A")[-1].value == pytest.approx(results.matrix["dsc"]["C"]["A"], rel=1e-6)

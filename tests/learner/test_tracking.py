"""Trackers: nothing is imported unless it is asked for, and each holds the numbers of the log."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from smg.errors import Misuse, SmgError
from smg.learner.events import Evaluation, StepReport, read_events
from smg.learner.tracking import scalars, tracker
from tests.cli.commands import TINY, smg
from tests.conftest import write_site

PINNED = {"mlflow": "mlflow==3.17.2", "wandb": "wandb==0.31.0"}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for place, name in enumerate("AB"):
        write_site(tmp_path / "data" / name, 4, first_seed=10 * place)
    return tmp_path


def test_nothing_is_imported_unless_it_is_asked_for() -> None:
    probe = (
        "import sys, smg.learner.tracking, smg.cli.run;"
        "print([m for m in ('mlflow', 'wandb', 'tensorboard') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", probe], text=True).strip() == "[]"


def test_the_numbers_of_an_event() -> None:
    step = StepReport(round=2, site="B", iteration=3, losses={"incoming": 0.5}, cosines={"c": 0.1})
    assert scalars(step, 10) == (13, {"losses/incoming": 0.5, "cosines/c": 0.1})
    means = {"dsc": {"A": 0.8, "B": None}, "asd": {"A": 1.0}}
    evaluation = Evaluation(round=2, site="B", means=means)
    assert scalars(evaluation, 10) == (20, {"dsc/A": 0.8, "asd/A": 1.0})


def test_trackers_that_cannot_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Misuse, match="give mlflow, wandb, tensorboard"):
        tracker("excel", tmp_path, "run", 1, {})
    for name in ("mlflow", "wandb"):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(SmgError, match=rf"pip install 'smg-learning\[{name}\]'"):
            tracker(name, tmp_path, "run", 1, {})


def test_tensorboard_of_a_run_and_of_a_model(data: Path) -> None:
    loading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    words = ("--data", "data", "--order", "A", "--unseen", "B", "--method", "jm", "--out", "run")
    result = smg("run", *words, "--track", "tensorboard", *TINY, cwd=data)
    assert result.returncode == 0, result.stderr
    learned = smg("learn", "model", "data/A", "--track", "tensorboard", *TINY, cwd=data)
    assert learned.returncode == 0, learned.stderr
    for folder in ("run/tensorboard", "model-tracking/tensorboard"):
        found = loading.EventAccumulator(str(data / folder))
        found.Reload()
        assert [event.step for event in found.Scalars("losses/incoming")][-1] >= 3
        assert found.Scalars("dsc/A")
    refused = smg("run", *words, "--track", "excel", *TINY, cwd=data)
    assert refused.returncode == 2


def environment(name: str, folder: Path) -> Path:
    """Make an environment with this one's packages and a tracker's own beside them; return its Python."""
    made = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", made], check=True)
    (site,) = made.glob("lib/python*/site-packages")
    inherited = [path for path in sys.path if path.endswith("site-packages")]
    (site / "inherited.pth").write_text("\n".join([*inherited, str(Path(__file__).parents[2])]))
    pip = [made / "bin/python", "-m", "pip", "install", "--quiet", PINNED[name]]
    subprocess.run(pip, check=True, env=os.environ | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"})
    return made / "bin/python"


def run_tracked(python: Path, name: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    words = ["run", "--data", "data", "--order", "A", "--unseen", "B", "--method", "jm", "--out", "run"]
    command = [python, "-m", "smg", *words, "--track", name, *TINY]
    return subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, check=False, env=os.environ | variables, timeout=600
    )


@pytest.mark.long
def test_mlflow_against_a_local_server(data: Path) -> None:
    python = environment("mlflow", data)
    import socket
    import urllib.request

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    words = ["-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    store = ["--backend-store-uri", f"sqlite:///{data}/server.db", "--default-artifact-root", str(data / "artifacts")]
    server = subprocess.Popen([python, *words, *store], cwd=data, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{url}/health", timeout=5)
                break
            except OSError:
                import time

                time.sleep(0.5)
        result = run_tracked(python, "mlflow", data, MLFLOW_TRACKING_URI=url)
        assert result.returncode == 0, result.stderr
        ask = (
            f"import mlflow, json; c = mlflow.MlflowClient(tracking_uri='{url}');"
            "e = c.get_experiment_by_name('smg'); (r,) = c.search_runs([e.experiment_id]);"
            "h = c.get_metric_history(r.info.run_id, 'losses/incoming');"
            "print(json.dumps([r.data.metrics, r.data.params, [m.step for m in h], r.info.status]))"
        )
        said = subprocess.check_output([python, "-c", ask], text=True, stderr=subprocess.DEVNULL)
        metrics, params, steps, status = json.loads(said.splitlines()[-1])
    finally:
        server.terminate()
        server.wait(60)
    events = list(read_events(data / "run"))
    last = [event for event in events if isinstance(event, Evaluation)][-1]
    assert metrics["dsc/B"] == pytest.approx(last.means["dsc"]["B"])
    logged = [3 * (e.round - 1) + e.iteration for e in events if isinstance(e, StepReport)]
    assert sorted(steps) == logged
    assert params["network.width"] == "4"
    assert status == "FINISHED"


@pytest.mark.long
def test_wandb_offline(data: Path) -> None:
    python = environment("wandb", data)
    result = run_tracked(python, "wandb", data)
    assert result.returncode == 0, result.stderr
    (written,) = (data / "run/wandb").glob("offline-run-*/run-*.wandb")
    content = written.read_bytes()
    for words in (b"losses/incoming", b"dsc/B", b"network.width"):
        assert words in content
    assert b"Case00" not in content  # a case's name

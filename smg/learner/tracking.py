"""Pass a run's events on to TensorBoard, MLflow or Weights & Biases; each is imported only if it is asked for.

Numbers, settings and names of sites are passed on; never a case's name, a path or a picture. MLflow writes to
`MLFLOW_TRACKING_URI` if it is set, else to a database in the run's folder; Weights & Biases writes into the run's
folder and sends nothing unless `WANDB_MODE=online` is set. So no connection is opened that the user has not configured.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from smg.errors import Misuse, SmgError
from smg.files import write_json
from smg.learner.events import End, Evaluation, Event, Listener, StepReport

KINDS = ("losses", "norms", "cosines")
MEMORY = "tracking.json"  # in the run's folder: MLflow's id of the run, so that a resumed run continues it


def tracker(name: str, folder: Path, title: str, iterations: int, settings: Mapping[str, Any]) -> Listener:
    """Return the listener that passes events on to a tracker; `folder` is the run's."""
    if name not in TRACKERS:
        raise Misuse(f"--track {name}: no such tracker; give {', '.join(TRACKERS)}")
    return TRACKERS[name](folder, title, iterations, settings)


def scalars(event: Event, iterations: int) -> tuple[int, dict[str, float]]:
    """Return the numbers of an event by name, and their step: the iteration counted over all rounds."""
    if isinstance(event, StepReport):
        at = (event.round - 1) * iterations + event.iteration
        return at, {f"{kind}/{name}": value for kind in KINDS for name, value in getattr(event, kind).items()}
    if isinstance(event, Evaluation):
        found = {f"{metric}/{site}": value for metric, means in event.means.items() for site, value in means.items()}
        return event.round * iterations, {name: value for name, value in found.items() if value is not None}
    if isinstance(event, End):
        found = {f"{metric}/{name}": value for metric, of in event.measures.items() for name, value in of.items()}
        return 0, {f"measures/{name}": value for name, value in found.items() if value is not None}
    return 0, {}


def _to_tensorboard(folder: Path, title: str, iterations: int, settings: Mapping[str, Any]) -> Listener:
    from smg.learner.tensorboard import to_tensorboard

    return to_tensorboard(folder / "tensorboard", iterations)


def _to_mlflow(folder: Path, title: str, iterations: int, settings: Mapping[str, Any]) -> Listener:
    """Log to an MLflow server or, without one, to `mlflow.db` in the run's folder."""
    try:
        import mlflow
    except ImportError:
        raise _missing("MLflow", "mlflow") from None
    folder.mkdir(parents=True, exist_ok=True)
    where = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(folder / 'mlflow.db').resolve()}"
    with _explained("MLflow", where):
        client = mlflow.MlflowClient(tracking_uri=where)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "smg"
        found = client.get_experiment_by_name(name)
        experiment = found.experiment_id if found else client.create_experiment(name)
        run = _known_run(client, folder / MEMORY)
        if run is None:
            run = str(client.create_run(experiment, run_name=title).info.run_id)
            for key, value in _flat(settings).items():
                client.log_param(run, _plain(key), str(value)[:500])
            write_json(folder / MEMORY, {"mlflow": run})

    def write(event: Event) -> None:
        step, values = scalars(event, iterations)
        with _explained("MLflow", where):
            for name, value in values.items():
                client.log_metric(run, _plain(name), float(value), step=step)
            if isinstance(event, End):
                client.set_terminated(run)

    return write


def _known_run(client: Any, memory: Path) -> str | None:
    """Return MLflow's id of the run that is resumed; None if there is none."""
    if not memory.is_file():
        return None
    try:
        known = str(json.loads(memory.read_text())["mlflow"])
        client.update_run(known, status="RUNNING")
    except Exception:  # another server, or deleted there
        return None
    return known


def _to_wandb(folder: Path, title: str, iterations: int, settings: Mapping[str, Any]) -> Listener:
    """Log to Weights & Biases: into the run's folder, from where `wandb sync` can send it; at once if configured."""
    try:
        import wandb
    except ImportError:
        raise _missing("Weights & Biases", "wandb") from None
    folder.mkdir(parents=True, exist_ok=True)
    mode = os.environ.get("WANDB_MODE", "offline")
    with _explained("Weights & Biases", f"mode {mode}"):
        run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "smg"),
            name=title,
            dir=str(folder),
            mode=mode,
            config=_flat(settings),
            settings=wandb.Settings(silent=True, console="off", disable_code=True, disable_git=True),
        )

    def write(event: Event) -> None:
        step, values = scalars(event, iterations)
        if values:
            run.log({**values, "iteration": step})
        if isinstance(event, End):
            run.finish()

    return write


TRACKERS: dict[str, Callable[[Path, str, int, Mapping[str, Any]], Listener]] = {
    "mlflow": _to_mlflow,
    "wandb": _to_wandb,
    "tensorboard": _to_tensorboard,
}


def _missing(title: str, extra: str) -> SmgError:
    return SmgError(f"{title} is not installed; pip install 'smg-learning[{extra}]'")


@contextlib.contextmanager
def _explained(title: str, where: str) -> Any:
    """Turn an exception of a tracker into a one-line error: a user who asked for the tracker must see that it fails."""
    try:
        yield
    except SmgError:
        raise
    except Exception as error:
        line = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise SmgError(
            f"{title} at {where} does not take the numbers ({line[:200]}); check it, or leave out --track"
        ) from None


def _plain(name: str) -> str:
    """Return a name with only the characters that MLflow allows."""
    return re.sub(r"[^\w./ -]", "_", name)[:250]


def _flat(settings: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Return nested settings as `network.width` and the like."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{above}{key}.")
        else:
            flat[f"{above}{key}"] = value
    return flat

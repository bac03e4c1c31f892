"""A run's events as TensorBoard event files, for those who watch their trainings there."""

from __future__ import annotations

from pathlib import Path

from smg.errors import SmgError
from smg.evaluation.metrics import COMPARED
from smg.learner.events import Event, Listener


def to_tensorboard(folder: Path, iterations: int) -> Listener:
    """Losses, norms, cosines and accuracies; a step is the iteration counted over all rounds."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise SmgError("TensorBoard is not installed; `pip install tensorboard`") from None
    writer = SummaryWriter(str(folder))

    def write(event: Event) -> None:
        if event["event"] == "step":
            at = (event["round"] - 1) * iterations + event["iteration"]
            for kind in ("losses", "norms", "cosines"):
                for name, value in event[kind].items():
                    writer.add_scalar(f"{kind}/{name}", value, at)
        elif event["event"] == "evaluation":
            for metric in COMPARED:
                for site, value in event[metric].items():
                    if value is not None:
                        writer.add_scalar(f"{metric}/{site}", value, event["round"])
        writer.flush()

    return write

"""Write a run's events as TensorBoard event files."""

from __future__ import annotations

from pathlib import Path

from smg.errors import SmgError
from smg.learner.events import Evaluation, Event, Listener, StepReport


def to_tensorboard(folder: Path, iterations: int) -> Listener:
    """Return a listener that writes losses, norms, cosines and accuracies; iterations are counted over all rounds."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise SmgError("TensorBoard is not installed; `pip install tensorboard`") from None
    writer = SummaryWriter(str(folder))

    def write(event: Event) -> None:
        if isinstance(event, StepReport):
            at = (event.round - 1) * iterations + event.iteration
            for kind, values in (("losses", event.losses), ("norms", event.norms), ("cosines", event.cosines)):
                for name, value in values.items():
                    writer.add_scalar(f"{kind}/{name}", value, at)
        elif isinstance(event, Evaluation):
            for metric, means in event.means.items():
                for site, mean in means.items():
                    if mean is not None:
                        writer.add_scalar(f"{metric}/{site}", mean, event.round)
        writer.flush()

    return write

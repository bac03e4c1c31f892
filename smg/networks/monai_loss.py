"""Build a loss of MONAI from the name of its class, with one value a sample."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from smg.errors import Misuse
from smg.networks.loss import LOSSES, Loss, Outputs

# Losses of MONAI that compare class indices with logits, and neither read a file nor download one.
MONAI_LOSSES = (
    "BoundaryLoss", "DiceCELoss", "DiceFocalLoss", "DiceLoss", "FocalLoss", "GeneralizedDiceFocalLoss",
    "GeneralizedDiceLoss", "HausdorffDTLoss", "LogHausdorffDTLoss", "MCCLoss", "MaskedDiceLoss", "SoftDiceclDiceLoss",
    "SoftclDiceLoss", "TverskyLoss",
)  # fmt: skip


def monai_loss(name: str, options: dict[str, Any]) -> Loss:
    """Return a loss that calls MONAI's for one sample at a time, since most of them return no value for each sample."""
    try:
        from monai import losses  # imported here, since it takes seconds
    except ModuleNotFoundError as error:
        if error.name != "monai":
            raise
        raise Misuse(
            f"no loss {name!r}: smg's own are {', '.join(LOSSES)}; `pip install 'smg-learning[monai]'` adds MONAI's"
        ) from None
    kind = getattr(losses, name, None)
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise Misuse(f"no loss {name!r}; it is one of {', '.join(LOSSES)}, a class of monai.losses, or mine.py:mine")
    known = inspect.signature(kind).parameters
    if name not in MONAI_LOSSES:
        raise Misuse(f"loss {name}: compares no class indices with logits; choose one such as DiceLoss or TverskyLoss")
    made: dict[bool, nn.Module] = {}

    def values(outputs: Outputs) -> Tensor:
        logits, labels = outputs.logits, outputs.labels[:, None]
        alone = logits.shape[1] == 1
        if alone not in made:
            wanted = {"to_onehot_y": not alone, "include_background": alone, "sigmoid": alone}
            wanted |= {"softmax": not alone, "use_softmax": not alone}
            made[alone] = kind(**{key: value for key, value in wanted.items() if key in known} | options)
        return torch.stack([made[alone](z[None], y[None]).mean() for z, y in zip(logits, labels, strict=True)])

    values.__name__ = name
    return values

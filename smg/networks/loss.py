"""Losses: functions of the network's outputs with one value a sample, so that gradients of disjoint batches add.

The segmentation loss is chosen by name (`find_loss`): `dice+ce`, `dice+focal`, a class of `monai.losses`, or one of a
user's own, `mine.py:mine`. A method may ask for any other loss too. That loss may also use the outputs of
another Θ for the same rows, and the outputs stored with them (`Outputs`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from smg.errors import Misuse, SmgError
from smg.registry import Registry

# One pixel. A slice without foreground then costs p / (p + 1) for p pixels predicted there, and its gradient pushes
# them away; at the usual 1e-5 that cost is 1 for all p, with no gradient until p is nearly gone. Where the prostate
# covers hundreds of pixels one more is not seen.
SMOOTH = 1.0


@dataclass(frozen=True)
class Outputs:
    """The inputs of a loss, all of the same rows with the same augmentation.

    logits: the network's outputs at Θ, [B, K, H, W]; the loss is differentiated through them.
    labels: class indices, [B, H, W].
    """

    logits: Tensor
    labels: Tensor
    _other: Callable[[Tensor], Tensor] | None = None
    _stored: Tensor | None = None

    def at(self, theta: Tensor) -> Tensor:
        """Return the logits of another Θ, without a gradient.

        Dropout uses the same draws and batch norm the same rows as at Θ, so equal parameters give equal logits.
        """
        if self._other is None:
            raise ValueError("these rows cannot be passed through the network again here")
        return self._other(theta)

    @property
    def stored(self) -> Tensor:
        """Return the outputs stored with these exemplars, [B, K, H, W], moved as the augmentation moves pixels."""
        if self._stored is None:
            raise SmgError(
                "no outputs are stored with these rows: only exemplars kept by a method with `stores_outputs = True` "
                "have them; set it in the method, and begin a new model with it"
            )
        return self._stored


Loss = Callable[[Outputs], Tensor]  # one value a sample, [B]
F = TypeVar("F", bound=Callable[..., Tensor])
LOSSES: Registry[Callable[..., Tensor]] = Registry("loss")


def loss(name: str) -> Callable[[F], F]:
    """Register a loss under a name: `@loss("mine")` above a function of `Outputs` and of its options, if any."""
    return partial(LOSSES.add, name)


def find_loss(name: str, options: dict[str, Any], classes: int = 2) -> Loss:
    """Return the loss of that name with its options, after a trial on a small sample."""
    if ":" in name or name in LOSSES:
        made: Loss = partial(LOSSES.find(name), **options) if options else LOSSES.find(name)
    else:
        from smg.networks.monai_loss import monai_loss  # imported here, since it imports this module

        made = monai_loss(name, options)
    _try(name, made, classes)
    return made


def _try(name: str, made: Loss, classes: int) -> None:
    logits = torch.linspace(-1, 1, 2 * classes * 64).reshape(2, classes, 8, 8).requires_grad_()
    labels = (torch.arange(128) % max(classes, 2)).to(torch.uint8).reshape(2, 8, 8)
    try:
        values = made(Outputs(logits, labels))
        if values.shape != (2,) or not values.requires_grad:
            raise ValueError(f"gives {list(values.shape)} values for two samples, or none with a gradient")
    except Exception as error:  # of any kind: the loss may be a user's function or a class made for another purpose
        why = " ".join(str(error).split())
        raise Misuse(f"loss {name}: does not fit {classes} classes ({type(error).__name__}: {why})") from None


def name_of(loss: Loss) -> str:
    """Return the name of a loss in reports: that of its function or class."""
    while isinstance(loss, partial):
        loss = loss.func
    return str(getattr(loss, "__name__", type(loss).__name__)).strip("_").replace("_", " ").lower()


@loss("dice+ce")
def dice_ce(outputs: Outputs, smooth: float = SMOOTH, absent: bool = True) -> Tensor:
    """Return Dice + cross-entropy of each sample; `absent` as of `_dice`."""
    return segmentation_loss(outputs.logits, outputs.labels, smooth, absent)


@loss("dice+focal")
def dice_focal(outputs: Outputs, gamma: float = 2.0, smooth: float = SMOOTH, absent: bool = True) -> Tensor:
    """Return Dice + focal loss (Lin et al., 2017): cross-entropy with the weight (1 - p)^γ, p of the true class."""
    logits = with_background(outputs.logits)
    log_probability = functional.log_softmax(logits, dim=1)
    own = log_probability.gather(1, outputs.labels[:, None].long())[:, 0]
    focal = (-own * (1 - own.exp()) ** gamma).mean(dim=(1, 2))
    truth = one_hot(outputs.labels, logits)[:, 1:]
    return focal + _dice(log_probability[:, 1:].exp(), truth, smooth, absent)


def with_background(logits: Tensor) -> Tensor:
    """Return the logits of all classes in full precision; a single logit gets a background logit of zero."""
    logits = logits.float() if logits.element_size() < 4 else logits  # a sum over many pixels exceeds half precision
    return torch.cat([torch.zeros_like(logits), logits], dim=1) if logits.shape[1] == 1 else logits


def one_hot(labels: Tensor, like: Tensor) -> Tensor:
    """Return class indices [B, H, W] as shares [B, K, H, W] of the logits' data type."""
    classes = torch.arange(like.shape[1], device=labels.device)
    return (labels[:, None] == classes[:, None, None]).to(like.dtype)


def segmentation_loss(logits: Tensor, labels: Tensor, smooth: float = SMOOTH, absent: bool = True) -> Tensor:
    """Return the loss of each sample, [B], from logits [B, K, H, W] and labels [B, H, W] in 0..K-1 (K = 1: 0 or 1).

    Cross-entropy is the mean over pixels, Dice the mean over the K - 1 foreground classes. K = 1 is one sigmoid;
    K = 2 is equivalent, with the difference of its two logits, and is computed that way.

    MONAI's DiceCELoss is not used, since it has no value for each sample. Called for one sample at a time it takes
    2.8 ms forward and back for 5 slices of 96x96; this function takes 0.9 ms (one thread). A test compares the two.
    """
    if labels.shape != logits.shape[:1] + logits.shape[2:]:
        raise ValueError(f"labels {list(labels.shape)} do not fit logits {list(logits.shape)}")
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()  # A sum over 384x384 pixels exceeds half precision.
    if logits.shape[1] <= 2:
        logit = logits[:, 0] if logits.shape[1] == 1 else logits[:, 1] - logits[:, 0]
        truth = (labels == 1).to(logits.dtype)
        entropy = functional.binary_cross_entropy_with_logits(logit, truth, reduction="none").mean(dim=(1, 2))
        return entropy + _dice(logit.sigmoid()[:, None], truth[:, None], smooth, absent)
    log_probability = functional.log_softmax(logits, dim=1)
    truth = one_hot(labels, logits)
    entropy = -(log_probability * truth).sum(dim=1).mean(dim=(1, 2))
    return entropy + _dice(log_probability[:, 1:].exp(), truth[:, 1:], smooth, absent)


def _dice(probability: Tensor, truth: Tensor, smooth: float, absent: bool) -> Tensor:
    """Return 1 - soft Dice of each sample, mean over classes; both inputs are [B, classes, H, W].

    absent: also over the classes that a sample does not have. With several classes, each missing in most samples, that
    pushes all of them to zero before they are distinguished, and there the softmax has next to no gradient.
    """
    overlap = (probability * truth).sum(dim=(2, 3))
    total = (probability + truth).sum(dim=(2, 3))
    dice = (2 * overlap + smooth) / (total + smooth)
    if absent:
        return 1 - dice.mean(dim=1)
    there = truth.amax(dim=(2, 3))  # 1 or 0
    return ((1 - dice) * there).sum(dim=1) / there.sum(dim=1).clamp_min(1)

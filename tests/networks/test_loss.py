"""The loss equals MONAI's Dice + cross-entropy sample by sample, and behaves at the edges."""

from __future__ import annotations

import math
import sys
import warnings
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from smg import trust
from smg.errors import SmgError
from smg.networks import segmentation_loss
from smg.networks.loss import Outputs, find_loss


def _case(classes: int, batch: int = 3, size: int = 6, scale: float = 1.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(batch, classes, size, size + 1, generator=generator, dtype=torch.float64)
    return logits, torch.randint(0, max(classes, 2), (batch, size, size + 1), generator=generator)


def _monais(logits: Tensor, labels: Tensor, smooth: float) -> Tensor:
    from monai.losses import DiceCELoss

    several = logits.shape[1] > 1
    loss = DiceCELoss(
        include_background=not several,
        to_onehot_y=several,
        softmax=several,
        sigmoid=not several,
        smooth_nr=smooth,
        smooth_dr=smooth,
    )
    return torch.stack([loss(z[None], y[None, None].double()) for z, y in zip(logits, labels, strict=True)])


@settings(max_examples=40, deadline=None)
@given(
    classes=st.integers(1, 4),
    batch=st.integers(1, 4),
    scale=st.floats(0.01, 30),
    smooth=st.sampled_from([1.0, 1e-5]),
    empty=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_equals_monais(classes: int, batch: int, scale: float, smooth: float, empty: bool, seed: int) -> None:
    logits, labels = _case(classes, batch, scale=scale, seed=seed)
    labels = torch.zeros_like(labels) if empty else labels
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = _monais(logits, labels, smooth)
    torch.testing.assert_close(segmentation_loss(logits, labels, smooth), expected, rtol=1e-9, atol=1e-12)


def test_by_hand() -> None:
    """Two pixels, p = 1/2 at both, the first is foreground: CE = log 2, Dice = (2 * 1/2 + 1) / (1 + 1 + 1)."""
    loss = segmentation_loss(torch.zeros(1, 2, 1, 2), torch.tensor([[[1, 0]]]))
    assert loss.shape == (1,)
    assert loss.item() == pytest.approx(math.log(2) + 1 - 2 / 3)


@pytest.mark.parametrize("name", ["dice+ce", "dice+focal"])
@pytest.mark.parametrize("classes", [1, 2, 4])
def test_dice_of_the_classes_that_a_slice_has(name: str, classes: int) -> None:
    """The same as by default where all are there; of the others' logits only the rest of the loss is left."""
    logits, labels = _case(classes)
    default, present = find_loss(name, {}, classes), find_loss(name, {"absent": False}, classes)
    torch.testing.assert_close(present(Outputs(logits, labels)), default(Outputs(logits, labels)))
    without_dice = default(Outputs(logits, torch.zeros_like(labels))) - 1 + _dice_of_nothing(logits)
    torch.testing.assert_close(present(Outputs(logits, torch.zeros_like(labels))), without_dice)
    if classes == 4:  # a class is missing: the others' mean, as of a network without it
        some = torch.where(labels == 3, 0, labels)
        gone = logits.clone()
        gone[:, 3] = -1e9
        torch.testing.assert_close(
            present(Outputs(gone, some)), find_loss(name, {}, 3)(Outputs(logits[:, :3], some)), rtol=1e-9, atol=1e-9
        )


def _dice_of_nothing(logits: Tensor) -> Tensor:
    """Return the soft Dice of a slice without foreground, mean over classes, with one pixel of smoothing."""
    one = logits.shape[1] == 1
    share = logits.sigmoid() if one else logits.softmax(dim=1)[:, 1:]
    return (1 / (share.sum(dim=(2, 3)) + 1)).mean(dim=1)


@pytest.mark.parametrize("classes", [1, 2, 3])
def test_samples_do_not_touch_each_other(classes: int) -> None:
    logits, labels = _case(classes)
    alone = torch.cat([segmentation_loss(z[None], y[None]) for z, y in zip(logits, labels, strict=True)])
    torch.testing.assert_close(segmentation_loss(logits, labels), alone, rtol=0, atol=1e-14)


@pytest.mark.parametrize("classes", [1, 2, 3])
def test_first_and_second_derivatives(classes: int) -> None:
    logits, labels = _case(classes, batch=2, size=2)
    logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda z: segmentation_loss(z, labels), logits)
    assert torch.autograd.gradgradcheck(lambda z: segmentation_loss(z, labels), logits)


@pytest.mark.parametrize("classes", [1, 2, 3])
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e4])
def test_a_slice_without_foreground_has_a_finite_gradient_that_removes_it(classes: int, scale: float) -> None:
    logits, labels = _case(classes, scale=scale)
    logits.requires_grad_()
    loss = segmentation_loss(logits, torch.zeros_like(labels))
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    assert loss.isfinite().all()
    assert gradient.isfinite().all()
    if scale <= 1:
        assert (gradient[:, -1] > 0).all()


def test_perfect_is_nought_and_worst_is_large() -> None:
    labels = torch.tensor([[[0, 1], [2, 1]]])
    perfect = 50 * torch.nn.functional.one_hot(labels, 3).permute(0, 3, 1, 2).double()
    assert segmentation_loss(perfect, labels).item() == pytest.approx(0, abs=1e-12)
    assert segmentation_loss(perfect, (labels + 1) % 3).item() > 50


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int64])
def test_labels_of_any_integer_type(dtype: torch.dtype) -> None:
    logits, labels = _case(3)
    assert torch.equal(segmentation_loss(logits, labels.to(dtype)), segmentation_loss(logits, labels))


def test_half_precision_sums_do_not_overflow() -> None:
    logits = torch.full((1, 2, 384, 384), 2.0, dtype=torch.float16)
    assert segmentation_loss(logits, torch.ones(1, 384, 384, dtype=torch.uint8)).isfinite().all()


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        segmentation_loss(torch.zeros(2, 2, 4, 4), torch.zeros(2, 1, 4, 4, dtype=torch.long))


# --- by name ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [1, 2, 4])
def test_the_default_is_the_segmentation_loss_to_the_bit(classes: int) -> None:
    logits, labels = _case(classes)
    assert torch.equal(find_loss("dice+ce", {}, classes)(Outputs(logits, labels)), segmentation_loss(logits, labels))


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("gamma", [0.0, 2.0, 3.5])
def test_dice_and_focal_equal_monais(classes: int, gamma: float) -> None:
    """MONAI averages its focal loss over the classes too, in single precision; ours is the mean over pixels."""
    from monai.losses import DiceLoss, FocalLoss

    logits, labels = _case(classes, scale=3)
    focal = FocalLoss(to_onehot_y=True, use_softmax=True, gamma=gamma)
    dice = DiceLoss(include_background=False, to_onehot_y=True, softmax=True, smooth_nr=1, smooth_dr=1)
    pairs = [(z[None], y[None, None].double()) for z, y in zip(logits, labels, strict=True)]
    expected = torch.stack([classes * focal(z, y) + dice(z, y) for z, y in pairs])
    made = find_loss("dice+focal", {"gamma": gamma}, classes)(Outputs(logits, labels))
    torch.testing.assert_close(made, expected, rtol=1e-6, atol=1e-7)
    if gamma == 0:
        torch.testing.assert_close(made, segmentation_loss(logits, labels), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["DiceCELoss", "TverskyLoss", "FocalLoss", "GeneralizedDiceLoss"])
@pytest.mark.parametrize("classes", [1, 2, 4])
def test_a_class_of_monai_has_one_value_a_sample_that_no_other_sample_changes(name: str, classes: int) -> None:
    logits, labels = _case(classes)
    made = find_loss(name, {}, classes)
    together = made(Outputs(logits, labels))
    alone = torch.cat([made(Outputs(z[None], y[None])) for z, y in zip(logits, labels, strict=True)])
    assert together.shape == (3,)
    assert torch.equal(together, alone)


def test_options_of_a_monai_class_reach_it() -> None:
    logits, labels = _case(2)
    even, uneven = (find_loss("TverskyLoss", {"alpha": a, "beta": 1 - a}, 2) for a in (0.5, 0.1))
    assert not torch.allclose(even(Outputs(logits, labels)), uneven(Outputs(logits, labels)))


def test_a_loss_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("""
from smg.networks.loss import loss

@loss("confident")
def confident(outputs, weight=1.0):
    return weight * outputs.logits.square().mean(dim=(1, 2, 3))

@loss("one value")
def one_value(outputs):
    return outputs.logits.mean()
""")
    trust.allow_everything()
    logits, labels = _case(2)
    made = find_loss(f"{path}:confident", {"weight": 2.0}, 2)
    assert torch.equal(made(Outputs(logits, labels)), 2 * logits.square().mean(dim=(1, 2, 3)))
    with pytest.raises(SmgError, match=r"loss .*mine\.py:one value: does not fit 2 classes \(ValueError: gives \[\] "):
        find_loss(f"{path}:one value", {}, 2)
    taken = tmp_path / "taken.py"
    taken.write_text("from smg.networks.loss import loss\n\n@loss('dice+ce')\ndef mine(outputs): ...\n")
    with pytest.raises(SmgError, match=r"taken\.py: loss 'dice\+ce' is registered already"):
        find_loss(f"{taken}:dice+ce", {}, 2)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("dice", {}, "no loss 'dice'; it is one of dice"),
        ("SSIMLoss", {}, "loss SSIMLoss: compares no class indices"),
        ("dice+focal", {"gama": 1}, "loss dice.focal: does not fit 2 classes .*gama"),
        ("TverskyLoss", {"alfa": 1}, "loss TverskyLoss: does not fit 2 classes .*alfa"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(name: str, options: dict[str, object], said: str) -> None:
    with pytest.raises(SmgError, match=said) as refused:
        find_loss(name, options, 2)
    assert "\n" not in str(refused.value)


def test_without_monai_its_losses_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "monai", None)
    with pytest.raises(SmgError, match=r"no loss 'TverskyLoss': smg's own are dice\+ce, dice\+focal.*; `pip install"):
        find_loss("TverskyLoss", {}, 2)

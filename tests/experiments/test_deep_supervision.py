"""Deep supervision as it is tried: the U-Net's own first weights, and a loss that every head is trained by."""

from __future__ import annotations

import pytest
import torch

from experiments.deep_supervision import deep
from smg import trust
from smg.networks import NetworkConfig, build_network
from smg.networks.loss import Outputs, segmentation_loss

DEEP = NetworkConfig(name="experiments.deep_supervision:unet", arguments={"width": 4, "depth": 3})
IMAGES = torch.randn(2, 1, 32, 32, generator=torch.Generator().manual_seed(0))
LABELS = torch.zeros(2, 32, 32, dtype=torch.uint8)
LABELS[:, 8:20, 10:24] = 1


@pytest.fixture(autouse=True)
def allowed() -> None:
    trust.allow(DEEP.name)


def test_it_begins_as_the_unet_and_predicts_by_its_finest_head() -> None:
    plain, network = build_network(NetworkConfig(width=4, depth=3), 7), build_network(DEEP, 7)
    weights = network.state_dict()
    for name, value in plain.state_dict().items():
        assert torch.equal(weights[f"network.{name}"], value)
    assert torch.equal(plain.eval()(IMAGES), network.eval()(IMAGES))
    assert torch.equal(plain.train()(IMAGES), network.train()(IMAGES))


def test_the_loss_is_the_weighted_mean_of_all_heads() -> None:
    network = build_network(DEEP).train()
    logits = network(IMAGES)
    finest, half, quarter = (
        segmentation_loss(one, LABELS[:, ::step, ::step])
        for one, step in zip([logits, *logits.coarser], (1, 2, 4), strict=True)
    )
    loss = deep(Outputs(logits, LABELS))
    torch.testing.assert_close(loss, (4 * finest + 2 * half + quarter) / 7)
    loss.sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in network.parameters())
    alone = logits.detach()
    assert torch.equal(deep(Outputs(alone, LABELS)), segmentation_loss(alone, LABELS))

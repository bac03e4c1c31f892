"""Deep supervision, tried: a U-Net with a head on each level of its way up, and the loss of all heads.

    network: {name: "experiments.deep_supervision:unet", arguments: {width: 8, depth: 3}}
    loss: "experiments/deep_supervision.py:deep"

The loss is `dice+ce` of each head at its own resolution, with weights 1, 1/2, 1/4 and so on from the finest, which sum
to one, as nnU-Net weights them. Labels are taken at every second, fourth pixel. Predictions are the finest head's. The
coarser logits go from the network to the loss as an attribute of the finest, so `compile` is off.
`experiments/plainconv.yaml` measures it at equal cost; it is no option of smg.
"""

from __future__ import annotations

from torch import Tensor, nn

from smg.networks.loss import SMOOTH, Outputs, loss, segmentation_loss
from smg.networks.unet import UNet


class DeepUNet(UNet):
    """The paper's U-Net with the same first weights, and a 1x1 head on each coarser level of the decoder."""

    def __init__(self, channels: int, classes: int, width: int, depth: int) -> None:
        super().__init__(channels, classes, width, depth)
        self.coarser_heads = nn.ModuleList(nn.Conv2d(width * 2**level, classes, 1) for level in range(1, depth))

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of a batch of images, with those of the coarser levels, finest first, as `coarser`."""
        if not self.training:
            return super().forward(x)
        maps: list[Tensor] = []
        hooks = [level.register_forward_hook(lambda _, __, out: maps.append(out)) for level in self.decoder]
        try:
            logits = super().forward(x)
        finally:
            for hook in hooks:
                hook.remove()
        finer_first = maps[-2::-1]  # the decoder goes from coarse to fine; its last map has the finest head
        logits.coarser = [head(level) for head, level in zip(self.coarser_heads, finer_first, strict=True)]  # type: ignore[attr-defined]
        return logits


def unet(in_channels: int, out_channels: int, width: int, depth: int) -> nn.Module:
    """Return the network, as `network.name` asks for it."""
    return DeepUNet(in_channels, out_channels, width, depth)


@loss("deep")
def deep(outputs: Outputs, smooth: float = SMOOTH) -> Tensor:
    """Return the weighted sum of the heads' losses, one value a sample."""
    heads: list[Tensor] = [outputs.logits, *getattr(outputs.logits, "coarser", [])]
    total = segmentation_loss(heads[0], outputs.labels, smooth)
    for level, logits in enumerate(heads[1:], start=1):
        total = total + 0.5**level * segmentation_loss(logits, outputs.labels[:, :: 2**level, :: 2**level], smooth)
    return total / sum(0.5**level for level in range(len(heads)))

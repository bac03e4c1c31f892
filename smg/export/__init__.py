"""A model for other programs: a MONAI bundle, a model of nnU-Net, an ONNX graph or a state dict, each with its card."""

from typing import Literal, get_args

Kind = Literal["monai-bundle", "nnunet", "onnx", "torch"]
KINDS: tuple[Kind, ...] = get_args(Kind)

"""A model for other programs: a MONAI bundle, an ONNX graph or a plain state dict, each with its card."""

from typing import Literal, get_args

Kind = Literal["monai-bundle", "onnx", "torch"]
KINDS: tuple[Kind, ...] = get_args(Kind)

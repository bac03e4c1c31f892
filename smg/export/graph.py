"""A network as an ONNX graph, with any number of slices or windows at once."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import torch

from smg.errors import SmgError
from smg.export.release import Release


def write_onnx(release: Release, path: Path) -> None:
    """Write the graph: `images` [batch, channels, N, N] to `logits` [batch, classes, N, N]."""
    try:
        import onnx
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise SmgError(f"--as onnx needs {error.name}: pip install 'smg-learning[export]'") from None
    config = release.config
    images = torch.zeros(2, config.network.channels, *config.preparation.shape)
    exporter = logging.getLogger("torch.onnx")
    level = exporter.level
    exporter.setLevel(logging.ERROR)  # it tells of every library that is not installed
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = torch.onnx.export(
                release.network,
                (images,),
                dynamo=True,
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                input_names=["images"],
                output_names=["logits"],
                verbose=False,
            )
    except Exception as error:  # of torch, about an operator that ONNX or its translator does not have
        line = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise SmgError(f"network {config.network.name} cannot be written as ONNX: {line}; --as torch may do") from error
    finally:
        exporter.setLevel(level)
    assert made is not None  # as with dynamo
    graph = made.model_proto
    _forget_where_it_was_made(graph)
    onnx.save(graph, path)


def _forget_where_it_was_made(message: Any) -> None:
    """Remove what the exporter notes of this machine: every operation's stack trace, with the files' paths."""
    for field, value in message.ListFields():
        if field.name in ("metadata_props", "doc_string"):
            message.ClearField(field.name)
        elif field.message_type is not None:
            for inner in value if field.is_repeated else [value]:
                _forget_where_it_was_made(inner)

"""Run a network's passes by torch.compile: the same mathematics in fused kernels, built by a C++ compiler."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import cast

import torch
from torch import nn

from smg.errors import SmgError


def compiled(network: nn.Module) -> nn.Module:
    """Return the network compiled for each batch shape on first use; it shares the network's weights."""
    return cast(nn.Module, torch.compile(network, dynamic=False))


@contextlib.contextmanager
def told_of_compiler() -> Iterator[None]:
    """Turn the error of a missing or failing compiler into one line."""
    from torch._inductor.exc import CppCompileError, InductorError, InvalidCxxCompiler  # here: it takes a second

    try:
        yield
    except (CppCompileError, InductorError, InvalidCxxCompiler) as error:
        why = str(error).strip().splitlines()[0]
        raise SmgError(f"compile: the network cannot be compiled ({why}); install g++, or set compile=false") from None

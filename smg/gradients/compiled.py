"""A network's passes by torch.compile: the same mathematics in fused kernels, made on the spot by a C++ compiler."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import cast

import torch
from torch import nn

from smg.errors import SmgError


def compiled(network: nn.Module) -> nn.Module:
    """The network, compiled for each shape of batch when that first comes; its weights stay its own."""
    return cast(nn.Module, torch.compile(network, dynamic=False))


@contextlib.contextmanager
def told_of_compiler() -> Iterator[None]:
    """A compiler that is missing or fails, in one line."""
    from torch._inductor.exc import CppCompileError, InductorError, InvalidCxxCompiler  # Here: it takes a second.

    try:
        yield
    except (CppCompileError, InductorError, InvalidCxxCompiler) as error:
        why = str(error).strip().splitlines()[0]
        raise SmgError(f"compile: the network cannot be compiled ({why}); install g++, or set compile=false") from None

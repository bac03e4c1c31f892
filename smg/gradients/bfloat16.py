"""Detect whether the CPU computes in bfloat16. Other CPUs emulate it slowly, or crash."""

from __future__ import annotations

import torch


def has_bfloat16() -> bool:
    """Return whether the CPU has instructions for bfloat16: AVX512-BF16 or AMX."""
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, name, lambda: False)() for name in names)

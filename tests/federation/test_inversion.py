"""What attacks on a hospital's answer recover with each protection: benchmarks/gradient_inversion.py, made small."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from smg.networks import build_network
from tests.toys import slices

STEPS = 60


def benchmark() -> ModuleType:
    """Return the benchmark, which is a script and in no package."""
    path = Path(__file__).parents[2] / "benchmarks" / "gradient_inversion.py"
    spec = spec_from_file_location("gradient_inversion", path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[spec.name] = module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ATTACK = benchmark()


@pytest.fixture(scope="module")
def scene() -> Any:
    return ATTACK.Scene([slices(seed) for seed in range(ATTACK.PATIENTS)], build_network(ATTACK.NETWORK, 0))


def attacked(scene: Any, rows: int, steps: int, only: str) -> Any:
    """Return what the attacks recover under one setting, and print it."""
    one = next(one for one in ATTACK.attack_all(scene, 16, rows, steps, only=only) if one.setting.startswith(only))
    print(one)
    return one


@pytest.mark.parametrize("rows", [1, 3])
def test_slices_are_recognised_in_a_plain_answer_of_few_rows(scene: Any, rows: int) -> None:
    assert attacked(scene, rows, 0, "plain").found == 1.0


def test_fewer_rows_than_allowed_give_nothing_to_attack(scene: Any) -> None:
    assert attacked(scene, 1, 0, "least_rows").found is None
    assert attacked(scene, 3, 0, "least_rows").found == 1.0  # a sum of three hides no slice from who has it


def test_noise_hides_slices_as_far_as_it_is_strong(scene: Any) -> None:
    weak, strong = (attacked(scene, 1, 0, f"noise {multiplier}").found for multiplier in ("0.1", "4"))
    assert weak > 0.9
    assert strong < 0.5  # of a hundred answers


def test_a_message_under_masks_can_neither_be_matched_nor_recognised(scene: Any) -> None:
    plain, masked = (attacked(scene, 1, STEPS, name) for name in ("plain", "secure sum of 3: one"))
    assert plain.matched < 0.8  # the attack finds images whose gradient points the same way
    assert masked.matched > 0.9
    assert masked.found < 0.5
    assert masked.chance == 1 / (ATTACK.PATIENTS * len(ATTACK.OFFSETS))

"""The documentation: its commands work, and it leaves nothing out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import yaml
from torch.func import functional_call

from smg import trust
from smg.gradients.flat import pieces, trainable
from smg.gradients.optimiser import Optimiser
from smg.learner.setting_list import all_settings
from smg.methods import METHODS, Method, find_method, take_step
from smg.replay.selection import POLICIES
from smg.settings_file import ready
from tests.documented import ROOT, blocks, try_page
from tests.toys import iteration, oracle, smooth_network

PAGES = sorted((ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_line(page: Path, desk: Path) -> None:
    expected = sum(language == "sh" for language, _ in blocks(page))
    assert try_page(page, desk) >= expected


def test_every_page_is_in_the_navigation() -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    assert sorted(next(iter(entry.values())) for entry in nav) == [page.name for page in PAGES]


def test_every_setting_is_documented() -> None:
    page = (ROOT / "docs/settings.md").read_text()
    rows = [f"| `{k}` | {d if d == '-' else f'`{d}`'} | {meaning} |" for k, d, meaning in all_settings()]
    assert [line for line in page.splitlines() if line.startswith("| `")] == rows


def documented(name: str, tmp_path: Path, **options: float) -> Method:
    """The method that `add a method` shows in a file of its own."""
    (text,) = [text for _, text in blocks(ROOT / "docs/add-a-method.md") if text.startswith(f"# {name}.py\n")]
    assert len(text.splitlines()) < 25
    (tmp_path / f"{name}.py").write_text(text)
    trust.allow(f"{tmp_path / name}.py")
    registered = re.findall(r'@register\("(.+)"\)', text)[0]
    return find_method(f"{tmp_path / name}.py:{registered}", **options)


def test_the_l2_sp_penalty_of_the_page(tmp_path: Path) -> None:
    ours, method = oracle(), documented("l2sp", tmp_path, weight=0.5)
    away = ours.theta + 0.1
    plain = ours(away, iteration().incoming)
    method.begin_round(ours.theta.clone(), ours, iteration())
    assert torch.equal(method.update(away, ours, lambda at, g: g, iteration()), plain)  # in the first round
    method.begin_round(ours.theta.clone(), ours, iteration(earlier=1))
    pulled = method.update(away, ours, lambda at, g: g, iteration())
    torch.testing.assert_close(pulled, plain + 0.5 * 0.1, rtol=1e-12, atol=1e-12)


def test_the_ema_teacher_of_the_page(tmp_path: Path) -> None:
    ours, method = oracle(), documented("ema", tmp_path, weight=2.0, momentum=0.75)
    opt, thetas, average = Optimiser(ours.theta), [], ours.theta.clone()
    method.begin_round(ours.theta.clone(), ours, iteration())
    for number in range(4):
        thetas.append(ours.theta.clone())
        average = 0.75 * average + 0.25 * thetas[-1]
        step = take_step(method, ours, opt, iteration(number))
        torch.testing.assert_close(method.state["teacher"], average, rtol=1e-12, atol=1e-12)
    batch, network = iteration(3).incoming, smooth_network()
    images = batch.load().images.double()
    student, teacher = (
        functional_call(network, pieces(trainable(network), t), (images,)) for t in (thetas[-1], average)
    )
    assert step.losses["incoming (<lambda>)"] == pytest.approx(float((student - teacher).square().mean()), rel=1e-9)


def test_the_page_on_privacy_repeats_what_each_method_says_it_holds() -> None:
    page = (ROOT / "docs/privacy.md").read_text()
    for name, method in METHODS.items():
        if method.__module__.startswith("smg.") and method.keeps_of_patients:
            assert f"- `{name}`: {method.keeps_of_patients}." in page


def test_every_method_policy_and_configuration_is_documented() -> None:
    methods = (ROOT / "docs/methods.md").read_text()
    for name, method in METHODS.items():
        if method.__module__.startswith("smg."):
            assert f"| `{name}` |" in methods
            assert f"`{method.__module__.rsplit('.', 1)[1]}.py`" in methods
    for name in POLICIES:
        assert f"`{name}`" in methods
    compare = (ROOT / "docs/compare.md").read_text()
    for name in ready():
        assert f"| `{name}` |" in compare

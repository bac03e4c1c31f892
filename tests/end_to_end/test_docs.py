"""The documentation: its commands work, and it leaves nothing out."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from smg.bench.plan import ready
from smg.learner.settings import all_settings
from smg.methods import METHODS
from smg.replay.selection import POLICIES
from tests.documented import ROOT, blocks, try_page

PAGES = sorted((ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_line(page: Path, desk: Path) -> None:
    expected = sum(language == "sh" for language, _ in blocks(page))
    assert try_page(page, desk) >= expected


def test_every_page_is_in_the_navigation() -> None:
    told = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    assert sorted(next(iter(entry.values())) for entry in told) == [page.name for page in PAGES]


def test_every_setting_is_told_of() -> None:
    page = (ROOT / "docs/settings.md").read_text()
    rows = [f"| `{k}` | {d if d == '-' else f'`{d}`'} | {meaning} |" for k, d, meaning in all_settings()]
    assert [line for line in page.splitlines() if line.startswith("| `")] == rows


def test_every_method_policy_and_configuration_is_told_of() -> None:
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

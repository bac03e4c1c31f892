"""The repository's own pages: their links lead to files that are there. (`mkdocs --strict` checks those of docs/.)"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("results/*.md"), *ROOT.glob("results/*/*.md")])
LINK = re.compile(r"\]\((?!https?:|#)([^)\s#]+)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file(page: Path) -> None:
    links = LINK.findall(page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []

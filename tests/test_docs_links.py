"""Links of the README and the docs lead to files and headings that are there, and its counts are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agentgym.credit.component import ESTIMATORS
from agentgym.evals.suites import suite_names

ROOT = Path(__file__).parent.parent
PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "AGENTS", "SECURITY", "CONTRIBUTING", "CHANGELOG")),
    *sorted((ROOT / "docs").glob("**/*.md")),
]
MOST_LINES_OF_THE_README = 120


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", without_code(page.read_text(encoding="utf-8")), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(\s*([^)\s]+)\s*\)", without_code(page.read_text(encoding="utf-8")))
    for link in (link for link in links if not re.match(r"[a-z]+:", link)):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{page.name}: {link}"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{page.name}: {link}, of {sorted(anchors(target))}"


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < MOST_LINES_OF_THE_README


@pytest.mark.parametrize("name", ["README.md", "docs/index.md"])
def test_its_counts_are_those_of_the_code(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert re.findall(r"(\d+) suites", text) == [str(len(suite_names()))]
    named = re.findall(r"GiGPO, HGPO, IGPO and (\d+) more estimators", text)
    counted = [int(number) + 3 for number in named] or [int(n) for n in re.findall(r"(\d+) credit estimators", text)]
    assert counted == [len(ESTIMATORS)]

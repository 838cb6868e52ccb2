"""The page of all components is that of the code."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_the_page_of_components_is_made_from_the_code() -> None:
    found = runpy.run_path(str(ROOT / "docs" / "site" / "components.py"))
    made = found["page"]()
    written = (ROOT / "docs" / "component_list.md").read_text(encoding="utf-8")
    assert written == made, "run: python docs/site/components.py"
    for heading in ("Losses", "Corrections", "Token masks", "Regularisers", "Strategies: budget", "Estimators"):
        assert f"\n## {heading}\n" in written

"""The committed seconds of weight updates are those that the docs show."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_docs_show_the_committed_numbers() -> None:
    folder = ROOT / "benchmarks" / "weights"
    rows = json.loads((folder / "results.json").read_text(encoding="utf-8"))["rows"]
    assert [row["weight_sync"] for row in rows] == ["folder", "lora"]
    assert rows[0]["num_trained"] > 100_000_000 and rows[1]["bytes"] < rows[0]["bytes"] / 20
    page = (folder / "results.md").read_text(encoding="utf-8").splitlines()
    shown = (ROOT / "docs" / "engines.md").read_text(encoding="utf-8")
    assert all(line in shown for line in page if line.startswith("|"))

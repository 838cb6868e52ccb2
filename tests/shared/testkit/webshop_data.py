"""WebShop's real pages and recorded sessions, for tests that need them, and small files in its format."""

from __future__ import annotations

import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

SHARED = Path(os.environ.get("AGENTGYM_SHARED_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
WEBSHOP = SHARED / "webshop"

needs_webshop_data = pytest.mark.skipif(not WEBSHOP.is_dir(), reason="needs WebShop's pages in AGENTGYM_SHARED_DATA")


class _VisibleText(HTMLParser):
    """A parser that collects the texts that WebShop's simple text mode shows."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._hidden += tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in ("script", "style")

    def handle_data(self, data: str) -> None:
        if data.strip() and not self._hidden:
            self.pieces.append(data.strip())


def page_text(name: str) -> str:
    """Return a real page in WebShop's simple text mode."""
    parser = _VisibleText()
    parser.feed(page_source(name))
    parser.close()
    return " [SEP] ".join(parser.pieces)


def page_source(name: str) -> str:
    return (WEBSHOP / name).read_text(encoding="utf-8")


def sessions() -> dict[str, list[dict[str, Any]]]:
    """Return the recorded pages of every session, in order."""
    return {
        path.stem: [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        for path in sorted((WEBSHOP / "sessions").glob("*.jsonl"))
    }


def prices_of(tag: str) -> tuple[float, ...]:
    """Return the numbers of a text such as ``$1.0 to $2.5``."""
    return tuple(map(float, re.findall(r"[\d.]+", tag)))

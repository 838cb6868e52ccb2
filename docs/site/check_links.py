"""Check a built site: every link inside it leads to a file and an anchor, and no page loads anything from elsewhere.

python docs/site/check_links.py build/site
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADS = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src"), ("source", "src")}
NOT_LOADED = {"canonical", "prev", "next"}


class Page(HTMLParser):
    """The anchors of a page and what it links to and loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[tuple[str, bool]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if given.get(name)}
        for name in ("href", "src"):
            if given.get(name):
                self.links.append((given[name], (tag, name) in LOADS and given.get("rel") not in NOT_LOADED))


def faults(site: Path) -> list[str]:
    pages = {path.resolve(): Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    found = []
    for path, page in pages.items():
        name = path.relative_to(site.resolve())
        if name.name == "404.html":  # its links are those of a server's root
            continue
        for link, is_loaded in page.links:
            parts = urlsplit(link)
            if parts.scheme == "data":
                continue
            if parts.scheme or parts.netloc:
                found += [f"{name} loads {link}"] * is_loaded
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                found.append(f"{name}: {link} leads nowhere")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                found.append(f"{name}: {link} has no such anchor")
    if not pages:
        found.append(f"{site} has no pages")
    return found


if __name__ == "__main__":
    told = faults(Path(sys.argv[1]))
    print("\n".join(sorted(set(told))) or "all links lead somewhere")
    sys.exit(bool(told))

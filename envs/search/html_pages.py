"""Pages as linked HTML, and HTML as text with numbered links: what a text browser shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from html.parser import HTMLParser
from urllib.parse import quote, unquote

from agentgym.envs.search.world_facts import Facts
from agentgym.envs.search.world_pages import Page
from agentgym.tools.retrieval.types import Hit

_WIKI, _SEARCH = "/wiki/", "/search?q="
_BLOCKS = frozenset({"p", "h1", "h2", "li", "ol", "ul", "div", "br", "title"})
_HIDDEN = frozenset({"script", "style", "head"})


@dataclass(frozen=True, slots=True)
class Rendered:
    """What a browser makes of a page's source."""

    text: str
    """With ``[n]`` after the words of the n-th link."""
    links: tuple[str, ...]
    """Where the links lead, the first at 0."""


def url_of(title: str) -> str:
    """A page's address.

    Example:
        >>> url_of("Tolan Bay (1990)")
        '/wiki/Tolan_Bay_%281990%29'
    """
    return _WIKI + quote(title.replace(" ", "_"))


def title_of(url: str) -> str | None:
    """The title of the page at an address; None if it is no page's.

    Example:
        >>> title_of("/wiki/Tolan_Bay_%281990%29")
        'Tolan Bay (1990)'
    """
    return unquote(url.removeprefix(_WIKI)).replace("_", " ") if url.startswith(_WIKI) else None


def search_url(query: str) -> str:
    """The address of a search's results."""
    return _SEARCH + quote(query)


def query_of(url: str) -> str:
    """What the results at an address were searched for."""
    return unquote(url.removeprefix(_SEARCH))


def page_html(page: Page, facts: Facts) -> str:
    """A page of the encyclopedia; things it names are links to their pages."""
    body = "".join(
        escape(piece) if isinstance(piece, str) else _link(url_of(facts.name_of(piece.thing)), piece.text)
        for piece in page.pieces
    )
    return _document(page.title, f"<p>{body}</p>")


def results_html(query: str, hits: Sequence[Hit]) -> str:
    """The results of a search."""
    items = "".join(f"<li>{_link(url_of(hit.doc_id), hit.title)} {escape(hit.snippet)}</li>" for hit in hits)
    return _document(f"Results for {query}", f"<ol>{items}</ol>" if hits else "<p>No page fits; try other words.</p>")


def rendered(source: str) -> Rendered:
    """HTML as text: a line for every block, scripts and styles left out, links numbered from 1.

    Example:
        >>> rendered('<p>See <a href="/wiki/Kur">Kur</a>.</p><script>run()</script>')
        Rendered(text='See Kur [1].', links=('/wiki/Kur',))
    """
    reader = _Reader()
    reader.feed(source)
    reader.close()
    lines = (" ".join(line.split()) for line in "".join(reader.pieces).split("\n"))
    return Rendered("\n".join(line for line in lines if line), tuple(reader.links))


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: list[str] = []
        self.links: list[str] = []
        self._num_hidden = 0
        self._is_in_link = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._num_hidden += tag in _HIDDEN
        if tag in _BLOCKS:
            self.pieces.append("\n")
        if tag == "a" and (target := dict(attrs).get("href")):
            self.links.append(target)
            self._is_in_link = True

    def handle_endtag(self, tag: str) -> None:
        self._num_hidden -= tag in _HIDDEN and self._num_hidden > 0
        if tag in _BLOCKS:
            self.pieces.append("\n")
        if tag == "a" and self._is_in_link:
            self.pieces.append(f" [{len(self.links)}]")
            self._is_in_link = False

    def handle_data(self, data: str) -> None:
        if not self._num_hidden:
            self.pieces.append(data)


def _link(url: str, text: str) -> str:
    return f'<a href="{escape(url)}">{escape(text)}</a>'


def _document(title: str, body: str) -> str:
    return f"<html><head><title>{escape(title)}</title></head><body><h1>{escape(title)}</h1>{body}</body></html>"

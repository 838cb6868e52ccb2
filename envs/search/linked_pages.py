"""Pages and search results as a text browser shows them: lines of text in which the links are numbered."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote, urljoin, urlsplit

from agentgym.envs.search.world_facts import Facts
from agentgym.envs.search.world_pages import Page
from agentgym.tools.retrieval.types import Document, Hit

MAX_LINKS: Final = 200
"""Links of a page that get a number."""
_WIKI, _SEARCH = "/wiki/", "/search?q="
_LINK = re.compile(r"\[([^\[\]]{0,300})\]\((<[^<>\s]{1,2000}>|[^()<>\s]{1,2000})\)")


@dataclass(frozen=True, slots=True)
class Rendered:
    """A page as the browser shows it."""

    text: str
    """Text of the page, with ``[n]`` after the words of the n-th link."""
    links: tuple[str, ...]
    """Targets of the links, the first at 0."""


def url_of(title: str) -> str:
    """Return a page's address.

    Example:
        >>> url_of("Tolan Bay (1990)")
        '/wiki/Tolan_Bay_%281990%29'
    """
    return _WIKI + quote(title.replace(" ", "_"))


def title_of(url: str) -> str | None:
    """Return the title of the page at an address; None if it is no page's.

    Example:
        >>> title_of("/wiki/Tolan_Bay_%281990%29")
        'Tolan Bay (1990)'
    """
    return unquote(url.removeprefix(_WIKI)).replace("_", " ") if url.startswith(_WIKI) else None


def search_url(query: str) -> str:
    """Return the address of a search's results."""
    return _SEARCH + quote(query)


def query_of(url: str) -> str | None:
    """Return the query in the address of a page of results; None for other addresses."""
    return unquote(url.removeprefix(_SEARCH)) if url.startswith(_SEARCH) else None


def rendered_page(page: Page, facts: Facts) -> Rendered:
    """Render a page of the encyclopedia; things it names are links to their pages."""
    links: list[str] = []
    words = [page.title, "\n"]
    for piece in page.pieces:
        if isinstance(piece, str):
            words.append(piece)
        else:
            links.append(url_of(facts.name_of(piece.thing)))
            words.append(f"{piece.text} [{len(links)}]")
    return Rendered(_folded(words), tuple(links))


def rendered_results(query: str, hits: Sequence[Hit], address: Callable[[str], str] = url_of) -> Rendered:
    """Render the results of a search.

    Args:
        address: the address of a document, by its id.

    Example:
        >>> rendered_results("kur", [Hit("Kur", "Kur", "A land.", 1.0)])
        Rendered(text='Results for kur\\nKur [1] A land.', links=('/wiki/Kur',))
    """
    lines = [f"\n{hit.title} [{number}] {hit.snippet}" for number, hit in enumerate(hits, 1)]
    found = lines or ["\nNo page fits; try other words."]
    return Rendered(_folded([f"Results for {query}", *found]), tuple(address(hit.doc_id) for hit in hits))


def rendered_document(document: Document) -> Rendered:
    """Render a page of the web whose links are written as Markdown.

    Example:
        >>> text = "The queen is [Anu](https://a.example/anu), see [note](#1)."
        >>> rendered_document(Document("https://a.example/", "Kur", text, "https://a.example/"))
        Rendered(text='Kur\\nThe queen is Anu [1], see note.', links=('https://a.example/anu',))
    """
    links: list[str] = []

    def numbered(link: re.Match[str]) -> str:
        words, url = link[1], _address(document, link[2].strip("<>"))
        if url is None or len(links) >= MAX_LINKS:
            return words
        links.append(url)
        return f"{words} [{len(links)}]"

    return Rendered(_folded([document.title, "\n", _LINK.sub(numbered, document.text)]), tuple(links))


def _address(document: Document, link: str) -> str | None:
    """Return where a link leads; None if to no other page of the web."""
    try:
        url = urljoin(document.url or document.id, link)
        parts = urlsplit(url)
    except ValueError:  # half an IPv6 address, for instance
        return None
    is_within = parts.fragment and (link.startswith("#") or not parts.path)  # trafilatura drops the path there
    return url if parts.scheme in ("http", "https") and not is_within else None


def _folded(words: Iterable[str]) -> str:
    """Text with single spaces and without empty lines."""
    lines = (" ".join(line.split()) for line in "".join(words).split("\n"))
    return "\n".join(line for line in lines if line)

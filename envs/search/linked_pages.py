"""Pages and search results as a text browser shows them: lines of text in which the links are numbered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote

from agentgym.envs.search.world_facts import Facts
from agentgym.envs.search.world_pages import Page
from agentgym.tools.retrieval.types import Hit

_WIKI, _SEARCH = "/wiki/", "/search?q="


@dataclass(frozen=True, slots=True)
class Rendered:
    """What a browser shows of a page."""

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


def rendered_results(query: str, hits: Sequence[Hit]) -> Rendered:
    """Render the results of a search.

    Example:
        >>> rendered_results("kur", [Hit("Kur", "Kur", "A land.", 1.0)])
        Rendered(text='Results for kur\\nKur [1] A land.', links=('/wiki/Kur',))
    """
    lines = [f"\n{hit.title} [{number}] {hit.snippet}" for number, hit in enumerate(hits, 1)]
    found = lines or ["\nNo page fits; try other words."]
    return Rendered(_folded([f"Results for {query}", *found]), tuple(url_of(hit.doc_id) for hit in hits))


def _folded(words: Iterable[str]) -> str:
    """Text with single spaces and without empty lines."""
    lines = (" ".join(line.split()) for line in "".join(words).split("\n"))
    return "\n".join(line for line in lines if line)

"""``agentgym/WebBrowse-v0``: WikiWorld's questions, answered by browsing its linked pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote, unquote

from agentgym.call_syntax import format_call
from agentgym.canonical import canonical, digest
from agentgym.envs.search.search_env import names_in
from agentgym.envs.search.world_facts import Facts
from agentgym.envs.search.world_pages import Page
from agentgym.envs.search.world_tasks import WorldEnv
from agentgym.errors import EnvError, ToolError, boundary
from agentgym.tool import tool
from agentgym.tools.reading import cut_to_tokens, places_of
from agentgym.tools.retrieval.types import Hit
from agentgym.types import Task, ToolCall

_MOST_PLACES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Browser:
    """Where a browser stands."""

    history: tuple[str, ...] = ()
    """Addresses of the pages behind the one in sight, which is the last."""
    known: frozenset[str] = frozenset()
    """Addresses that links have shown."""

    @property
    def url(self) -> str:
        """The address of what is in sight, empty at first."""
        return self.history[-1] if self.history else ""


class WebBrowseEnv(WorldEnv):
    """Answer questions by browsing an encyclopedia: search, follow numbered links, find, go back.

    Pages are shown as text with their links numbered. Questions and arguments are those of
    ``agentgym/WikiWorld-v0``.

    Example:
        >>> env = WebBrowseEnv(num_pages=60)
        >>> observation, info = env.reset(options={"task": 1})
        >>> while not (step := env.step(env.oracle()))[2]:
        ...     pass
        >>> step[1]
        1.0
    """

    def start(self, task: Task) -> str:
        self.browser = Browser()
        return super().start(task)

    @tool
    def search(self, query: str) -> str:
        """Search the pages; shows links to those that fit.

        Args:
            query: What to look for: names and other words.
        """
        with boundary(EnvError, "search"):
            hits = self.retriever.search(query, self.max_results)
        self.note_search(query, [hit.doc_id for hit in hits])
        return self._go(search_url(query))

    @tool
    def open(self, link: str) -> str:
        """Follow a link.

        Args:
            link: Its number in the page in sight, or an address that a link has shown.
        """
        url = self._target(link.strip())
        title = title_of(url)
        if title is None:
            self.pay_call()
        else:
            self.note_page(title)
        return self._go(url)

    @tool
    def find(self, text: str) -> str:
        """Find a text in the page in sight, what was cut of it too; upper and lower case are the same.

        Args:
            text: A word or phrase.
        """
        if not self.browser.history:
            raise ToolError("no page is open; search first", "nothing_open")
        if not text.strip():
            raise ToolError("the text is empty; give a word or phrase", "invalid_arguments")
        self.pay_call()
        places = places_of(text, self._page().text)[:_MOST_PLACES]
        shown = "\n".join(f"{number}. {place}" for number, place in enumerate(places, 1))
        return cut_to_tokens(shown or "Not on this page.", self.budget.result_tokens, self.budget)

    @tool
    def back(self) -> str:
        """Go back to the page before."""
        if len(self.browser.history) < 2:
            raise ToolError("there is no page to go back to", "no_page")
        self.pay_call()
        self.browser = replace(self.browser, history=self.browser.history[:-1])
        return self._shown()

    # ----------------------------------------------------------------------------------------- beside gymnasium's

    def state_key(self) -> str:
        """The question, the addresses that links have shown, and the page or results in sight, however asked for."""
        asked = digest([self.question.text, self.question.gold, self.question.answers])
        url = self.browser.url
        in_sight = self._page().links if url and title_of(url) is None else url
        return canonical([asked, self.browser.known, in_sight])

    def dump_state(self) -> object:
        return super().dump_state(), self.browser

    def load_state(self, state: Any) -> None:
        inner, self.browser = state
        super().load_state(inner)

    def next_call(self) -> ToolCall:
        question, known = self.question, self.browser.known
        for title, query in zip(question.gold, question.queries, strict=True):
            if title not in self.progress.read:
                url = url_of(title)
                links = self._page().links if self.browser.history else ()
                if url in links:
                    return ToolCall("open", {"link": str(links.index(url) + 1)}, "0")
                if url in known:
                    return ToolCall("open", {"link": url}, "0")
                return ToolCall("search", {"query": self.query_for(title, query)}, "0")
        return ToolCall("answer", {"text": question.answers[0]}, "0")

    def admissible_actions(self) -> tuple[str, ...]:
        """Searches for the question and its names, the links in sight, back, and names in sight as answers."""
        queries = dict.fromkeys((self.question.text, *names_in(self.question.text)))
        calls = [ToolCall("search", {"query": query}) for query in queries]
        if self.browser.history:
            page = self._page()
            calls += [ToolCall("open", {"link": str(number)}) for number in range(1, len(page.links) + 1)]
            calls += [ToolCall("answer", {"text": name}) for name in names_in(page.text)]
        if len(self.browser.history) > 1:
            calls.append(ToolCall("back", {}))
        return tuple(format_call(call, self.tools) for call in calls)

    # --------------------------------------------------------------------------------------------------- private

    def _target(self, link: str) -> str:
        if not self.browser.history:
            raise ToolError("no page is open; search first", "nothing_open")
        links = self._page().links
        if link.isdecimal() and len(link) < 10 and 1 <= int(link) <= len(links):
            return links[int(link) - 1]
        if link in self.browser.known:
            return link
        there = f"the links 1 to {len(links)}" if links else "no links"
        raise ToolError(f"no link {link[:80]!r}: this page has {there}", "unknown_link")

    def _go(self, url: str) -> str:
        self.browser = replace(self.browser, history=(*self.browser.history, url))
        self.browser = replace(self.browser, known=self.browser.known | set(self._page().links))
        return self._shown()

    def _shown(self) -> str:
        return cut_to_tokens(self._page().text, self.budget.page_tokens, self.budget)

    def _page(self) -> Rendered:
        """The page or the results in sight."""
        url = self.browser.url
        title = title_of(url)
        if title is not None:
            return rendered_page(self.world.page_of[title], self.world.facts)
        query = query_of(url)
        return rendered_results(query, self.retriever.search(query, self.max_results))


# ----------------- pages and search results as a text browser shows them: lines of text in which the links are numbered

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

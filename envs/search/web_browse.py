"""``agentgym/WebBrowse-v0``: questions answered by browsing linked pages: WikiWorld's, or the live web's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentgym.call_syntax import format_call
from agentgym.canonical import canonical, digest
from agentgym.envs.search.linked_pages import (
    Rendered,
    query_of,
    rendered_document,
    rendered_page,
    rendered_results,
    search_url,
    title_of,
    url_of,
)
from agentgym.envs.search.live_web import ENGINES, live_web
from agentgym.envs.search.question import Question
from agentgym.envs.search.question_files import Format
from agentgym.envs.search.question_set import Sources, question_set
from agentgym.envs.search.search_env import names_in
from agentgym.envs.search.searchqa import Paths, questions_at
from agentgym.envs.search.world_tasks import WorldEnv
from agentgym.errors import EnvError, ToolError, UsageError, boundary
from agentgym.tool import tool
from agentgym.tools.reading import cut_to_tokens, places_of
from agentgym.types import Task, ToolCall

_MOST_PLACES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Browser:
    """The state of a text browser: its history and the known addresses."""

    history: tuple[tuple[str, Rendered], ...] = ()
    """Visited addresses with their pages; the last one is the current page."""
    known: frozenset[str] = frozenset()
    """Addresses that links have shown."""

    @property
    def url(self) -> str:
        """The current address; empty at first."""
        return self.history[-1][0] if self.history else ""

    @property
    def page(self) -> Rendered:
        """The current page."""
        return self.history[-1][1] if self.history else Rendered("", ())


class WebBrowseEnv(WorldEnv):
    """Answer questions by browsing: search, follow numbered links, find, go back.

    Pages are shown as text with their links numbered. Questions and arguments are those of ``agentgym/WikiWorld-v0``.
    With ``engine`` the pages are those of the web, and the questions those of a file.

    Args:
        engine: browse the live web: ``searxng``, ``brave``, or ``cassette`` for what was recorded.
        engine_url: address of the SearxNG instance.
        cassette: file of the web's recorded answers; each is asked for once, and played again.
        cassette_mode: ``auto``, ``record`` (ask anew) or ``replay`` (never ask).
        cassette_date: names the state of the web that is recorded or played.
        questions: for the live web, as in :class:`~agentgym.envs.search.searchqa.SearchQAEnv`.
        format: of the questions; by default told from the file.
        others: see :class:`~agentgym.envs.search.world_tasks.WorldEnv`.

    Raises:
        UsageError: the options do not go together.

    Example:
        >>> env = WebBrowseEnv(num_pages=60)
        >>> observation, info = env.reset(options={"task": 1})
        >>> while not (step := env.step(env.oracle()))[2]:
        ...     pass
        >>> step[1]
        1.0
    """

    def __init__(
        self,
        *,
        engine: str = "",
        engine_url: str = "",
        cassette: str = "",
        cassette_mode: str = "auto",
        cassette_date: str = "",
        questions: Paths | None = None,
        format: Format | None = None,
        **others: Any,
    ) -> None:
        web = live_web(engine, engine_url, cassette, cassette_mode, cassette_date)
        if web is None and (questions is not None or format is not None):
            raise UsageError(f"questions of a file are asked of the live web: engine is one of {', '.join(ENGINES)}")
        self.is_live = web is not None and engine != "cassette"
        self._web = None if web is None else web.retriever()
        self._set = None if web is None else question_set(Sources(questions_at(questions), (), format))
        super().__init__(**others)

    def pose(self, task: Task) -> Question:
        if self._web is None or self._set is None:
            return super().pose(task)
        self.retriever = self._web
        # the passages that a data set calls gold are not the web's pages
        return replace(self._set.question(task.id), gold=(), queries=())

    @property
    def task_type(self) -> str:
        """Number of facts between the question's names and the answer; empty for the web."""
        return super().task_type if self._web is None else ""

    def tasks(self, split: str) -> Sequence[Task]:
        """WikiWorld's, or those of the file."""
        return super().tasks(split) if self._set is None else self._set.tasks(split)

    def start(self, task: Task) -> str:
        self.browser = Browser()
        return super().start(task)

    @tool
    async def search(self, query: str) -> str:
        """Search the pages; shows links to those that fit.

        Args:
            query: What to look for: names and other words.
        """
        with boundary(EnvError, "search"):
            if self._web is None:
                hits = self.retriever.search(query, self.max_results)
            else:
                hits = await self._web.asearch(query, self.max_results)
        self.note_search(query, [hit.doc_id for hit in hits])
        return self._go(search_url(query), rendered_results(query, hits, url_of if self._web is None else str))

    @tool
    async def open(self, link: str) -> str:
        """Follow a link.

        Args:
            link: Its number in the page in sight, or an address that a link has shown.
        """
        url = self._target(link.strip())
        if self._web is not None:
            with boundary(EnvError, "open"):
                page = rendered_document(await self._web.adocument(url, with_links=True))
            self.note_page(url)
        else:
            title = title_of(url)
            assert title is not None
            page = rendered_page(self.world.page_of[title], self.world.facts)
            self.note_page(title)
        return self._go(url, page)

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
        places = places_of(text, self.browser.page.text)[:_MOST_PLACES]
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

    # ----------------------------------------------------------------------------------------- beyond Gymnasium's API

    def state_key(self) -> str:
        """Return a digest of the question, the addresses that links have shown, and the current page or results."""
        asked = digest([self.question.text, self.question.gold, self.question.answers])
        url = self.browser.url
        in_sight = self.browser.page.links if query_of(url) is not None else url
        return canonical([asked, self.browser.known, in_sight])

    def dump_state(self) -> Any:
        return super().dump_state(), self.browser

    def load_state(self, state: Any) -> None:
        inner, self.browser = state
        super().load_state(inner)

    def next_call(self) -> ToolCall:
        question, known = self.question, self.browser.known
        if self._web is not None and not self.progress.queries:  # nobody said where the answer is
            return ToolCall("search", {"query": question.text}, "0")
        for title, query in zip(question.gold, question.queries, strict=True):
            if title not in self.progress.read:
                url = url_of(title)
                links = self.browser.page.links
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
            page = self.browser.page
            calls += [ToolCall("open", {"link": str(number)}) for number in range(1, len(page.links) + 1)]
            calls += [ToolCall("answer", {"text": name}) for name in names_in(page.text)]
        if len(self.browser.history) > 1:
            calls.append(ToolCall("back", {}))
        return tuple(format_call(call, self.tools) for call in calls)

    # --------------------------------------------------------------------------------------------------- private

    def _target(self, link: str) -> str:
        if not self.browser.history:
            raise ToolError("no page is open; search first", "nothing_open")
        links = self.browser.page.links
        if link.isdecimal() and len(link) < 10 and 1 <= int(link) <= len(links):
            return links[int(link) - 1]
        if link in self.browser.known:
            return link
        there = f"the links 1 to {len(links)}" if links else "no links"
        raise ToolError(f"no link {link[:80]!r}: this page has {there}", "unknown_link")

    def _go(self, url: str, page: Rendered) -> str:
        visited = (*self.browser.history, (url, page))
        self.browser = replace(self.browser, history=visited, known=self.browser.known | set(page.links))
        return self._shown()

    def _shown(self) -> str:
        return cut_to_tokens(self.browser.page.text, self.budget.page_tokens, self.budget)

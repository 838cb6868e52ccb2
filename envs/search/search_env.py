"""Search, open, find, answer: a retriever's documents, read page by page."""

from __future__ import annotations

import re
from typing import Any

from agentgym.call_syntax import format_call
from agentgym.canonical import canonical, digest
from agentgym.envs.search.question_env import QuestionEnv
from agentgym.errors import EnvError, ToolError, boundary
from agentgym.tool import tool
from agentgym.tools.retrieval.words import STOP_WORDS
from agentgym.tools.search import Reading, SearchTools
from agentgym.types import Task, ToolCall

_NAME = re.compile(r"[A-Z][\w'-]*(?: [A-Z][\w'-]*)*")
_MOST_CHOICES = 12
"""Names in a text, and documents, that a random policy chooses among and an error lists."""


class SearchEnv(SearchTools, QuestionEnv):
    """Questions whose documents are searched, and opened by id.

    Args:
        search_only: offer ``search`` and ``answer`` alone; results then show titles and texts without ids. Episodes
            are shorter, for small models. Documents should fit into a result.
        others: see :class:`QuestionEnv`.
    """

    def __init__(self, *, search_only: bool = False, **others: Any) -> None:
        super().__init__(**others)
        self.search_only = search_only
        if search_only:
            self._tools = {name: known for name, known in type(self)._tools.items() if name not in {"open", "find"}}

    def start(self, task: Task) -> str:
        self.reading, self._opened = Reading(), None
        return super().start(task)

    @tool
    async def search(self, query: str, k: int = 5) -> str:
        """Search for pages by names and other words.

        Args:
            query: What to look for.
            k: How many results to show at most.
        """
        before = set(self.reading.found)
        with boundary(EnvError, "search"):
            said = await super().search(query, min(k, self.max_results))
        self.note_search(query, set(self.reading.found) - before)
        return said

    @tool
    async def open(self, doc_id: str, page: int = 1) -> str:
        """Open a document that a search has shown, one page of it at a time.

        Args:
            doc_id: Its id, as search shows it.
            page: Which page, from 1.
        """
        doc_id = doc_id.strip()
        if doc_id not in self.reading.found:
            raise _not_found(doc_id, self.reading.found)
        with boundary(EnvError, "open"):
            said = await super().open(doc_id, page)
        self.note_page(doc_id)
        return said

    @tool
    async def find(self, text: str) -> str:
        """Find a text in the open page; upper and lower case are the same.

        Args:
            text: A word or phrase.
        """
        with boundary(EnvError, "find"):
            said = await super().find(text)
        self.pay_call()
        return said

    # ----------------------------------------------------------------------------------------- beyond Gymnasium's API

    def state_key(self) -> str:
        """Return the question, the documents that any queries found, and the open document and page."""
        question, reading = self.question, self.reading
        asked = digest([question.text, question.gold, question.answers])
        return canonical([asked, reading.found, reading.doc_id, reading.page])

    def dump_state(self) -> object:
        return super().dump_state(), self.reading

    def load_state(self, state: Any) -> None:
        inner, self.reading = state
        self._opened = None
        super().load_state(inner)

    def next_call(self) -> ToolCall:
        question = self.question
        for doc_id, query in zip(question.gold, question.queries, strict=True):
            if doc_id not in (self.reading.found if self.search_only else self.progress.read):
                if doc_id in self.reading.found:
                    return ToolCall("open", {"doc_id": doc_id}, "0")
                return ToolCall("search", {"query": self.query_for(doc_id, query)}, "0")
        return ToolCall("answer", {"text": question.answers[0]}, "0")

    def admissible_actions(self) -> tuple[str, ...]:
        """Searches for the names in sight, documents that were found, and names in the open one as answers."""
        seen = self.reading.found if self.search_only else filter(None, (self.reading.doc_id,))
        read = tuple(dict.fromkeys(name for doc in seen for name in names_in(self.retriever.document(doc).text)))
        queries = dict.fromkeys((self.question.text, *names_in(self.question.text), *read))
        calls = [ToolCall("search", {"query": query}) for query in queries]
        if not self.search_only:
            calls += [ToolCall("open", {"doc_id": doc_id}) for doc_id in self.reading.found[:_MOST_CHOICES]]
        calls += [ToolCall("answer", {"text": name}) for name in read]
        return tuple(format_call(call, self.tools) for call in calls)


def names_in(text: str) -> tuple[str, ...]:
    """Return the first runs of capitalised words in a text.

    Example:
        >>> names_in("Who is the mayor of Tolan Bay? The mayor is Mira Kesh.")
        ('Tolan Bay', 'Mira Kesh')
    """
    names = (name for name in _NAME.findall(text) if name.lower() not in STOP_WORDS)
    return tuple(dict.fromkeys(names))[:_MOST_CHOICES]


def _not_found(doc_id: str, found: tuple[str, ...]) -> ToolError:
    shown = ", ".join(found[:_MOST_CHOICES])
    there = f"searches have shown: {shown}" if shown else "search first"
    return ToolError(f"no document {doc_id[:80]!r} among what searches have shown; {there}", "unknown_document")

"""Search, open, find, answer: a retriever's documents read page by page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from agentgym.call_syntax import format_call
from agentgym.canonical import canonical, digest
from agentgym.envs.search.question_env import QuestionEnv, Reading
from agentgym.envs.search.reading import cut, sentences_with, split_pages
from agentgym.errors import ToolError
from agentgym.tool import tool
from agentgym.tools.retrieval.types import Document
from agentgym.tools.retrieval.words import STOP_WORDS
from agentgym.types import ToolCall

_NAME = re.compile(r"[A-Z][\w'-]*(?: [A-Z][\w'-]*)*")
_MOST_CHOICES = 12
"""Names in a text, and documents, that a random policy chooses among and an error lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedReading(Reading):
    """Reading in parts."""

    part: int = 1
    """Which part of the open document is shown, from 1."""


class SearchEnv(QuestionEnv):
    """Questions whose documents are searched, and opened by id. Arguments are those of :class:`QuestionEnv`."""

    @property
    def reading(self) -> PagedReading:
        """How far the current episode has come."""
        assert isinstance(self._reading, PagedReading)
        return self._reading

    def first_reading(self) -> PagedReading:
        return PagedReading()

    @tool
    def search(self, query: str, k: int = 5) -> str:
        """Search for pages.

        Args:
            query: What to look for: names and other words.
            k: How many results to show at most.
        """
        hits = self.ranked(query, k)
        seen = tuple(dict.fromkeys((*self._reading.seen, *(hit.doc_id for hit in hits))))
        self._reading = replace(self._reading, seen=seen)
        return "\n".join(self._result(hit.doc_id, hit.title, hit.snippet) for hit in hits) or "No results."

    @tool
    def open(self, doc_id: str, page: int = 1) -> str:
        """Open a page that a search has shown.

        Args:
            doc_id: What stands in square brackets before a result.
            page: Which part of a long page to show.
        """
        document = self.document(self._known_id(doc_id.strip()))
        parts = split_pages(document.text, self.page_tokens)
        if not 1 <= page <= len(parts):
            raise ToolError(f"[{document.id}] has the parts 1 to {len(parts)}, not {page}", "invalid_arguments")
        self.pay_call()
        self._reading = replace(self.reading, opened=document.id, part=page, read=self._reading.read | {document.id})
        return _shown(document, parts, page)

    @tool
    def find(self, text: str) -> str:
        """Find a text in the open page, in all its parts.

        Args:
            text: The words as they stand there.
        """
        if self._reading.opened is None:
            raise ToolError("no page is open; open one that a search has shown", "no_page")
        if not text.strip():
            raise ToolError("the text is empty; give words to find", "invalid_arguments")
        self.pay_call()
        parts = split_pages(self.document(self._reading.opened).text, self.page_tokens)
        found = [
            f"(part {at}) {line}" for at, part in enumerate(parts, 1) for line in sentences_with(part, text.strip())
        ]
        return cut("\n".join(found), self.page_tokens) or f"{cut(text.strip(), 16)!r} is not on this page."

    # ----------------------------------------------------------------------------------------- beside gymnasium's

    def state_key(self) -> str:
        """The question, the documents that were found, by whatever queries, and what is open."""
        reading, question = self.reading, self.question
        asked = digest([question.text, question.gold, question.answers])
        return canonical([asked, sorted(reading.seen), reading.opened, reading.part])

    def next_call(self) -> ToolCall:
        question, reading = self.question, self._reading
        for doc_id, query in zip(question.gold, question.queries, strict=True):
            if doc_id not in reading.read:
                if doc_id in reading.seen:
                    return ToolCall("open", {"doc_id": doc_id}, "0")
                return ToolCall("search", {"query": self.query_for(doc_id, query)}, "0")
        return ToolCall("answer", {"text": question.answers[0]}, "0")

    def admissible_actions(self) -> tuple[str, ...]:
        """Searches for the names in sight, pages that were found, and names on the open page as answers."""
        read = () if self._reading.opened is None else names_in(self.document(self._reading.opened).text)
        queries = dict.fromkeys((self.question.text, *names_in(self.question.text), *read))
        calls = [ToolCall("search", {"query": query}) for query in queries]
        calls += [ToolCall("open", {"doc_id": doc_id}) for doc_id in self._reading.seen[-_MOST_CHOICES:]]
        calls += [ToolCall("answer", {"text": name}) for name in read]
        return tuple(format_call(call, self.tools) for call in calls)

    # --------------------------------------------------------------------------------------------------- private

    def _known_id(self, doc_id: str) -> str:
        if doc_id in self._reading.seen:
            return doc_id
        shown = ", ".join(f"[{name}]" for name in self._reading.seen[-_MOST_CHOICES:])
        there = f"searches have shown {shown}" if shown else "search first"
        raise ToolError(f"no page {doc_id[:80]!r} among what searches have shown: {there}", "unknown_document")

    def _result(self, doc_id: str, title: str, snippet: str) -> str:
        head = f"[{doc_id}]" if doc_id == title else f"[{doc_id}] {title}:"
        return f"{head} {cut(snippet, self.snippet_tokens)}"


def names_in(text: str) -> tuple[str, ...]:
    """Runs of words with capitals, as they stand, the first of them in a text.

    Example:
        >>> names_in("Who is the mayor of Tolan Bay? The mayor is Mira Kesh.")
        ('Tolan Bay', 'Mira Kesh')
    """
    names = (name for name in _NAME.findall(text) if name.lower() not in STOP_WORDS)
    return tuple(dict.fromkeys(names))[:_MOST_CHOICES]


def _shown(document: Document, parts: Sequence[str], part: int) -> str:
    head = f"{document.title}\n" if document.title else ""
    more = f"\n(part {part} of {len(parts)})" if len(parts) > 1 else ""
    return f"{head}{parts[part - 1]}{more}"

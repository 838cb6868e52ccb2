"""Questions that are answered by searching, opening, reading: what all search worlds share."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from agentgym.call_syntax import format_call
from agentgym.canonical import canonical, digest
from agentgym.envs.search.answers import Metric, check_metric, score
from agentgym.envs.search.question import Question
from agentgym.envs.search.reading import cut, sentences_with, split_pages
from agentgym.errors import EnvError, ResetNeededError, ToolError, UsageError, boundary, unknown_name
from agentgym.tool import tool
from agentgym.tool_env import ToolEnv
from agentgym.tools.retrieval.types import Document, Retriever
from agentgym.types import Message, Observation, RewardRole, Task, ToolCall

_NAME = re.compile(r"[^\W\d_]*[A-Z][\w'-]*(?: [A-Z][\w'-]*)*")
_MOST_CHOICES = 12
"""Names in a text that a random policy chooses among."""
INSTRUCTIONS = "Answer the question in as few words as possible. Search and read first."


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRewards:
    """What parts of the reward beside the answer's are worth, all 0 or more; costs are taken off."""

    gold_retrieved: float = 0.0
    """Process: shared by the pages that hold the answer, each paid when a search first shows it."""
    invalid_turn: float = 0.0
    """Format: what a turn without a call, or with a refused one, costs."""
    tool_call: float = 0.0
    """Cost: what every search, page and find costs."""

    @staticmethod
    def of(values: Mapping[str, float] | None) -> SearchRewards:
        """Defaults with some values replaced, by name.

        Raises:
            UsageError: an unknown name or a negative value.
        """
        known = [item.name for item in fields(SearchRewards)]
        for name, value in (values or {}).items():
            if name not in known:
                raise unknown_name("reward", name, known)
            if value < 0:
                raise UsageError(f"rewards: {name} must be at least 0, got {value}; costs are taken off")
        return SearchRewards(**(values or {}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How far an agent has come; the changing part of an episode."""

    retrieved: tuple[str, ...] = ()
    """Ids of the documents that searches have shown, in the order they were first seen."""
    opened: str | None = None
    """The document that is open."""
    page: int = 1
    """Its page, from 1."""
    read: frozenset[str] = frozenset()
    """Documents that were open at some time."""
    queries: frozenset[str] = frozenset()
    """What was searched for, in small letters."""
    num_repeated_queries: int = 0
    num_void_turns: int = 0


class SearchEnv(ToolEnv):
    """Search, open, find and answer. Subclasses say where questions come from and what is searched.

    The parts of the reward: ``answer`` (outcome), ``gold_retrieved`` (process), ``invalid_turn`` (format) and
    ``tool_call`` (cost). ``info`` counts ``num_void_turns`` and ``num_repeated_queries`` of the episode so far.

    Args:
        outcome: how an answer is graded: ``em``, ``f1`` or ``cover_em`` (:mod:`agentgym.envs.search.answers`).
        rewards: values of :class:`SearchRewards` by name, where they are to differ from the defaults.
        max_results: results that a search shows at most.
        snippet_tokens: length of a result's text, in tokens by estimate.
        page_tokens: length of a page.
        max_turns: turns after which an episode is truncated.
    """

    def __init__(
        self,
        *,
        outcome: Metric = "em",
        rewards: Mapping[str, float] | None = None,
        max_results: int = 5,
        snippet_tokens: int = 64,
        page_tokens: int = 256,
        max_turns: int = 12,
        render_mode: str | None = None,
    ) -> None:
        check_metric(outcome)
        for name, value in (("max_results", max_results), ("snippet_tokens", snippet_tokens), ("page_tokens", page_tokens)):
            if value < 1:
                raise UsageError(f"{name} must be at least 1, got {value}")
        self.outcome: Metric = outcome
        self.rewards = SearchRewards.of(rewards)
        self.max_results, self.snippet_tokens, self.page_tokens = max_results, snippet_tokens, page_tokens
        self._question: Question | None = None
        self._reading = Reading()
        super().__init__(max_turns=max_turns, render_mode=render_mode)

    # ------------------------------------------------------------------------------------ what subclasses implement

    @abstractmethod
    def pose(self, task: Task) -> Question:
        """The question of a task, a function of the task; what is searched for it is :attr:`retriever` from now on."""

    @property
    @abstractmethod
    def retriever(self) -> Retriever:
        """What this episode searches."""

    # ------------------------------------------------------------------------------------------------- an episode

    def start(self, task: Task) -> str:
        self._question, self._reading = self.pose(task), Reading()
        return f"{INSTRUCTIONS}\nQuestion: {self.question.text}"

    @property
    def question(self) -> Question:
        """The question of the current episode, with what the agent must not see."""
        if self._question is None:
            raise ResetNeededError(f"{self.env_id}: no question before reset()")
        return self._question

    @property
    def reading(self) -> Reading:
        """How far the current episode has come."""
        return self._reading

    @tool
    def search(self, query: str, k: int = 5) -> str:
        """Search for pages.

        Args:
            query: What to look for: names and other words.
            k: How many results to show at most.
        """
        if not query.strip():
            raise ToolError("the query is empty; give names or words to look for", "invalid_query")
        if k < 1:
            raise ToolError(f"k must be at least 1, got {k}", "invalid_arguments")
        with boundary(EnvError, "search"):
            hits = self.retriever.search(query, min(k, self.max_results))
        self._note_query(query)
        self._note_results([hit.doc_id for hit in hits])
        return "\n".join(self._result(hit.doc_id, hit.title, hit.snippet) for hit in hits) or "No results."

    @tool
    def open(self, doc_id: str, page: int = 1) -> str:
        """Open a page that a search has shown.

        Args:
            doc_id: What stands in square brackets before a result.
            page: Which part of a long page to show.
        """
        wanted = self._known_id(doc_id.strip())
        document = self._document(wanted)
        pages = split_pages(document.text, self.page_tokens)
        if not 1 <= page <= len(pages):
            raise ToolError(f"[{wanted}] has the pages 1 to {len(pages)}, not {page}", "invalid_arguments")
        self._pay_call()
        self._reading = replace(self._reading, opened=wanted, page=page, read=self._reading.read | {wanted})
        return self._shown(document, pages)

    @tool
    def find(self, text: str) -> str:
        """Find a text in the open page, all its parts.

        Args:
            text: The words as they stand there.
        """
        if self._reading.opened is None:
            raise ToolError("no page is open; open one that a search has shown", "no_page")
        if not text.strip():
            raise ToolError("the text is empty; give words to find", "invalid_arguments")
        self._pay_call()
        pages = split_pages(self._document(self._reading.opened).text, self.page_tokens)
        found = [
            f"(part {number}) {sentence}"
            for number, page in enumerate(pages, 1)
            for sentence in sentences_with(page, text.strip())
        ]
        return cut("\n".join(found), self.page_tokens) or f"{cut(text.strip(), 16)!r} is not on this page."

    @tool
    def answer(self, text: str) -> str:
        """Give the answer, which ends the episode.

        Args:
            text: The answer alone, in as few words as possible.
        """
        self.finish(score(text, self.question.answers, self.outcome))
        return "The answer is noted."

    def no_call(self, action: Message) -> str:
        self._reading = replace(self._reading, num_void_turns=self._reading.num_void_turns + 1)
        return super().no_call(action)

    # ----------------------------------------------------------------------------------------- beside gymnasium's

    def state_key(self) -> str:
        """The question, the documents that were found, by whatever queries, and what is open."""
        reading = self._reading
        question = digest([self.question.text, self.question.gold])
        return canonical([question, sorted(reading.retrieved), reading.opened, reading.page])

    def dump_state(self) -> Any:
        return self.question, self._reading

    def load_state(self, state: Any) -> None:
        self.pose(self.task)
        self._question, self._reading = state

    def oracle(self) -> Message:
        """Search for every page that holds a part of the answer, open it, then answer."""
        return self.message_of(self._next_call())

    def message_of(self, call: ToolCall) -> Message:
        """A call as the assistant message that makes it."""
        return Message("assistant", format_call(call, self.tools), (call,))

    def admissible_actions(self) -> tuple[str, ...]:
        """Searches for the names that are in sight, pages that were found, and names on the open page as answers."""
        asked = _names_in(self.question.text)
        read = [] if self._reading.opened is None else _names_in(self._document(self._reading.opened).text)
        calls = [ToolCall("search", {"query": name}) for name in dict.fromkeys((*asked, *read))]
        calls += [ToolCall("open", {"doc_id": name}) for name in self._reading.retrieved[-_MOST_CHOICES:]]
        calls += [ToolCall("answer", {"text": name}) for name in read]
        return tuple(format_call(call, self.tools) for call in calls)

    def cheats(self) -> Mapping[str, Sequence[Message]]:
        """Answers that say much, or nothing; with ``cover_em`` and ``f1`` the first are paid by definition."""
        if self.outcome != "em":
            return {}
        everything = " ".join((self.question.text, *self.question.gold, *self.question.answers))
        texts = {"say all": everything, "say nothing": "", "say an article": "the", "repeat": self.question.text}
        return {name: (self.message_of(ToolCall("answer", {"text": text})),) for name, text in texts.items()}

    # --------------------------------------------------------------------------------------------------- private

    def _leave(self, said: str | Observation) -> Any:
        if not self._is_turn_valid and self.rewards.invalid_turn:
            self.award(-self.rewards.invalid_turn, "invalid_turn", RewardRole.FORMAT)
        step = super()._leave(said)
        counts = asdict(self._reading)
        step[4].update({name: counts[name] for name in ("num_void_turns", "num_repeated_queries")})
        return step

    def _next_call(self) -> ToolCall:
        question, reading = self.question, self._reading
        for doc_id, query in zip(question.gold, question.queries, strict=True):
            if doc_id in reading.read:
                continue
            if doc_id in reading.retrieved:
                return ToolCall("open", {"doc_id": doc_id}, "0")
            return ToolCall("search", {"query": self._query_for(doc_id, query)}, "0")
        return ToolCall("answer", {"text": question.answers[0]}, "0")

    def _query_for(self, doc_id: str, query: str) -> str:
        """The plan's query if it finds the document, else one made of more of what it says."""
        document = self._document(doc_id)
        queries = (query, f"{query} {document.title}", document.title, f"{document.title} {document.text[:300]}")
        for tried in queries:
            with boundary(EnvError, "search"):
                hits = self.retriever.search(tried, self.max_results)
            if any(hit.doc_id == doc_id for hit in hits):
                return tried
        return query

    def _known_id(self, doc_id: str) -> str:
        if doc_id in self._reading.retrieved:
            return doc_id
        shown = ", ".join(f"[{name}]" for name in self._reading.retrieved[-_MOST_CHOICES:])
        there = f"searches have shown {shown}" if shown else "search first"
        raise ToolError(f"no page {doc_id[:80]!r} among what searches have shown: {there}", "unknown_document")

    def _document(self, doc_id: str) -> Document:
        with boundary(EnvError, "open"):
            return self.retriever.document(doc_id)

    def _note_query(self, query: str) -> None:
        self._pay_call()
        words = " ".join(query.lower().split())
        num_repeated = self._reading.num_repeated_queries + (words in self._reading.queries)
        self._reading = replace(
            self._reading, queries=self._reading.queries | {words}, num_repeated_queries=num_repeated
        )

    def _note_results(self, doc_ids: Sequence[str]) -> None:
        before, gold = self._reading.retrieved, set(self.question.gold)
        retrieved = tuple(dict.fromkeys((*before, *doc_ids)))
        num_new = len(gold & set(retrieved)) - len(gold & set(before))
        if num_new and self.rewards.gold_retrieved:
            self.award(self.rewards.gold_retrieved * num_new / len(gold), "gold_retrieved", RewardRole.PROCESS)
        self._reading = replace(self._reading, retrieved=retrieved)

    def _pay_call(self) -> None:
        if self.rewards.tool_call:
            self.award(-self.rewards.tool_call, "tool_call", RewardRole.COST)

    def _result(self, doc_id: str, title: str, snippet: str) -> str:
        head = f"[{doc_id}]" if doc_id == title else f"[{doc_id}] {title}:"
        return f"{head} {cut(snippet, self.snippet_tokens)}"

    def _shown(self, document: Document, pages: Sequence[str]) -> str:
        page = self._reading.page
        head = f"{document.title}\n" if document.title else ""
        more = f"\n(part {page} of {len(pages)})" if len(pages) > 1 else ""
        return f"{head}{pages[page - 1]}{more}"


def _names_in(text: str) -> tuple[str, ...]:
    """Runs of words with capitals, as they stand."""
    return tuple(dict.fromkeys(_NAME.findall(text)))[:_MOST_CHOICES]

"""Base of all search environments: questions that are answered by looking things up, whatever the tools."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from agentgym.call_syntax import format_call
from agentgym.env.env import TypedStep
from agentgym.env.tool_env import ToolEnv
from agentgym.envs.search.question import Question
from agentgym.envs.since_reset import SinceReset
from agentgym.errors import UsageError, require_known
from agentgym.scoring.text import Metric, check_metric, score
from agentgym.settings import Range, check_number
from agentgym.tool import tool
from agentgym.tools.reading import Budget
from agentgym.tools.retrieval.types import Retriever
from agentgym.tools.search import MAX_RESULTS
from agentgym.types import Message, Observation, RewardRole, Task, ToolCall

INSTRUCTIONS = "Answer the question in as few words as possible. Search and read first."


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRewards:
    """Values of the reward's parts besides the answer's, all at least 0; costs are subtracted."""

    gold_retrieved: float = 0.0
    """Process reward, split equally among the gold pages; each share is paid when a search first shows its page."""
    invalid_turn: float = 0.0
    """Format: cost of a turn without a call or with a refused call."""
    tool_call: float = 0.0
    """Cost of every search, opened page and find."""

    @staticmethod
    def of(values: Mapping[str, float] | None) -> SearchRewards:
        """Return the defaults with some values replaced, by name.

        Raises:
            UsageError: an unknown name or a negative value.
        """
        known = [item.name for item in fields(SearchRewards)]
        for name, value in (values or {}).items():
            require_known("reward", name, known)
            if value < 0:
                raise UsageError(f"rewards: {name} must be at least 0, got {value}; costs are taken off")
        return SearchRewards(**(values or {}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Counters of an episode, and the documents it has read."""

    read: frozenset[str] = frozenset()
    """Ids of documents that the agent has opened."""
    gold_found: frozenset[str] = frozenset()
    """Ids of gold documents that a search has shown."""
    queries: frozenset[str] = frozenset()
    """The queries so far, in lower case."""
    num_repeated_queries: int = 0
    num_void_turns: int = 0


class QuestionEnv(ToolEnv):
    """A question, tools to look things up, and an answer. Subclasses define the questions and the tools.

    The parts of the reward: ``answer`` (outcome), ``gold_retrieved`` (process), ``invalid_turn`` (format) and
    ``tool_call`` (cost). ``info`` counts ``num_void_turns`` and ``num_repeated_queries`` of the episode so far.

    Args:
        outcome: metric that grades an answer: ``em``, ``f1`` or ``cover_em`` (:mod:`agentgym.scoring.text`).
        rewards: values of :class:`SearchRewards` by name, to replace defaults.
        max_results: largest number of results of a search.
        result_tokens: estimated tokens of a search's results; longer results are truncated with a mark.
        page_tokens: estimated tokens of one page of a document.
        max_turns: turns after which an episode is truncated.
    """

    retriever: Retriever
    """The retriever that the current episode searches."""
    question = SinceReset[Question]()
    """The question of the current episode, with answers that the agent must not see."""

    def __init__(
        self,
        *,
        outcome: Metric = "em",
        rewards: Mapping[str, float] | None = None,
        max_results: int = 5,
        result_tokens: int = 400,
        page_tokens: int = 400,
        max_turns: int = 12,
        render_mode: str | None = None,
    ) -> None:
        check_metric(outcome)
        check_number("max_results", max_results, Range(at_least=1, at_most=MAX_RESULTS))
        self.outcome: Metric = outcome
        self.rewards = SearchRewards.of(rewards)
        self.max_results = max_results
        self.budget = Budget(result_tokens, page_tokens)
        self.progress = Progress()
        super().__init__(max_turns=max_turns, render_mode=render_mode)

    # ------------------------------------------------------------------------------------ methods to implement

    @abstractmethod
    def pose(self, task: Task) -> Question:
        """Return a task's question, a function of the task, and set :attr:`retriever` to its documents."""

    @abstractmethod
    def next_call(self) -> ToolCall:
        """Return the next call of the gold policy."""

    # ------------------------------------------------------------------------------------------------- an episode

    def start(self, task: Task) -> str:
        self.question, self.progress = self.pose(task), Progress()
        return f"{INSTRUCTIONS}\nQuestion: {self.question.text}"

    @tool
    def answer(self, text: str) -> str:
        """Give the answer, which ends the episode.

        Args:
            text: The answer alone, in as few words as possible.
        """
        self.award(score(text, self.question.answers, self.outcome), "answer")
        self.finish()
        return "The answer is noted."

    def no_call(self, action: Message) -> str:
        self.progress = replace(self.progress, num_void_turns=self.progress.num_void_turns + 1)
        return super().no_call(action)

    # ---------------------------------------------------------------------------------------- what subclasses call

    def note_search(self, query: str, doc_ids: Iterable[str]) -> None:
        """Record a search: charge its cost, count a repeated query, and reward gold documents that it shows first."""
        self.pay_call()
        words, done = " ".join(query.lower().split()), self.progress
        gold = set(self.question.gold)
        found = done.gold_found | (gold & set(doc_ids))
        if len(found) > len(done.gold_found) and self.rewards.gold_retrieved:
            share = (len(found) - len(done.gold_found)) / len(gold)
            self.award(self.rewards.gold_retrieved * share, "gold_retrieved", RewardRole.PROCESS)
        self.progress = replace(
            done,
            gold_found=found,
            queries=done.queries | {words},
            num_repeated_queries=done.num_repeated_queries + (words in done.queries),
        )

    def note_page(self, doc_id: str) -> None:
        """Record a document that the agent opened, and charge its cost."""
        self.pay_call()
        self.progress = replace(self.progress, read=self.progress.read | {doc_id})

    def pay_call(self) -> None:
        """Subtract the cost of a call."""
        if self.rewards.tool_call:
            self.award(-self.rewards.tool_call, "tool_call", RewardRole.COST)

    def query_for(self, doc_id: str, query: str) -> str:
        """Return the gold plan's query if it finds the document, else one with more of the document's words."""
        document = self.retriever.document(doc_id)
        queries = (query, f"{query} {document.title}", document.title, f"{document.title} {document.text[:300]}")
        return next((tried for tried in queries if self._finds(tried, doc_id)), query)

    # ----------------------------------------------------------------------------------------- beyond Gymnasium's API

    def own_info(self) -> Mapping[str, object]:
        progress = self.progress
        return {
            "num_void_turns": progress.num_void_turns,
            "num_repeated_queries": progress.num_repeated_queries,
        }

    def dump_state(self) -> object:
        return self.question, self.progress

    def load_state(self, state: Any) -> None:
        self.pose(self.task)
        self.question, self.progress = state

    def oracle(self) -> Message:
        """Look up every page that holds a part of the answer, then answer."""
        return self.message_of(self.next_call())

    def message_of(self, call: ToolCall) -> Message:
        """Return the assistant message that makes a call."""
        return Message("assistant", format_call(call, self.tools), (call,))

    def cheats(self) -> Mapping[str, Sequence[Message]]:
        """Answers that say much, or nothing; with ``cover_em`` and ``f1`` saying much is paid by definition."""
        if self.outcome != "em":
            return {}
        everything = " ".join((self.question.text, *self.question.gold, *self.question.answers))
        texts = {"say all": everything, "say nothing": "", "say an article": "the", "repeat": self.question.text}
        return {name: (self.message_of(ToolCall("answer", {"text": text})),) for name, text in texts.items()}

    # --------------------------------------------------------------------------------------------------- private

    def _leave(self, said: str | Observation) -> TypedStep:
        if not self.episode.is_turn_valid and self.rewards.invalid_turn:
            self.award(-self.rewards.invalid_turn, "invalid_turn", RewardRole.FORMAT)
        return super()._leave(said)

    def _finds(self, query: str, doc_id: str) -> bool:
        return any(hit.doc_id == doc_id for hit in self.retriever.search(query, self.max_results))

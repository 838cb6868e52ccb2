"""``agentgym/WikiSelfPlay-v0``: ask questions about a made encyclopedia, and answer them, by search.

Source: "Search Self-play: Pushing the Frontier of Agent Capability without Supervision" (arXiv 2510.18821).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentgym.call_syntax import format_call
from agentgym.env.tasks import SeededTasks
from agentgym.envs.search.question import Question
from agentgym.envs.search.question_env import INSTRUCTIONS, Progress
from agentgym.envs.search.search_env import SearchEnv, names_in
from agentgym.envs.search.world import MAX_HOPS, ask, world_seed_of
from agentgym.envs.search.world_tasks import WorldEnv
from agentgym.envs.selfplay.roles import PROPOSER, SelfPlayEnv
from agentgym.envs.selfplay.wiki_questions import REASONS, Proposal, Terms, flaw_of, read_question
from agentgym.errors import UsageError
from agentgym.scoring.text import score
from agentgym.settings import Range, check_number
from agentgym.tool import tool
from agentgym.tools.search import Reading
from agentgym.types import Message, Observation, Task, ToolCall

_MOST_PROPOSALS = 12


class WikiSelfPlayEnv(SelfPlayEnv, WorldEnv, SearchEnv):
    """Propose a question about an encyclopedia, in the other role answer it, and search in both.

    The proposer gets the title of a page. It searches and reads, and proposes a question with its answer and the pages
    that show it. The way to the answer must pass the given page. A rule checks the proposal
    (:mod:`agentgym.envs.selfplay.wiki_questions`). The solver gets the question alone, searches, and answers.

    Args:
        max_hops: largest number of hops of a proposed question, 1 to 4.
        hops: hops of the oracle's questions, and so of all questions with ``opponent=oracle``.
        others: see :class:`~agentgym.envs.selfplay.roles.SelfPlayEnv` and
            :class:`~agentgym.envs.search.wikiworld.WikiWorldEnv`; ``rewards`` is not supported.

    Raises:
        UsageError: a value is out of range, or ``rewards`` is given.

    Example:
        >>> env = WikiSelfPlayEnv(num_pages=60)
        >>> observation, info = env.reset(options={"task": 1})
        >>> while not (step := env.step(env.oracle()))[2]:
        ...     pass
        >>> step[4]["proposal"], env.parts_of(0)[0].value, env.parts_of(1)[0].value
        ('valid', 0.0, 1.0)
    """

    def __init__(self, *, max_hops: int = MAX_HOPS, **others: Any) -> None:
        check_number("max_hops", max_hops, Range(at_least=1, at_most=MAX_HOPS))
        if others.get("rewards"):
            raise UsageError("rewards: WikiSelfPlay pays for results alone; WikiWorld-v0 has rewards for single steps")
        self.max_hops = max_hops
        super().__init__(**others)

    # ------------------------------------------------------------------------------------------------- an episode

    def start(self, task: Task) -> Observation:  # type: ignore[override]  # both are what the contract allows
        super().start(task)
        if self.num_players > 1:  # the proposer knows the page's title, while the question may use another name
            self.question = replace(self.question, queries=(self.topic, *self.question.queries[1:]))
        return self.begin(
            f"Propose a question whose answer is hard to find, for a solver who searches, too. Search and read first. "
            f"The way to the answer must pass the page {self.topic}. "
            f'Questions read: "Who is the mayor of the birthplace of NAME?" Give the answer and all pages that show it.'
        )

    @property
    def topic(self) -> str:
        """Title of the page that the proposer is given."""
        return self.world.question(self.task.seed).gold[0]

    @tool
    def propose(self, question: str, answer: str, pages: list[str]) -> str:
        """Propose a question, which ends your part.

        Args:
            question: The question, which does not contain the answer.
            answer: Its answer alone.
            pages: Ids of the pages that hold all facts on the way to the answer.
        """
        proposal = Proposal(question=" ".join(question.split()), answer=answer, pages=tuple(pages))
        terms = Terms(topic=self.topic, found=self.reading.found, max_hops=self.max_hops)
        if flaw := flaw_of(self.world, proposal, terms):
            self.reject(flaw)
            return f"The proposal is invalid: {REASONS[flaw]}."
        self._pose_to_solver(proposal.question)
        self.accept()
        return "The question is valid and goes to the solver."

    @tool
    def answer(self, text: str) -> str:
        """Give the answer, which ends the episode.

        Args:
            text: The answer alone, in as few words as possible.
        """
        self.settle(score(text, self.question.answers, self.outcome))
        return "The answer is noted."

    def task_for_solver(self) -> str:
        return f"{INSTRUCTIONS}\nQuestion: {self.question.text}"

    def _pose_to_solver(self, text: str) -> None:
        chain = read_question(self.world, text)
        assert not isinstance(chain, str)
        known = ask(self.world.facts, chain)
        self.question = Question(text, known.answers, known.gold, known.queries)
        self.reading, self.progress, self._opened = Reading(), Progress(), None

    # ----------------------------------------------------------------------------------------- beyond Gymnasium's API

    def tasks(self, split: str) -> Sequence[Task]:
        """1,000,000 pages to ask about for training, 1,000 to validate, 1,000 to test; no world is in two splits.

        Tasks hold no answers, since the question is not yet asked.
        """
        return SeededTasks(split, 1_000_000 if split == "train" else 1_000, self._data_of)

    def dump_state(self) -> object:
        return super().dump_state(), self.match

    def load_state(self, state: Any) -> None:
        inner, self.match = state
        super().load_state(inner)

    def next_call(self) -> ToolCall:
        call = super().next_call()
        if self.player != PROPOSER or call.name != "answer":
            return call
        return ToolCall("propose", self._good_proposal(), "0")

    def admissible_actions(self) -> tuple[str, ...]:
        """Searches, pages to open, and questions about pages that were found, or answers."""
        found = [call for call in super().admissible_actions() if self.player != PROPOSER or _name(call) != "answer"]
        if self.player != PROPOSER:
            return tuple(found)
        searches = dict.fromkeys(
            format_call(ToolCall("search", {"query": name}), self.tools)
            for name in (self.topic, *(name for doc in self.reading.found for name in names_in(doc)))
        )
        calls = [call for call in found if _name(call) not in ("answer", "search")]
        return (*searches, *calls, *(format_call(call, self.tools) for call in self._some_proposals()))

    def cheats(self) -> Mapping[str, Sequence[Message]]:
        """Proposals that break a rule, and a proposer that answers its own question; against the oracle WikiWorld's."""
        if self.num_players == 1:
            return super().cheats()
        question, good = self.question, self._good_proposal()
        search = self.message_of(*(ToolCall("search", {"query": query}) for query in question.queries))
        spoilt: dict[str, dict[str, Any]] = {
            "ask for nothing": {"question": "What is it?"},
            "say the answer": {"question": f"Who is {question.answers[0]}?"},
            "name an unseen page": {"pages": ["Nowhere"]},
            "name no page": {"pages": []},
            "name another answer": {"answer": self.topic},
        }
        alone = {
            name: (search, self.message_of(ToolCall("propose", {**good, **change}))) for name, change in spoilt.items()
        }
        both = self.message_of(ToolCall("propose", good, "0"), ToolCall("answer", {"text": question.answers[0]}, "1"))
        return {**alone, "answer one's own question": (search, both)}

    # --------------------------------------------------------------------------------------------------- private

    def _data_of(self, seed: int) -> Mapping[str, object]:
        return {**self.difficulty.as_data(), "world": world_seed_of(self.difficulty, seed)}

    def _good_proposal(self) -> dict[str, Any]:
        question = self.question
        return {"question": question.text, "answer": self._shown_answer(), "pages": list(question.gold)}

    def _shown_answer(self) -> str:
        """Return the answer as the last page of the gold plan writes it."""
        text = self.world.page_of[self.question.gold[-1]].text
        return next((name for name in self.question.answers if name in text), self.question.answers[0])

    def _some_proposals(self) -> Sequence[ToolCall]:
        """Return questions of one hop about pages that were found, with names on them as answers."""
        calls = [
            ToolCall("propose", {"question": f"What is the {relation} of {doc}?", "answer": name, "pages": [doc]})
            for doc in self.reading.found
            for relation in self.difficulty.relations
            if f"The {relation} is " in (text := self.world.page_of[doc].text)
            for name in names_in(text)[-1:]
        ]
        return calls[:_MOST_PROPOSALS]


def _name(call: str) -> str:
    return call.partition(":")[0]

"""Search, open, find and answer: what they show, what they refuse, what they pay, and what is remembered."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentgym.envs.search.question import Question
from agentgym.envs.search.search_env import SearchEnv
from agentgym.errors import EnvError, ToolError
from agentgym.tools.reading import estimated_tokens
from agentgym.tools.retrieval.memory import MemoryRetriever
from agentgym.tools.retrieval.types import Document, Hit
from agentgym.types import Message, RewardPart, RewardRole, Task, ToolCall

LILU = "Lilu is a demon of the night. " + "Many tales are told of it. " * 30 + "Its sister is Gallu."
DOCUMENTS = (
    Document("d1", "Lilu", LILU),
    Document("d2", "Gallu", "Gallu is a demon. It lives in Kur, the land of the dead."),
    Document("d3", "Kur", "Kur is the land of the dead."),
    Document("d4", "Anu", "Anu is a god. He rules the sky."),
)
QUESTION = Question(
    "Where does the sister of Lilu live?", ("Kur", "the land of the dead"), ("d1", "d2"), ("Lilu", "Gallu")
)


VOID = Message("assistant", "Let me think.")


class Flaky(MemoryRetriever):
    """Fails where it is told to."""

    failure: Exception | None = None

    def search(self, query: str, k: int) -> tuple[Hit, ...]:
        if self.failure is not None:
            raise self.failure
        return super().search(query, k)


class Demons(SearchEnv):
    """One question about demons."""

    corpus = Flaky(DOCUMENTS)

    def pose(self, task: Task) -> Question:
        self.retriever = self.corpus
        return QUESTION


def demons(**kwargs: Any) -> Demons:
    env = Demons(**kwargs)
    env.reset(seed=0)
    return env


def said(env: Demons, action: str) -> str:
    return env.step(action)[0][0].text


def refused(env: Demons, action: str | Message) -> str:
    """The type of the error that an action is answered with."""
    observation, reward, terminated, _, info = env.step(action)
    assert not info["is_valid"] and not terminated and reward <= 0.0
    assert observation[0].result is not None and observation[0].result.error_type is not None
    return observation[0].result.error_type


# ------------------------------------------------------------------------------------------------------------ tools


def test_tools_are_search_open_find_and_answer() -> None:
    names = {spec.name: list(spec.parameters["properties"]) for spec in demons().tools}
    assert names == {"search": ["query", "k"], "open": ["doc_id", "page"], "find": ["text"], "answer": ["text"]}


def test_search_shows_titles_ids_and_cut_snippets() -> None:
    env = demons(result_tokens=60, max_results=2)
    results = said(env, "search: demon Gallu").split("\n\n")
    assert [result.partition("\n")[0] for result in results] == ["1. Gallu [id: d2]", "2. Lilu [id: d1]"]
    assert results[0].endswith("the land of the dead.") and results[1].endswith("[…]")
    assert sum(map(estimated_tokens, results)) <= 60
    assert "\n\n" not in said(env, "search: demon; 1")
    assert said(env, "search: demon; 20").count("[id:") == 2
    assert said(env, "search: spaceship") == "No document fits; try other words."


def test_documents_open_page_by_page_once_a_search_has_shown_them() -> None:
    env = demons(page_tokens=50)
    env.step("search: Lilu")
    first = said(env, "open: d1")
    assert first.startswith("Lilu [page 1 of ") and "Its sister" not in first
    num_pages = int(first.partition(" of ")[2].partition("]")[0])
    assert num_pages > 3
    assert "Its sister is Gallu." in said(env, f"open: d1; {num_pages}")
    assert refused(env, f"open: d1; {num_pages + 1}") == refused(env, "open: d1; 0") == "no_such_page"
    assert said(env, "open: d1") == first


def test_find_says_on_which_page_a_text_is() -> None:
    env = demons(page_tokens=50)
    env.step("search: Lilu")
    env.step("open: d1")
    assert said(env, "find: GALLU").startswith("Not on page 1 of ")
    assert "; it is on page " in said(env, "find: GALLU")
    assert said(env, "find: a demon of").startswith("1 found on page 1:\n1. Lilu is a demon of the night.")


def test_a_document_of_another_world_with_the_same_id_is_not_the_one_read_before() -> None:
    env = demons()
    env.step("search: Kur")
    assert "land of the dead" in said(env, "open: d3")
    env.reset(seed=0)
    env.retriever = Flaky([Document("d3", "Kur", "Kur is a city.")])
    env.step("search: Kur")
    assert said(env, "open: d3") == "Kur [page 1 of 1]\nKur is a city."


@pytest.mark.parametrize(
    ("actions", "error"),
    [
        (["search: ..."], "invalid_query"),
        (['search: ""'], "invalid_query"),
        (["search: Lilu; 0"], "invalid_arguments"),
        (["open: d4"], "unknown_document"),
        (["search: Lilu", "open: d4"], "unknown_document"),
        (["search: Lilu", "open: d1; much"], "malformed_call"),
        (["find: Lilu"], "nothing_open"),
        (["search: Lilu", "open: d1", 'find: " "'], "invalid_arguments"),
        (["browse: d1"], "unknown_tool"),
    ],
)
def test_what_the_agent_does_wrong_is_told_to_it(actions: list[str], error: str) -> None:
    env = demons()
    for action in actions[:-1]:
        env.step(action)
    assert refused(env, actions[-1]) == error


def test_what_fails_by_itself_is_no_reward() -> None:
    env = demons()
    try:
        Demons.corpus.failure = ConnectionError("server lost")
        with pytest.raises(EnvError, match="search: ConnectionError: server lost"):
            env.step("search: Lilu")
        Demons.corpus.failure = ToolError("no such word", "invalid_query")
        assert refused(demons(), "search: Lilu") == "invalid_query"
    finally:
        Demons.corpus.failure = None


# ------------------------------------------------------------------------------------------------------- the reward


def parts(env: Demons, *actions: str) -> list[list[RewardPart]]:
    made = []
    for action in actions:
        _, reward, _, _, info = env.step(action)
        assert reward == pytest.approx(sum(part.value for part in info["reward_parts"]))
        made.append(list(info["reward_parts"]))
    return made


def test_every_role_of_reward_has_its_part() -> None:
    env = demons(rewards={"gold_retrieved": 0.5, "invalid_turn": 0.2, "tool_call": 0.1}, max_results=1)
    cost = RewardPart("tool_call", -0.1, RewardRole.COST)
    gold = RewardPart("gold_retrieved", 0.25, RewardRole.PROCESS)
    wrong = RewardPart("invalid_turn", -0.2, RewardRole.FORMAT)
    assert parts(env, "search: Lilu", "search: Lilu", "search: Gallu", "search: Anu") == [
        [cost, gold],
        [cost],
        [cost, gold],
        [cost],
    ]
    assert parts(env, "open: d1", "find: night", "Hm. Well.", "open: d9") == [[cost], [cost], [wrong], [wrong]]
    assert parts(env, "answer: Kur") == [[RewardPart("answer", 1.0, RewardRole.OUTCOME)]]
    assert env.is_success()


@pytest.mark.parametrize(
    ("outcome", "answer", "value"),
    [
        ("em", "kur.", 1.0),
        ("em", "a land of the dead", 1.0),
        ("em", "in Kur", 0.0),
        ("f1", "in Kur", 2 / 3),
        ("cover_em", "It lives in Kur", 1.0),
        ("cover_em", "the sky", 0.0),
    ],
)
def test_the_outcome_is_graded_as_asked(outcome: str, answer: str, value: float) -> None:
    env = demons(outcome=outcome)
    _, reward, terminated, _, info = env.step(f"answer: {answer}")
    assert reward == pytest.approx(value) and terminated
    assert info["success"] == (value == 1.0)


def test_only_the_first_answer_of_a_turn_counts() -> None:
    env = demons()
    calls = (ToolCall("answer", {"text": "the sky"}), ToolCall("answer", {"text": "Kur"}))
    observation, reward, terminated, _, _ = env.step(Message("assistant", "", calls))
    assert reward == 0.0 and terminated
    assert observation[1].result is not None and observation[1].result.error_type == "episode_over"


def test_void_turns_and_repeated_queries_are_counted() -> None:
    env = demons()
    counts = []
    for action in ("search: Lilu", "search:  LILU ", VOID, VOID, "search: demon", "search: Lilu"):
        info = env.step(action)[4]
        counts.append((info["num_void_turns"], info["num_repeated_queries"]))
    assert counts == [(0, 0), (0, 1), (1, 1), (2, 1), (2, 1), (2, 2)]
    env.reset(seed=0)
    assert env.step("search: Lilu")[4]["num_repeated_queries"] == 0


# -------------------------------------------------------------------------------------------------------- the state


def test_the_state_is_what_was_found_and_what_is_open_by_whatever_way() -> None:
    one, other = demons(), demons()
    for env, actions in (
        (one, ["search: night", "search: Kur"]),
        (other, ["hm", "search: Kur", "search: night tales"]),
    ):
        for action in actions:
            env.step(action)
    assert one.state_key() == other.state_key()
    one.step("open: d1")
    assert one.state_key() != other.state_key()
    other.step("open: d2")
    other.step("open: d1")
    assert one.state_key() == other.state_key()


def test_snapshots_bring_everything_back_in_another_instance() -> None:
    env, other = demons(page_tokens=50), demons(page_tokens=50)
    for action in ("search: Lilu", "open: d1; 2", "hm", "search: Lilu"):
        env.step(action)
    other.restore(env.snapshot())
    assert (other.reading, other.progress) == (env.reading, env.progress) and other.state_key() == env.state_key()
    assert env.step("find: night") == other.step("find: night")
    assert env.step("search: Lilu")[4] == other.step("search: Lilu")[4]


def test_the_gold_policy_reads_what_it_needs_and_answers() -> None:
    env = demons()
    acts = []
    while not env.episode.is_over:
        action = env.oracle()
        acts.append(action.text)
        env.step(action)
    assert acts == ["search: Lilu", "open: d1", "search: Gallu", "open: d2", "answer: Kur"]
    assert env.is_success()


def test_the_coroutines_do_the_same() -> None:
    async def play() -> float:
        env = Demons()
        await env.areset(seed=0)
        await env.astep("search: Lilu")
        return float((await env.astep("answer: Kur"))[1])

    assert asyncio.run(play()) == 1.0

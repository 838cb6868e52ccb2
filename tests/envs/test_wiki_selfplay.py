"""Questions about an encyclopedia that the policy asks and answers: the rules, the two rewards, and the match."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

import numpy as np
import pytest

from agentgym import make
from agentgym.check.conformance import check_env
from agentgym.check.episodes import play
from agentgym.check.policies import oracle_action
from agentgym.env.env import Env
from agentgym.envs.search.world import Difficulty, World, ask, draw_chain
from agentgym.envs.search.world_facts import Facts, Former, Thing
from agentgym.envs.selfplay.roles import NO_PROPOSAL, PROPOSER, SOLVER, VALID
from agentgym.envs.selfplay.wiki import WikiSelfPlayEnv
from agentgym.envs.selfplay.wiki_questions import REASONS, Proposal, Terms, flaw_of, read_question
from agentgym.errors import RewardError, UsageError
from agentgym.rollout.agent import Agent, ScriptedAgent
from agentgym.rollout.match import play_task
from agentgym.rollout.request import EpisodeLimits, RolloutRequest
from agentgym.types import Message, Status, Task, ToolCall, Trajectory

SMALL = {"num_pages": 60, "num_worlds": 0, "hops": 2, "aliases": 0.3}


@pytest.mark.parametrize(
    "arguments", [{}, {"opponent": "oracle"}, {"search_only": True, "hops": 2, "invalid_penalty": 0.1}]
)
def test_the_kit_finds_nothing_wrong(arguments: dict[str, object]) -> None:
    report = check_env("agentgym/WikiSelfPlay-v0", num_episodes=3, arguments={"num_pages": 60, **arguments})
    assert [f"{check.name}: {check.detail}" for check in report.failures] == []


@pytest.mark.parametrize("hops", [1, 2, 3])
def test_the_oracle_proposes_and_solves_on_many_tasks(hops: int) -> None:
    env = make("agentgym/WikiSelfPlay-v0", num_pages=120, hops=hops)
    for task in env.tasks("valid")[:40]:
        episode = play(env, oracle_action, task, np.random.default_rng(0))
        assert episode.is_success and episode.steps[-1].info["proposal"] == VALID, task


# ------------------------------------------------------------------------------------------------------- the rules

LAND = World(Difficulty(num_pages=60, aliases=0.5), seed=3)


def test_every_question_of_a_world_is_read_as_the_chain_it_came_from() -> None:
    for seed in range(60):
        rng = Random(seed)
        chain = draw_chain(LAND.facts, 1 + seed % 4, LAND.difficulty.relations, rng)
        text = ask(LAND.facts, chain).text
        assert read_question(LAND, text) == chain
        assert read_question(LAND, text.upper().replace(" ", "  ").rstrip("?")) == chain


def two_hops() -> tuple[Proposal, Terms]:
    """A valid proposal of two hops, and its terms."""
    question = World(Difficulty(num_pages=60, hops=(2,), aliases=0.5), seed=3).question(seed=5)
    page = LAND.page_of[question.gold[-1]].text
    answer = next(name for name in question.answers if name in page)
    return (
        Proposal(question=question.text, answer=answer, pages=question.gold),
        Terms(topic=question.gold[0], found=tuple(LAND.page_of)),
    )


def test_a_valid_proposal_breaks_no_rule_and_each_rule_has_one_that_breaks_it() -> None:
    good, terms = two_hops()
    assert flaw_of(LAND, good, terms) == ""
    start = good.pages[0]
    other = next(page.title for page in LAND.pages if page.title not in (*good.pages, good.answer))
    married = next(LAND.facts.things[thing].name for thing, relation in LAND.facts.values if relation == "spouse")

    def flaw(found: Terms = terms, **change: object) -> str:
        values = {"question": good.question, "answer": good.answer, "pages": good.pages, **change}
        return flaw_of(LAND, Proposal(**values), found)  # type: ignore[arg-type]

    broken = {
        "unreadable": flaw(question="Where is it?"),
        "unknown_name": flaw(question="Who is the mayor of Atlantis?"),
        "no_fact": flaw(question=f"What is the currency of the currency of {start}?"),
        "circle": flaw(question=f"Who is the spouse of the spouse of {married}?"),
        "too_many_hops": flaw(Terms(topic=start, found=terms.found, max_hops=1)),
        "off_topic": flaw(Terms(topic=other, found=terms.found)),
        "unseen_page": flaw(Terms(topic=start, found=())),
        "answer_in_question": flaw(answer=start),
        "answer_not_on_pages": flaw(answer="Nobody At All"),
        "not_on_pages": flaw(pages=good.pages[1:]),
        "wrong_answer": flaw(answer="Little else"),
    }
    assert broken == {reason: reason for reason in REASONS}
    assert flaw(pages=()) == flaw(pages=("Nowhere",)) == "unseen_page"


def test_a_page_of_earlier_times_misleads_the_proposer() -> None:
    stale = next(page for page in LAND.pages if page.kind == "stale")
    former: Former = LAND.facts.former[[page.title for page in LAND.pages if page.kind == "stale"].index(stale.title)]
    about: Thing = LAND.facts.things[former.thing]
    facts: Facts = LAND.facts
    said = Proposal(
        question=f"Who is the {former.relation} of {about.name}?",
        answer=facts.name_of(former.value),
        pages=(stale.title, about.name),
    )
    assert flaw_of(LAND, said, Terms(topic=about.name, found=said.pages)) == "wrong_answer"
    assert former.value != facts.values[former.thing, former.relation]


# ----------------------------------------------------------------------------------------------- rewards in a match

TASK = Task(id="t-0", split="train", seed=11, data={})


def by_role(*policies: Callable[[WikiSelfPlayEnv], Message]) -> Callable[[Env, int], Agent]:
    """Make agents that act by their role's policy, which sees the game."""

    def make_agent(env: Env, seed: int) -> Agent:
        game = env._match.env  # type: ignore[attr-defined]
        return ScriptedAgent(lambda observation: policies[game.player](game))

    return make_agent


def oracle(env: WikiSelfPlayEnv) -> Message:
    return env.oracle()


def calling(name: str, **arguments: object) -> Callable[[WikiSelfPlayEnv], Message]:
    return lambda env: Message("assistant", "", (ToolCall(name, dict(arguments), "0"),))


def silent(env: WikiSelfPlayEnv) -> Message:
    return Message("assistant", "hm")


NONSENSE = calling("propose", question="Why?", answer="so", pages=["x"])


def match(
    env: WikiSelfPlayEnv, *policies: Callable[[WikiSelfPlayEnv], Message], **request: object
) -> tuple[Trajectory, ...]:
    limits = EpisodeLimits(reset_timeout_s=60.0, step_timeout_s=60.0)
    made = RolloutRequest(task=TASK, make_agent=by_role(*policies), limits=limits, seed=1, **request)  # type: ignore[arg-type]
    return asyncio.run(play_task(env, made))


def parts(trajectory: Trajectory) -> dict[str, float]:
    return {part.name: part.value for part in trajectory.turns[-1].reward_parts}


@pytest.mark.parametrize(
    ("solver", "solved", "num_turns"), [(oracle, 1.0, 5), (calling("answer", text="nobody"), 0.0, 1), (silent, 0.0, 12)]
)
def test_the_proposer_earns_what_the_solver_misses(
    solver: Callable[[WikiSelfPlayEnv], Message], solved: float, num_turns: int
) -> None:
    first, second = match(WikiSelfPlayEnv(**SMALL), oracle, solver)  # type: ignore[arg-type]
    assert parts(first) == {"unsolved": 1.0 - solved} and parts(second) == {"answer": solved}
    assert (first.reward, second.reward) == (1.0 - solved, solved)
    assert (first.success, second.success) == (True, solved == 1.0), "a valid proposal is the proposer's success"
    assert {first.status, second.status} == {Status.COMPLETED}
    assert len(second.turns) == num_turns


@pytest.mark.parametrize("penalty", [0.0, 0.25])
def test_an_invalid_proposal_costs_its_author_and_reaches_nobody(penalty: float) -> None:
    first, second = match(WikiSelfPlayEnv(invalid_penalty=penalty, **SMALL), NONSENSE, oracle)  # type: ignore[arg-type]
    assert parts(first) == {"invalid_proposal": -penalty}
    assert (first.success, first.status) == (False, Status.COMPLETED)
    assert (second.turns, second.success, second.status) == ((), False, Status.COMPLETED)


def test_who_proposes_nothing_has_made_an_invalid_proposal_and_cannot_use_up_the_turns_of_the_solver() -> None:
    env = WikiSelfPlayEnv(max_turns=6, invalid_penalty=0.5, **SMALL)  # type: ignore[arg-type]
    first, second = match(env, silent, oracle)
    assert (len(first.turns), parts(first), len(second.turns)) == (3, {"invalid_proposal": -0.5}, 0)
    assert env.match.verdict == NO_PROPOSAL


def test_the_solver_reads_the_question_alone_and_each_role_has_its_tools() -> None:
    env = WikiSelfPlayEnv(**SMALL)  # type: ignore[arg-type]
    first, second = match(env, oracle, oracle)
    proposal = first.turns[-1].action.calls[0]
    assert isinstance(proposal, ToolCall)
    (told,) = second.observation
    assert told.text.endswith(f"\nQuestion: {proposal.arguments['question']}")
    assert proposal.arguments["answer"] not in told.text
    assert {spec.name for spec in env.tools_for(PROPOSER)} == {"search", "open", "find", "propose"}
    assert {spec.name for spec in env.tools_for(SOLVER)} == {"search", "open", "find", "answer"}
    assert first.turns[-1].replies[-1].text == "The solver solved it."


def test_what_the_proposer_found_is_not_found_for_the_solver() -> None:
    env = WikiSelfPlayEnv(**SMALL)  # type: ignore[arg-type]
    env.reset(options={"task": TASK})
    while env.player == PROPOSER:
        env.step(env.oracle())
    observation, _, _, _, info = env.step(f"open: {env.question.gold[0]}")
    assert not info["is_valid"] and "search first" in observation[0].text


def test_a_task_that_the_solver_had_no_turn_for_earns_nothing() -> None:
    env = WikiSelfPlayEnv(**SMALL)  # type: ignore[arg-type]
    env.reset(options={"task": TASK})
    while env.player == PROPOSER:
        env.step(env.oracle())
    env.forfeit(SOLVER)
    assert [part.value for part in env.parts_of(PROPOSER)] == [0.0]


def test_a_search_that_fails_for_the_solver_is_no_reward_for_anybody() -> None:
    def cut_off(env: WikiSelfPlayEnv) -> Message:
        env.retriever = None  # type: ignore[assignment]
        return calling("search", query="x")(env)

    first, second = match(WikiSelfPlayEnv(**SMALL), oracle, cut_off)  # type: ignore[arg-type]
    assert (first.reward, second.reward) == (None, None)
    assert second.status is Status.ENV_ERROR


def test_a_fork_in_either_role_continues_alike() -> None:
    env, other = (WikiSelfPlayEnv(**SMALL) for _ in range(2))  # type: ignore[arg-type]
    env.reset(options={"task": TASK})
    is_over = False
    while not is_over:
        other.restore(env.snapshot())
        assert other.oracle() == env.oracle() and other.said_to(env.player) == env.said_to(env.player)
        mine, forked = env.step(env.oracle()), other.step(other.oracle())
        assert mine == forked
        is_over = mine[2]
    assert other.parts_of(PROPOSER) == env.parts_of(PROPOSER)


def test_with_the_oracle_as_proposer_the_agent_solves_the_questions_of_the_world() -> None:
    env = make("agentgym/WikiSelfPlay-v0", opponent="oracle", **SMALL)
    wiki = make("agentgym/WikiWorld-v0", **SMALL)
    assert {spec.name for spec in env.tools} == {spec.name for spec in wiki.tools}, "as the solver in training"
    for task in env.tasks("test")[:5]:
        (asked,) = env.reset(options={"task": task})[0]
        (known,) = wiki.reset(options={"task": task.id, "split": "test"})[0]
        assert asked.text == known.text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"opponent": "random"}, "opponent"),
        ({"max_turns": 1}, "at least 2"),
        ({"invalid_penalty": -1.0}, "invalid_penalty"),
        ({"max_hops": 5}, "max_hops"),
        ({"rewards": {"tool_call": 0.1}}, "results alone"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        WikiSelfPlayEnv(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("score", [2.0, -0.5, float("nan")])
def test_a_score_beyond_0_to_1_is_an_error_and_no_reward(score: float) -> None:
    env = make("agentgym/WikiSelfPlay-v0", num_pages=30)
    assert isinstance(env, WikiSelfPlayEnv)
    env.reset(options={"task": 1})
    with pytest.raises(RewardError, match=r"the solver's score is .*, expected 0 to 1"):
        env.settle(score)

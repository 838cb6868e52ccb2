"""Sub-agents: episodes within an episode, by the same policy, in contexts of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from testkit.asking_env import Clerk, Manager
from testkit.tokenizers_for_tests import trained

from agentgym.check.policies import ScriptedEngine
from agentgym.credit.columns import turn_table
from agentgym.credit.compose import CreditConfig, assign_credit
from agentgym.engine import SamplingParams
from agentgym.env.env import Env
from agentgym.env.sub_agents import AsksAgents
from agentgym.env.tool_env import ToolEnv
from agentgym.errors import UnknownNameError, UsageError
from agentgym.evals.policies import named_policy
from agentgym.render.chat import ChatRenderer
from agentgym.rollout.agent import ModelAgent
from agentgym.rollout.group import GroupConfig, run_groups
from agentgym.rollout.loop import run_episode
from agentgym.rollout.pool import EnvPool
from agentgym.rollout.request import EpisodeLimits, RolloutRequest
from agentgym.tool import tool
from agentgym.trainers.models.tiny import CHAT_TEMPLATE
from agentgym.types import Status, Task, Trajectory, TrajectoryGroup

oracle = named_policy("oracle")

TASK = Task(id="t", split="train", seed=2)  # the drawer holds 5


class Office:
    """One scripted policy in both roles: the manager asks and says what it heard, the clerk hands over a number."""

    def __init__(self, handed: Sequence[int] = (5,), delays_s: Sequence[float] = (), fail: Sequence[int] = ()) -> None:
        self.tokenizer = trained(CHAT_TEMPLATE)
        self.renderer = ChatRenderer(self.tokenizer)
        self.handed = list(handed)
        self.engine = ScriptedEngine(self.answer, delays_s=delays_s, fail_requests=fail)

    def answer(self, prompt: tuple[int, ...]) -> list[int]:
        text = str(self.tokenizer.decode(list(prompt)))
        if text.startswith("The drawer"):
            said = f"hand: {self.handed.pop(0) if len(self.handed) > 1 else self.handed[0]}"
        else:
            said = f"say: {text.rpartition('hands you ')[2][0]}" if "hands you" in text else "ask_clerk:"
        return [*self.tokenizer.encode(said, add_special_tokens=False), self.renderer.turn_end_ids[0]]

    def agent(self, env: Env, seed: int) -> ModelAgent:
        return ModelAgent(self.engine, self.renderer, SamplingParams(max_new_tokens=16), seed)

    def play(self, env: Env | None = None, limits: EpisodeLimits = EpisodeLimits()) -> Trajectory:  # noqa: B008
        played = env or Manager()
        request = RolloutRequest(task=TASK, make_agent=self.agent, limits=limits, seed=1)
        return asyncio.run(run_episode(played, request))


def test_a_sub_agent_plays_in_a_context_of_its_own() -> None:
    office = Office()
    trajectory = office.play()
    assert (trajectory.status, trajectory.success) == (Status.COMPLETED, True)
    main, clerk = trajectory.segments
    assert [(s.agent, s.invocation, len(s.turns)) for s in (main, clerk)] == [("", -1, 2), ("clerk", 0, 1)]
    texts = [str(office.tokenizer.decode(list(segment.token_ids))) for segment in (main, clerk)]
    assert texts[1].startswith("The drawer holds 5") and "drawer holds" not in texts[0]
    assert "The clerk hands you 5." in texts[0]
    for segment in (main, clerk):
        sampled = [token for token, flag in zip(segment.token_ids, segment.loss_mask, strict=True) if flag]
        assert sampled == [token for turn in segment.turns for token in turn.completion.token_ids]
    assert len(set(office.engine.released)) == 2, "both contexts are freed"


def test_the_return_is_the_main_agents() -> None:
    assert Office(handed=[5]).play().reward == 1.0
    wrong = Office(handed=[4]).play()
    assert (wrong.reward, wrong.success) == (0.0, False)
    assert sum(turn.reward for turn in Office(handed=[5]).play().turns) == 2.0


def test_calls_are_counted_and_seeded_apart() -> None:
    class Twice(Manager):
        @tool
        async def ask_clerk(self) -> str:
            """Ask the clerk two times."""
            for _ in range(2):
                clerk = Clerk(self.number)
                await self.ask("clerk", clerk, self.task)
                self.known = clerk.handed
            return f"The clerk hands you {self.known}."

    office = Office()
    trajectory = office.play(Twice())
    assert [segment.invocation for segment in trajectory.segments] == [-1, 0, 1]
    seeds = [request.sampling.seed for request in office.engine.requests]
    assert len(set(seeds)) == len(seeds)


def test_scripted_policies_play_sub_agents_too() -> None:
    async def run() -> tuple[TrajectoryGroup, ...]:
        pool = EnvPool(Manager, 2)
        groups = await run_groups([(0, TASK)], pool, oracle, GroupConfig(group_size=2), seed=0)
        await pool.close()
        return groups

    ((group),) = asyncio.run(run())
    assert [t.success for t in group.trajectories] == [True, True]
    assert [[s.agent for s in t.segments] for t in group.trajectories] == [["", "clerk"]] * 2


def test_where_nobody_plays_the_sub_agent_is_the_oracle() -> None:
    env = Manager()
    env.reset(options={"task": TASK})
    assert env.step("ask_clerk:")[0][0].text == "The clerk hands you 5."


def test_a_lost_sub_agent_loses_the_episode() -> None:
    trajectory = Office(fail=[1]).play()
    assert (trajectory.status, trajectory.reward) == (Status.ABORTED, None)
    assert trajectory.error is not None and "sub-agent clerk: " in trajectory.error


def test_the_steps_clock_stands_still_while_a_sub_agent_plays() -> None:
    office = Office(delays_s=[0.0, 1.5, 0.0])
    assert office.play(limits=EpisodeLimits(step_timeout_s=1.0)).success

    class Hangs(Manager):
        @tool
        async def ask_clerk(self) -> str:
            """Ask the clerk and fall asleep."""
            await self.ask("clerk", Clerk(self.number), self.task)
            await asyncio.sleep(30)
            return ""

    assert Office().play(Hangs(), EpisodeLimits(step_timeout_s=1.0)).status is Status.TIMEOUT


def test_what_cannot_be_asked_is_refused() -> None:
    class Endless(Clerk):
        def __init__(self) -> None:
            super().__init__(5)
            self.max_turns = None

    async def ask(agent: str, env: Env) -> None:
        await Manager().ask(agent, env, TASK)

    with pytest.raises(UnknownNameError, match="did you mean 'clerk'"):
        asyncio.run(ask("clark", Clerk(5)))
    with pytest.raises(UsageError, match="give its environment max_turns"):
        asyncio.run(ask("clerk", Endless()))
    with pytest.raises(UsageError, match="only one level is supported"):
        asyncio.run(ask("clerk", Manager()))
    assert issubclass(Manager, AsksAgents) and issubclass(Manager, ToolEnv)


def test_m_grpo_compares_main_agents_with_main_agents_and_calls_with_calls() -> None:
    played = [Office(handed=[number]).play() for number in (5, 4, 5)]
    group = TrajectoryGroup(ordinal=0, task=TASK, trajectories=tuple(played))
    table = turn_table([group], columns=["role", "invocation", "moment"])
    assert table.role is not None and table.invocation is not None
    assert table.role.tolist() == [0, 0, 1] * 3
    assert table.invocation.tolist() == [-1, -1, 0] * 3
    assert table.moment is not None and table.moment.tolist() == [0, 2, 1] * 3, "the clerk answers in between"
    (credit,) = assign_credit([group], CreditConfig(estimator="m_grpo"))
    # returns 1, 0, 1 of the main agent; the clerk's 1, 0, 1 mixed with them gives the same order
    for rows, expected in zip(credit, (0.57735, -1.154701, 0.57735), strict=True):
        assert [turn.advantage for turn in rows] == pytest.approx([expected] * 3, abs=1e-4)

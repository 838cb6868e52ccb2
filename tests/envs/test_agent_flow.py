"""The team of planner, executor, verifier and generator, over worlds with and without a tool to answer with."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from agentgym.check import check_env
from agentgym.env.env import Env
from agentgym.envs.roles.agent_flow import AgentFlowEnv
from agentgym.errors import UsageError
from agentgym.types import Message, Task, ToolCall

MATH = {"sandbox": "process", "level": 2}


@pytest.fixture
def math() -> Iterator[AgentFlowEnv]:
    env = AgentFlowEnv(env="agentgym/PythonMath-v0", env_kwargs=MATH)
    yield env
    env.close()


@pytest.fixture
def house() -> Iterator[AgentFlowEnv]:
    env = AgentFlowEnv(env="agentgym/Household-v0", max_turns=40)
    yield env
    env.close()


class Team:
    """Plays sub-agents by their oracles, save those whose actions are given, and notes what each reads."""

    def __init__(self, **actions: Message) -> None:
        self.actions = actions
        self.read: list[tuple[str, str]] = []

    async def __call__(self, agent: str, env: Env, task: Task) -> None:
        observation, _ = await env.areset(options={"task": task})
        self.read.append((agent, observation[0].text))
        await env.astep(self.actions.get(agent) or env.oracle())


def call(name: str, **arguments: Any) -> Message:
    return Message("assistant", "", (ToolCall(name, arguments, "0"),))


def play(env: AgentFlowEnv) -> tuple[float, dict[str, Any]]:
    total, is_over = 0.0, False
    info: dict[str, Any] = {}
    while not is_over:
        _, reward, terminated, truncated, info = env.step(env.oracle())
        total, is_over = total + reward, terminated or truncated
    return total, info


def test_the_roles_take_their_parts_in_turn(math: AgentFlowEnv) -> None:
    math.reset(options={"task": 0})
    team = Team()
    math.hand_delegate(team)
    _, reward, terminated, _, info = math.step(math.oracle())
    assert (reward, terminated, info["success"]) == (1.0, True, True)
    assert [agent for agent, _ in team.read] == ["executor", "verifier", "generator"]
    executor, verifier, generator = (read for _, read in team.read)
    assert "Nothing is known yet." in executor and executor.endswith("n") and "calling python" in executor
    result = math.memory[0].result
    assert result in verifier and result in generator and result not in executor
    assert all(read.startswith(math.reset(options={"task": 0})[0][0].text.split("\n")[0]) for _, read in team.read)


def test_a_verdict_to_go_on_gives_the_planner_another_turn(math: AgentFlowEnv) -> None:
    math.reset(options={"task": 0})
    math.hand_delegate(Team(verifier=call("verdict", is_enough=False)))
    observation, reward, terminated, _, _ = math.step(math.oracle())
    assert observation[0].text.endswith("The verifier says: go on.") and not terminated and reward == 0
    assert math.step(call("conclude"))[4]["success"]


def test_the_last_turn_is_answered_in_any_case(math: AgentFlowEnv) -> None:
    env = AgentFlowEnv(env="agentgym/PythonMath-v0", env_kwargs=MATH, max_turns=1)
    env.reset(options={"task": 0})
    env.hand_delegate(Team(verifier=call("verdict", is_enough=False)))
    assert env.step(env.oracle())[4]["success"]
    env.close()


def test_a_wrong_answer_is_the_teams(math: AgentFlowEnv) -> None:
    math.reset(options={"task": 0})
    math.hand_delegate(Team(generator=call("submit", answer="1")))
    _, reward, terminated, _, info = math.step(math.oracle())
    assert (reward, terminated, info["success"], info["is_valid"]) == (0.0, True, False, True)


def test_a_role_can_call_its_own_tools_alone(math: AgentFlowEnv) -> None:
    math.reset(options={"task": 0})
    plan = math.oracle()
    math.hand_delegate(Team(executor=call("submit", answer="1"), verifier=call("verdict", is_enough=False)))
    observation, _, terminated, _, info = math.step(plan)
    assert observation[0].text.startswith("Nothing was done: call python.") and not info["is_valid"] and not terminated
    observation, _, _, _, info = math.step(call("plan", sub_goal="answer", tool="submit"))
    assert "the executor has no tool 'submit'; it has python" in observation[0].text and not info["is_valid"]


def test_a_world_that_ends_by_itself_needs_no_generator(house: AgentFlowEnv) -> None:
    for number in range(5):
        house.reset(options={"task": number})
        team = Team()
        house.hand_delegate(team)
        total, info = play(house)
        assert total == 1.0 and info["success"]
        assert {agent for agent, _ in team.read} == {"executor", "verifier"}


def test_to_stop_too_early_costs_the_outcome(house: AgentFlowEnv) -> None:
    house.reset(options={"task": 0})
    house.hand_delegate(Team(verifier=call("verdict", is_enough=True)))
    observation, reward, terminated, _, info = house.step(house.oracle())
    assert observation[0].text.endswith("The work is done.")
    assert (reward, terminated, info["success"]) == (0.0, True, False)


def test_an_episode_is_forked_with_its_memory(house: AgentFlowEnv) -> None:
    house.reset(options={"task": 1})
    house.step(house.oracle())
    snapshot = house.snapshot()
    rest = play(house)
    other = AgentFlowEnv(env="agentgym/Household-v0", max_turns=40)
    other.restore(snapshot)
    assert other.state_key() == snapshot.state_key and len(other.memory) == 1
    assert play(other) == rest
    other.close()


def test_worlds_without_tools_are_refused() -> None:
    with pytest.raises(UsageError, match="needs a world with tools"):
        AgentFlowEnv(env="agentgym/WebShop-v0", env_kwargs={"interface": "text"})
    with pytest.raises(UsageError, match="without sub-agents"):
        AgentFlowEnv(env="agentgym/AgentFlow-v0", env_kwargs={"env": "agentgym/Household-v0"})
    with pytest.raises(UsageError, match="no tool 'reply' to answer with"):
        AgentFlowEnv(env="agentgym/Household-v0", answer_tool="reply")


def test_it_plays_in_an_event_loop(house: AgentFlowEnv) -> None:
    async def episode() -> bool:
        await house.areset(options={"task": 2})
        while True:
            _, _, terminated, truncated, info = await house.astep(house.oracle())
            if terminated or truncated:
                return bool(info["success"])

    assert asyncio.run(episode())


@pytest.mark.parametrize("kwargs", [{"env": "agentgym/Household-v0", "max_turns": 30}])
def test_the_contract_is_kept(kwargs: dict[str, Any]) -> None:
    report = check_env(lambda: AgentFlowEnv(**kwargs), num_episodes=2)
    assert report.passed, report.failures

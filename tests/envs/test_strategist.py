"""The strategist that advises a player: what the player reads, wrong actions, and worlds that cannot be advised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentgym import evaluate
from agentgym.check import check_env
from agentgym.env.env import Env
from agentgym.envs.roles.strategist import StrategistEnv
from agentgym.errors import UsageError
from agentgym.types import Message, Task, ToolCall

SMALL = {"num_objects": 3, "num_receptacles": 4}
OBEDIENT = """
from agentgym.evals.policies import policy


@policy("obedient")
def obedient(env, observation):
    advice = next(line for line in observation[-1].text.splitlines() if line.startswith("Advice: "))
    return env.parse_action(advice.removeprefix("Advice: "))
"""


class Player:
    """A sub-agent that plays a given action, and keeps what it reads."""

    def __init__(self, action: Message | None = None) -> None:
        self.action, self.read = action, list[str]()

    async def __call__(self, agent: str, env: Env, task: Task) -> None:
        observation, _ = await env.areset(options={"task": task})
        self.read.append(observation[0].text)
        await env.astep(self.action or env.oracle())


def advise(strategy: str) -> Message:
    return Message("assistant", "", (ToolCall("advise", {"strategy": strategy}, "0"),))


def test_the_player_reads_the_task_its_past_and_the_advice() -> None:
    env = StrategistEnv(env_kwargs=SMALL, memory=1)
    observation, _ = env.reset(options={"task": 0})
    player = Player()
    env.hand_delegate(player)
    for number in range(3):
        env.step(advise(f"plan {number}"))
    first, _, third = player.read
    task = observation[0].text.splitlines()[0]
    assert first.startswith(task) and first.endswith("Advice: plan 0\nAct once.")
    assert third.startswith(task) and env.memory[1] in third and env.memory[0] not in third
    env.close()


def test_a_wrong_action_of_the_player_is_no_wrong_turn_of_the_strategist() -> None:
    env = StrategistEnv(env_kwargs=SMALL)
    env.reset(options={"task": 0})
    env.hand_delegate(Player(Message("assistant", "I would rather not")))
    _, reward, terminated, _, info = env.step(advise("go on"))
    assert (reward, terminated, info["is_valid"]) == (0.0, False, True)
    assert env.memory[0].startswith("> I would rather not")
    env.close()


def test_the_kit_finds_nothing_wrong() -> None:
    report = check_env(lambda: StrategistEnv(env_kwargs=SMALL), num_episodes=3)
    assert report.passed, report.failures


def test_advice_reaches_an_obedient_player_and_not_a_deaf_one(tmp_path: Path) -> None:
    """With the oracle as strategist, a player that does as it is told succeeds."""
    (tmp_path / "players.py").write_text(OBEDIENT)
    found: dict[str, Any] = {
        player: evaluate(
            "agentgym/Strategist-v0", "oracle", kwargs={"env_kwargs": SMALL}, roles={"player": player}, episodes=6,
            run_dir=tmp_path / f"run-{number}",
        )
        for number, player in enumerate((f"{tmp_path / 'players.py'}:obedient", "random"))
    }  # fmt: skip
    obeyed, deaf = found.values()
    assert obeyed.success == 1.0 > deaf.success
    assert {segment.role for segment in obeyed.trajectories[0].frozen_segments} == {"player"}


@pytest.mark.parametrize("world", ["agentgym/KuhnPoker-v0", "agentgym/AgentFlow-v0"])
def test_a_world_that_cannot_be_advised_is_refused(world: str) -> None:
    kwargs = {"env_kwargs": {"sandbox": "process"}} if "AgentFlow" in world else {}
    with pytest.raises(UsageError, match=f"world of one agent with tools and a limit of turns; {world} is none"):
        StrategistEnv(env=world, env_kwargs=kwargs)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(UsageError, match="memory must be at least 0"):
        StrategistEnv(memory=-1)

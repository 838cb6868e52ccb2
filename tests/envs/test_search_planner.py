"""The planner that searches for a solver: rewards, costs, and solvers that do not answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from agentgym import evaluate
from agentgym.check import check_env
from agentgym.env.env import Env
from agentgym.envs.roles.search_planner import UNKNOWN, SearchPlannerEnv
from agentgym.errors import UsageError
from agentgym.types import Message, RewardRole, Task, ToolCall

SMALL = {"num_pages": 16, "hops": [1, 1]}


@pytest.fixture
def planner() -> Iterator[SearchPlannerEnv]:
    env = SearchPlannerEnv(env_kwargs=SMALL, cost=0.1)
    yield env
    env.close()


class Solver:
    """A sub-agent that plays a given action, and keeps what it reads."""

    def __init__(self, action: Message | None = None) -> None:
        self.action, self.read = action, ""

    async def __call__(self, agent: str, env: Env, task: Task) -> None:
        observation, _ = await env.areset(options={"task": task})
        self.read = observation[0].text
        await env.astep(self.action or env.oracle())


def call(name: str, **arguments: Any) -> Message:
    return Message("assistant", "", (ToolCall(name, arguments, "0"),))


def test_the_solver_sees_the_question_and_what_was_found(planner: SearchPlannerEnv) -> None:
    observation, _ = planner.reset(options={"task": 0})
    question = next(line for line in observation[0].text.splitlines() if line.startswith("Question: "))
    solver = Solver()
    planner.hand_delegate(solver)
    parts = []
    while not planner.episode.is_over:
        _, _, _, _, info = planner.step(planner.oracle())
        parts += [(part.name, part.value, part.role) for part in info["reward_parts"]]
    assert parts == [("lookup", -0.1, RewardRole.COST)] * 2 + [("answer", 1.0, RewardRole.OUTCOME)]
    assert question in solver.read and all(found in solver.read for found in planner.memory)


def test_a_planner_that_finds_nothing_gets_no_answer(planner: SearchPlannerEnv) -> None:
    planner.reset(options={"task": 0})
    solver = Solver()
    planner.hand_delegate(solver)
    _, reward, terminated, _, info = planner.step(call("conclude"))
    assert "Nothing was found." in solver.read
    assert (reward, terminated, info["success"]) == (0.0, True, False), f"the oracle solver answers {UNKNOWN!r}"


@pytest.mark.parametrize(
    "action", [Message("assistant", "I think"), call("search", query="x"), Message("assistant", "", ())]
)
def test_a_solver_that_does_not_answer_ends_the_episode(planner: SearchPlannerEnv, action: Message) -> None:
    planner.reset(options={"task": 0})
    planner.hand_delegate(Solver(action))
    observation, reward, terminated, _, info = planner.step(call("conclude"))
    assert (observation[0].text, reward) == ("The solver gave no answer.", 0.0)
    assert terminated and not info["success"]


def test_the_last_turn_is_answered_in_any_case() -> None:
    env = SearchPlannerEnv(env_kwargs=SMALL, max_turns=2)
    env.reset(options={"task": 0})
    env.step(env.oracle())
    _, reward, terminated, _, info = env.step(env.oracle())
    assert terminated and info["success"] and reward == 1.0
    env.close()


def test_wrong_lookups_cost_too_and_are_invalid(planner: SearchPlannerEnv) -> None:
    planner.reset(options={"task": 0})
    _, reward, terminated, _, info = planner.step(call("open", doc_id="nowhere"))
    assert (reward, terminated, info["is_valid"]) == (-0.1, False, False)


def test_the_kit_finds_nothing_wrong() -> None:
    report = check_env(lambda: SearchPlannerEnv(env_kwargs=SMALL, cost=0.05), num_episodes=3)
    assert report.passed, report.failures


def test_a_frozen_solver_of_an_evaluation(tmp_path: Any) -> None:
    found = {
        solver: evaluate(
            "agentgym/SearchPlanner-v0", "oracle", kwargs={"env_kwargs": SMALL}, roles={"solver": solver}, episodes=6,
            run_dir=tmp_path / solver,
        ).success
        for solver in ("oracle", "random")
    }  # fmt: skip
    assert found["oracle"] == 1.0 > found["random"]


def test_a_world_without_search_is_refused() -> None:
    with pytest.raises(UsageError, match="tools search, open and answer; agentgym/PythonMath-v0 lacks search"):
        SearchPlannerEnv(env="agentgym/PythonMath-v0", env_kwargs={"sandbox": "process"})
    with pytest.raises(UsageError, match="cost must be at least 0"):
        SearchPlannerEnv(cost=-1.0)

"""Search self-play, the whole way: one policy proposes and solves, and both roles are credited and trained."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agentgym.credit.compose import CreditConfig, credit_groups
from agentgym.credit.credited import turn_credits
from agentgym.credit.estimators.rae import RaeOptions
from agentgym.env.env import Env
from agentgym.envs.selfplay.wiki import WikiSelfPlayEnv
from agentgym.rollout.agent import Agent, ScriptedAgent
from agentgym.rollout.group import GroupConfig, run_groups
from agentgym.rollout.pool import EnvPool
from agentgym.rollout.record import read_json_lines, read_records, record_path, recorded_steps
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.data.samples import filter_groups
from agentgym.trainers.recipes import load_recipe
from agentgym.trainers.reporting.rollout_metrics import describe_rollouts
from agentgym.trainers.train import train
from agentgym.types import Message, Task, ToolCall, TrajectoryGroup


def plays(*games: str) -> tuple[TrajectoryGroup, ...]:
    """Play one game per word: ``invalid``, or what a solver does with a valid question, ``solved`` or ``missed``."""

    def call(name: str, **arguments: object) -> Message:
        return Message("assistant", "", (ToolCall(name, dict(arguments), "0"),))

    def make_agent(env: Env, seed: int) -> Agent:
        game: WikiSelfPlayEnv = env._match.env  # type: ignore[attr-defined]
        kind = games[int(game.task.id)]

        def act(observation: object) -> Message:
            if kind == "invalid":
                return call("propose", question="Why?", answer="so", pages=[])
            return game.oracle() if game.player == 0 or kind == "solved" else call("answer", text="nobody")

        return ScriptedAgent(act)

    async def run() -> tuple[TrajectoryGroup, ...]:
        pool = EnvPool(lambda: WikiSelfPlayEnv(num_pages=60, invalid_penalty=0.5), 1)
        tasks = [(at, Task(id=str(at), split="train", seed=at)) for at in range(len(games))]
        try:
            return await run_groups(tasks, pool, make_agent, GroupConfig(group_size=1, min_valid=1), seed=0)
        finally:
            await pool.close()

    return asyncio.run(run())


def test_credit_compares_each_role_with_its_own_results_and_the_metrics_tell_them_apart() -> None:
    groups = plays("solved", "missed", "invalid", "solved")
    config = CreditConfig(estimator="rae", options=RaeOptions(decay=0.5))
    credit = credit_groups(groups, config)
    of_turns = turn_credits(groups, credit)
    advantages = [[{turn.advantage for turn in turns} for turns in of_group] for of_group in of_turns]
    # proposer: rewards 0, 1, -0.5, 0 against baselines 0, 0, 0.5, 0; solver: 1, 0, none, 1 against 0, 0.5, 0.25
    assert advantages == [[{0.0}, {1.0}], [{1.0}, {-0.5}], [{-1.0}, set()], [{0.0}, {0.75}]]
    metrics = describe_rollouts(filter_groups(groups, credit, 1, "off"))
    assert {name: value for name, value in metrics.items() if name.startswith("player/")} == pytest.approx(
        {"player/0/success": 3 / 4, "player/0/return": 1 / 8, "player/1/success": 2 / 3, "player/1/return": 2 / 3}
    )


@pytest.mark.slow
def test_the_recipe_trains_both_roles(tmp_path: Path) -> None:
    one_question = {"num_worlds": 1, "relations": ["founder"], "vocabulary": 8, "max_hops": 1}
    config = apply_overrides(
        load_recipe("wiki-selfplay"),
        [
            *(f"env.kwargs.{name}={value}".replace("'", '"') for name, value in one_question.items()),
            *("model.num_layers=1", "model.hidden_size=64", "sft.num_demos=220", "sft.noise=0"),
            *("num_steps=2", "groups_per_step=8", "eval.num_episodes=1"),
        ],
    )
    train(config, tmp_path)
    credited = {
        trajectory.player
        for step in recorded_steps(tmp_path)
        for record in read_records(record_path(tmp_path, step))
        for trajectory, credit in zip(record.group.trajectories, record.credit, strict=True)
        if any(turn.advantage for turn in credit)
    }
    assert credited == {0, 1}
    rows = [row for row in read_json_lines(tmp_path / "metrics.jsonl") if row["phase"] == "rl"]
    assert len(rows) == 2 and all(row["trained_tokens"] > 0 for row in rows)
    assert all(0 < row["player/0/success"] <= 1 for row in rows), "some proposals are valid"

"""Failures of the infrastructure are counted by what the policy did, and an alarm tells when the two go together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from testkit.tokenizers_for_tests import trained
from testkit.worlds import Counter

from agentgym.env.env import Env
from agentgym.errors import SandboxDeadError
from agentgym.render.chat import ChatRenderer
from agentgym.rollout.agent import DemonstrationAgent
from agentgym.rollout.group import GroupConfig, GroupPlayer
from agentgym.rollout.pool import EnvPool
from agentgym.rollout.voids import suspicious_kinds, voids_of
from agentgym.trainers.models.tiny import CHAT_TEMPLATE
from agentgym.types import Message, Observation, Status, Task, ToolCall, Trajectory, TrajectoryGroup, Turn


class Frail(Counter):
    """Count, but the given numbers of attempts fail: in a step, or at the start."""

    num_failures = 0
    fails_at_reset = False

    def start(self, task: Task) -> str:
        if Frail.num_failures and Frail.fails_at_reset:
            Frail.num_failures -= 1
            raise SandboxDeadError("gone")
        return super().start(task)

    async def arespond(self, action: Message) -> str | Observation:
        if Frail.num_failures:
            Frail.num_failures -= 1
            raise SandboxDeadError("gone")
        return await super().arespond(action)


def played(num_failures: int, *, at_reset: bool = False) -> TrajectoryGroup:
    Frail.num_failures, Frail.fails_at_reset = num_failures, at_reset
    renderer = ChatRenderer(trained(CHAT_TEMPLATE))

    def agent(env: Env, seed: int) -> DemonstrationAgent:
        return DemonstrationAgent(lambda _: env.oracle(), renderer, 4096)

    config = GroupConfig(group_size=1, min_valid=1, num_envs=1, max_retries=2)
    player = GroupPlayer(EnvPool(Frail, 1), agent, config, seed=0)
    return asyncio.run(player.play(3, Task(id="t", split="train", seed=0)))


def test_a_trajectory_keeps_what_its_failed_attempts_had_done() -> None:
    (retried,) = played(2).trajectories
    assert (retried.status, retried.voids, retried.num_retries) == (Status.COMPLETED, ("add", "add"), 2)
    (lost,) = played(3).trajectories
    assert (lost.status, lost.voids, lost.failed_part) == (Status.ENV_ERROR, ("add",) * 3, "sandbox")
    assert played(1, at_reset=True).trajectories[0].voids == ("reset",)
    assert played(0).trajectories[0].voids == ()


def trajectories(kinds: Sequence[str], voids: Sequence[str]) -> list[Trajectory]:
    """Trajectories with turns and failures of these kinds."""
    (model,) = played(0).trajectories
    turn = model.turns[0]

    def of(kind: str) -> Turn:
        return replace(turn, action=Message("assistant", "", tuple(ToolCall(name) for name in kind.split("+"))))

    segment = replace(model.segments[0], turns=tuple(of(kind) for kind in kinds))
    return [replace(model, segments=(segment,)), replace(model, segments=(), voids=tuple(voids))]


def test_the_alarm_is_for_kinds_of_action_and_not_for_failures_as_such() -> None:
    usual = ["read"] * 60 + ["bash"] * 40
    assert suspicious_kinds(trajectories(usual, ["bash"] * 8)) == (("Frail", "bash"),)
    assert suspicious_kinds(trajectories(usual, ["read"] * 6 + ["bash"] * 4)) == ()
    assert suspicious_kinds(trajectories(usual, ["bash"] * 2)) == ()  # too few to tell
    assert suspicious_kinds(trajectories(usual, ["reset"] * 30 + ["sampling"] * 30)) == ()
    assert suspicious_kinds(trajectories(["bash"] * 10, ["bash"] * 10)) == ()  # nothing to compare with
    mixed = trajectories([*usual, "bash+submit"], ["bash+submit"] * 4)
    assert suspicious_kinds(mixed) == (("Frail", "bash+submit"),)
    assert voids_of(mixed) == {("Frail", "bash+submit"): 4}

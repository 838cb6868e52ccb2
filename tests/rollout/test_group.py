"""Episodes and groups: statuses, retries, failures that are never rewards."""

from __future__ import annotations

import asyncio
from collections import Counter as Tally
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from testkit.tokenizers_for_tests import trained
from testkit.worlds import Counter

from agentgym.check.chaos import Chaos
from agentgym.check.policies import ScriptedEngine
from agentgym.engine import SamplingParams
from agentgym.env.env import Env
from agentgym.errors import ConfigError, EnvError, EpisodesFailedError, RunStoppedError, ToolError
from agentgym.registry import find
from agentgym.render.chat import ChatRenderer
from agentgym.rollout.agent import Agent, DemonstrationAgent, ModelAgent
from agentgym.rollout.group import GroupConfig, check_rollouts, failures_of, run_groups
from agentgym.rollout.loop import run_episode
from agentgym.rollout.pool import EnvPool
from agentgym.rollout.request import EpisodeLimits, RolloutRequest
from agentgym.trainers.models.tiny import CHAT_TEMPLATE
from agentgym.types import Message, Status, Task, ToolCall, Trajectory, TrajectoryGroup

LIMITS = EpisodeLimits(reset_timeout_s=1.0, step_timeout_s=1.0)


def task(seed: int = 0) -> Task:
    return Task(id=f"t-{seed}", split="train", seed=seed)


def request(agent: Agent, task_seed: int = 0, limits: EpisodeLimits = LIMITS) -> RolloutRequest:
    return RolloutRequest(task=task(task_seed), make_agent=lambda *_: agent, seed=1, limits=limits)


def saying(*texts: str, context: int = 4096) -> tuple[ScriptedEngine, ChatRenderer]:
    """An engine that says the texts in turn, over and over."""
    tokenizer = trained(CHAT_TEMPLATE)
    renderer = ChatRenderer(tokenizer)
    said = [[*tokenizer.encode(text, add_special_tokens=False), renderer.turn_end_ids[0]] for text in texts]
    state = {"next": 0}

    def answer(prompt: tuple[int, ...]) -> list[int]:
        state["next"] += 1
        return said[(state["next"] - 1) % len(said)]

    return ScriptedEngine(answer, max_context_tokens=context), renderer


def play(env: Env, *texts: str, seed: int = 0, context: int = 4096) -> Trajectory:
    engine, renderer = saying(*texts, context=context)
    agent = ModelAgent(engine, renderer, SamplingParams(max_new_tokens=32), seed=1)
    return asyncio.run(run_episode(env, request(agent, seed)))


def play_groups(make_env: Callable[[], Env], config: GroupConfig, num_tasks: int = 2) -> tuple[TrajectoryGroup, ...]:
    renderer = ChatRenderer(trained(CHAT_TEMPLATE))

    async def run() -> tuple[TrajectoryGroup, ...]:
        pool = EnvPool(make_env, config.num_envs)
        groups = await run_groups(
            [(n, task(n)) for n in range(num_tasks)],
            pool,
            lambda env, seed: DemonstrationAgent(lambda _: env.oracle(), renderer, 4096),
            config,
            seed=0,
        )
        await pool.close()
        return groups

    return asyncio.run(run())


# ------------------------------------------------------------------------------------------------------- one episode


def test_a_completed_episode_holds_its_turns() -> None:
    trajectory = play(Counter(), "add: 1", "add: 1")
    assert (trajectory.status, trajectory.success) == (Status.COMPLETED, True)
    assert trajectory.reward == pytest.approx(0.98)
    assert [turn.state_key for turn in trajectory.turns] == ["0/2", "1/2"]
    assert trajectory.turns[1].action.calls == (ToolCall("add", {"number": 1}, "0"),)
    (segment,) = trajectory.segments
    sampled = [t for t, flag in zip(segment.token_ids, segment.loss_mask, strict=True) if flag]
    assert sampled == [t for turn in trajectory.turns for t in turn.completion.token_ids]


def test_what_the_policy_does_wrong_is_data() -> None:
    trajectory = play(Counter(), "nonsense!", "add: 9", "", "add: two", "add: 1; 2")
    assert trajectory.status is Status.TRUNCATED_TURNS
    assert trajectory.success is False
    assert [turn.is_valid for turn in trajectory.turns] == [False] * 5
    assert [turn.is_void for turn in trajectory.turns] == [False, False, True, False, False]
    assert trajectory.reward == 0


def test_an_environment_may_end_the_episode_over_what_the_policy_did() -> None:
    class Strict(Counter):
        def no_call(self, action: Message) -> str:
            raise ToolError("say something useful")

    trajectory = play(Strict(), "add: 1", "")
    assert (trajectory.status, trajectory.success) == (Status.POLICY_ERROR, False)
    assert trajectory.error == "say something useful"
    assert len(trajectory.turns) == 2, "the turn that did it is kept, and trained on"
    assert trajectory.reward == pytest.approx(-0.01)


def test_a_full_context_truncates() -> None:
    assert play(Counter(), "add: 9", context=40).status is Status.TRUNCATED_TOKENS


@pytest.mark.parametrize(("fault", "status"), [("crash", Status.ENV_ERROR), ("hang", Status.TIMEOUT)])
def test_a_fault_has_no_reward(fault: str, status: Status) -> None:
    trajectory = play(Chaos(Counter(), **{fault: 1.0}), "add: 1")  # type: ignore[arg-type]
    assert trajectory.status is status
    assert trajectory.reward is None
    assert trajectory.success is None
    assert trajectory.error


def test_an_engine_failure_has_no_reward() -> None:
    engine, renderer = saying("add: 1")
    failing = ScriptedEngine(engine._answer, fail_requests=[1])
    agent = ModelAgent(failing, renderer, SamplingParams(), seed=0)
    trajectory = asyncio.run(run_episode(Counter(), request(agent)))
    assert (trajectory.status, trajectory.reward) == (Status.ABORTED, None)
    assert failing.released, "the engine's memory of the episode is freed"


def test_cancelling_an_episode_propagates_and_frees_the_engine() -> None:
    engine, renderer = saying("add: 1")

    async def run() -> None:
        agent = ModelAgent(engine, renderer, SamplingParams(), seed=0)
        job = asyncio.ensure_future(run_episode(Chaos(Counter(), hang=1.0), request(agent, limits=EpisodeLimits())))
        await asyncio.sleep(0.01)
        job.cancel()
        with pytest.raises(asyncio.CancelledError):
            await job

    asyncio.run(run())
    assert engine.released


# ------------------------------------------------------------------------------------------------------------ groups


def test_members_of_a_group_start_alike_and_sample_apart() -> None:
    (first, second) = play_groups(Counter, GroupConfig(group_size=3))
    assert [t.task for t in first.trajectories] == [task(0)] * 3
    assert len({t.seed for group in (first, second) for t in group.trajectories}) == 6


def test_faults_leave_the_same_episodes_as_no_faults() -> None:
    attempts: Tally[str] = Tally()
    config = GroupConfig(group_size=4, max_retries=50, limits=LIMITS, max_failure_rate=1.0)
    calm = play_groups(Counter, config)
    chaotic = play_groups(
        lambda: Chaos(Counter(), crash=0.2, hang=0.02, slow=0.2, slow_s=0.001, attempts=attempts), config
    )
    assert sum(t.num_retries for group in chaotic for t in group.trajectories) > 0
    for a, b in zip(calm, chaotic, strict=True):
        for left, right in zip(a.trajectories, b.trajectories, strict=True):
            assert left.segments[0].token_ids == right.segments[0].token_ids
            assert (left.reward, left.seed, left.status) == (right.reward, right.seed, right.status)


def test_a_lost_member_stops_neither_siblings_nor_the_run() -> None:
    attempts: Tally[str] = Tally()
    config = GroupConfig(group_size=8, max_retries=0, limits=LIMITS, max_failure_rate=1.0)
    groups = play_groups(lambda: Chaos(Counter(), crash=0.2, attempts=attempts), config)
    statuses = [t.status for group in groups for t in group.trajectories]
    assert Status.ENV_ERROR in statuses and Status.COMPLETED in statuses
    assert all(t.status.is_evidence for group in groups for t in group.valid)


def test_too_many_failures_stop_the_run_with_the_reason() -> None:
    config = GroupConfig(group_size=2, max_retries=1, max_failure_rate=0.5)
    with pytest.raises(RunStoppedError, match=r"4 of 4 episodes failed .* crash by plan"):
        play_groups(lambda: Chaos(Counter(), crash=1.0), config)


def test_advice_names_what_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("from agentgym import Env, register\nregister('Mine-v0', Env)\n")
    find("mine.py")
    lost = Trajectory(task=task(), env_id="Mine-v0", status=Status.ENV_ERROR, segments=(), seed=0, error="x")

    def advice(trajectory: Trajectory) -> str:
        return failures_of([TrajectoryGroup(ordinal=0, task=task(), trajectories=(trajectory,))])

    assert advice(lost).endswith("agentgym check mine.py:Mine-v0 --episodes 20 looks for faults of the environment")
    assert "The policy failed, not the environment" in advice(replace(lost, status=Status.ABORTED))
    between = replace(lost, status=Status.ABORTED, failed_part="attempts")
    assert "The scorer of attempts failed, or the policy failed to write its note: check verify.kind" in advice(between)
    assert "agentgym doctor" in advice(replace(lost, failed_part="sandbox"))
    assert "agentgym check" in advice(replace(lost, error="no sandbox was named")), "words decide nothing"
    assert "The agent's program failed, not the environment" in advice(replace(lost, failed_part="agent"))
    ungraded = replace(lost, status=Status.ABORTED, error="the judge: status 400", failed_part="judge_schema")
    assert advice(ungraded).endswith("look at its server (judge.model), or set judge.structured=false")
    assert advice(replace(ungraded, failed_part="judge")).endswith("look at its server (judge.model)")
    config = GroupConfig(group_size=1, min_valid=1)
    with pytest.raises(RunStoppedError, match=r"the infrastructure \(group\.max_failure_rate=0\.5\); most often"):
        check_rollouts(
            [TrajectoryGroup(ordinal=0, task=task(), trajectories=(ungraded,))], config, "group.max_failure_rate"
        )
    with pytest.raises(EpisodesFailedError, match=r"2 retries each \(group\.max_failure_rate=0\.5\); most often"):
        check_rollouts(
            [TrajectoryGroup(ordinal=0, task=task(), trajectories=(lost,))], config, "group.max_failure_rate"
        )


def test_an_environment_that_cannot_be_made_is_the_infrastructures_failure() -> None:
    def broken() -> Env:
        raise OSError("no space left")

    with pytest.raises(RunStoppedError, match="no space left"):
        play_groups(broken, GroupConfig(group_size=2, max_retries=0))


def test_a_spoilt_environment_is_closed_and_replaced() -> None:
    made: list[Env] = []

    class Crashing(Counter):
        def start(self, task: Task) -> str:
            raise RuntimeError("boom")

    def make_env() -> Env:
        made.append(Counter() if made else Crashing())
        return made[-1]

    config = GroupConfig(group_size=1, min_valid=1, num_envs=1, max_retries=1)
    ((group), *_) = play_groups(make_env, config, num_tasks=1)
    assert (group.trajectories[0].status, group.trajectories[0].num_retries) == (Status.COMPLETED, 1)
    assert len(made) == 2
    assert made[0].is_closed


@pytest.mark.parametrize("wrong", [{"group_size": 0}, {"min_valid": 9}, {"num_envs": 0}, {"max_failure_rate": 2.0}])
def test_wrong_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        GroupConfig(**wrong)  # type: ignore[arg-type]


def test_an_episode_that_fails_while_it_is_cancelled_is_not_tried_again() -> None:
    began: list[int] = []

    class Failing:
        async def play(self, request: RolloutRequest) -> tuple[Trajectory, ...]:
            began.append(request.num_retries)
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                raise EnvError("the connection was lost") from None
            return ()

        async def close(self) -> None:
            pass

    async def scenario() -> None:
        config = GroupConfig(group_size=1, min_valid=1, max_retries=5)
        playing = asyncio.ensure_future(
            run_groups([(0, task())], Failing(), lambda env, seed: DemonstrationAgent(None, None, 0), config, seed=0)  # type: ignore[arg-type]
        )
        while not began:
            await asyncio.sleep(0)
        playing.cancel()
        done, _ = await asyncio.wait({playing}, timeout=10)
        assert done and playing.cancelled()

    asyncio.run(scenario())
    assert began == [0]

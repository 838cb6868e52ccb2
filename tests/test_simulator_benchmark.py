"""The rollout simulator against schedules worked out by hand, in virtual time."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulator import Plan, Prediction, simulate
from traces import EngineCost, Recording, TurnTrace, fit_engine, read_recording
from virtual_time import run_in_virtual_time

from agentgym.errors import ConfigError, CorruptDataError
from agentgym.rollout.record import GroupRecord, append_json_line, record_path, write_records
from agentgym.types import (
    Completion,
    FinishReason,
    Latency,
    Message,
    Segment,
    Status,
    Task,
    Trajectory,
    TrajectoryGroup,
    Turn,
)

FREE = EngineCost(tick_s=0.0, token_s=0.0)


def recording(*env_s: float, gradient_s: float = 0.0, other_s: float = 0.0) -> Recording:
    """Groups of one episode of one turn, by the seconds of their environment; the engine costs nothing."""
    groups = tuple(((TurnTrace(env_s=seconds),),) for seconds in env_s)
    return Recording(groups=groups, gradient_s=gradient_s, other_training_s=other_s, engine=FREE)


def plan(mode: str = "sync", **more: float) -> Plan:
    made = {"num_steps": 2, "groups_per_step": 2, **more}
    return Plan(mode=mode, **made)  # type: ignore[arg-type]


# --------------------------------------------------------------------------------------------------------- schedules


def test_sync_waits_for_the_slowest_and_then_trains() -> None:
    """3 + 2 + 1 = 6 s, then 5 + 2 + 1 = 8 s."""
    found = simulate(plan(), recording(1.0, 3.0, 5.0, 1.0, gradient_s=2.0, other_s=1.0))
    assert found == Prediction(
        wall_s=14.0,
        num_episodes=4,
        num_cut=0,
        engine_busy_share=0.0,
        trainer_busy_share=6 / 14,
        waiting_share=8 / 14,
        staleness_mean=0.0,
        staleness_max=0,
    )
    assert found.episodes_per_hour == pytest.approx(3600 * 4 / 14)


def test_async_plays_the_next_step_while_it_trains() -> None:
    """Groups of 1, 3, 5 and 1 s begin at once: 1 and 1 are trained from 1 s to 4 s, then 5 s is waited for."""
    found = simulate(plan("async"), recording(1.0, 3.0, 5.0, 1.0, gradient_s=2.0, other_s=1.0))
    assert found.wall_s == 1 + 3 + 1 + 3
    assert found.staleness_max == 1
    assert found.staleness_mean == 0.5, "the second step's tokens are a version old"
    assert found.trainer_busy_share == 6 / 8


def test_an_overtaken_group_is_due_when_it_would_grow_too_old() -> None:
    """With a bound of 1 the group of 10 s may be overtaken by one step."""
    slow = recording(10.0, *[1.0] * 7)
    found = simulate(plan("async", num_steps=4), slow)
    assert (found.wall_s, found.staleness_max) == (11.0, 1), "10 s until it is in, 1 s for what could begin then"


def test_what_is_over_provisioned_ends_with_the_slowest_that_is_needed() -> None:
    """A group of 1 s and 9 s; its extra members play as members of the groups that follow: 1 s, 2 s and 1 s."""
    pair = ((TurnTrace(env_s=1.0),), (TurnTrace(env_s=9.0),))
    other = ((TurnTrace(env_s=2.0),), (TurnTrace(env_s=2.0),))
    recorded = Recording(groups=(pair, other), gradient_s=0.0, engine=FREE)
    base = Plan(num_steps=1, groups_per_step=1)
    assert simulate(base, recorded).wall_s == 9.0
    cut = simulate(replace(base, over_provision=3), recorded)
    assert (cut.wall_s, cut.num_episodes, cut.num_cut) == (1.0, 2, 3)


def test_environments_limit_what_is_played_at_a_time() -> None:
    found = simulate(plan(num_steps=1, num_envs=1), recording(1.0, 3.0))
    assert found.wall_s == 4.0


# --------------------------------------------------------------------------------------------------------- the engine


def test_a_tick_takes_one_token_of_every_request() -> None:
    """Two requests of 3 tokens with prompts of 10: a tick of 22 tokens, two of 2, then a second in the environment."""
    episode = (TurnTrace(env_s=1.0, num_prompt_tokens=10, num_sampled_tokens=3),)
    recorded = Recording(groups=((episode, episode),), gradient_s=0.0, engine=EngineCost(tick_s=0.5, token_s=0.1))
    found = simulate(Plan(num_steps=1, groups_per_step=1), recorded)
    busy_s = 3 * 0.5 + 0.1 * (22 + 2 + 2)
    assert found.wall_s == pytest.approx(busy_s + 1)
    assert found.engine_busy_share == pytest.approx(busy_s / (busy_s + 1))


def test_a_second_engine_halves_the_batch() -> None:
    episode = (TurnTrace(num_sampled_tokens=10),)
    recorded = Recording(groups=((episode, episode),), gradient_s=0.0, engine=EngineCost(tick_s=0.0, token_s=1.0))
    assert simulate(Plan(num_steps=1, groups_per_step=1), recorded).wall_s == 20
    found = simulate(Plan(num_steps=1, groups_per_step=1, num_engines=2), recorded)
    assert (found.wall_s, found.engine_busy_share) == (10, 1.0)


def test_new_weights_make_the_engine_read_the_context_again() -> None:
    """The long episode's second turn comes after the first step: it reads 4 + 1 + 4 tokens, not 4."""
    turn = TurnTrace(env_s=3.0, num_prompt_tokens=4)
    groups = (((replace(turn, env_s=1.0),),), ((turn, turn),))
    recorded = Recording(groups=groups, gradient_s=0.0, engine=EngineCost(tick_s=0.0, token_s=0.1))
    found = simulate(Plan(mode="async", num_steps=2, groups_per_step=1), recorded)
    assert found.wall_s == pytest.approx(0.1 * 2 * 5 + 3 + 0.1 * (4 + 5 + 1) + 3)


def test_without_tick_counters_completions_take_what_they_took() -> None:
    episode = (TurnTrace(env_s=1.0, generate_s=2.0),)
    recorded = Recording(groups=((episode, episode),), gradient_s=0.0)
    assert simulate(Plan(num_steps=1, groups_per_step=1), recorded).wall_s == 3.0


def test_what_overlaps_is_slower_by_the_factor() -> None:
    """The second step's 10 s group begins with the first's of 1 s: 1 s, then 2 s of training at half speed."""
    found = simulate(
        Plan(mode="async", num_steps=2, groups_per_step=1, overlap_slowdown=2.0), recording(1.0, 10.0, gradient_s=2.0)
    )
    assert found.trainer_busy_share * found.wall_s == pytest.approx(4.0 + 2.0)
    assert found.wall_s == 12.0


@given(
    env_s=st.lists(st.floats(0.01, 9), min_size=8, max_size=8),
    gradient_s=st.floats(0, 3),
    max_staleness=st.integers(1, 3),
)
def test_no_schedule_that_waits_less_is_slower(env_s: list[float], gradient_s: float, max_staleness: int) -> None:
    recorded = recording(*env_s, gradient_s=gradient_s, other_s=0.5)
    sync = simulate(plan(num_steps=4), recorded)
    ahead = simulate(plan("async", num_steps=4, max_staleness=max_staleness), recorded)
    assert ahead.wall_s <= sync.wall_s + 1e-9
    assert ahead.staleness_max <= max_staleness
    assert ahead.num_episodes == sync.num_episodes == 8


def test_plans_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="num_envs"):
        Plan(num_envs=0)
    with pytest.raises(ConfigError, match="overlap_slowdown at least 1"):
        Plan(overlap_slowdown=0.5)


def test_a_wait_without_end_is_an_error_and_not_a_hang() -> None:
    async def wait() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(RuntimeError, match="every task waits for another"):
        run_in_virtual_time(wait())


# ------------------------------------------------------------------------------------------------------ the recording


def write_run(run_dir: Path) -> None:
    """Two steps of one group of one episode of one turn."""
    for step in range(2):
        turn = Turn(
            index=0,
            prompt_ids=(1, 2, 3),
            completion=Completion(
                token_ids=(5, 2), logprobs=(-1.0, -1.0), policy_versions=(0, 0), finish_reason=FinishReason.STOP
            ),
            action=Message("assistant", "a"),
            latency=Latency(0.25, 0.5, 2.0 + step),
        )
        task = Task(id=f"t{step}", split="train", seed=step)
        episode = Trajectory(
            task=task, env_id="e", status=Status.COMPLETED, segments=(Segment((turn,)),), seed=0, success=True
        )
        lost = replace(episode, status=Status.ENV_ERROR, success=None)
        group = TrajectoryGroup(ordinal=1 - step, task=task, trajectories=(episode, lost))
        write_records(record_path(run_dir, step), [GroupRecord(group=group)])
        counters = {"engine/num_ticks": 10 * (step + 1), "engine/num_prefill_tokens": 3, "engine/num_sampled_tokens": 7}
        append_json_line(
            run_dir / "metrics.jsonl",
            {"phase": "rl", "step": step + 1, "time/rollout_s": 9.0, "time/train_s": 2.0 * step, "time/sync_s": 1.0,
             "engine/busy_s": 0.1 * (step + 1), **counters},
        )  # fmt: skip


def test_a_recording_is_read_from_a_runs_folder(tmp_path: Path) -> None:
    write_run(tmp_path)
    found = read_recording(tmp_path)
    expected = [
        TurnTrace(render_s=0.25, generate_s=0.5, env_s=env_s, num_prompt_tokens=3, num_sampled_tokens=2)
        for env_s in (3.0, 2.0)
    ]
    assert found.groups == tuple((((turn,),)) for turn in expected), "by ordinal, the lost episodes left out"
    assert (found.gradient_s, found.other_training_s) == (1.0, 1.0)
    assert found.engine is not None and found.engine.tick_s == pytest.approx(0.01)


def test_a_folder_without_training_steps_says_so(tmp_path: Path) -> None:
    with pytest.raises(CorruptDataError, match="no recorded training steps; give the folder of a training run"):
        read_recording(tmp_path)


def test_costs_are_never_below_nothing() -> None:
    cost = fit_engine([[1.0, 100, 0, 100], [2.0, 150, 0, 1000]])
    assert cost is not None and min(cost.tick_s, cost.token_s) >= 0
    assert fit_engine([]) is None


def test_a_run_is_predicted_under_every_mode(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from predict import table

    from agentgym.trainers.config.overrides import save_config
    from agentgym.trainers.recipes import load_recipe

    write_run(tmp_path)
    save_config(load_recipe("tiny"), tmp_path / "config.json")
    rows = [line.split(" | ") for line in table(tmp_path, [1, 2])][2:]
    assert [row[:2] for row in rows] == [[f"| {mode}", n] for mode in ("sync", "async") for n in "12"]

"""Purified episodes: what is copied, in which context it is scored, and which episodes are chosen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from testkit.corridors import Corridor, NativeCorridor
from testkit.drawing_engine import TASK, DrawingEngine
from testkit.played_groups import in_waves

from agentgym.env.env import Env, Snapshot
from agentgym.errors import ConfigError
from agentgym.rollout.agent import ModelAgent
from agentgym.rollout.branch import START, Start, branch_from
from agentgym.rollout.group import GroupConfig, GroupPlayer
from agentgym.rollout.loop import run_episode
from agentgym.rollout.plan import EnvPlanner
from agentgym.rollout.pool import EnvPool
from agentgym.rollout.request import RolloutRequest
from agentgym.rollout.strategies.cleaner import CleanerOptions, cleaner, correction_of, has_failed, kept_tokens
from agentgym.rollout.strategies.config import StrategyConfig
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.models.tiny import CHAT_TEMPLATE
from agentgym.trainers.recipes import load_recipe
from agentgym.types import (
    Completion,
    FinishReason,
    Message,
    Segment,
    Status,
    ToolCall,
    ToolResult,
    Trajectory,
    TrajectoryGroup,
    Turn,
)

RNG = np.random.default_rng
CALL = (ToolCall("move", {"direction": "right"}),)
THOUGHT, WRONG, RIGHT = "<think>which way?</think>", "move: up", "<think>aha</think>move: right"


def play(env: Env, engine: DrawingEngine, **changes: Any) -> Trajectory:
    request = RolloutRequest(task=TASK, make_agent=engine.agents(), **{"seed": 5, **changes})
    return asyncio.run(run_episode(env, request))


class Failing(DrawingEngine):
    """An engine that says something wrong in the second and third turns, and the right thing in all others."""

    def __init__(self, template: str = CHAT_TEMPLATE) -> None:
        super().__init__([THOUGHT + WRONG, RIGHT], template)

    async def generate(self, prompt_ids: Any, sampling: Any, *, session_id: str = "") -> Completion:
        made = await super().generate(prompt_ids, sampling, session_id=session_id)
        said = self.text(prompt_ids).split("<|act|>")[1:-1]
        is_wrong = len(said) == 1 or (len(said) == 2 and "up" in said[1])
        ids = self._said[0 if is_wrong else 1]
        return replace(made, token_ids=tuple(ids), logprobs=(-0.5,) * len(ids), policy_versions=(0,) * len(ids))


@pytest.mark.parametrize("make_env", [Corridor, NativeCorridor])
@pytest.mark.parametrize("similarity", [0.0, 1.0], ids=["shallow", "deep"])
def test_a_correction_takes_the_place_of_the_failed_turns(make_env: Callable[[], Env], similarity: float) -> None:
    engine = Failing()
    snapshots: dict[int, Snapshot] = {}
    whole = play(make_env(), engine, on_snapshot=snapshots.__setitem__)
    assert [has_failed(turn) for turn in whole.turns[:4]] == [False, True, True, False]
    (start,) = cleaner([whole], 1, 2, RNG(0), CleanerOptions(similarity=similarity))
    failed, corrected = whole.turns[1], whole.turns[3]
    kept = failed.num_thinking_tokens if similarity == 0 else 0
    assert start == Start(parent=0, turn=1, num_tokens=kept, correction=3) and failed.num_thinking_tokens > 0
    clean = play(make_env(), engine, branch=branch_from(start, [whole], [snapshots]))

    assert clean.turns[0] == whole.turns[0] and (clean.parent, clean.branch_turn) == (0, 1)
    made = clean.turns[1]
    moved = corrected.completion.token_ids[corrected.num_thinking_tokens if kept else 0 :]
    assert made.completion.token_ids == (*failed.completion.token_ids[:kept], *moved)
    assert made.prompt_ids == failed.prompt_ids, "the prompt is that of the failed turn"
    assert engine.text(made.completion.token_ids).startswith(THOUGHT if kept else "<think>aha")
    assert (made.num_copied_tokens, made.num_rescored_tokens) == (kept + len(moved), len(moved))
    assert made.num_sampled_tokens == 0 and made.is_valid
    assert made.replies == corrected.replies, "the environment was where it had been before the failed turn"
    prompt = (*whole.turns[0].prompt_ids, *whole.turns[0].completion.token_ids, *failed.prompt_ids)
    scored = asyncio.run(engine.score((*prompt, *failed.completion.token_ids[:kept]), moved))
    assert made.completion.logprobs == (*failed.completion.logprobs[:kept], *scored)
    assert len(clean.turns) == len(whole.turns) - 2 and clean.success
    assert all(turn.num_copied_tokens == 0 for turn in clean.turns[2:])


def test_a_correction_without_room_is_left_out() -> None:
    engine = Failing()
    whole = play(Corridor(), engine)
    branch = branch_from(Start(parent=0, turn=1, correction=3), [whole])

    def agents(env: Env, seed: int) -> ModelAgent:
        agent = engine.agents()(env, seed)
        assert isinstance(agent, ModelAgent)
        agent._room = replace(agent._room, completion=3)
        return agent

    request = RolloutRequest(task=TASK, make_agent=agents, branch=branch)
    short = asyncio.run(run_episode(Corridor(), request))
    assert short.turns[1].num_copied_tokens == 0 and short.turns[1].completion.token_ids


def test_copied_tokens_need_temperature_1() -> None:
    engine = Failing()
    whole = play(Corridor(), engine)

    def agents(env: Env, seed: int) -> ModelAgent:
        agent = engine.agents()(env, seed)
        assert isinstance(agent, ModelAgent)
        agent._sampling = replace(agent._sampling, temperature=0.7)
        return agent

    branch = branch_from(Start(parent=0, turn=1, correction=3), [whole])
    made = asyncio.run(run_episode(Corridor(), RolloutRequest(task=TASK, make_agent=agents, branch=branch)))
    assert made.status is Status.ABORTED and "temperature 1" in str(made.error)


@pytest.mark.parametrize(
    ("start", "match"),
    [
        (Start(parent=0, turn=1, num_tokens=99), "has .* tokens"),
        (Start(parent=0, turn=2, correction=2), "is a turn after turn 2"),
        (Start(parent=0, turn=2, correction=99), "is a turn after turn 2"),
    ],
)
def test_what_cannot_be_copied_is_refused(start: Start, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        branch_from(start, [play(Corridor(), Failing())])


def test_a_group_is_purified_the_same_way_again() -> None:
    def group() -> TrajectoryGroup:
        planner = EnvPlanner(StrategyConfig(branching=CleanerOptions()), [TASK], 6, 7)
        engine = DrawingEngine(("move: right", "move: up", "move: left"))

        async def run() -> TrajectoryGroup:
            player = GroupPlayer(EnvPool(Corridor, 8), engine.agents(), GroupConfig(group_size=6, num_envs=8), seed=1)
            return await player.play(3, TASK, num_episodes=6, program=in_waves(planner.branch(3)))

        return asyncio.run(run())

    made, again = group(), group()
    purified = [one for one in made.trajectories if one.parent >= 0]
    assert len(made.trajectories) == 6 and len(purified) >= 2
    for one, other in zip(made.trajectories, again.trajectories, strict=True):
        assert [t.completion for t in one.turns] == [t.completion for t in other.turns]
    for one in purified:
        parent, turn = made.trajectories[one.parent], one.turns[one.branch_turn]
        assert has_failed(parent.turns[one.branch_turn]) and not has_failed(turn)
        assert turn.num_copied_tokens == turn.num_rescored_tokens == len(turn.completion.token_ids) > 0


# ---------------------------------------------------------------------------------------------- which turns are chosen


def turn(*, fails: bool, calls: bool = True, text: str = "move: up", thinking: int = 0) -> Turn:
    return Turn(
        index=0,
        action=Message("assistant", text, CALL if calls else ()),
        completion=Completion(
            token_ids=(1, 2, 3), logprobs=(-1.0,) * 3, policy_versions=(0,) * 3, finish_reason=FinishReason.STOP
        ),
        num_thinking_tokens=thinking,
        is_valid=not fails,
    )


def episode(pattern: str, **changes: Any) -> Trajectory:
    """An episode of failed turns (``x``), turns with a call that succeed (``.``) and turns without one (``-``)."""
    turns = tuple(turn(fails=kind == "x", calls=kind != "-") for kind in pattern)
    made = Trajectory(task=TASK, env_id="x", status=Status.COMPLETED, segments=(Segment(turns),), seed=0, success=False)
    return replace(made, **changes)


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        (".xx..", (1, 3)),
        ("x.", (0, 1)),
        ("....", None),
        ("xxx", None),
        ("xxxx.", None),  # a run longer than three turns
        ("xxxx..x.", (6, 7)),
        ("x-.", None),  # what follows is no call
        (".x-x.", (3, 4)),
    ],
)
def test_a_correction_is_the_first_call_that_works_after_failed_ones(
    pattern: str, found: tuple[int, int] | None
) -> None:
    assert correction_of(episode(pattern), within=3) == found


def test_only_own_turns_are_purified_and_each_episode_once() -> None:
    options = CleanerOptions()
    again = Start(parent=1, turn=2, num_tokens=0, correction=3)
    played = [episode("x.x."), episode(".x..", parent=0, branch_turn=0)]
    assert cleaner(played, 4, 8, RNG(0), options) == [Start(parent=1, turn=1, correction=2)]
    assert cleaner([episode("x."), episode("x.x.", parent=0, branch_turn=1)], 4, 8, RNG(0), options) == [again]
    assert cleaner([episode("x.", status=Status.ABORTED)], 2, 8, RNG(0), options) == [START, START]
    assert cleaner([episode("x.")] * 3, 2, 8, RNG(0), options) == [
        Start(parent=at, turn=0, correction=1) for at in (0, 1)
    ]
    assert cleaner([episode("x.")], 2, 8, RNG(0), CleanerOptions(probability=0.0)) == [START, START]


def test_a_tools_error_is_a_failure() -> None:
    fine = turn(fails=False)
    reply = Message("tool", "Traceback", result=ToolResult("Traceback", error_type="SyntaxError"))
    assert has_failed(replace(fine, replies=(reply,))) and not has_failed(fine)
    assert not has_failed(turn(fails=True, calls=False)), "what is no call cannot be corrected"


def test_thinking_stays_if_the_calls_are_similar() -> None:
    failed = turn(fails=True, text="<think>long ago and far away</think>open: drawer 2", thinking=2)
    assert kept_tokens(failed, turn(fails=False, text="open: drawer 1"), 0.5) == 2
    assert kept_tokens(failed, turn(fails=False, text="<think>x</think>quit"), 0.5) == 0


@pytest.mark.parametrize(
    ("overrides", "match"),
    [
        (('strategy.branching={"kind": "cleaner"}', "sampling.temperature=0.8"), "temperature=1, got 0.8"),
        (
            ('strategy.branching={"kind": "arpo"}', 'credit.modulators=[{"kind": "purified"}]'),
            "set strategy.branching to cleaner",
        ),
        (('credit.modulators=[{"kind": "purified"}]',), "set strategy.branching"),
    ],
)
def test_what_cannot_be_is_refused(overrides: tuple[str, ...], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        apply_overrides(load_recipe("household-smoke"), overrides)

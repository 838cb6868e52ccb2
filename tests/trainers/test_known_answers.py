"""Numbers of a step's episodes, computed by hand: whole rows are compared, so a new number needs an answer here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from testkit.made_groups import a_task, turn

from agentgym.credit.credited import credit_columns
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.data.samples import FilteredGroup
from agentgym.trainers.recipes import load_recipe
from agentgym.trainers.reporting.rollout_metrics import describe_mixture, describe_rollouts, strategy_effects
from agentgym.types import (
    CancelledMember,
    FinishReason,
    MalformedCall,
    Message,
    Segment,
    Status,
    ToolCall,
    Trajectory,
    TrajectoryGroup,
    Turn,
    TurnCredit,
)

VERSION = 5
"""Version that is trained; tokens of made-up turns are of version 5 if not said otherwise."""
GO = ToolCall("go")


def said(num_tokens: int, *calls: ToolCall | MalformedCall, versions: Sequence[int] = (), **more: Any) -> Turn:
    """Return a turn of some tokens and calls."""
    made = turn([1, 2], range(num_tokens))
    versions = tuple(versions) or (VERSION,) * num_tokens
    completion = replace(made.completion, policy_versions=versions, finish_reason=more.pop("ended", FinishReason.STOP))
    return replace(made, completion=completion, action=Message("assistant", "a", calls), reward_parts=(), **more)


def paid(made: Turn, reward: float) -> Turn:
    """Return a turn with a reward."""
    return replace(made, reward_parts=turn([1], [1], reward=reward).reward_parts)


def episode(status: Status, *windows: Sequence[Turn], success: bool | None = False, **more: Any) -> Trajectory:
    """Return an episode of some context windows."""
    segments = tuple(Segment(tuple(turns)) for turns in windows)
    return Trajectory(task=a_task(), env_id="one", status=status, segments=segments, seed=0, success=success, **more)


def first_group() -> TrajectoryGroup:
    """A, B, C and D: a success, one at the limit of turns, a failure of the infrastructure, an episode with a hint."""
    done, cut, full, failed = Status.COMPLETED, Status.TRUNCATED_TURNS, Status.TRUNCATED_TOKENS, Status.ENV_ERROR
    a0 = paid(said(3, GO, GO, versions=(5, 4, 4), num_thinking_tokens=1), 0.25)
    a1 = paid(said(2, MalformedCall((0, 1), "no name", "("), is_valid=False, ended=FinishReason.LENGTH), 0.5)
    b0 = paid(said(1, versions=(2,), is_void=True, played=Message("assistant", "b")), 1.0)
    return TrajectoryGroup(
        ordinal=0,
        task=a_task(),
        env_name="a",
        trajectories=(
            episode(done, [a0, a1], success=True),
            episode(cut, [b0], success=True),
            episode(failed, [said(5, GO, versions=(0,) * 5)], success=None, voids=("go",) * 4, num_retries=3),
            episode(full, [said(2, kind="summary")], [said(1, hint="left")]),
        ),
        cut=(
            CancelledMember(member=8, seed=0, reason="slow", num_turns=2, num_sampled_tokens=7),
            CancelledMember(member=9, seed=0, reason="pruned", num_turns=1, num_sampled_tokens=4),
        ),
    )


def second_group() -> TrajectoryGroup:
    """E to K: replayed, demonstrated, two branches, a game without a move, a timeout, a forfeit of another player."""
    done = Status.COMPLETED
    return TrajectoryGroup(
        ordinal=1,
        task=a_task("u"),
        env_name="b",
        trajectories=(
            episode(done, [said(4, versions=(1,) * 4)], replayed_step=3),
            episode(done, [said(3, versions=(0,) * 3)], success=True, is_demonstration=True),
            episode(done, [said(2), said(3, num_copied_tokens=1)], success=True, parent=0, branch_turn=1),
            episode(
                done,
                [said(2, num_copied_tokens=1, num_rescored_tokens=1, feedback="no")],
                parent=0,
                num_reflection_tokens=6,
            ),
            episode(done, is_unplayed=True),
            episode(Status.TIMEOUT, success=None, voids=("reset",)),
            episode(Status.POLICY_ERROR, [said(1)], player=1, is_forfeit=True),
        ),
    )


def verdicts() -> list[FilteredGroup]:
    """Return both groups with credit; the second one is dropped."""
    groups = [first_group(), second_group()]
    of_turns = [
        [[(0.5, 2), (0.5, 1)], [(-0.5, 2)], [], [(0.1, 1), (1e-12, 1)]],
        [[(0.0, 1)], [(0.0, 1)], [(0.2, 3), (0.2, 1)], [(0.2, 1)], [], [], [(-1.0, 1)]],
    ]
    credit = [
        tuple(
            tuple(TurnCredit(shaped_reward=0.0, return_to_go=0.0, advantage=a, anchor_size=n) for a, n in own)
            for own in of_group
        )
        for of_group in of_turns
    ]
    return [
        FilteredGroup(group, credit_columns([group], [own]), dropped)
        for group, own, dropped in zip(groups, credit, (None, "zero_variance"), strict=True)
    ]


KNOWN = {
    # new episodes that began at the start and had no hint: A, B and K
    "success": 2 / 3,
    "truncated_success_share": 1 / 2,
    "return": (0.75 + 1.0 + 0.0) / 3,
    "num_turns": (2 + 1 + 1) / 3,
    # the eight turns that the policy took itself: A0, A1, B0, D0, D1, the second of G, H0 and K0
    "invalid_share": 1 / 8,
    "void_share": 1 / 8,
    "num_calls": 2 / 8,
    "malformed_calls": 1 / 8,
    "cut_share": 1 / 8,
    "thinking_tokens": 1 / 8,
    # 3 + 2 + 1 + 2 + 1, without copied tokens 2 + 1, K 1, and a reflection of 6
    "sampled_tokens": 19,
    # A 0 1 1 0 0, B 3, D 0 0 0, E 4 4 4 4, G 0 0 0, H 0 0, K 0; no demonstration
    "staleness_mean": 21 / 19,
    "staleness_max": 4,
    # eleven turns of valid episodes, of which three share a state: 2, 2 and 3 turns
    "anchor_share": 3 / 11,
    "anchor_size": 7 / 3,
    "zero_advantage_share": 3 / 11,
    # nine valid episodes
    "num_summaries": 1 / 9,
    "num_patched": 1 / 9,
    "num_segments": 9 / 9,
    "num_branches": 2,
    "num_hints": 1,
    "num_continued": 1,
    "num_corrected": 1,
    "num_feedback": 1,
    "num_reflections": 1,
    "num_replayed": 1,
    "num_demonstrations": 1,
    "num_retries": 3,
    # four failures follow `go`, which is 6 of 16 turns: 15 / 1820 is below 1 %
    "void_alarm": 1,
    "num_dropped_groups": 1,
    "num_cut": 2,
    "cut_tokens": 11,
    **{"cut/slow": 1, "cut/surplus": 0, "cut/waiting": 0, "cut/pruned": 1},
    **{"dropped/zero_variance": 1, "dropped/too_few_valid": 0},
    **{"status/completed": 6, "status/truncated_turns": 1, "status/truncated_tokens": 1, "status/policy_error": 1},
    **{"status/env_error": 1, "status/timeout": 1, "status/aborted": 0},
    "forfeit_share": 1 / 3,
    **{"player/0/success": 1.0, "player/0/return": 0.875, "player/1/success": 0.0, "player/1/return": 0.0},
    **{"voids/one/go": 4, "voids/one/reset": 1},
}


def test_episodes_of_a_step() -> None:
    assert describe_rollouts(verdicts(), VERSION) == pytest.approx(KNOWN)


def test_a_mixture() -> None:
    assert describe_mixture(("a", "b"), verdicts()) == pytest.approx(
        {
            **{"a/num_groups": 1, "a/success": 1.0, "a/return": 0.875, "a/num_turns": 1.5, "a/invalid_share": 1 / 5},
            **{"a/sampled_tokens": 9, "a/num_dropped_groups": 0},
            **{"b/num_groups": 1, "b/success": 0.0, "b/return": 0.0, "b/num_turns": 1.0, "b/invalid_share": 0.0},
            **{"b/sampled_tokens": 10, "b/num_dropped_groups": 1},
        }
    )


def test_a_step_without_episodes_has_no_means() -> None:
    found = describe_rollouts([])
    means = {name for name, value in found.items() if math.isnan(value)}
    assert means >= {"success", "return", "num_turns", "invalid_share", "staleness_mean", "zero_advantage_share"}
    assert all(value == 0 for name, value in found.items() if name not in means)


@pytest.mark.parametrize(
    ("setting", "changed", "number"),
    [
        ("branching=arpo", "arpo", "num_branches"),
        ('guidance={"kind": "fading", "most": 2}', "fading", "num_hints"),
        ("guidance=demonstration", "demonstration", "num_demonstrations"),
        ('guidance={"kind": "feedback", "model": "openai:http://x/v1"}', "feedback", "num_feedback"),
        ("pruning=arrol", "arrol", "cut/pruned"),
        ("replay=remix", "remix", "num_replayed"),
        ("replay=start_samples", "start_samples", "num_replayed"),
    ],
)
def test_effects_of_strategies(setting: str, changed: str, number: str) -> None:
    strategy = apply_overrides(load_recipe("household-demo"), [f"strategy.{setting}"]).strategy
    assert strategy_effects([strategy], KNOWN | {number: 7.0}) == {f"strategy/changed/{changed}": 7.0}

"""Branchings that grow trees: which states are played again, and which branches are stopped."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from testkit.corridors import Corridor, NativeCorridor
from testkit.drawing_engine import TASK, DrawingEngine
from testkit.made_episodes import made_episode, made_turn, surprising
from testkit.played_groups import in_waves

from agentgym.env.env import Env
from agentgym.errors import ConfigError
from agentgym.rollout.branch import START, Start, branch_from
from agentgym.rollout.group import GroupConfig, GroupPlayer
from agentgym.rollout.look_ahead import LookAhead, edit_distance
from agentgym.rollout.plan import EnvPlanner
from agentgym.rollout.pool import EnvPool
from agentgym.rollout.strategies.config import StrategyConfig
from agentgym.rollout.strategies.deepsearch import DeepSearchOptions, deepsearch, path_of, score, values_of
from agentgym.rollout.strategies.latr import LatrOptions, latr
from agentgym.rollout.strategies.pairs import PairsOptions, pairs
from agentgym.types import Message, Status, ToolCall, TrajectoryGroup


def play_group(
    options: Any, make_env: Callable[[], Env], said: tuple[str, ...], size: int = 12, ordinal: int = 3
) -> tuple[TrajectoryGroup, list[str]]:
    """Return a group, and the tasks of the episodes that were told to a pulse."""
    planner = EnvPlanner(StrategyConfig(branching=options), [TASK], size, 7)
    engine, told = DrawingEngine(said), []

    async def run() -> TrajectoryGroup:
        player = GroupPlayer(
            EnvPool(make_env, 8),
            engine.agents(),
            GroupConfig(group_size=size, num_envs=8),
            seed=1,
            on_episode=lambda request, trajectory: told.append(trajectory.task.id),
        )
        return await player.play(ordinal, TASK, num_episodes=size, program=in_waves(planner.branch(ordinal)))

    return asyncio.run(run()), told


def plain(group: TrajectoryGroup) -> list[Any]:
    return [[t.completion for t in one.turns] for one in group.trajectories] + [list(group.cut)]


# -------------------------------------------------------------------------------------------------------------- LATR


def test_latr_branches_at_the_most_uncertain_turns() -> None:
    rule = LookAhead()
    half, all_of = LatrOptions(share=0.5), LatrOptions(share=1.0)

    def branch(parent: int, turn: int) -> Start:
        return Start(parent=parent, turn=turn, look_ahead=rule)

    one, other = surprising(-9.0, -1.0, -3.0, -9.0), surprising(-9.0, -2.5, -9.0)
    assert latr([one], 0, 9, 12, half) == [branch(0, 2)], "the first turn is no branch, and the last is too late"
    assert latr([one, other], 0, 9, 12, all_of) == [branch(0, 2), branch(1, 1), branch(0, 1)]
    assert latr([one, other], 0, 2, 12, all_of) == [branch(0, 2), branch(1, 1)]
    assert latr([one, other], 1, 9, 12, all_of) == [branch(1, 1)], "what it has seen before branches no more"
    assert latr([surprising(*[-1.0] * 4, parent=0, branch_turn=1)], 0, 9, 12, all_of) == [branch(0, 2)]
    assert latr([surprising(-1.0, -1.0, -1.0, status=Status.TIMEOUT)], 0, 2, 12, all_of) == [START, START]
    assert latr([one, other], 2, 3, 12, all_of) == [START] * 3
    assert LatrOptions(num_tokens=2).uncertainty(made_turn([-1.0, -2.0, -9.0])) == 1.5


def test_a_branch_is_compared_after_its_turns() -> None:
    left, right = (ToolCall("move", {"direction": way}) for way in ("left", "right"))
    go_left = made_turn([-1.0] * 4, (5, 6, 7, 2), action=Message("assistant", "left", (left,)))
    go_right = made_turn([-1.0] * 4, (5, 6, 8, 2), action=Message("assistant", "right", (right,)))
    other = made_episode([go_left, go_right, go_left]).turns
    by_action = LookAhead(by="action", num_turns=2)
    assert by_action.stops([go_left, go_right], "?", [other])
    assert not by_action.stops([go_left, go_left], "?", [other])
    assert not by_action.stops([go_left], "?", [other]), "it is compared when it has two turns"
    assert not by_action.stops([go_left, go_right], "?", [other[:2]]), "the other one had ended there"
    assert not by_action.stops([go_left, go_right], "?", [])
    assert LookAhead(by="state").stops([go_right], "s1", [other]) and not LookAhead(by="state").stops(
        [go_left], "s0", [other]
    )
    assert edit_distance((5, 6, 7, 2), (5, 6, 8, 2)) == 0.25
    assert LookAhead(by="tokens", min_distance=0.3).stops([go_right], "?", [other])
    assert not LookAhead(by="tokens", min_distance=0.25).stops([go_right], "?", [other])


def test_edit_distance() -> None:
    assert edit_distance(b"kitten", b"sitting") == pytest.approx(3 / 7)
    assert edit_distance((), (1, 2)) == 1.0 and edit_distance((1, 2), (3, 4)) == 1.0


@pytest.mark.parametrize("make_env", [Corridor, NativeCorridor])
@pytest.mark.parametrize("by", ["action", "state", "tokens"])
def test_stopped_branches_are_cancelled_and_leave_their_place_to_others(make_env: Callable[[], Env], by: Any) -> None:
    said = ("move: right", "move: left", "say: hello")
    group, told = play_group(LatrOptions(by=by, share=1.0), make_env, said)
    again, _ = play_group(LatrOptions(by=by, share=1.0), make_env, said)
    assert plain(group) == plain(again)
    assert len(group.trajectories) == 12 == len(told) and group.cut
    assert {cut.reason for cut in group.cut} == {"pruned"}
    assert all(cut.num_turns == 1 and cut.num_sampled_tokens > 0 for cut in group.cut)
    assert not any(one.is_stopped for one in group.trajectories)
    assert all(one.status.is_evidence for one in group.trajectories)
    seeds = [one.seed for one in group.trajectories] + [cut.seed for cut in group.cut]
    assert len(set(seeds)) == len(seeds)
    if by == "action":
        for one in group.trajectories:
            if one.parent >= 0:
                parent = group.trajectories[one.parent].turns
                assert one.turns[one.branch_turn].action.calls != parent[one.branch_turn].action.calls


def test_a_policy_that_always_does_the_same_fills_its_group_nevertheless() -> None:
    group, _ = play_group(LatrOptions(share=1.0), Corridor, ("move: right",))
    assert len(group.trajectories) == 12 and group.cut
    assert all(one.parent == -1 for one in group.trajectories), "all branches were stopped"


def test_latr_refuses_a_distance_that_is_not_read() -> None:
    with pytest.raises(ConfigError, match="read with by=tokens"):
        LatrOptions(min_distance=0.3)


# --------------------------------------------------------------------------------------------------------- DeepSearch


def test_values_are_backed_up_by_the_share_of_the_way() -> None:
    """Two failures and a success that branched off the first; shares are (depth + 1) / (turns + 1)."""
    first, second = surprising(*[-1.0] * 3), surprising(*[-1.0] * 2)
    won = surprising(*[-1.0] * 4, success=True, parent=0, branch_turn=2)
    played = [first, second, won]
    assert path_of(played, 2) == [(-1, 0), (0, 1), (0, 2), (2, 3)]
    values = values_of(played, 0.1)
    assert values[-1, 0].num_visits == 3 and values[-1, 0].value == pytest.approx(1 / 5)
    assert values[0, 1].num_visits == 2 and values[0, 1].value == pytest.approx(2 / 5), "a success replaces failures"
    assert values[0, 2].num_visits == 2 and values[0, 2].value == pytest.approx(3 / 5)
    assert values[1, 1].num_visits == 1 and values[1, 1].value == pytest.approx(-2 / 3)
    assert values[2, 3].value == pytest.approx(4 / 5)
    late = values_of([surprising(*[-1.0] * 4, success=True), first], 0.1)
    assert late[-1, 0].value == pytest.approx(1 / 5), "failures do not count after a success"
    assert values_of([surprising(*[-1.0] * 30)], 0.1)[-1, 0].value == pytest.approx(-0.1)


def test_deepsearch_plays_on_from_the_state_with_the_best_score() -> None:
    options = DeepSearchOptions(width=3)
    first, second = surprising(-0.1, -2.0, -0.5), surprising(-0.2, -0.2)
    played = [first, second]
    values = values_of(played, 0.1)
    expected = 0.4 * math.tanh(values[0, 1].mean) + 0.4 * 2.0 + 0.01 * math.sqrt(2 / 3)
    assert score((0, 2), played, values, options) == pytest.approx(expected)
    assert deepsearch(played, 6, 8, options) == [Start(parent=0, turn=2)] * 2
    assert deepsearch(played, 1, 8, options) == [Start(parent=0, turn=2)]
    branches = [surprising(-0.1, -2.0, -0.5, parent=0, branch_turn=2) for _ in range(2)]
    full = deepsearch([*played, *branches], 4, 8, options)
    assert full == [Start(parent=1, turn=1)] * 2, "the best state has its three continuations"
    calm = DeepSearchOptions(surprise_weight=0.0, depth_weight=0.0)
    won = surprising(-0.1, -0.1, -0.1, success=True)
    assert {start.parent for start in deepsearch([first, won], 6, 8, calm)} == {1}, "values of the state before"
    assert deepsearch([surprising(-1.0)], 2, 8, options) == [START, START]
    assert deepsearch([surprising(-1.0, -1.0, status=Status.ABORTED)], 2, 8, options) == [START, START]


@pytest.mark.parametrize("make_env", [Corridor, NativeCorridor])
def test_a_search_is_the_same_again_and_keeps_its_width(make_env: Callable[[], Env]) -> None:
    said = ("move: right", "move: left", "say: hello")
    group, _ = play_group(DeepSearchOptions(), make_env, said)
    assert plain(group) == plain(play_group(DeepSearchOptions(), make_env, said)[0])
    branches = [one for one in group.trajectories if one.parent >= 0]
    assert len(group.trajectories) == 12 and len(branches) == 9 and not group.cut
    for at in range(12):
        nodes = path_of(group.trajectories, at)
        assert len(nodes) == len(group.trajectories[at].turns)
    for one in branches:
        assert branch_from(Start(parent=one.parent, turn=one.branch_turn), group.trajectories) is not None
        same = [b for b in branches if (b.parent, b.branch_turn) == (one.parent, one.branch_turn)]
        assert len(same) <= 2, "three continuations with the parent's own"


# -------------------------------------------------------------------------------------------------------------- pairs


def test_each_episode_gets_a_sibling_at_a_random_turn() -> None:
    rng = np.random.default_rng
    long = surprising(*[-1.0] * 4)
    assert pairs([], 5, 5, rng(0), PairsOptions()) == [START] * 3
    drawn = {pairs([long], 1, 2, rng(seed), PairsOptions())[0].turn for seed in range(40)}
    assert drawn == {1, 2, 3}
    short, failed = surprising(-1.0), surprising(-1.0, -1.0, status=Status.ABORTED)
    starts = pairs([long, short, failed, long], 4, 8, rng(0), PairsOptions())
    assert [start.parent for start in starts] == [0, 3]
    branch = surprising(-1.0, -1.0, parent=0, branch_turn=1)
    assert pairs([long, short, failed, long, branch, branch], 2, 8, rng(0), PairsOptions())[0].parent == 3
    assert pairs([long, branch], 2, 8, rng(0), PairsOptions()) == [START, START]

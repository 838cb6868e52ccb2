"""Episodes that branch and get hints: the same tokens as when played from the start, and what strategies choose."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from testkit.corridors import Corridor, NativeCorridor
from testkit.drawing_engine import SUMMARISED, TASK, DrawingEngine
from testkit.played_groups import hinted, in_waves
from testkit.tokenizers_for_tests import HERMES, THINKING
from testkit.worlds import Counter, LongCounter

from agentgym.credit.columns import turn_table
from agentgym.engine import SamplingParams
from agentgym.env.env import Env, Snapshot
from agentgym.errors import ConfigError, CorruptDataError, UsageError
from agentgym.rollout.agent import MakeAgent, ScriptedAgent
from agentgym.rollout.branch import START, Start, branch_from
from agentgym.rollout.context import FULL, ContextConfig
from agentgym.rollout.group import GroupConfig, GroupPlayer
from agentgym.rollout.loop import run_episode
from agentgym.rollout.plan import EnvPlanner
from agentgym.rollout.pool import EnvPool
from agentgym.rollout.record import GroupRecord, read_records, record_path, write_records
from agentgym.rollout.reflection import reflect_with
from agentgym.rollout.replay import RecordRef, Replayed, Swap, read_again, swapped
from agentgym.rollout.request import RolloutRequest
from agentgym.rollout.strategies.aepo import AepoBranchingOptions, ArpoOptions, aepo, arpo, roots_of
from agentgym.rollout.strategies.config import StrategyConfig
from agentgym.rollout.strategies.fading import FadingOptions, fading
from agentgym.rollout.strategies.history import Visit
from agentgym.rollout.strategies.retry import RetryOptions, pivot_of, retry
from agentgym.trainers.models.tiny import CHAT_TEMPLATE
from agentgym.types import (
    Completion,
    FinishReason,
    Message,
    Segment,
    Status,
    Task,
    Trajectory,
    TrajectoryGroup,
    Turn,
)

WINDOWED = ContextConfig(policy="window", num_turns=2)


def play(env: Env, agents: MakeAgent, **changes: Any) -> Trajectory:
    request = RolloutRequest(task=TASK, make_agent=agents, **{"seed": 5, **changes})
    return asyncio.run(run_episode(env, request))


def same_episode(one: Trajectory, other: Trajectory) -> bool:
    def plain(trajectory: Trajectory) -> list[list[Turn]]:
        return [
            [replace(t, latency=Turn(index=0, action=t.action).latency) for t in s.turns] for s in trajectory.segments
        ]

    return plain(one) == plain(other) and (one.status, one.success) == (other.status, other.success)


def group_of(*trajectories: Trajectory) -> TrajectoryGroup:
    return TrajectoryGroup(ordinal=0, task=TASK, trajectories=trajectories)


# --------------------------------------------------------------------------------------------- one episode from another


@pytest.mark.parametrize("template", [CHAT_TEMPLATE, HERMES, THINKING], ids=["plain", "hermes", "thinking"])
@pytest.mark.parametrize("context", [FULL, WINDOWED, SUMMARISED], ids=lambda context: context.policy)
@pytest.mark.parametrize("make_env", [Corridor, NativeCorridor, LongCounter])
def test_a_branch_is_the_episode_played_from_the_start(
    make_env: Callable[[], Env], context: ContextConfig, template: str
) -> None:
    """With the seed of its parent a branch must sample what the parent sampled, token by token, from any turn on."""
    said = ("add: 1", "add: 2", "<think>no</think>add: 1") if make_env is LongCounter else ("move: right", "move: left")
    engine = DrawingEngine(said, template)
    snapshots: dict[int, Snapshot] = {}
    agents = engine.agents(context, make_env())
    whole = play(make_env(), agents, on_snapshot=snapshots.__setitem__)
    assert len(whole.turns) > 4
    assert bool(snapshots) == (make_env is NativeCorridor)
    if context is SUMMARISED and make_env is LongCounter:
        assert any(turn.kind == "summary" for turn in whole.turns), "the test would say nothing about summaries"
    for turn in range(1, len(whole.turns)):
        for held in ([], [snapshots]):
            branch = branch_from(Start(parent=0, turn=turn), [whole], held)
            assert branch is not None and (branch.snapshot is not None) == bool(held and snapshots)
            again = play(make_env(), agents, branch=branch)
            assert same_episode(again, whole)
            assert (again.parent, again.branch_turn) == (0, turn)
            assert len(again.own_turns) == len(whole.turns) - turn


def test_a_branch_with_a_seed_of_its_own_samples_anew() -> None:
    engine = DrawingEngine(("move: right", "move: left", "say: hello"))
    whole = play(Corridor(), engine.agents())
    branch = branch_from(Start(parent=0, turn=2), [whole])
    others = [play(Corridor(), engine.agents(), branch=branch, seed=seed) for seed in range(6, 12)]
    assert all(other.turns[:2] == whole.turns[:2] for other in others)
    assert len({other.segments[0].token_ids for other in others}) > 2


def test_an_environment_that_answers_otherwise_is_an_infrastructure_failure() -> None:
    class Fickle(Corridor):
        number = 0

        def start(self, task: Task) -> Any:
            type(self).number += 1
            return super().start(task)

        def state_key(self) -> str:
            return "somewhere"

        async def arespond(self, action: Message) -> Any:
            return (*await super().arespond(action), Message("user", f"It is visit {self.number}."))

    engine = DrawingEngine(("move: right",))
    whole = play(Fickle(), engine.agents())
    assert whole.status is Status.COMPLETED
    failed = play(Fickle(), engine.agents(), branch=branch_from(Start(parent=0, turn=2), [whole]))
    assert (failed.status, failed.success, failed.reward) == (Status.ENV_ERROR, None, None)
    assert "reply differs" in str(failed.error)


def test_what_cannot_be_branched_from_is_refused() -> None:
    whole = play(Corridor(), DrawingEngine(("move: right",)).agents())
    failed = replace(whole, status=Status.ENV_ERROR)
    assert branch_from(START, [whole]) is None
    for start, match in (
        (Start(parent=0, turn=len(whole.turns)), "turns, counted from 0"),
        (Start(parent=2, turn=1), "did not fail"),
        (Start(parent=1, turn=1), "did not fail"),
    ):
        with pytest.raises(ConfigError, match=match):
            branch_from(start, [whole, failed])


def test_a_hint_is_in_the_prompt_and_nowhere_else() -> None:
    engine = DrawingEngine(("move: left", "say: hello"))
    plain = play(Corridor(), engine.agents())
    asked_plainly = [engine.text(prompt) for prompt in engine.prompts]
    engine.prompts.clear()
    helped = play(Corridor(), engine.agents(), num_hints=2)
    asked = [engine.text(prompt) for prompt in engine.prompts]
    assert ["Hint: move: right" in prompt for prompt in asked] == [True, True] + [False] * (len(asked) - 2)
    assert asked[0].replace("\nHint: move: right", "") == asked_plainly[0]
    assert asked[1].count("Hint") == 1, "the hint of an earlier turn is not shown again"
    assert [turn.hint for turn in helped.turns[:3]] == ["move: right", "move: right", ""]
    (segment,) = helped.segments
    assert "Hint" not in engine.text(segment.token_ids)
    sampled = [turn.completion.token_ids for turn in helped.turns]
    prompts = [tuple(segment.token_ids[: _end_of(segment, at)]) for at in range(len(sampled))]
    assert prompts[2:] == engine.prompts[2:], "turns after the hints see what is trained"
    assert not helped.is_unaided and plain.is_unaided


def _end_of(segment: Segment, number: int) -> int:
    """The place in a segment at which a completion begins."""
    before = segment.turns[:number]
    return sum(len(t.prompt_ids) + len(t.completion.token_ids) for t in before) + len(segment.turns[number].prompt_ids)


@pytest.mark.parametrize("context", [WINDOWED, SUMMARISED], ids=lambda context: context.policy)
def test_hints_leave_every_context_as_it_is(context: ContextConfig) -> None:
    engine = DrawingEngine(("add: 1",))
    helped = play(LongCounter(), engine.agents(context, LongCounter()), num_hints=99)
    shown = [engine.text(prompt).count("Hint: add: 1") for prompt in engine.prompts]
    assert shown == [int(turn.kind == "act") for turn in helped.turns]
    text = "".join(engine.text(segment.token_ids) for segment in helped.segments)
    assert "Hint" not in text and helped.success


def test_a_hint_without_room_is_left_out() -> None:
    engine = DrawingEngine(("add: 1",))
    whole = play(Counter(), engine.agents())
    engine.max_context_tokens = len(whole.segments[0].turns[0].prompt_ids) + 45
    helped = play(Counter(), engine.agents(), num_hints=5)
    assert helped.turns[0].hint == "", "40 tokens of an action and the hint do not fit into 45"


def test_only_policies_of_tokens_branch() -> None:
    whole = play(Corridor(), DrawingEngine(("move: right",)).agents())
    script = ScriptedAgent(lambda _: Message("assistant", "move: right"))
    with pytest.raises(UsageError, match="cannot continue another episode"):
        play(Corridor(), lambda *_: script, branch=branch_from(Start(parent=0, turn=1), [whole]))


# ----------------------------------------------------------------------------------------------------------- groups


def play_group(
    config: StrategyConfig, make_env: Callable[[], Env], engine: DrawingEngine, size: int = 6, ordinal: int = 3
) -> TrajectoryGroup:
    planner = EnvPlanner(config, [TASK], size, 7)

    async def run() -> TrajectoryGroup:
        player = GroupPlayer(EnvPool(make_env, 8), engine.agents(), GroupConfig(group_size=size, num_envs=8), seed=1)
        return await player.play(ordinal, TASK, num_episodes=size, program=in_waves(planner.branch(ordinal)))

    return asyncio.run(run())


@pytest.mark.parametrize("make_env", [Corridor, NativeCorridor])
@pytest.mark.parametrize(
    "options", [ArpoOptions(probability=0.3, weight=2.0), AepoBranchingOptions(), RetryOptions()], ids=lambda o: o.kind
)
def test_a_group_branches_the_same_way_again(options: Any, make_env: Callable[[], Env]) -> None:
    engine = DrawingEngine(("move: right", "move: left", "say: hello"))
    config = StrategyConfig(branching=options)
    group, again = (play_group(config, make_env, engine) for _ in range(2))
    assert len(group.trajectories) == 6
    assert all(map(same_episode, group.trajectories, again.trajectories))
    branches = [t for t in group.trajectories if t.parent >= 0]
    assert branches and group.trajectories[0].parent == -1
    for branch in branches:
        shared = group.trajectories[branch.parent].turns[: branch.branch_turn]
        assert branch.turns[: branch.branch_turn] == shared
    assert len({t.seed for t in group.trajectories}) == 6


def test_the_credit_table_knows_parents_and_records_keep_them(tmp_path: Path) -> None:
    engine = DrawingEngine(("move: right", "move: left", "say: hello"))
    group = play_group(StrategyConfig(branching=RetryOptions()), Corridor, engine)
    # an episode before the parents fails: their numbers in the table are others than in the group
    first_parent = min(t.parent for t in group.trajectories if t.parent >= 0)
    members = [replace(t, parent=t.parent + 1 if t.parent >= 0 else -1) for t in group.trajectories]
    failed = Trajectory(task=TASK, env_id="x", status=Status.ENV_ERROR, segments=(), seed=0)
    mixed = group_of(failed, *members)
    table = turn_table([group_of(*group.trajectories), mixed], ("parent", "branch_turn"))
    assert table.parent is not None and table.branch_turn is not None
    of_first = {int(t): int(p) for t, p in zip(table.trajectory, table.parent, strict=True)}
    expected = [t.parent for t in group.trajectories] + [
        t.parent + 6 if t.parent >= 0 else -1 for t in group.trajectories
    ]
    assert [of_first[at] for at in range(12)] == expected
    assert first_parent >= 0
    write_records(tmp_path / "r.jsonl.gz", [GroupRecord(group=mixed)])
    (record,) = read_records(tmp_path / "r.jsonl.gz")
    assert record.group == mixed


def test_a_stored_episode_is_found_though_json_has_no_tuples(tmp_path: Path) -> None:
    task = Task(id="t-1", split="train", seed=1, data={"kinds": ("mug", "pan")})
    stored = episode([-1.0, -2.0], success=True, task=task, parent=0, branch_turn=1)
    own = TrajectoryGroup(ordinal=3, task=task, trajectories=(episode([-1.0], task=task), stored))
    write_records(record_path(tmp_path, 2), [GroupRecord(group=own)])
    fresh = TrajectoryGroup(ordinal=9, task=task, trajectories=(episode([-3.0], task=task),) * 2)
    again = Replayed((Swap(9, 1, RecordRef(2, 3, 1)),))
    (made,) = swapped([fresh], read_again([fresh], again, tmp_path))
    assert made.trajectories == (
        fresh.trajectories[0], replace(stored, replayed_step=2, parent=-1, branch_turn=0),
    )  # fmt: skip
    other = replace(fresh, task=replace(task, seed=2))
    with pytest.raises(CorruptDataError, match="the record was changed"):
        read_again([other], again, tmp_path)


# ------------------------------------------------------------------------------------------------------- strategies


def episode(logprobs: Sequence[float], *, success: bool = False, **changes: Any) -> Trajectory:
    """An episode of one turn per number, the log-probability of its only token."""
    turns = tuple(
        Turn(
            index=at,
            action=Message("assistant", "x"),
            completion=Completion(
                token_ids=(1,), logprobs=(value,), policy_versions=(0,), finish_reason=FinishReason.STOP
            ),
            state_key=f"s{at}",
        )
        for at, value in enumerate(logprobs)
    )
    made = Trajectory(
        task=TASK, env_id="x", status=Status.COMPLETED, segments=(Segment(turns),), seed=0, success=success
    )
    return replace(made, **changes)


def with_turn(trajectory: Trajectory, at: int, **changes: Any) -> Trajectory:
    turns = tuple(replace(t, **changes) if t.index == at else t for t in trajectory.turns)
    return replace(trajectory, segments=(Segment(turns),))


RNG = np.random.default_rng


def test_arpo_branches_where_entropy_rose() -> None:
    options = ArpoOptions(probability=0.5, weight=0.2, log_vocabulary=1.0)
    base = episode([-1.0, -2.0, -4.0, -0.5, -1.0])
    likely = np.clip([options.chance(base, turn) for turn in range(1, 5)], 0, 1)
    assert likely == pytest.approx([0.7, 1.0, 0.4, 0.5]), "clip(p + w * (H_now - H_first), 0, 1)"
    sure = ArpoOptions(probability=0.0, weight=1.0, log_vocabulary=1.0)
    assert arpo([base], 0, 7, 8, RNG(0), sure) == [Start(parent=0, turn=1), Start(parent=0, turn=2)]
    assert arpo([base], 0, 1, 8, RNG(0), sure) == [Start(parent=0, turn=1)]
    assert arpo([base], 1, 3, 8, RNG(0), sure) == [START] * 3, "what it has seen before branches no more"
    three = ArpoOptions(probability=0.0, weight=1.0, log_vocabulary=1.0, beam=3)
    assert [start.turn for start in arpo([base], 0, 9, 9, RNG(0), three)] == [1, 1, 2, 2]


def test_arpo_looks_at_a_branchs_own_turns() -> None:
    sure = ArpoOptions(probability=0.0, weight=1.0, log_vocabulary=1.0)
    branch = episode([-1.0, -2.0, -4.0, -4.5, -9.0], parent=0, branch_turn=2)
    assert arpo([episode([-9.0]), branch], 1, 8, 8, RNG(0), sure) == [Start(parent=1, turn=4)]
    failed = replace(branch, status=Status.ENV_ERROR)
    assert arpo([failed], 0, 2, 8, RNG(0), sure) == [START, START]


def test_arpo_draws_with_its_probability() -> None:
    options = ArpoOptions(probability=0.3, weight=0.0)
    rng, base = RNG(1), episode([-1.0, -1.0])
    drawn = sum(arpo([base], 0, 1, 8, rng, options)[0].is_branch for _ in range(2000))
    assert drawn / 2000 == pytest.approx(0.3, abs=0.03)


def test_aepo_shares_its_budget_by_the_first_episode() -> None:
    options = AepoBranchingOptions(log_vocabulary=1.0)
    first = episode([-1.0, -0.3, -0.5])
    assert roots_of(first, 16, options) == 8, "16 sigma(0.2 (1.0 - 0.4)) is 8.479"
    assert roots_of(episode([-30.0, -0.1]), 16, options) == 16
    assert roots_of(episode([-0.1, -60.0]), 16, options) == 1
    assert roots_of(replace(first, status=Status.ENV_ERROR), 16, options) == 8
    assert aepo([], 0, 16, 16, RNG(0), options) == [START]
    assert aepo([first], 0, 15, 16, RNG(0), options) == [START] * 7
    sure = AepoBranchingOptions(log_vocabulary=1.0, probability=1.0, weight=0.0, penalty=1.0)
    long = episode([-1.0] * 6)
    assert aepo([long] * 8, 1, 8, 16, RNG(0), sure)[:8] == [Start(parent=at, turn=1) for at in range(8)]
    turns = [start.turn for start in aepo([long, first], 1, 40, 40, RNG(0), sure) if start.parent == 0]
    assert turns == [1, 3, 5], "after a branch it may not branch at once"
    calm = episode([-0.1, -60.0, -1.0])
    assert aepo([calm], 0, 4, 4, RNG(0), sure) == [Start(parent=0, turn=1)], "with one root it branches at once"
    assert aepo([calm, replace(calm, parent=0, branch_turn=1)], 1, 3, 4, RNG(0), sure) == [Start(parent=1, turn=2)]


def test_failures_are_retried_from_their_fault() -> None:
    base = episode([-1.0] * 6)
    options = RetryOptions(num_hints=2)
    assert pivot_of(base, RNG(0), options) == 3, "the middle, where nothing stands out"
    assert pivot_of(with_turn(base, 4, is_valid=False), RNG(0), options) == 4
    assert pivot_of(with_turn(base, 0, is_void=True), RNG(0), options) == 1
    assert pivot_of(with_turn(base, 5, state_key="s2"), RNG(0), options) == 2, "turn 2 led back to its own state"
    assert {pivot_of(base, RNG(seed), RetryOptions(pivot="random")) for seed in range(50)} == {1, 2, 3, 4, 5}
    played = [base, episode([-1.0] * 4, success=True), replace(base, status=Status.ABORTED), episode([-1.0])]
    assert retry(played, 4, 8, RNG(0), options) == [Start(parent=0, turn=3, num_hints=2), START, START, START]


def reflecting_group(engine: DrawingEngine, said: str) -> tuple[TrajectoryGroup, list[str]]:
    """A group whose failures are retried after the policy has said something about them; and what it was asked."""
    planner = EnvPlanner(StrategyConfig(branching=RetryOptions(pivot="reflect")), [TASK], 4, 7)
    asked: list[str] = []
    answer = DrawingEngine((said,))

    class Listening(DrawingEngine):
        async def generate(self, prompt_ids: Any, sampling: SamplingParams, *, session_id: str = "") -> Completion:
            asked.append(self.text(prompt_ids))
            assert sampling.max_new_tokens == 80, "the limit of a reflection, and not that of an action"
            return await answer.generate(prompt_ids, sampling, session_id=session_id)

    reflect = reflect_with(Listening((said,)), engine.renderer, SamplingParams(max_new_tokens=8), 80)

    async def run() -> TrajectoryGroup:
        player = GroupPlayer(
            EnvPool(LongCounter, 8), engine.agents(), GroupConfig(group_size=4, num_envs=8), seed=1, reflect=reflect
        )
        return await player.play(0, TASK, num_episodes=4, program=in_waves(planner.branch(0)))

    return asyncio.run(run()), asked


def test_a_failure_is_retried_where_the_policy_says_with_its_advice() -> None:
    engine = DrawingEngine(("nothing", "add: 1"))
    group, asked = reflecting_group(engine, '{"turn": 5, "advice": "Count on."}')
    retries = group.trajectories[2:]
    assert [(t.parent, t.branch_turn) for t in retries] == [(0, 4), (1, 4)]
    assert [t.own_turns[0].hint for t in retries] == ["Count on.", "Count on."]
    assert not any(turn.hint for t in retries for turn in t.own_turns[1:])
    assert sum("Hint: Count on." in engine.text(prompt) for prompt in engine.prompts) == 2
    assert all("Count on" not in engine.text(segment.token_ids) for t in retries for segment in t.segments)
    assert all(t.num_reflection_tokens > 5 for t in retries) and len(asked) == 2
    assert '"turn": 30' in asked[0] and "An agent failed" in asked[0]


@pytest.mark.parametrize(
    "said", ["no idea", '{"turn": 99, "advice": "x"}', '{"turn": true, "advice": "x"}', '{"turn": 3}']
)
def test_a_reflection_without_use_leaves_the_retry_at_the_fault(said: str) -> None:
    group, _ = reflecting_group(DrawingEngine(("nothing", "add: 1")), said)
    retries = group.trajectories[2:]
    assert all(t.parent >= 0 and t.branch_turn >= 1 and not any(turn.hint for turn in t.turns) for t in retries)
    assert all(t.num_reflection_tokens > 0 for t in retries), "what it cost is counted"


def test_hints_fade_as_success_rises() -> None:
    planner = EnvPlanner(StrategyConfig(guidance=FadingOptions(most=4, target=0.5)), [TASK], 8, 7)

    def planned() -> tuple[int, int]:
        (plan,) = planner.plan(0, [0], 1)
        return plan.num_hinted, plan.num_hints

    assert planned() == (0, 0), "of a task that was never played nobody knows whether it is hard"
    found = []
    for num_successes in (0, 2, 4, 8):
        planner.history.add(0, Visit(step=0, num_episodes=8, num_successes=num_successes))
        found.append(planned())
    assert found == [(4, 4), (4, 2), (0, 0), (0, 0)]
    assert fading(0.49, 2, FadingOptions(share=0.1)) == (1, 1)


def test_only_the_last_members_get_hints() -> None:
    engine = DrawingEngine(("move: right", "move: left"))

    async def run() -> TrajectoryGroup:
        player = GroupPlayer(EnvPool(Corridor, 4), engine.agents(), GroupConfig(group_size=4, num_envs=4), seed=1)
        return await player.play(0, TASK, program=hinted(3, ["", ""]))

    group = asyncio.run(run())
    assert [sum(bool(turn.hint) for turn in t.turns) for t in group.trajectories] == [0, 0, 3, 3]


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"branching": RetryOptions(), "guidance": FadingOptions()}, "remove strategy.branching"),
        ({"probe": 1}, "probe"),
    ],
)
def test_strategies_that_cannot_be_together_are_refused(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        StrategyConfig(**changes)


def test_options_name_what_is_wrong() -> None:
    for options in (
        lambda: ArpoOptions(initial=0.0),
        lambda: ArpoOptions(beam=1),
        lambda: RetryOptions(num_hints=-1),
        lambda: RetryOptions(pivot="reflect", num_hints=1),
        lambda: FadingOptions(share=1.0),
    ):
        with pytest.raises(ConfigError, match=r"must be|leave num_hints out"):
            options()

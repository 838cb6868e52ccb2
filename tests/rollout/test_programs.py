"""Programs: what they may do with a group and its episodes, and what is refused by name."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from testkit.corridors import Corridor, NativeCorridor
from testkit.drawing_engine import TASK, DrawingEngine
from testkit.worlds import LongCounter

from agentgym.env.env import Env
from agentgym.errors import ConfigError
from agentgym.rollout.episode import Episode
from agentgym.rollout.group import GroupConfig, GroupPlayer
from agentgym.rollout.plan import EnvPlanner, GroupPlan
from agentgym.rollout.pool import EnvPool
from agentgym.rollout.program import Facts, Group, Planned
from agentgym.rollout.program_trial import try_program
from agentgym.rollout.strategies.aepo import ArpoOptions
from agentgym.rollout.strategies.arrol import ArrolOptions
from agentgym.rollout.strategies.cleaner import CleanerOptions
from agentgym.rollout.strategies.component import PROGRAMS
from agentgym.rollout.strategies.config import StrategyConfig
from agentgym.rollout.strategies.fading import FadingOptions
from agentgym.rollout.strategies.history import Visit
from agentgym.rollout.strategies.knapsack import DarsOptions
from agentgym.rollout.strategies.retry import RetryOptions
from agentgym.settings import checked
from agentgym.types import Latency, Status, Trajectory, TrajectoryGroup

WALKS = ("move: right", "move: left", "say: hello")
Play = Callable[[Group], Awaitable[None]]


def play_group(
    play: Play,
    make_env: Callable[[], Env] = Corridor,
    *,
    size: int = 6,
    num_envs: int = 8,
    engine: DrawingEngine | None = None,
    facts: Facts = Facts(),  # noqa: B008  (frozen)
) -> TrajectoryGroup:
    """Return the group that a program plays."""
    said = engine or DrawingEngine(("add: 1", "add: 2") if make_env is LongCounter else WALKS)

    async def run() -> TrajectoryGroup:
        player = GroupPlayer(
            EnvPool(make_env, num_envs), said.agents(), GroupConfig(group_size=size, num_envs=num_envs), seed=1
        )
        return await player.play(3, TASK, program=Planned(play=play, facts=facts))

    return asyncio.run(run())


def untimed(group: TrajectoryGroup) -> list[Trajectory]:
    def plain(one: Trajectory) -> Trajectory:
        segments = [
            replace(segment, turns=tuple(replace(turn, latency=Latency()) for turn in segment.turns))
            for segment in one.segments
        ]
        return replace(one, segments=tuple(segments))

    return [plain(one) for one in group.trajectories]


async def at_once(group: Group) -> None:
    await group.gather(*(group.start().play() for _ in range(group.size)))


@pytest.mark.parametrize("make_env", [Corridor, NativeCorridor, LongCounter])
def test_an_episode_that_pauses_often_is_the_same(make_env: Callable[[], Env]) -> None:
    async def step_by_step(group: Group) -> None:
        async def one(episode: Episode) -> None:
            await episode.play(until=1)
            while episode.is_paused:
                assert episode.success is None and episode.num_turns == len(episode.turns)
                await episode.play(until=episode.num_turns + 2)

        await group.gather(*(one(group.start()) for _ in range(group.size)))

    assert untimed(play_group(step_by_step, make_env)) == untimed(play_group(at_once, make_env))


def test_what_is_paused_at_the_end_is_cancelled() -> None:
    async def some(group: Group) -> None:
        first, second, third, never = (group.start() for _ in range(4))
        await group.gather(first.play(until=2), second.play(until=3), third.play())
        await second.play()
        assert [second, third] == [*group.finished] and group.num_left == 4
        group.drop(third)
        assert [second] == [*group.finished] and never.turns == ()

    group = play_group(some)
    assert len(group.trajectories) == 1 and group.trajectories[0].status.is_evidence
    assert [(one.member, one.reason, one.num_turns > 0) for one in group.cut] == [
        (0, "pruned", True), (2, "pruned", True), (3, "waiting", False),
    ]  # fmt: skip


@pytest.mark.parametrize("make_env", [Corridor, NativeCorridor])
def test_a_branch_of_a_paused_episode_copies_its_turns(make_env: Callable[[], Env]) -> None:
    async def tree(group: Group) -> None:
        root = await group.start().play(until=3)
        twigs = [root.branch(2), root.branch(3 - 1), root.branch(1, tokens=1)]
        await group.gather(root.play(), *(twig.play() for twig in twigs))

    group = play_group(tree, make_env)
    root, *twigs = group.trajectories
    assert [(one.parent, one.branch_turn) for one in group.trajectories] == [(-1, 0), (0, 2), (0, 2), (0, 1)]
    assert all(one.turns[: one.branch_turn] == root.turns[: one.branch_turn] for one in twigs)
    assert twigs[2].turns[1].completion.token_ids[0] == root.turns[1].completion.token_ids[0]
    assert len({one.seed for one in group.trajectories}) == 4


def test_turns_of_a_dropped_parent_belong_to_its_first_branch() -> None:
    """Nobody else of the group trains them."""

    async def pruned_tree(group: Group) -> None:
        first = await group.start().play()
        middle = await first.branch(1).play(until=4)
        heir, other, early = middle.branch(3), middle.branch(2), middle.branch(1)
        await group.gather(heir.play(), other.play(), early.play())
        group.drop(middle)

    engine = DrawingEngine(("move: right", "move: left"))
    group = play_group(pruned_tree, engine=engine)
    assert [(one.parent, one.branch_turn) for one in group.trajectories] == [(-1, 0), (0, 1), (1, 2), (1, 1)]
    assert [one.reason for one in group.cut] == ["pruned"]
    heir, other = group.trajectories[1:3]
    assert heir.turns[:2] == other.turns[:2]


@pytest.mark.parametrize("num_envs", [1, 2, 8])
def test_what_is_played_does_not_depend_on_who_is_faster(num_envs: int) -> None:
    async def busy(group: Group) -> None:
        async def one(episode: Episode) -> None:
            await episode.play(until=1 + int(group.rng.integers(3)))
            twigs = [episode.branch(episode.num_turns - 1) for _ in range(2)] if episode.is_paused else []
            await group.gather(*(twig.play() for twig in twigs))
            seen.append(len(group.finished))
            if group.rng.random() < 0.5 and episode.is_paused:
                await episode.play()

        await group.gather(*(one(group.start()) for _ in range(4)))
        await group.start().play()

    seen: list[int] = []
    group = play_group(busy, num_envs=num_envs)
    assert set(seen) <= {0, 1, 2}, "a coroutine of a gather sees its own episodes"
    assert untimed(group) == untimed(play_group(busy, num_envs=8))
    assert any(one.parent >= 0 for one in group.trajectories) and len(group.trajectories) > 6


def test_hints_are_shown_and_comments_are_said() -> None:
    async def helped(group: Group) -> None:
        hinted, told, plain = (group.start() for _ in range(3))
        hinted.show("Mind the step.", turns=2)
        await group.gather(hinted.play(), told.play(until=2), plain.play())
        told.comment("That was no use.")
        await told.play()

    for make_env in (Corridor, NativeCorridor):
        engine = DrawingEngine(WALKS)
        hinted, told, plain = play_group(helped, make_env, engine=engine).trajectories
        assert [turn.hint for turn in hinted.turns][:3] == ["Mind the step."] * 2 + [""]
        assert sum("Mind the step." in engine.text(prompt) for prompt in engine.prompts) == 2
        assert [bool(turn.feedback) for turn in told.turns[:3]] == [False, True, False]
        trained = engine.text(told.segments[0].token_ids)
        assert trained.count("That was no use.") == 1 and "Mind" not in engine.text(hinted.segments[0].token_ids)
        assert told.status.is_evidence and [one.is_unaided for one in (hinted, told, plain)] == [False, False, True]


def test_a_hint_lasts_over_a_pause_for_as_many_turns_as_it_was_given() -> None:
    async def hinted(group: Group) -> None:
        episode = group.start()
        episode.show("Go.", turns=3)
        await episode.play(until=2)
        await episode.play(until=5)
        await episode.play()

    (one,) = play_group(hinted).trajectories
    assert [bool(turn.hint) for turn in one.turns[:5]] == [True, True, True, False, False]


def test_the_infrastructure_may_fail() -> None:
    class Breaking(Corridor):
        async def arespond(self, action: Any) -> Any:
            if self.turn == 4:
                raise RuntimeError("broken")
            return await super().arespond(action)

    async def brave(group: Group) -> None:
        parent = await group.start().play(until=3)
        twig = await parent.branch(2).play(until=3)
        await group.gather(parent.play(), twig.play(until=4))
        assert parent.has_failed and parent.success is None and not parent.is_paused
        with pytest.raises(ConfigError, match="branches at turn 1 of an episode that failed"):
            parent.branch(1)
        group.drop(twig)
        await group.start().play()

    group = play_group(brave, Breaking)
    assert [one.status for one in group.trajectories] == [Status.ENV_ERROR, Status.ENV_ERROR]


def test_random_numbers_do_not_repeat_after_a_drop() -> None:
    drawn: list[float] = []

    async def choosy(group: Group) -> None:
        for _ in range(4):
            drawn.append(group.rng.random())
            group.drop(await group.start().play())
        await group.start().play()

    play_group(choosy)
    play_group(choosy)
    assert len(set(drawn[:4])) == 4 and drawn[:4] == drawn[4:]


def test_a_program_reads_frozen_facts() -> None:
    read: list[Any] = []

    async def curious(group: Group) -> None:
        read.append((group.facts.step, group.facts.rate, group.task.id, group.size))
        await group.start().play()

    play_group(curious, facts=Facts(step=4, visits=(Visit(0, 8, 8), Visit(2, 8, 2))))
    play_group(curious)
    assert read == [(4, 0.25, "t", 6), (0, None, "t", 6)]


def test_facts_are_those_of_the_plan_though_the_run_is_resumed_later() -> None:
    planner = EnvPlanner(StrategyConfig(pruning=ArrolOptions(after=3)), [TASK], 4, 7)
    planner.history.add(0, Visit(step=0, num_episodes=8, num_successes=2))
    (plan,) = planner.plan(0, [0], 3)
    planner.history.add(0, Visit(step=3, num_episodes=8, num_successes=8))
    again = checked(GroupPlan, json.loads(json.dumps(asdict(plan))))
    assert again == plan and planner.program(again, 5, 3).facts.rate == 0.25
    old = {name: value for name, value in asdict(plan).items() if name != "visits"}
    assert planner.program(checked(GroupPlan, old), 5, 3).facts.rate is None, "of a run of an earlier release"


def test_programs_call_each_other_on_parts_of_a_group() -> None:
    async def pairs(group: Group) -> None:
        while group.num_left > 1:
            one = await group.start().play()
            await one.branch(1).play()

    async def both(group: Group) -> None:
        first, rest = group.part(4), group.part(2)
        await group.gather(pairs(first), at_once(rest))
        assert (len(first.finished), len(rest.finished), len(group.finished)) == (4, 2, 6)
        await at_once(group.part(1))

    group = play_group(both)
    assert [one.parent for one in group.trajectories] == [-1, 0, -1, 2, -1, -1, -1]
    assert untimed(group) == untimed(play_group(both, num_envs=1))


@pytest.mark.parametrize("options", [ArpoOptions(probability=0.5), ArrolOptions(after=3), FadingOptions()])
def test_rules_are_programs_that_programs_call(options: Any) -> None:
    facts = Facts(step=1, visits=(Visit(0, 8, 0),))

    async def by_options(group: Group) -> None:
        await group.play_by(options)

    async def by_name(group: Group) -> None:
        await group.part(4).play_by(PROGRAMS[options.kind].name)
        await group.start().play()

    whole, part = play_group(by_options, facts=facts), play_group(by_name, facts=facts)
    assert len(whole.trajectories) + len(whole.cut) == 6 and len(part.trajectories) + len(part.cut) == 5
    for group, size in ((whole, 6), (part, 4)):
        helped = [one for one in group.trajectories[:size] if one.parent >= 0 or any(turn.hint for turn in one.turns)]
        assert bool(helped) != bool(group.cut), "branches or hints, or members that were pruned"


@pytest.mark.parametrize(
    "rules", [{"branching": ArpoOptions()}, {"pruning": ArrolOptions(after=3)}, {"guidance": FadingOptions()}]
)
def test_a_group_that_turned_out_hard_gets_more_episodes_whoever_plays_it(rules: dict[str, Any]) -> None:
    def played(**more: Any) -> TrajectoryGroup:
        planner = EnvPlanner(StrategyConfig(**rules, **more), [TASK], 6, 7)
        (plan,) = planner.plan(0, [0], 0)
        return play_group(planner.program(plan, 3, 0).play)

    plain, extended = played(), played(budget=DarsOptions(high=9))
    assert extended.cut == plain.cut and untimed(extended)[: len(plain.trajectories)] == untimed(plain)
    more = extended.trajectories[len(plain.trajectories) :]
    assert len(more) > 0 and all(one.parent == -1 for one in more)


def test_a_rule_that_the_run_must_prepare_is_no_part_of_a_program() -> None:
    async def reflecting(group: Group) -> None:
        await group.play_by(RetryOptions(pivot="reflect"))

    async def scoring(group: Group) -> None:
        await group.play_by(CleanerOptions())

    for play in (reflecting, scoring):
        with pytest.raises(ConfigError, match=r"which the run must prepare: set strategy\.branching="):
            play_group(play)


# --------------------------------------------------------------------------------------------------- bad programs

HEAD = """
import asyncio, itertools, random, time
from agentgym.rollout.program import Episode, Group, program

count = itertools.count()

"""
BAD = {
    "plays nothing": ("pass", "program 'bad' returned before an episode of its group had ended"),
    "only pauses": ("await group.start().play(until=1)", "returned before an episode of its group had ended"),
    "drops all": (
        "group.drop(await group.start().play())",
        "returned before an episode of its group had ended",
    ),
    "raises": ("await group.start().play()\n    1 / 0", "program 'bad' failed: ZeroDivisionError: division by zero"),
    "plays twice": (
        "episode = await group.start().play()\n    await episode.play()",
        "program 'bad' plays an episode that has ended",
    ),
    "stands still": (
        "episode = await group.start().play(until=2)\n    await episode.play(until=2)",
        "plays an episode of 2 turns until turn 2, expected a later one",
    ),
    "half a turn": ("await group.start().play(until=1.5)", "until turn 1.5, expected a later one"),
    "other tasks": (
        "await asyncio.gather(*(group.start().play() for _ in range(2)))",
        "plays outside its group: use await group.gather",
    ),
    "forgets to await": ("await group.gather(group.start())", "expected coroutines such as episode.play()"),
    "undeclared branch": (
        "one = await group.start().play(until=2)\n    await one.branch(1).play()",
        "calls branch(): declare it with uses=('branches',)",
    ),
    "undeclared hint": (
        "one = group.start()\n    one.show('left')\n    await one.play()",
        "calls show(): declare it with uses=('hints',)",
    ),
    "undeclared oracle": ("group.start(demonstrated=True)", "declare it with uses=('demonstrations',)"),
    "undeclared comment": (
        "one = await group.start().play(until=2)\n    one.comment('no')",
        "declare it with uses=('comments',)",
    ),
    "endless": ("while True:\n        group.start()", "started 1024 episodes for a group of 4"),
    "too few": ("await group.start().play()", "finished 1 of 4 episodes of a trial, and a group needs"),
    "a clock": (
        "await group.gather(*(group.start().play(until=1 + next(count) % 5) for _ in range(4)))\n"
        "    await group.gather(*(group.start().play() for _ in range(1 + next(count) % 3)))",
        "program 'bad' played the same group in two ways",
    ),
    "the fastest": (
        "await group.complete([group.start() for _ in range(4)], 2)",
        "program 'bad' played the same group in two ways",
    ),
    "a failed parent": (
        "await group.gather(*(group.start().play() for _ in range(4)))\n"
        "    for one in group.finished:\n        await one.play() if one.success is None else None",
        "plays an episode that has ended",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_program_is_named_before_training(name: str, tmp_path: Path) -> None:
    body, said = BAD[name]
    file = tmp_path / "bad.py"
    file.write_text(f'{HEAD}@program("bad")\nasync def bad(group: Group) -> None:\n    {body}\n')
    config = checked(StrategyConfig, {"program": f"{file}:bad"}, "strategy")
    with pytest.raises(ConfigError) as raised:
        try_program(config, GroupConfig(group_size=4))
    assert said in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ('@program("bad")\ndef bad(group): pass', "program 'bad' is no coroutine function: write it with `async def`"),
        ('@program("bad", uses=("magic",))\nasync def bad(group): pass', "unknown means 'magic'; uses takes branches"),
        ('@program("bad")\nasync def bad(group, luck): pass', "program 'bad' takes luck, which nothing fills"),
        ("async def unnamed(group): pass", "registers no program 'unnamed'"),
    ],
)
def test_a_function_that_is_no_program_is_refused(source: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.py"
    file.write_text(HEAD + source)
    with pytest.raises(ConfigError, match=said.replace("(", r"\(")):
        PROGRAMS[f"{file}:{'unnamed' if 'unnamed' in source else 'bad'}"]


@pytest.mark.parametrize("order", [("rule", "own"), ("own", "rule")])
def test_a_program_of_the_name_of_a_rule_is_the_program(order: tuple[str, str], tmp_path: Path) -> None:
    parts = {
        "rule": '@branching("twice")\ndef rule(num_left):\n    return [START] * num_left\n\n\n',
        "own": '@program("twice")\nasync def own(group):\n    await group.start().play()\n\n\n',
    }
    file = tmp_path / "twice.py"
    imported = (
        "from agentgym.rollout.branch import START\nfrom agentgym.rollout.strategies.component import branching\n"
    )
    file.write_text(imported + HEAD + "".join(parts[name] for name in order))
    assert PROGRAMS[f"{file}:twice"].rule == ""
    assert checked(StrategyConfig, {"branching": f"{file}:twice"}, "strategy").branches


def test_a_users_rule_is_a_program(tmp_path: Path) -> None:
    file = tmp_path / "fresh_rule.py"
    file.write_text(
        "from agentgym.rollout.branch import START\nfrom agentgym.rollout.strategies.component import branching\n\n\n"
        '@branching("fresh_rule")\ndef rule(num_left):\n    return [START] * num_left\n'
    )
    alias = checked(StrategyConfig, {"program": f"{file}:fresh_rule"}, "strategy")
    assert alias == checked(StrategyConfig, {"branching": f"{file}:fresh_rule"}, "strategy") and alias.branches

    async def by_rule(group: Group) -> None:
        await group.play_by(f"{file}:fresh_rule")

    assert len(play_group(by_rule).trajectories) == 6


def test_a_program_stands_alone_in_its_configuration(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(f'{HEAD}@program("own")\nasync def own(group):\n    await group.start().play()\n')
    alias = checked(StrategyConfig, {"program": {"kind": "arpo", "initial": 0.25}}, "strategy")
    assert alias == checked(StrategyConfig, {"branching": {"kind": "arpo", "initial": 0.25}}, "strategy")
    with pytest.raises(ConfigError, match=r"arpo and .*own both decide .* or write a program that calls both"):
        checked(StrategyConfig, {"program": f"{file}:own", "branching": "arpo"}, "strategy")
    assert checked(StrategyConfig, {"program": f"{file}:own", "budget": "dars"}, "strategy").extends_groups

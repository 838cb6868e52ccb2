"""Branches within a turn: what is copied, what is sampled, within which limits, and what trains."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from testkit.corridors import Corridor, NativeCorridor
from testkit.drawing_engine import TASK, DrawingEngine
from testkit.made_episodes import made_episode, made_turn
from testkit.played_groups import in_waves

from agentgym.check.policies import ScriptedEngine
from agentgym.credit.compose import CreditConfig, credit_groups
from agentgym.credit.modulators.branches import SharedPrefixOptions
from agentgym.engine import SamplingParams
from agentgym.env.env import Env
from agentgym.rollout.branch import START, Start, branch_from, part_of
from agentgym.rollout.group import GroupConfig, GroupPlayer
from agentgym.rollout.loop import run_episode
from agentgym.rollout.plan import EnvPlanner
from agentgym.rollout.pool import EnvPool
from agentgym.rollout.request import RolloutRequest
from agentgym.rollout.seeds import derive_seed
from agentgym.rollout.strategies.config import StrategyConfig
from agentgym.rollout.strategies.cure import CureOptions, critical_start, cure
from agentgym.rollout.thinking_budget import generate_in_budget
from agentgym.trainers.data.samples import build_samples, filter_groups
from agentgym.types import Completion, FinishReason, Status, Trajectory, TrajectoryGroup

RNG = np.random.default_rng


class Continuing(DrawingEngine):
    """An engine that goes on with what the policy has begun to say."""

    async def generate(self, prompt_ids: Any, sampling: SamplingParams, *, session_id: str = "") -> Completion:
        prompt = tuple(prompt_ids)
        last = max(at for at in range(1, len(prompt) + 1) if self.text(prompt[:at]).endswith("<|act|>"))
        begun = prompt[last:]
        self.prompts.append(prompt)
        able = [said[len(begun) :] for said in self._said if tuple(said[: len(begun)]) == begun]
        drawn = derive_seed(sampling.seed, *prompt)
        ids = able[drawn % len(able)]
        return Completion(
            token_ids=tuple(ids),
            logprobs=tuple(-0.01 * (1 + (drawn >> at) % 97) for at in range(len(ids))),
            policy_versions=(0,) * len(ids),
            finish_reason=FinishReason.STOP,
        )


def play(env: Env, engine: DrawingEngine, **changes: Any) -> Trajectory:
    request = RolloutRequest(task=TASK, make_agent=engine.agents(), **{"seed": 5, **changes})
    return asyncio.run(run_episode(env, request))


SAID = ("move: right", "move: left", "say: hello")


@pytest.mark.parametrize("make_env", [Corridor, NativeCorridor])
@pytest.mark.parametrize("turn", [0, 2])
def test_a_branch_begins_with_tokens_of_its_parents_turn(make_env: Callable[[], Env], turn: int) -> None:
    engine = Continuing(SAID)
    whole = play(make_env(), engine)
    of_parent = whole.turns[turn].completion
    for num_tokens in range(1, len(of_parent.token_ids)):
        branch = branch_from(Start(parent=0, turn=turn, num_tokens=num_tokens), [whole])
        assert branch is not None and branch.given is not None and branch.given.num_tokens == num_tokens
        for seed in range(6):
            engine.prompts.clear()
            made = play(make_env(), engine, branch=branch, seed=seed)
            assert (made.parent, made.branch_turn, made.turns[:turn]) == (0, turn, whole.turns[:turn])
            own = made.turns[turn]
            copied = part_of(own.completion, 0, num_tokens)
            assert copied == part_of(of_parent, 0, num_tokens), "with the log-probabilities of then"
            assert (own.num_copied_tokens, own.num_rescored_tokens) == (num_tokens, 0)
            assert own.num_sampled_tokens == len(own.completion.token_ids) - num_tokens
            assert own.prompt_ids == whole.turns[turn].prompt_ids
            assert engine.prompts[0][-num_tokens:] == of_parent.token_ids[:num_tokens]
            assert own.action.content in SAID
            assert all(later.num_copied_tokens == 0 for later in made.turns[turn + 1 :])
            assert not made.is_unaided


def completed(num_begun: int, said: int = 20, **sampling: Any) -> tuple[Completion, list[int]]:
    """Return a completion that begins with some tokens, and the limits of the requests."""
    engine = ScriptedEngine(lambda prompt: list(range(100 + len(prompt), 100 + len(prompt) + said)))
    begun = Completion(
        token_ids=tuple(range(num_begun)),
        logprobs=(-0.5,) * num_begun,
        policy_versions=(3,) * num_begun,
        finish_reason=FinishReason.LENGTH,
    )
    renderer = DrawingEngine(("x",)).renderer
    made = asyncio.run(generate_in_budget(engine, renderer, (7, 8), SamplingParams(**sampling), "s", begun))
    assert made.token_ids[:num_begun] == begun.token_ids and made.policy_versions[:num_begun] == (3,) * num_begun
    assert made.logprobs[:num_begun] == begun.logprobs
    return made, [request.sampling.max_new_tokens for request in engine.requests]


@pytest.mark.parametrize(("num_begun", "limits"), [(0, [6]), (2, [4]), (5, [1]), (6, [])])
def test_copied_tokens_count_towards_the_limit(num_begun: int, limits: list[int]) -> None:
    made, asked = completed(num_begun, max_new_tokens=6)
    assert (len(made.token_ids), asked, made.finish_reason) == (6, limits, FinishReason.LENGTH)


def test_copied_tokens_count_towards_the_budget_of_thinking() -> None:
    made, asked = completed(3, max_new_tokens=4, max_thinking_tokens=5)
    assert asked == [2], "five tokens without thinking are an answer, of which four count"
    assert len(made.token_ids) == 4


# ------------------------------------------------------------------------------------------------ which token is drawn


def test_cure_branches_before_a_surprising_token() -> None:
    """The last token of a turn that stopped ends it, and is no place to branch."""
    one = made_episode([made_turn([-9.0, -0.5, -8.0]), made_turn([-3.0, -4.0, -0.1]), made_turn([-9.0])])
    drawn = {critical_start(one, 4, RNG(seed), 2) for seed in range(30)}
    assert drawn == {Start(parent=4, turn=1, num_tokens=1), Start(parent=4, turn=1, num_tokens=0)}
    every = {critical_start(one, 0, RNG(seed), 20) for seed in range(60)}
    assert every == drawn_from((0, 1), (1, 0), (1, 1)), "the first token of all is the start of the task"
    cut = replace(one.turns[0].completion, finish_reason=FinishReason.LENGTH)
    assert critical_start(made_episode([made_turn([-9.0]), replace(one.turns[0], completion=cut)]), 0, RNG(0), 1) in (
        Start(parent=0, turn=1, num_tokens=0),
    )
    assert critical_start(made_episode([made_turn([-1.0])]), 0, RNG(0), 5) is None
    summary = made_episode([made_turn([-1.0]), made_turn([-9.0, -9.0], kind="summary")])
    assert critical_start(summary, 0, RNG(0), 5) is None


def drawn_from(*places: tuple[int, int]) -> set[Start]:
    return {Start(parent=0, turn=turn, num_tokens=place) for turn, place in places}


def test_every_first_episode_is_continued_as_often() -> None:
    played = [made_episode([made_turn([-1.0] * number)]) for number in (3, 9, 5)]
    played[1] = replace(played[1], status=Status.ABORTED)
    starts = cure(played, 5, 8, RNG(0), CureOptions())
    assert [start.parent for start in starts] == [0, 2, 0, 2, 0] and len(set(starts)) == 2
    assert cure([made_episode([made_turn([-1.0])])], 2, 8, RNG(0), CureOptions()) == [START, START]


def group_of(options: Any, size: int = 8) -> TrajectoryGroup:
    planner = EnvPlanner(StrategyConfig(branching=options), [TASK], size, 7)
    engine = Continuing(SAID)

    async def run() -> TrajectoryGroup:
        player = GroupPlayer(EnvPool(Corridor, 8), engine.agents(), GroupConfig(group_size=size, num_envs=8), seed=1)
        return await player.play(3, TASK, num_episodes=size, program=in_waves(planner.branch(3)))

    return asyncio.run(run())


def test_copied_tokens_train_once() -> None:
    group, again = group_of(CureOptions()), group_of(CureOptions())
    for one, other in zip(group.trajectories, again.trajectories, strict=True):
        assert [t.completion for t in one.turns] == [t.completion for t in other.turns]
    branches = [one for one in group.trajectories if one.parent >= 0]
    assert len(branches) == 6 and any(one.own_turns[0].num_copied_tokens for one in branches)

    def trained(*modulators: Any) -> list[int]:
        credit = CreditConfig(estimator="grpo", modulators=modulators)
        samples = build_samples(filter_groups([group], credit_groups([group], credit), 1, "off"))
        counts = [0] * len(group.trajectories)
        for sample in samples:
            counts[sample.trajectory] += len(sample.in_batch)
        return counts

    everything = [sum(len(t.completion.token_ids) for t in one.turns) for one in group.trajectories]
    own = [sum(t.num_sampled_tokens for t in one.own_turns) for one in group.trajectories]
    assert trained() == everything, "without a modulator each copy trains with the advantage of its branch"
    assert trained(SharedPrefixOptions()) == own, "what was sampled once trains once"

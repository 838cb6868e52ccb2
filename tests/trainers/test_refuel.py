"""REFUEL: its formula, its gradient against brute force, which turns are siblings, and what is refused."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from testkit.drawing_engine import TASK, DrawingEngine
from testkit.made_episodes import made_turn, surprising
from testkit.played_groups import in_waves
from testkit.worlds import LongCounter
from torch import Tensor

from agentgym.credit.compose import CreditConfig, credit_groups
from agentgym.errors import ConfigError
from agentgym.rollout.group import GroupConfig, GroupPlayer
from agentgym.rollout.plan import EnvPlanner
from agentgym.rollout.pool import EnvPool
from agentgym.rollout.strategies.aepo import ArpoOptions
from agentgym.rollout.strategies.config import StrategyConfig
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.data.batch import build_batches
from agentgym.trainers.data.row import Row
from agentgym.trainers.data.samples import build_samples, filter_groups
from agentgym.trainers.data.siblings import sibling_turns
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.losses.facts import BatchLogprobs, update_facts
from agentgym.trainers.losses.loss import policy_loss
from agentgym.trainers.losses.options import RefuelOptions
from agentgym.trainers.losses.siblings import refuel_terms
from agentgym.trainers.recipes import load_recipe
from agentgym.types import Segment, Status, TrajectoryGroup


def brute_force(logprob: Tensor, old: Tensor, returns: Tensor, turn: Tensor, state: Tensor, eta: float) -> Tensor:
    """Return the loss, written as the paper writes it: over all pairs of each state."""
    losses = []
    for one in sorted({*state.tolist()} - {-1}):
        turns = sorted({*turn[state == one].tolist()})
        of_turn = {at: ((logprob - old)[turn == at].sum() / eta, returns[turn == at][0]) for at in turns}
        squares = [
            ((of_turn[x][0] - of_turn[y][0]) - (of_turn[x][1] - of_turn[y][1])) ** 2 for x, y in combinations(turns, 2)
        ]
        losses.append(torch.stack(squares).mean())
    return torch.stack(losses).mean()


def test_refuel() -> None:
    """The worked example: eta 1, d_x 0.3, d_y -0.2, difference of returns 0.8."""
    change, returns = torch.tensor([0.3, -0.2]), torch.tensor([0.8, 0.0])
    factor, value = refuel_terms(change, returns, torch.tensor([0, 1]), torch.tensor([4, 4]), RefuelOptions())
    assert value.sum().item() == pytest.approx((0.5 - 0.8) ** 2)
    assert factor.tolist() == pytest.approx([2 * (0.5 - 0.8), -2 * (0.5 - 0.8)])
    factor, value = refuel_terms(change, returns, torch.tensor([0, 1]), torch.tensor([4, 4]), RefuelOptions(eta=0.5))
    assert value.sum().item() == pytest.approx((1.0 - 0.8) ** 2)
    assert factor.tolist() == pytest.approx([2 * 0.2 / 0.5, -2 * 0.2 / 0.5])
    none, nothing = refuel_terms(change, returns, torch.tensor([0, 1]), torch.tensor([-1, -1]), RefuelOptions())
    assert not none.any() and not nothing.any()


floats = st.floats(-2.0, 2.0, allow_nan=False)


@given(
    turns=st.lists(
        st.tuples(st.integers(-1, 2), floats, st.lists(floats, min_size=1, max_size=3)), min_size=2, max_size=8
    ),
    eta=st.sampled_from((0.3, 1.0, 2.5)),
)
def test_terms_against_the_formula(turns: list[tuple[int, float, list[float]]], eta: float) -> None:
    numbers = [state for state, _, _ in turns]
    states = [state if numbers.count(state) > 1 else -1 for state in numbers]  # one turn alone is no pair
    if set(states) <= {-1}:
        return
    lengths = [len(change) for _, _, change in turns]
    turn = torch.repeat_interleave(torch.arange(len(turns)), torch.tensor(lengths))
    state = torch.tensor(states)[turn]
    returns = torch.tensor([value for _, value, _ in turns], dtype=torch.float64)[turn]
    change = torch.tensor([value for _, _, of in turns for value in of], dtype=torch.float64)
    logprob = change.clone().requires_grad_()
    expected = brute_force(logprob, torch.zeros_like(change), returns, turn, state, eta)
    (gradient,) = torch.autograd.grad(expected, logprob)
    factor, value = refuel_terms(change, returns, turn, state, RefuelOptions(eta=eta))
    torch.testing.assert_close(factor, gradient)
    torch.testing.assert_close(value.sum(), expected.detach())


def branched(size: int = 8) -> TrajectoryGroup:
    """A group in which several episodes branched, some of them at the same turn."""
    engine = DrawingEngine(("add: 1", "add: 2", "nothing"))
    options = ArpoOptions(probability=0.5, weight=0.0, beam=3)
    planner = EnvPlanner(StrategyConfig(branching=options), [TASK], size, 7)

    async def play() -> TrajectoryGroup:
        player = GroupPlayer(EnvPool(LongCounter, 8), engine.agents(), GroupConfig(group_size=size, num_envs=8), seed=1)
        return await player.play(0, TASK, num_episodes=size, program=in_waves(planner.branch(0)))

    return asyncio.run(play())


@pytest.mark.parametrize("room", [100_000, 400])
@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean"])
def test_the_gradient_of_an_update_is_that_of_the_formula(room: int, aggregation: Any) -> None:
    """Whatever the micro-batches and the weights of tokens."""
    group = branched()
    credited = credit_groups([group], CreditConfig(estimator="returns", norm="mean_norm"))
    config = LossConfig(kind="refuel", corrections=(), aggregation=aggregation, options=RefuelOptions(eta=0.7))
    samples = build_samples(filter_groups([group], credited, 1, "off"), config.columns())
    batches = build_batches(samples, aggregation=config.mean, unit=config.unit, tokens_per_microbatch=room)
    assert (len(batches) > 1) == (room == 400)
    torch.manual_seed(0)
    changes = [torch.randn(batch.num_tokens, dtype=torch.float64) * 0.1 for batch in batches]
    old = [batch["logprob_rollout"].double() for batch in batches]
    leaves = [(before + change).requires_grad_() for before, change in zip(old, changes, strict=True)]
    frozen = [
        BatchLogprobs(logprob=leaf.detach(), logprob_old=before, entropy=torch.zeros_like(before))
        for leaf, before in zip(leaves, old, strict=True)
    ]
    facts = update_facts(batches, frozen, config)
    parts = [
        policy_loss(BatchLogprobs(logprob=leaf, logprob_old=before, entropy=before), batch, config, facts).loss
        for leaf, before, batch in zip(leaves, old, batches, strict=True)
    ]
    made = torch.autograd.grad(sum(parts, torch.zeros(())), leaves)

    # the formula, on the same tokens, with turns and states found from the group alone
    again = [leaf.detach().clone().requires_grad_() for leaf in leaves]
    names, states, returns = [], [], []
    for batch in batches:
        of_sample = [samples[at] for at in batch.rows]
        for row, turn, advantage in zip(
            batch.row.tolist(), batch["turn_index"].tolist(), batch["advantage"].tolist(), strict=True
        ):
            member = group.valid[of_sample[row].trajectory]
            names.append((of_sample[row].trajectory, turn))
            states.append(state_of(group, of_sample[row].trajectory, turn))
            returns.append(advantage)
            assert advantage == pytest.approx(member.reward)
    pairs = {*zip(names, states, strict=True)}
    kinds = [at for at in dict.fromkeys(states) if at and sum(at == state for _, state in pairs) > 1]
    state = torch.tensor([kinds.index(at) if at in kinds else -1 for at in states])
    turns = torch.tensor([[*dict.fromkeys(names)].index(name) for name in names])
    assert len(kinds) >= 2 and max(len({*turns[state == at].tolist()}) for at in range(len(kinds))) > 2
    whole = torch.cat(again)
    expected = brute_force(whole, torch.cat(old), torch.tensor(returns, dtype=torch.float64), turns, state, 0.7)
    for one, other in zip(made, torch.autograd.grad(expected, again), strict=True):
        torch.testing.assert_close(one, other, atol=1e-7, rtol=1e-5)
    assert sum(float(part.detach()) for part in parts) == pytest.approx(float(expected.detach()), rel=1e-5)


def state_of(group: TrajectoryGroup, at: int, turn: int) -> tuple[int, int] | None:
    """Return what identifies the state of a sampled turn: the turn before it, which branches share as one object."""
    member = group.valid[at]
    if turn < member.branch_turn:
        return None
    return turn, id(member.turns[turn - 1]) if turn else 0


# -------------------------------------------------------------------------------------------- which turns are siblings


def test_siblings_are_turns_sampled_in_one_state() -> None:
    root = surprising(-1.0, -1.0, -1.0)
    one, two = (surprising(-1.0, -2.0, -3.0, parent=0, branch_turn=1) for _ in range(2))
    deep = surprising(-1.0, -2.0, -4.0, parent=2, branch_turn=2)
    early = surprising(-1.0, -5.0, parent=4, branch_turn=1)  # of a turn that its parent had copied
    failed = surprising(-1.0, status=Status.ABORTED)
    group = TrajectoryGroup(ordinal=0, task=TASK, trajectories=(root, failed, one, two, deep, early))
    assert sibling_turns(group).tolist() == [-1, 0, -1, -1, 0, 1, -1, 0, -1, -1, -1, 1, -1, 0]
    pair = TrajectoryGroup(ordinal=0, task=TASK, trajectories=(root, one))
    assert sibling_turns(pair).tolist() == [-1, 0, -1, -1, 0, -1]
    assert set(sibling_turns(replace(pair, trajectories=(root, root))).tolist()) == {-1}


@pytest.mark.parametrize("changes", [{"hint": "add: 1"}, {"num_copied_tokens": 1, "num_rescored_tokens": 1}])
def test_turns_of_another_prompt_are_no_siblings(changes: dict[str, Any]) -> None:
    turns = (made_turn([-1.0]), made_turn([-1.0], **changes))
    branch = surprising(-1.0, -1.0, parent=0, branch_turn=1, segments=(Segment(turns),))
    group = TrajectoryGroup(ordinal=0, task=TASK, trajectories=(surprising(-1.0, -1.0), branch))
    assert set(sibling_turns(group).tolist()) == {-1}


def test_rows_of_groups_without_branches_have_no_siblings() -> None:
    def rows(*members: Any) -> list[Row]:
        group = TrajectoryGroup(ordinal=0, task=TASK, trajectories=members)
        return build_samples(
            filter_groups([group], credit_groups([group], CreditConfig(estimator="returns")), 1, "off"),
            LossConfig(kind="refuel", corrections=()).columns(),
        )

    def siblings(*members: Any) -> list[list[float]]:
        return [row.columns["siblings"].tolist() for row in rows(*members)]

    assert siblings(surprising(-1.0), surprising(-1.0)) == [[-1], [-1]]
    assert siblings(surprising(-1.0, -1.0), surprising(-1.0, -1.0, parent=0, branch_turn=1)) == [[-1, 0], [-1, 0]]


# --------------------------------------------------------------------------------------------------------- refused

PAIRS = ('strategy.branching={"kind": "pairs"}', "loss.kind=refuel", "loss.corrections=[]")


@pytest.mark.parametrize(
    ("overrides", "match"),
    [
        (PAIRS[1:], "no episode branches"),
        (('strategy.branching={"kind": "cleaner"}', *PAIRS[1:]), "turns of the same prompt"),
        (
            ('strategy.branching={"kind": "retry", "num_hints": 1}', *PAIRS[1:], "loss.mode=bypass"),
            "of the same prompt",
        ),
        (PAIRS[:2], r"set loss\.corrections to \[\]"),
        ((*PAIRS, 'loss.token_masks=[{"kind": "forking_tokens"}]'), r"loss\.token_masks to \[\]"),
        ((*PAIRS, "loss.minibatch=tokens", "loss.num_updates=2"), "minibatch=episodes"),
        ((*PAIRS, "loss.clip_low=0.1"), "reads no clip_low"),
    ],
)
def test_what_cannot_be_is_refused(overrides: tuple[str, ...], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        apply_overrides(load_recipe("household-smoke"), overrides)
    assert apply_overrides(load_recipe("household-smoke"), PAIRS).loss.kind == "refuel"

"""Modulators for trajectories that branched from others: tree rollouts (ARPO) and retries from a pivot (R3L)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from agentgym.credit.component import modulator
from agentgym.credit.parts import Modulated
from agentgym.credit.statistics import group_statistics, per_trajectory, trajectories
from agentgym.credit.table import Bools, Floats, Ints, TurnTable
from agentgym.errors import ConfigError
from agentgym.plugins import Options
from agentgym.settings import Positive


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefixOptions(Options):
    """Keys of shared-prefix attribution. Only ``hard`` with ``once`` and ``soft`` with ``replicate`` are valid.

    Any other pair would count the shared turns twice (composition rule 14).
    """

    kind: Literal["shared_prefix"] = "shared_prefix"
    attribution: Literal["soft", "hard"] = "hard"
    """``soft``: each copy of a shared turn keeps the advantage of its branch. ``hard``: all copies get the mean."""
    count: Literal["replicate", "once"] = "once"
    """``replicate``: each copy has weight 1. ``once``: one copy has weight 1 and the others 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class R3lOptions(Options):
    """Keys of R3L's pivotal credit."""

    kind: Literal["r3l_pivot"] = "r3l_pivot"
    alpha: Positive = 3.0
    """Factor of positive advantages."""
    perfect_return: float = 1.0
    """Return from which on all advantages of a trajectory are exactly 1."""


@modulator(
    "shared_prefix",
    paper="Agentic Reinforced Policy Optimization",
    status="reproduced",
    columns=("parent", "branch_turn", "num_tokens", "num_shared_tokens"),
    granularity="turn",
)
def shared_prefix(
    table: TurnTable, advantage: Floats, options: SharedPrefixOptions = SharedPrefixOptions()
) -> Modulated:
    """Attribute credit to turns that several branches of a tree rollout share.

    A branch has its own rows for the turns before ``branch_turn``, which are copies of its parent's rows. ``hard``
    gives all copies of a turn the mean advantage of the branches and trains one copy. ``soft`` changes nothing. The
    branches of a tree are not independent samples: many branches of one good prefix bias the group's mean. Needs the
    columns ``parent`` and ``branch_turn``.

    A branch may begin within a turn of its parent (CURE). With ``hard``, the copied tokens of that turn
    (``num_shared_tokens``) train in the parent alone, with its advantage.

    Raises:
        ConfigError: a column is missing, or a trajectory is its own ancestor.

    Source: "Agentic Reinforced Policy Optimization" (ARPO).

    Example (trajectory 1 branched from 0 at its second turn):
        >>> table = TurnTable.from_lists(rewards=[[0, 1], [0, 0]], group_of_trajectory=[0, 0])
        >>> table = table.with_columns(parent=[-1, -1, 0, 0], branch_turn=[0, 0, 1, 1])
        >>> result = shared_prefix(table, np.array([0.73, 0.73, -1.09, -1.09]))
        >>> np.round(result.advantage, 6).tolist(), result.loss_weight.tolist()
        ([-0.18, 0.73, -0.18, -1.09], [1.0, 1.0, 0.0, 1.0])
    """
    owner = owners(table)
    if options.attribution == "soft" or not len(table):
        return Modulated(advantage=advantage)
    # All copies of a turn have the same (owner, turn index), so the pair identifies the sampled turn.
    turn_id = owner * (int(table.turn.max()) + 1) + table.turn
    # The mean over copies replaces their sum, so exactly one copy may enter the loss (composition rule 14).
    first = np.unique(turn_id, return_index=True)[1]
    weight = np.zeros(len(table))
    weight[first] = 1.0
    mean = group_statistics(advantage, turn_id).mean
    return Modulated(advantage=mean, loss_weight=weight, token_keep=_own_tokens(table))


def _own_tokens(table: TurnTable) -> Bools | None:
    """Return the tokens that are no copies within a turn ``[M]``; None if there are none of these copies."""
    if table.num_tokens is None or table.num_shared_tokens is None or table.parent is None:
        return None
    num_copies = np.where(table.parent >= 0, table.num_shared_tokens, 0)
    if not num_copies.any():
        return None
    first = np.cumsum(table.num_tokens) - table.num_tokens
    place = np.arange(int(table.num_tokens.sum())) - np.repeat(first, table.num_tokens)
    return np.asarray(place >= np.repeat(num_copies, table.num_tokens), dtype=np.bool_)


def owners(table: TurnTable) -> Ints:
    """Return the trajectory in which each turn was sampled first, shape ``[N]``.

    Raises:
        ConfigError: ``parent`` or ``branch_turn`` is missing, or a trajectory is its own ancestor.
    """
    table.require("parent", "branch_turn", by="attribution of branches")
    assert table.parent is not None and table.branch_turn is not None
    num = int(table.trajectory.max(initial=-1)) + 1
    parent, branch = np.full(num, -1, dtype=np.int64), np.zeros(num, dtype=np.int64)
    parent[table.trajectory], branch[table.trajectory] = table.parent, table.branch_turn
    owner = table.trajectory.copy()
    # A branch may start from a branch: each pass moves copied turns one generation up. A family of `num` trajectories
    # has fewer than `num` generations, so a further pass means a cycle.
    for _ in range(num + 1):
        is_copy = (parent[owner] >= 0) & (table.turn < branch[owner])
        if not is_copy.any():
            return owner
        owner = np.where(is_copy, parent[owner], owner)
    raise ConfigError(
        "column 'parent' makes a trajectory its own ancestor; expected the index of another trajectory, or -1 for none"
    )


@modulator(
    "r3l_pivot",
    paper="Reflect-then-Retry Reinforcement Learning",
    parity="shiweijiezero/R3L@d503f6c:trinity/algorithm/advantage_fn/opmd_advantage.py",
    columns=("parent", "branch_turn"),
)
def r3l_pivot(table: TurnTable, advantage: Floats, options: R3lOptions = R3lOptions()) -> Modulated:
    """Multiply positive advantages by ``alpha``, and set those of trajectories with a perfect return to 1.

    A trajectory whose return is at least ``perfect_return`` gets an advantage of 1 on every turn, so a group in which
    all members are perfect still trains.

    A retry repeats a base trajectory from a pivot turn on: ``parent`` is its base, ``branch_turn`` its pivot. Turns
    before the pivot get ``loss_weight`` 0 in both, and a base with several retries trains from its last pivot on.
    Trajectories without a base or retry train whole. The estimator has compared bases and retries in one group.

    Raises:
        ConfigError: a column is missing.

    Source: "Reflect-then-Retry Reinforcement Learning" (R3L; ``trinity/algorithm/advantage_fn/opmd_advantage.py`` and
    ``grpo_advantage.py``, the functions ``opmd_reweight_adv`` and ``grpo_reweight_adv``).

    Example:
        >>> table = TurnTable.from_lists(rewards=[[0], [0.5], [1], [0]], group_of_trajectory=[0] * 4)
        >>> table = table.with_columns(parent=[-1] * 4, branch_turn=[0] * 4)
        >>> r3l_pivot(table, np.array([-0.8, 0.3, 1.3, -0.8])).advantage.round(6).tolist()
        [-0.8, 0.9, 1.0, -0.8]
    """
    table.require("parent", "branch_turn", by="r3l_pivot")
    assert table.parent is not None and table.branch_turn is not None
    view = trajectories(table)
    returns = per_trajectory(table, table.reward)
    # R3L's pivotal credit amplifies positive advantages by alpha and leaves negative ones unchanged.
    amplified = np.where(advantage > 0, options.alpha * advantage, advantage)
    amplified = np.where((returns >= options.perfect_return)[view.of_row], 1.0, amplified)
    # Base and retry share the turns before the pivot, so the difference of their returns says nothing about those.
    is_retry = table.parent >= 0
    pivot = np.zeros(int(table.trajectory.max(initial=-1)) + 1, dtype=np.int64)
    np.maximum.at(pivot, table.trajectory[is_retry], table.branch_turn[is_retry])
    np.maximum.at(pivot, table.parent[is_retry], table.branch_turn[is_retry])
    weight = np.where(table.turn < pivot[table.trajectory], 0.0, 1.0)
    return Modulated(advantage=amplified, loss_weight=weight)

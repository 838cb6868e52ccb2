"""Rewards for tool use: OTC prefers few calls, and SPEAR's bonus for calls fades out during training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from agentgym.credit.component import shaper
from agentgym.credit.parts import Shaped, add_reward, on_last_turn, outcomes, with_part_values
from agentgym.credit.statistics import per_trajectory, trajectories
from agentgym.credit.table import Floats, TurnTable
from agentgym.plugins import Options
from agentgym.settings import Count, NonNegative, Range
from agentgym.types import RewardRole


@dataclass(frozen=True, slots=True, kw_only=True)
class OtcOptions(Options):
    """Keys of OTC."""

    kind: Literal["otc"] = "otc"
    variant: Literal["grpo", "ppo"] = "grpo"
    """``grpo`` compares with the fewest calls that have solved the task so far; ``ppo`` compares with nothing."""
    smoothing: Annotated[float, Range(at_least=1)] = 1.0
    """The paper's c. A good value is about the largest number of turns."""
    scale: float = 1.0
    """The paper's alpha."""
    success_above: float = 0.0
    """A trajectory is correct if its outcome is above this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolBonusOptions(Options):
    """Keys of the tool-bonus curriculum."""

    kind: Literal["tool_bonus"] = "tool_bonus"
    bonus: float = 0.05
    """Reward of one turn, trajectory or call. The release pays 0.1, where its outcomes are -1 and 1."""
    max_bonus: NonNegative = 0.5
    """Largest bonus of a trajectory, before fading; 1 in the release, half of its outcomes' range. It does not apply to
    ``per="call"``."""
    fade_steps: Count = 200
    """Number of training steps after which the bonus is 0."""
    per: Literal["turn", "trajectory", "call"] = "turn"
    """Unit of the bonus: every turn that calls a tool (the released code), a trajectory that calls one (ours), or every
    call (ours; composition rule 12 warns). Only ``call`` pays on the turn itself, the others on the last turn."""

    off_at_0 = "bonus"


def otc_factor(num_calls: Floats, fewest: Floats, smoothing: float = 1.0) -> Floats:
    """Return OTC's ``r_tool`` elementwise, for m calls where the best known rollout made n.

    For n = 0 it is 1 if m = 0, else ``cos(m pi / (2 m + c))``. For n > 0 it is ``sin(f pi / (2 n))`` with
    ``f = 2 n m / (m + n)``, which is 0 for m = 0 and has its maximum 1 at m = n.

    Example:
        >>> np.round(otc_factor(np.array([0, 1, 3, 1, 2, 4]), np.array([0, 0, 0, 2, 2, 2])), 6).tolist()
        [1.0, 0.5, 0.222521, 0.866025, 1.0, 0.866025]
    """
    m, n = np.asarray(num_calls, dtype=np.float64), np.asarray(fewest, dtype=np.float64)
    alone = np.where(m == 0, 1.0, np.cos(m * np.pi / (2 * m + smoothing)))
    # f pi / (2 n) simplifies to m pi / (m + n), which does not divide by n.
    compared = np.sin(m * np.pi / np.maximum(m + n, 1.0))
    return np.where(n == 0, alone, compared)


@shaper(
    "otc",
    paper="OTC: Optimal Tool Calls via Reinforcement Learning",
    status="experimental",
    columns=lambda options: ("num_calls", "part_values", *(("group_keys",) if options.variant == "grpo" else ())),
)
def otc(
    table: TurnTable, memory: Mapping[str, int], options: OtcOptions = OtcOptions()
) -> tuple[Shaped, Mapping[str, int]]:
    """Experimental (reconstructed): multiply outcome rewards by ``scale * r_tool``, so that a wrong answer earns 0.

    ``r_tool`` is :func:`otc_factor`. With ``grpo``, n is the fewest calls of all correct rollouts of the task so far,
    including this batch; with ``ppo``, n is 0. Reward parts of other roles do not change. Needs the column
    ``num_calls``, and ``group_keys`` for ``grpo``.

    Source: "OTC: Optimal Tool Calls via Reinforcement Learning" (public notes).

    Example:
        >>> table = TurnTable.from_lists(rewards=[[0, 1], [1]], group_of_trajectory=[0, 0])
        >>> table = table.with_columns(num_calls=[[2, 2], [2]], group_keys=["t"])
        >>> shaped, fewest = otc(table, {})
        >>> np.round(shaped.table.reward, 6).tolist(), fewest
        ([0.0, 0.866025, 1.0], {'t': 2})
    """
    num_calls = table.column("num_calls", by="otc")
    view = trajectories(table)
    calls = per_trajectory(table, num_calls)
    is_correct = outcomes(table) > options.success_above
    updated = dict(memory)
    best = np.zeros(len(calls))
    if options.variant == "grpo":
        group_keys = table.column("group_keys", by="otc with variant 'grpo'")
        keys = [group_keys[group] for group in view.group.tolist()]
        for key, count in ((keys[i], int(calls[i])) for i in np.flatnonzero(is_correct).tolist()):
            updated[key] = min(updated.get(key, count), count)
        best = np.array([updated.get(key, 0) for key in keys], dtype=np.float64)
    factor = options.scale * otc_factor(calls, best, options.smoothing)
    mean = float(factor[is_correct].mean()) if is_correct.any() else 0.0
    shaped = _times_outcome(table, factor[view.of_row])
    return Shaped(table=shaped, diagnostics={"otc_factor_mean": mean, "calls_mean": _mean(calls)}), updated


@shaper(
    "tool_bonus",
    paper="Learn the Ropes, Then Trust the Wins: Self-imitation with Progressive Exploration (SPEAR)",
    parity="TencentYoutuResearch/SPEAR@7e84315:verl/recipe/spear/reward.py",
    columns=("num_calls",),
    limits="defaults for outcomes 0 and 1; the release has -1 and 1, bonus=0.1 and max_bonus=1",
)
def tool_bonus(table: TurnTable, step: int, options: ToolBonusOptions = ToolBonusOptions()) -> Shaped:
    """``min(bonus n, max_bonus) (1 + cos(pi s / S)) / 2`` on the last turn at training step s < S, then 0.

    S is ``fade_steps``. n is the number of the trajectory's turns that call a tool; with ``per="trajectory"`` it is 1
    if there is such a turn. ``per="call"`` pays ``bonus`` for each call on the turn that makes it. Needs the column
    ``num_calls``.

    Source: "Learn the Ropes, Then Trust the Wins" (SPEAR), ``verl/recipe/spear/reward.py``
    (``default_compute_score_enforce_toolcall_posneg_decay``).

    Example:
        >>> table = TurnTable.from_lists(rewards=[[0, 1]], group_of_trajectory=[0]).with_columns(num_calls=[2, 0])
        >>> [round(float(tool_bonus(table, step).table.reward[1]), 6) for step in (0, 50, 200)]
        [1.05, 1.042678, 1.0]
    """
    num_calls = table.column("num_calls", by="tool_bonus")
    share = (1 + np.cos(np.pi * step / options.fade_steps)) / 2 if step < options.fade_steps else 0.0
    calling = per_trajectory(table, (num_calls > 0).astype(np.int64))
    if options.per == "trajectory":
        calling = np.minimum(calling, 1.0)
    value = on_last_turn(table, np.minimum(options.bonus * calling, options.max_bonus) * share)
    if options.per == "call":
        value = np.asarray(options.bonus * share * num_calls, dtype=np.float64)
    shaped = add_reward(table, "tool_bonus", RewardRole.PROCESS, value)
    return Shaped(table=shaped, diagnostics={"tool_bonus": _mean(per_trajectory(table, value))})


def _times_outcome(table: TurnTable, factor: Floats) -> TurnTable:
    if table.part_values is None:
        return table.with_columns(reward=table.reward * factor)
    is_outcome = [role is RewardRole.OUTCOME for role in table.part_roles]
    return with_part_values(table, np.where(is_outcome, table.part_values * factor[:, None], table.part_values))


def _mean(value: Floats) -> float:
    return float(value.mean()) if len(value) else 0.0

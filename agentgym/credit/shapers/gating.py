"""G-RA: a reward of lower priority counts only in trajectories whose rewards of higher priority pass their gates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from agentgym.credit.component import shaper
from agentgym.credit.parts import Shaped, outcomes, with_part_values
from agentgym.credit.statistics import per_trajectory, trajectories
from agentgym.credit.table import Floats, TurnTable
from agentgym.plugins import Options
from agentgym.types import RewardRole


@dataclass(frozen=True, slots=True, kw_only=True)
class GraOptions(Options):
    """Keys of G-RA."""

    kind: Literal["g_ra"] = "g_ra"
    priorities: Mapping[str, int] = field(default_factory=lambda: {"outcome": 0, "process": 1, "format": 1, "cost": 1})
    """Priority of each role, where 0 is the highest. A role that is not listed is never gated and opens no gate."""
    thresholds: tuple[float, ...] = (0.0,)
    """Gate value of each priority from 0 on; 0 for priorities not listed. Choose values that no return equals."""
    comparison: Literal[">", ">="] = ">"
    """Comparison of a trajectory's return with the gate value that opens the gate."""
    gate_penalties: bool = True
    """True: gate negative parts too. False: penalties always count."""
    ungated: tuple[str, ...] = ()
    """Names of parts that always count."""

    def check_together(self) -> None:
        known = {role.value for role in RewardRole}
        message = f"priorities name roles {sorted(set(self.priorities) - known)}; known: {', '.join(sorted(known))}"
        self.check(is_ok=set(self.priorities) <= known, message=message)
        least = min(self.priorities.values(), default=0)
        self.check(is_ok=least >= 0, message=f"priorities must be at least 0, got {least}")
        num_gates = max(self.priorities.values(), default=0)
        message = f"{len(self.thresholds)} thresholds for {num_gates} gates: one for each priority but the lowest"
        self.check(is_ok=len(self.thresholds) <= max(num_gates, 1), message=message)

    def idle(self) -> str:
        return "all roles have one priority, so that nothing is gated" if len(set(self.priorities.values())) < 2 else ""


@shaper(
    "g_ra",
    paper="Stabilizing Long-term Multi-turn Reinforcement Learning with Gated Rewards",
    status="experimental",
    columns=("part_values",),
)
def g_ra(table: TurnTable, options: GraOptions = GraOptions()) -> Shaped:
    """Experimental (reconstructed): ``r_t = sum_p gate_p r_t^(p)`` with ``gate_p = prod_{q<p} 1[Q_q > v_q]``.

    ``Q_q`` is the trajectory's sum of the parts of priority q and ``v_q`` the threshold. The gate therefore depends on
    the end of the episode. That is right for Monte-Carlo returns and wrong for the one-step targets of a critic, which
    must not contain the future. An information gain in the column ``info_gain`` is gated with the role ``process``.

    Diagnostics: ``gate_open_rate`` (share of trajectories with all gates open), ``outcome_mean``, and
    ``step_reward_mean`` (the gated parts, before gating). If step rewards rise while outcomes do not, the policy
    exploits the shaping.

    Source: "Stabilizing Long-term Multi-turn Reinforcement Learning with Gated Rewards" (abstract and public notes).

    Raises:
        ConfigError: the table has no parts.

    Example:
        >>> table = TurnTable.from_lists(rewards=[[0, 0], [0, 0]], group_of_trajectory=[0, 0]).with_parts(
        ...     solved=("outcome", [[0, 1], [0, 0]]), steps=("process", [[0.1, 0.1], [0.1, 0.1]]))
        >>> g_ra(table).table.reward.tolist()
        [0.1, 1.1, 0.0, 0.0]
    """
    part_values = table.column("part_values", by="g_ra")
    view = trajectories(table)
    priority = np.array([options.priorities.get(role.value, -1) for role in table.part_roles], dtype=np.int64)
    open_below = _gates(table, priority, options)
    values = part_values.copy()
    gated = np.zeros(len(table))
    for column, (name, level) in enumerate(zip(table.part_names, priority.tolist(), strict=True)):
        if level <= 0 or name in options.ungated:
            continue
        gated += values[:, column]
        passes = open_below[level][view.of_row]
        if not options.gate_penalties:
            passes = passes | (values[:, column] < 0)
        values[:, column] = np.where(passes, values[:, column], 0.0)
    is_open = np.logical_and.reduce(list(open_below.values()))[view.of_row]
    shaped = _gate_gain(with_part_values(table, values), options, open_below)
    diagnostics = {
        "gate_open_rate": float(is_open[view.first].mean()) if len(view.first) else 0.0,
        "outcome_mean": float(outcomes(table).mean()) if len(view.first) else 0.0,
        "step_reward_mean": float(per_trajectory(table, gated).mean()) if len(view.first) else 0.0,
    }
    return Shaped(table=shaped, gate_open=is_open, diagnostics=diagnostics)


def _gates(table: TurnTable, priority: np.ndarray, options: GraOptions) -> dict[int, np.ndarray]:
    """Return for each priority the trajectories ``[I]`` whose rewards of all higher priorities pass their gates."""
    assert table.part_values is not None
    levels = sorted({0, *priority.tolist(), *options.priorities.values()} - {-1})
    is_open = np.ones(len(trajectories(table).first), dtype=np.bool_)
    gates: dict[int, np.ndarray] = {}
    for level in levels:
        gates[level] = is_open
        total: Floats = per_trajectory(table, table.part_values[:, priority == level].sum(axis=1))
        value = options.thresholds[level] if level < len(options.thresholds) else 0.0
        is_open = is_open & ((total >= value) if options.comparison == ">=" else (total > value))
    return gates


def _gate_gain(table: TurnTable, options: GraOptions, open_below: Mapping[int, np.ndarray]) -> TurnTable:
    level = options.priorities.get(RewardRole.PROCESS.value, -1)
    if table.info_gain is None or level <= 0 or "info_gain" in table.part_names:
        return table
    # NaN means that the gain is not defined; 0 would be a measured gain of nothing and enter IGPO's statistics.
    passes = open_below[level][trajectories(table).of_row] | np.isnan(table.info_gain)
    return replace(table, info_gain=np.where(passes, table.info_gain, 0.0))

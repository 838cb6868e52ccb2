"""The gates of gated rewards (G-RA) in one episode: their states and the rewards that decided them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentgym.credit.shapers.gating import GraOptions
from agentgym.errors import ConfigError
from agentgym.settings import checked
from agentgym.types import Trajectory


def gate_options(credit: Mapping[str, Any] | None) -> GraOptions | None:
    """Return the G-RA settings in a run's ``credit``, or None if there are none or they cannot be read."""
    shapers = (credit or {}).get("shapers", ())
    found = [one for one in shapers if isinstance(one, Mapping) and one.get("kind") == "g_ra"]
    if not found:
        return None
    try:
        return checked(GraOptions, dict(found[0]), "credit.shapers")
    except ConfigError:  # settings of another version; the recorded state of the gate is still shown
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """One gate of an episode."""

    roles: tuple[str, ...]
    """Roles whose rewards must clear the gate."""
    total: float
    """Sum of these rewards over the episode."""
    needed: str
    """Condition on the sum, as in ``> 0``."""
    clears: bool
    gated: tuple[str, ...]
    """Roles whose rewards count only if the gate is cleared."""


def gates_of(trajectory: Trajectory, options: GraOptions) -> list[Gate]:
    """Return the gates of an episode, computed from its reward parts, highest priority first.

    Example:
        >>> from agentgym.types import Message, RewardPart, RewardRole, Segment, Status, Task, Turn
        >>> parts = (RewardPart("solved", 0.0), RewardPart("step", 0.1, RewardRole.PROCESS))
        >>> turn = Turn(index=0, action=Message("assistant", "go"), reward_parts=parts)
        >>> episode = Trajectory(task=Task(id="t", split="train", seed=0), env_id="E", status=Status.COMPLETED,
        ...     segments=(Segment((turn,)),), seed=0)
        >>> gates_of(episode, GraOptions())
        [Gate(roles=('outcome',), total=0.0, needed='> 0', clears=False, gated=('process', 'format', 'cost'))]
    """
    levels = sorted(set(options.priorities.values()))
    parts = [part for turn in trajectory.turns for part in turn.reward_parts]
    found = []
    for level in levels[:-1]:
        roles = _roles(options, {level})
        total = sum(part.value for part in parts if part.role.value in roles)
        value = options.thresholds[level] if level < len(options.thresholds) else 0.0
        found.append(
            Gate(
                roles=roles,
                total=total,
                needed=f"{options.comparison} {value:g}",
                clears=total >= value if options.comparison == ">=" else total > value,
                gated=_roles(options, {other for other in levels if other > level}),
            )
        )
    return found


def counted_parts(trajectory: Trajectory, options: GraOptions) -> list[list[bool]]:
    """Return, for each turn's reward parts, True if the gates let the part count."""
    closed = {role for gate in gates_of(trajectory, options) if not gate.clears for role in gate.gated}
    return [
        [
            part.role.value not in closed
            or part.name in options.ungated
            or (part.value < 0 and not options.gate_penalties)
            for part in turn.reward_parts
        ]
        for turn in trajectory.turns
    ]


def _roles(options: GraOptions, levels: set[int]) -> tuple[str, ...]:
    return tuple(role for role, level in options.priorities.items() if level in levels)

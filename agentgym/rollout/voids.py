"""Infrastructure failures by kind of action, which should not be correlated."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Final

from agentgym.types import Message, ToolCall, Trajectory

_OF_NO_ACTION: Final = ("reset", "sampling")
_FEWEST_VOIDS: Final = 3
_ALARM_PROBABILITY: Final = 0.01


def kind_of_action(action: Message) -> str:
    """Return the kind of an action: the distinct names of its tools, in order, or ``words``.

    Example:
        >>> kind_of_action(Message("assistant", "", (ToolCall("python"), ToolCall("bash"), ToolCall("python"))))
        'python+bash'
    """
    names = dict.fromkeys(call.name if isinstance(call, ToolCall) else "malformed" for call in action.calls)
    return "+".join(names) or "words"


def suspicious_kinds(trajectories: Sequence[Trajectory]) -> tuple[tuple[str, str], ...]:
    """Return (environment, kind of action) pairs for which infrastructure failures depend on the policy's actions.

    A policy that can make its environment fail can void its bad episodes and appear better than it is. A kind is
    suspicious if, under equal failure probability of all turns, at least so many failures would follow it with a
    probability below 1 % (hypergeometric test).
    """
    voids = voids_of(trajectories)
    uses = Counter((t.env_id, kind_of_action(turn.action)) for t in trajectories for turn in t.turns)
    turns = uses + Counter({key: count for key, count in voids.items() if key[1] not in _OF_NO_ACTION})
    return tuple(
        (env, kind)
        for (env, kind), num_voids in sorted(voids.items())
        if num_voids >= _FEWEST_VOIDS and kind not in _OF_NO_ACTION
        if _tail(
            num_voids,
            num_of_kind=turns[env, kind],
            num_failed=sum(count for key, count in voids.items() if key[0] == env and key[1] not in _OF_NO_ACTION),
            num_turns=sum(count for key, count in turns.items() if key[0] == env),
        )
        < _ALARM_PROBABILITY
    )


def voids_of(trajectories: Sequence[Trajectory]) -> Counter[tuple[str, str]]:
    """Count infrastructure failures by environment and kind of action."""
    return Counter((t.env_id, kind) for t in trajectories for kind in t.voids)


def _tail(num_voids: int, *, num_of_kind: int, num_failed: int, num_turns: int) -> float:
    """Return the probability that at least ``num_voids`` of ``num_failed`` randomly drawn turns are of a kind."""
    ways = sum(
        math.comb(num_of_kind, hits) * math.comb(num_turns - num_of_kind, num_failed - hits)
        for hits in range(num_voids, min(num_of_kind, num_failed) + 1)
    )
    return ways / math.comb(num_turns, num_failed)

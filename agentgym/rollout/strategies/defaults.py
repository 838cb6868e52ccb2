"""The default strategies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentgym.plugins import Options
from agentgym.rollout.branch import START, Start
from agentgym.rollout.program import Group
from agentgym.rollout.strategies.component import (
    branching,
    budget,
    guidance,
    horizon,
    program,
    pruning,
    replay,
    task_source,
)
from agentgym.rollout.waves import AT_ONCE


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderOptions(Options):
    """No settings."""

    kind: str = "order"


@task_source("order", paper="every task once per epoch", status="reproduced", options=OrderOptions)
def order(positions: Sequence[int], order: Callable[[int], int]) -> list[int]:
    """Return the tasks of the run's shuffled order."""
    return [order(position) for position in positions]


# ------------------------------------------------------------- the same number of episodes for every group: the default


@dataclass(frozen=True, slots=True, kw_only=True)
class EvenOptions(Options):
    """No settings."""

    kind: str = "even"


@budget("even", paper="group.group_size for every group", status="reproduced", options=EvenOptions)
def even(rates: Sequence[float | None], group_size: int) -> list[int]:
    """Return the configured group size for each group."""
    return [group_size] * len(rates)


# -------------------------------------------------------------- episodes as long as the environment allows: the default


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedOptions(Options):
    """No settings."""

    kind: str = "fixed"


@horizon("fixed", paper="the environment's own limit", status="reproduced", options=FixedOptions)
def fixed() -> int | None:
    """Return no limit in addition to the environment's."""
    return None


# ------------------------------------------- all episodes of a group begin at the start of their task at once


@dataclass(frozen=True, slots=True, kw_only=True)
class AtOnceOptions(Options):
    """No settings."""

    kind: str = "at_once"


@branching("at_once", paper="independent episodes", status="reproduced", options=AtOnceOptions)
def at_once(num_left: int) -> Sequence[Start]:
    """Return the starts of all episodes, at the start of their task.

    Example:
        >>> at_once(2) == [START, START]
        True
    """
    return [START] * num_left


# ------------------------------------------------------------------------------- every episode is played to its end


@dataclass(frozen=True, slots=True, kw_only=True)
class ToTheEndOptions(Options):
    """No settings."""

    kind: str = "to_the_end"


@pruning("to_the_end", paper="no pruning", status="reproduced", options=ToTheEndOptions)
def to_the_end(running: Sequence[object]) -> list[int]:
    """Return all members.

    Example:
        >>> to_the_end(["one", "two"])
        [0, 1]
    """
    return list(range(len(running)))


# ----------------------------------------------------------------------------------------------- episodes without hints


@dataclass(frozen=True, slots=True, kw_only=True)
class UnaidedOptions(Options):
    """No settings."""

    kind: str = "unaided"


@guidance("unaided", paper="no hints", status="reproduced", options=UnaidedOptions)
def unaided() -> tuple[int, int]:
    """Return 0 episodes with hints.

    Example:
        >>> unaided()
        (0, 0)
    """
    return 0, 0


# ---------------------------------------------------------------------------------------- every episode is trained once


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshOptions(Options):
    """No settings."""

    kind: str = "fresh"


@replay("fresh", paper="no replay", status="reproduced", options=FreshOptions)
def fresh() -> tuple[int, int] | None:
    """Return None, so that no member is replaced.

    Example:
        >>> fresh() is None
        True
    """
    return None


# ------------------------------------------------------ groups that are played by the rules of the other families


@dataclass(frozen=True, slots=True, kw_only=True)
class RulesOptions(Options):
    """No settings."""

    kind: str = "rules"


@program("rules", paper="branching, pruning, guidance and budget", status="reproduced", options=RulesOptions)
async def rules(group: Group) -> None:
    """Play groups by the rules of ``strategy.branching``, ``pruning``, ``guidance`` and ``budget``."""
    await AT_ONCE.play(group)

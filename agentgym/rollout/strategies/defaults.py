"""The default strategies."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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


@task_source("order", paper="every task once per epoch", status="reproduced")
def order(positions: Sequence[int], order: Callable[[int], int]) -> list[int]:
    """Return the tasks of the run's shuffled order."""
    return [order(position) for position in positions]


# ------------------------------------------------------------- the same number of episodes for every group: the default


@budget("even", paper="group.group_size for every group", status="reproduced")
def even(rates: Sequence[float | None], group_size: int) -> list[int]:
    """Return the configured group size for each group."""
    return [group_size] * len(rates)


# -------------------------------------------------------------- episodes as long as the environment allows: the default


@horizon("fixed", paper="the environment's own limit", status="reproduced")
def fixed() -> int | None:
    """Return no limit in addition to the environment's."""
    return None


# ------------------------------------------- all episodes of a group begin at the start of their task at once


@branching("at_once", paper="independent episodes", status="reproduced")
def at_once(num_left: int) -> Sequence[Start]:
    """Return the starts of all episodes, at the start of their task.

    Example:
        >>> at_once(2) == [START, START]
        True
    """
    return [START] * num_left


# ------------------------------------------------------------------------------- every episode is played to its end


@pruning("to_the_end", paper="no pruning", status="reproduced")
def to_the_end(running: Sequence[object]) -> list[int]:
    """Return all members.

    Example:
        >>> to_the_end(["one", "two"])
        [0, 1]
    """
    return list(range(len(running)))


# ----------------------------------------------------------------------------------------------- episodes without hints


@guidance("unaided", paper="no hints", status="reproduced")
def unaided() -> tuple[int, int]:
    """Return 0 episodes with hints.

    Example:
        >>> unaided()
        (0, 0)
    """
    return 0, 0


# ---------------------------------------------------------------------------------------- every episode is trained once


@replay("fresh", paper="no replay", status="reproduced")
def fresh() -> tuple[int, int] | None:
    """Return None, so that no member is replaced.

    Example:
        >>> fresh() is None
        True
    """
    return None


# ------------------------------------------------------ groups that are played by the rules of the other families


@program("rules", paper="branching, pruning, guidance and budget", status="reproduced")
async def rules(group: Group) -> None:
    """Play groups by the rules of ``strategy.branching``, ``pruning``, ``guidance`` and ``budget``."""
    await AT_ONCE.play(group)

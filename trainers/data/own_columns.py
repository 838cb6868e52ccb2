"""agentgym's own columns of episodes, which components of the loss may read."""

from __future__ import annotations

from agentgym.credit.table import Ints
from agentgym.trainers.data.columns import column
from agentgym.trainers.data.siblings import sibling_turns
from agentgym.types import Trajectory, TrajectoryGroup, Turn

PAPER = "ours"


@column("group", unit="group", dtype="int", paper=PAPER)
def group_number(group: TrajectoryGroup) -> int:
    """Return the ordinal of the group's task in the run."""
    return group.ordinal


@column("group_size", unit="group", dtype="int", paper=PAPER)
def group_size(group: TrajectoryGroup) -> int:
    """Return the number of the group's valid trajectories."""
    return len(group.valid)


@column("reward", unit="trajectory", paper=PAPER)
def reward(trajectory: Trajectory) -> float:
    """Return the sum of the rewards of the trajectory's turns."""
    return trajectory.reward or 0.0


@column("success", unit="trajectory", paper=PAPER)
def success(trajectory: Trajectory) -> float:
    """Return 1 for a success and 0 for a failure."""
    return float(bool(trajectory.success))


@column("num_turns", unit="trajectory", dtype="int", paper=PAPER)
def num_turns(trajectory: Trajectory) -> int:
    """Return the number of the trajectory's turns."""
    return len(trajectory.turns)


@column("replayed", unit="trajectory", dtype="int", paper=PAPER)
def replayed(trajectory: Trajectory) -> int:
    """Return 1 for a trajectory of an earlier step that is trained again, else 0."""
    return int(trajectory.replayed_step is not None)


@column("turn_reward", unit="turn", paper=PAPER)
def turn_reward(turn: Turn) -> float:
    """Return the sum of the turn's reward parts."""
    return turn.reward


@column("policy_version", unit="token", dtype="int", paper=PAPER)
def policy_version(turn: Turn) -> tuple[int, ...]:
    """Return the version of the policy that sampled each token."""
    return turn.completion.policy_versions


@column("siblings", unit="turn", dtype="int", paper=PAPER)
def siblings(group: TrajectoryGroup) -> Ints:
    """Return the number, within the group, of the state in which the turn and one of another trajectory were sampled.

    -1 for turns that no other trajectory sampled beside.
    """
    return sibling_turns(group)

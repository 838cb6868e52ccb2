"""Demonstrations in RL: the environment's oracle plays some members of every group.

The members count in the group's statistics and train by the policy loss, so their advantages fall as the policy comes
to succeed by itself. Nobody sampled their tokens from a distribution, so there is no importance ratio: corrections
leave them alone, and the loss ``rl_plus`` has a ratio for them. Sources: "RL-PLUS: Countering Capability Boundary
Collapse of LLMs in Reinforcement Learning with Hybrid-policy Optimization", "Learning to Reason under Off-Policy
Guidance" (LUFFY). Both add one demonstration to seven rollouts of each task.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentgym.plugins import Options
from agentgym.rollout.strategies.component import guidance
from agentgym.settings import Natural


@dataclass(frozen=True, slots=True, kw_only=True)
class DemonstrationOptions(Options):
    """Settings of demonstrations in RL."""

    kind: str = "demonstration"
    num: Natural = 1
    """Episodes of each group that the oracle plays; the policy plays at least one. A schedule may lower the number."""

    off_at_0 = "num"


@guidance(
    "demonstration",
    paper="RL-PLUS: Countering Capability Boundary Collapse of LLMs in Reinforcement Learning with Hybrid-policy "
    "Optimization; Learning to Reason under Off-Policy Guidance",
    status="reproduced",
    limits="demonstrations of the environment's oracle; files of sft.files have no task and no reward to join a group",
    test="tests/trainers/test_demonstrations_in_rl.py",
)
def demonstration(group_size: int, options: DemonstrationOptions) -> tuple[int, int]:
    """Return the number of episodes that the oracle plays, and 0 turns with a hint.

    Example:
        >>> demonstration(8, DemonstrationOptions()), demonstration(2, DemonstrationOptions(num=3))
        ((1, 0), (1, 0))
    """
    return min(options.num, group_size - 1), 0

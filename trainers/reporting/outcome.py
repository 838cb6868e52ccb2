"""The effect of RL on the evaluation's tasks, in a line, with its interval and p-value."""

from __future__ import annotations

from pathlib import Path

from agentgym.canonical import shell_word
from agentgym.evals.compare import Comparison, as_points, compare_moments

MOST_TASKS = 10_000
"""Largest number of tasks that the line suggests to evaluate; more are not practical."""


def outcome(run_dir: Path) -> list[str]:
    """Return lines that compare the policy after RL with the one before, on the same tasks.

    Args:
        run_dir: of a run that has made both evaluations.
    """
    found = compare_moments(run_dir)
    lines = []
    for one in found:
        of = f" on {one.suite_or_env}" if len(found) > 1 else ""
        lines.append(f"RL changed success{of} by {change(one)}")
        if one.pays_for_failure:
            lines.append(f"note: {gamed(one, run_dir)}")
    return lines


def change(one: Comparison) -> str:
    """Return a difference of success with its interval, and the number of tasks that would make it significant."""
    p = "p < 0.001" if one.p_value < 0.001 else f"p = {one.p_value:.2g}"
    said = (
        f"{as_points(one.difference)} (95 %: {as_points(one.difference_low)} to {as_points(one.difference_high)}, "
        f"{one.num_pairs} pairs of episodes, {p})"
    )
    if one.is_distinguishable:
        return said
    if one.tasks_needed is None or one.tasks_needed > MOST_TASKS:
        return f"{said}: not distinguishable from no change"
    return (
        f"{said}: not distinguishable from no change; eval.num_episodes={one.tasks_needed} would detect a difference "
        "of this size with a probability of 80 %"
    )


def gamed(one: Comparison, run_dir: Path) -> str:
    """Return a note on a policy that earns more and solves less than before."""
    return (
        f"return rose by {one.return_difference:.3g} while success fell: the reward pays for something "
        f"other than success. To see what earns it: agentgym view {shell_word(run_dir)} --episodes 3. What to change: "
        "docs/collapse.md, reward hacking"
    )

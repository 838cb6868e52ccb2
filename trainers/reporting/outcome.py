"""The effect of RL on the evaluation's tasks, in a line, with its interval and p-value."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Final

from agentgym.canonical import shell_word
from agentgym.evals.compare import Comparison, as_points
from agentgym.rollout.journal import VERDICT
from agentgym.rollout.record import replace_text

NO_TASKS: Final[Mapping[str, int]] = MappingProxyType({})

MOST_TASKS = 10_000
"""Largest number of tasks that the line suggests to evaluate; more are not practical."""


def outcome(found: Sequence[Comparison], run_dir: Path, num_tasks: Mapping[str, int] = NO_TASKS) -> list[str]:
    """Return lines that compare the policy after RL with the one before, on the same tasks.

    Args:
        found: the comparisons of both evaluations of ``run_dir``.
        num_tasks: number of tasks that an evaluation of each environment can play, by id.
    """
    lines = []
    for one in found:
        of = f" on {one.suite_or_env}" if len(found) > 1 else ""
        lines.append(f"RL changed success{of} by {change(one, num_tasks.get(one.suite_or_env))}")
        if one.pays_for_failure:
            lines.append(f"note: {gamed(one, run_dir)}")
    return lines


def change(one: Comparison, num_tasks: int | None = None) -> str:
    """Return a difference of success with its interval, and the number of tasks that would make it significant.

    Args:
        num_tasks: number of tasks that exist; None if it is not known.
    """
    p = "p < 0.001" if one.p_value < 0.001 else f"p = {one.p_value:.2g}"
    said = (
        f"{as_points(one.difference)} (95 %: {as_points(one.difference_low)} to {as_points(one.difference_high)}, "
        f"{one.num_pairs} pairs of episodes, {p})"
    )
    if one.is_distinguishable:
        return said
    if one.tasks_needed is None or one.tasks_needed > MOST_TASKS:
        return f"{said}: not distinguishable from no change"
    if num_tasks is not None and one.tasks_needed > num_tasks:
        return (
            f"{said}: not distinguishable from no change; {one.tasks_needed} tasks would detect a difference of this "
            f"size with a probability of 80 %, and the split has {num_tasks}: evaluate each more often (eval.repeats), "
            "or take an environment with more tasks"
        )
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


def keep_verdict(run_dir: Path, lines: Sequence[str], found: Sequence[Comparison]) -> None:
    """Write what a run says at its end into ``verdict.json``: its lines, and each comparison with its p-value."""
    kept = {"lines": list(lines), "comparisons": [asdict(one) for one in found]}
    replace_text(run_dir / VERDICT, json.dumps(kept, indent=1) + "\n")

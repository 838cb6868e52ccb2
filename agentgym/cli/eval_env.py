"""Results of ``agentgym eval ENV``: one policy on tasks of one environment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from agentgym.canonical import shell_word
from agentgym.cli.grid import Grid
from agentgym.cli.output import Output
from agentgym.engine import ENDPOINT
from agentgym.evals.episodes import read_rows
from agentgym.evals.prices import cost_text
from agentgym.evals.repeats import repeat_texts
from agentgym.evals.runner import EvalSummary

_GAP = 2
"""Blanks between two values, and between two columns."""


def print_summary(out: Output, summary: EvalSummary, folder: Path) -> None:
    """Print the result as text."""
    rows = read_rows(folder)
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_row("[bold]environment[/]", escape(summary.suite_or_env))
    table.add_row("[bold]policy[/]", escape(summary.policy))
    if summary.models:
        table.add_row("[bold]answered by[/]", escape(", ".join(summary.models)))
    interval = f"95 % interval {summary.success_low:.1%} to {summary.success_high:.1%}"
    num_evidence = summary.num_episodes - summary.num_failed
    played = f"{num_evidence} episodes" + (f" of {summary.num_tasks} tasks" if summary.repeats else "")
    table.add_row("[bold]success[/]", f"[bold green]{summary.success:.1%}[/]  {interval}, {played}")
    titles = [title for title, _ in repeat_texts(summary.repeats)]
    width = out.console.width - max(map(len, ("environment", *titles))) - _GAP
    for title, values in repeat_lines(summary.repeats, width):
        table.add_row(f"[bold]{title}[/]", values)
    if summary.mean_score is not None:
        table.add_row("[bold]score[/]", f"{summary.mean_score:.3f}")
    table.add_row("[bold]return[/]", return_text(summary))
    invalid, refused = f"{summary.mean_invalid_turns:.2f} invalid", f"{summary.mean_tool_errors:.2f} tool errors"
    table.add_row("[bold]turns[/]", f"{summary.mean_turns:.1f}, of them {invalid}; {refused}")
    if told := truncation_text(summary):
        table.add_row("[bold yellow]truncated[/]", told)
    if summary.mean_tokens:
        read = f", {summary.mean_prompt_tokens:.0f} read" if summary.mean_prompt_tokens else ""
        table.add_row("[bold]tokens[/]", f"{summary.mean_tokens:.0f} sampled{read} per episode")
    if summary.mean_attempts != 1:
        table.add_row("[bold]attempts[/]", f"{summary.mean_attempts:.2f} per episode; tokens, time and cost are of all")
    if told := cost_line(summary):
        table.add_row("[bold]cost[/]", told)
    table.add_row("[bold]time[/]", f"{summary.mean_seconds:.2g} s per episode")
    table.add_row("[bold]ended as[/]", ", ".join(f"{name} {count}" for name, count in summary.statuses.items()))
    if summary.num_failed:
        share = f"{summary.num_failed / summary.num_episodes:.1%} of all episodes, which success leaves out"
        again = (
            f"{summary.num_failed}; play them again: agentgym eval --resume {shell_word(folder)}",
            f"{share}; if they were losses, success would be {summary.success_at_worst:.1%}",
        )
        table.add_row("[bold red]failed[/]", escape("\n".join([*again, *_worst_error(rows)])))
    out.console.print(table)
    if summary.by_type:
        out.console.print(types_table(summary))
    out.console.print(f"look at it: agentgym view {shell_word(folder)}", soft_wrap=True, markup=False)


def cost_line(summary: EvalSummary) -> str:
    """Return the cost of valid episodes and the money spent in all; empty for a policy that has no price."""
    is_endpoint = ENDPOINT in summary.policy
    if summary.cost is None and summary.spent is None and not is_endpoint:  # a local model has no price
        return ""
    told = f"{cost_text(summary.mean_cost)} per valid episode, {cost_text(summary.cost)} for all of them"
    if summary.cost is None:
        counted = (
            "no price for the policy in --prices" if summary.counts_tokens else "the endpoint reports no token counts"
        )
        told = f"– ({counted if is_endpoint else 'the policy is no endpoint'})"
    if summary.spent is not None:
        told += f"; spent in all: {summary.spent_text}"
    return told


def truncation_text(summary: EvalSummary) -> str:
    """Return how many completions ended at a limit of tokens; empty if none did.

    Their calls are incomplete, so a limit that is too low for a model looks like a model that cannot call tools.
    """
    if not summary.mean_truncated_completions:
        return ""
    number = f"{summary.mean_truncated_completions:.2f} completions per episode end at the limit of tokens"
    return f"{number}; raise it by --max-new-tokens"


def _worst_error(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the most frequent error of failed episodes as a line; none if no episode says why it failed."""
    errors = Counter(row["error"] for row in rows if row["return"] is None and row["error"])
    return [f"most often ({count}x): {error.partition(chr(10))[0]}" for error, count in errors.most_common(1)]


def return_text(summary: EvalSummary) -> str:
    """Return the mean return with its interval, as text."""
    low, high = summary.return_low, summary.return_high
    if low is None or high is None:
        return f"{summary.mean_return:.3g}"
    if low == high:  # the bootstrap knows no other return
        return f"{summary.mean_return:.3g} in every task"
    return f"{summary.mean_return:.3g}  95 % interval {low:.3g} to {high:.3g}"


def repeat_lines(repeats: dict[str, dict[str, float]], width: int = 1_000) -> list[tuple[str, str]]:
    """Return the statistics of repeated episodes per task as lines of a table, which end between two values.

    Args:
        repeats: the statistics, see :func:`~agentgym.evals.repeats.repeats_of`.
        width: most characters of a line.

    Example:
        >>> repeat_lines({"pass_at": {"1": 0.5, "2": 0.75}, "majority": {"2": 0.5}})
        [('pass@k', '1: 50.0%  2: 75.0%'), ('majority of k', '2: 50.0%')]
    """
    return [
        (title, _folded([f"{k}: {value}" for k, value in values], width)) for title, values in repeat_texts(repeats)
    ]


def _folded(texts: Sequence[str], width: int) -> str:
    """Join texts by two blanks and, where a line would become too long, by a line break."""
    lines = [texts[0]]
    for text in texts[1:]:
        if len(lines[-1]) + _GAP + len(text) <= width:
            lines[-1] += " " * _GAP + text
        else:
            lines.append(text)
    return "\n".join(lines)


def types_table(summary: EvalSummary) -> Grid:
    """Return the results of each type of task."""
    table = Grid("task type", "success", "95 % interval", "turns", "episodes")
    for name, found in summary.by_type.items():
        interval = f"{found['success_low']:.1%} to {found['success_high']:.1%}"
        turns, episodes = f"{found['mean_turns']:.1f}", f"{found['num_episodes']:.0f}"
        table.add_row(escape(name or "none"), f"{found['success']:.1%}", interval, turns, episodes)
    return table

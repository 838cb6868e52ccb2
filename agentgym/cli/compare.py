"""``agentgym compare``: compare two evaluations on the same tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from agentgym.canonical import readable_json
from agentgym.cli.exits import FAILED
from agentgym.cli.grid import Grid
from agentgym.cli.output import JsonFlag, Output, output
from agentgym.errors import UsageError
from agentgym.rollout.run_kind import kind_of_run

if TYPE_CHECKING:
    from agentgym.evals.compare import Comparison


def compare(
    a: Annotated[
        Path, typer.Argument(metavar="A", help="The folder of an evaluation, of suites, or of a training run.")
    ],
    b: Annotated[Path, typer.Argument(metavar="B", help="Another one, of the same tasks.")],
    min_difference: Annotated[
        float | None,
        typer.Option(
            min=-1.0,
            max=1.0,
            help="Exit with 1 unless the lower end of the interval of B's success minus A's is at least this: "
            "-0.02 allows a loss of two points, 0 allows none.",
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Compare two evaluations or training runs on the same tasks, pair by pair, with intervals."""
    from agentgym.evals.compare import (
        as_points,
        config_differences,
        incomparable_settings,
        journal_differences,
        open_evaluations,
        pair_evaluations,
    )
    from agentgym.evals.compare import compare as compare_pairs

    with output(as_json) as out:
        of_a, of_b = open_evaluations(a), open_evaluations(b)
        pairs = pair_evaluations(of_a, of_b)
        if not pairs:
            raise UsageError(f"{a} has {', '.join(of_a)}, {b} has {', '.join(of_b)}: nothing is in both")
        found = [compare_pairs(*pair) for pair in pairs]
        only = sorted(set(of_a) ^ set(of_b)) if len(of_a) > 1 and len(of_b) > 1 else []
        settings, made_with = config_differences(a, b), journal_differences(a, b)
        incomparable = incomparable_settings(a, b)
        below = [] if min_difference is None else [one for one in found if one.difference_low < min_difference]
        result = {
            "a": str(a),
            "b": str(b),
            "suites": [asdict(one) for one in found],
            "in_one_alone": only,
            "settings": settings,
            "num_incomparable_settings": len(incomparable),
            "made_with": made_with,
        }
        out.result(result | ({} if min_difference is None else {"min_difference": min_difference, "passed": not below}))
        folders = (pairs[0][0].folder, pairs[0][1].folder) if len(pairs) == 1 else (a, b)
        _print(out, found, folders, only, settings)
        if incomparable:
            told = "settings that only a training run or only an evaluation has are not shown"
            out.console.print(f"{len(incomparable)} {told}", markup=False)
        if kind_of_run(a) == kind_of_run(b) == "training":
            told = "intervals over tasks, of one run each: other seeds may differ more; agentgym table compares seeds"
            out.console.print(told, markup=False, soft_wrap=True)
        for line in made_with:
            out.console.print(f"made with other {line}", markup=False)
        for one in below:
            text = f"{one.suite_or_env}: a difference of at least {as_points(min_difference or 0.0)} is not shown"
            out.console.print(text, style="red", markup=False)
    if below:
        raise typer.Exit(FAILED)


def print_comparisons(out: Output, found: Sequence[Comparison]) -> None:
    """Print comparisons as a table."""
    from agentgym.evals.compare import as_points, holm_text

    are_many = any(one.p_adjusted not in (None, one.p_value) for one in found)
    holm = ["p (Holm)"] if are_many else []
    policies = ["policy A", "policy B"] if len({(one.policy_a, one.policy_b) for one in found}) > 1 else []
    titles = ("suite", *policies, "A", "B", "difference", "95 % interval", "A alone", "B alone", "p", *holm, "return")
    table = Grid(*titles, "pairs", whole=titles)
    for one in found:
        table.add_row(
            escape(one.suite_or_env),
            *((escape(one.policy_a), escape(one.policy_b)) if policies else ()),
            f"{one.success_a:.1%}",
            f"{one.success_b:.1%}",
            as_points(one.difference),
            f"{as_points(one.difference_low)} to {as_points(one.difference_high)}",
            str(one.num_only_a),
            str(one.num_only_b),
            f"{one.p_value:.3g}",
            *([holm_text(one)] if are_many else []),
            _returns(one),
            f"{one.num_pairs}" + (f", {one.num_left_out} left out" if one.num_left_out else ""),
        )
    out.console.print(table)
    if are_many:
        told = "p (Holm) is corrected for the number of pairs of each suite"
        out.console.print(told, soft_wrap=True, markup=False)


def _returns(one: Comparison) -> str:
    """Return the difference of returns with its interval. Where all differences are equal, the bootstrap has none."""
    low, high = one.return_difference_low, one.return_difference_high
    return f"{one.return_difference:+.3f}" + (f" ({low:+.3f} to {high:+.3f})" if low < high else "")


def _print(
    out: Output,
    found: list[Comparison],
    folders: tuple[Path, Path],
    only: list[str],
    settings: dict[str, tuple[object, object]],
) -> None:
    print_comparisons(out, found)
    for one in found:
        out.console.print(_power(one), markup=False)
    for name, folder, policy in zip("AB", folders, (found[0].policy_a, found[0].policy_b), strict=True):
        out.console.print(f"{name}: {folder}, policy {policy}", markup=False, soft_wrap=True)
    if settings:
        differing = Grid("setting", "A", "B")
        for name, values in settings.items():
            differing.add_row(name, *(escape(readable_json(value)) for value in values))
        out.console.print(differing)
    if only:
        out.console.print(f"in one of them alone: {', '.join(only)}", markup=False)


def _power(one: Comparison) -> str:
    """Return a line with the smallest difference that so many tasks can detect, and the number of tasks needed."""
    if one.detectable > 1:
        return f"{one.suite_or_env}: these tasks are too few to detect any difference with a probability of 80 %"
    least = f"{100 * one.detectable:.1f} percentage points (pp)"
    line = f"{one.suite_or_env}: these tasks can detect a difference of {least} with a probability of 80 %"
    if one.tasks_needed is None or abs(one.difference) >= one.detectable:
        return line
    return f"{line}; one of {100 * abs(one.difference):.1f} pp needs about {one.tasks_needed:,} tasks"

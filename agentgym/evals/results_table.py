"""One table of the results of several suites and policies, with comparisons of each suite's policies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import combinations
from pathlib import Path

from agentgym.errors import AgentGymError
from agentgym.evals.compare import Comparison, FinishedEvaluation, as_points, compare, holm_text, open_evaluation
from agentgym.evals.episodes import write_json
from agentgym.evals.prices import cost_text
from agentgym.evals.repeats import repeat_texts
from agentgym.evals.runner import EvalSummary
from agentgym.evals.statistics import holm
from agentgym.evals.suite_runner import SuiteResult
from agentgym.rollout.record import replace_text

MARKDOWN, COMPARISONS = "results.md", "comparisons.json"


def write_tables(folder: Path, results: Sequence[SuiteResult]) -> list[Comparison]:
    """Write ``results.md`` and ``comparisons.json``. Return comparisons of all pairs of each suite's policies.

    Args:
        folder: folder of the evaluation, with a folder ``SUITE/POLICY`` for each result.
    """
    compared = compare_policies(results)
    write_json(folder / COMPARISONS, [asdict(one) for one in compared])
    replace_text(folder / MARKDOWN, markdown(results, compared))
    return compared


def compare_policies(results: Sequence[SuiteResult]) -> list[Comparison]:
    """Compare all pairs of each suite's policies that have an episode in common."""
    found = []
    for suite in dict.fromkeys(result.suite for result in results):
        folders = [Path(r.summary.run_dir) for r in results if r.suite == suite and r.summary is not None]
        found += compare_all([open_evaluation(folder) for folder in folders])
    return found


def compare_all(opened: Sequence[FinishedEvaluation]) -> list[Comparison]:
    """Compare all pairs of evaluations of one suite, with p-values that are corrected for the number of pairs."""
    found = []
    for a, b in combinations(opened, 2):
        try:
            found.append(compare(a, b))
        except AgentGymError:  # all episodes of one policy failed, which its result reports
            continue
    adjusted = holm([one.p_value for one in found])
    return [replace(one, p_adjusted=p_value) for one, p_value in zip(found, adjusted, strict=True)]


def markdown(results: Sequence[SuiteResult], compared: Sequence[Comparison]) -> str:
    """Return the results as Markdown.

    Example:
        >>> result = SuiteResult(suite="s@1", content_hash="", policy="p", outcome="cannot_run", reason="no data")
        >>> print(markdown([result], []).splitlines()[4])
        | s@1 | p | cannot run | | | | | | | no data |
    """
    lines = [
        "# Results",
        "",
        "| suite | policy | success | 95 % interval | return | turns | cost | spent | episodes | note |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [_row(result) for result in results]
    repeated = [result for result in results if result.summary is not None and result.summary.repeats]
    if repeated:
        lines += ["", "| suite | policy | measure | by number of trials |", "|---|---|---|---|"]
        lines += [line for result in repeated for line in _repeats(result)]
    if compared:
        lines += [
            "",
            "All pairs of policies. p (Holm) is corrected for the number of pairs of a suite.",
            "",
            "| suite | A | B | B minus A | 95 % interval | A alone | B alone | p | p (Holm) | pairs |",
            "|---|---|---|---|---|---|---|---|---|---|",
        ]
        lines += [_comparison(one) for one in compared]
    return "\n".join(lines) + "\n"


def _row(result: SuiteResult) -> str:
    found = result.summary
    if found is None:
        outcome = result.outcome.replace("_", " ")
        return f"| {result.suite} | {_cell(result.policy)} | {outcome} | | | | | | | {_cell(result.reason)} |"
    failed = [found.failed_text] if found.num_failed else []
    truncated = [f"{found.mean_truncated_completions:.2f} truncated completions per episode"]
    notes = ", ".join([*failed, *(truncated if found.mean_truncated_completions else [])])
    numbers = " | ".join(cells(found))
    return f"| {result.suite} | {_cell(result.policy)} | {numbers} | {found.num_episodes} | {notes} |"


def cells(summary: EvalSummary) -> list[str]:
    """Return success, its interval, return, turns, the cost of the valid episodes, and the money spent in all."""
    return [
        f"{summary.success:.1%}",
        f"{summary.success_low:.1%} to {summary.success_high:.1%}",
        f"{summary.mean_return:.3f}",
        f"{summary.mean_turns:.1f}",
        cost_text(summary.cost),
        summary.spent_text,
    ]


def _repeats(result: SuiteResult) -> list[str]:
    repeats: dict[str, dict[str, float]] = {} if result.summary is None else result.summary.repeats
    about = f"| {result.suite} | {_cell(result.policy)}"
    shown = ((title, ", ".join(f"{k}: {value}" for k, value in values)) for title, values in repeat_texts(repeats))
    return [f"{about} | {title} | {values} |" for title, values in shown]


def _comparison(one: Comparison) -> str:
    return (
        f"| {one.suite_or_env} | {_cell(one.policy_a)} | {_cell(one.policy_b)} | {as_points(one.difference)} "
        f"| {as_points(one.difference_low)} to {as_points(one.difference_high)} | {one.num_only_a} | {one.num_only_b} "
        f"| {one.p_value:.3g} | {holm_text(one)} | {one.num_pairs} |"
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")

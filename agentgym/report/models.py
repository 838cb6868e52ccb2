"""Tables that compare policies: totals, success by part and type, and a matrix of tasks and policies; also as CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from agentgym.errors import AgentGymError, CorruptDataError
from agentgym.evals.compare import Comparison, as_points, holm_text, open_evaluation
from agentgym.evals.episodes import ROWS_NAME, read_rows
from agentgym.evals.prices import cost_text
from agentgym.evals.results_table import compare_all
from agentgym.evals.runner import EvalSummary, success_of
from agentgym.evals.suite_runner import SUITE_FILE, load_saved, rows_of_suite
from agentgym.report.charts import as_number, as_share
from agentgym.report.methods import count
from agentgym.report.run_folder import RunFolder
from agentgym.types import Status

CSV_NAME = "tasks.csv"
_NUM_BARS = 12
_UNSEEN = " \t\r\n\u00a0\u200b\u200c\u200d\u2060\ufeff"
"""Characters that spreadsheets skip before a formula."""
_MOST_TASKS = 500
"""Most tasks in the page's matrix; the CSV has all."""


@dataclass(frozen=True, slots=True)
class Played:
    """The episodes of one policy on one suite or environment."""

    label: str
    suite: str
    policy: str
    summary: EvalSummary
    rows: Sequence[dict[str, Any]]
    folder: Path


def played_in(run: RunFolder) -> list[Played]:
    """Return the finished evaluations of a run: of suites one for each policy; none of a training run or cross-play."""
    found = []
    for label, summary in run.summaries.items() if run.kind in ("evaluation", "suites") else ():
        folder = Path(run.path, label) if (run.path / label / "summary.json").is_file() else run.path
        rows = _in_order(_rows(folder))
        found.append(Played(label, summary.suite_or_env, summary.policy, summary, rows, folder))
    return found


def _in_order(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows, which were recorded as they ended, in the order of parts and of the tasks' names."""
    parts = [*dict.fromkeys(row.get("part", "") for row in rows)]
    return sorted(rows, key=lambda row: (parts.index(row.get("part", "")), _natural(str(row["task_id"]))))


def _natural(name: str) -> list[str | int]:
    """Return a key by which ``test-2`` comes before ``test-10``."""
    return [int(piece) if at % 2 else piece for at, piece in enumerate(re.split(r"(\d+)", name))]


def _rows(folder: Path) -> Sequence[dict[str, Any]]:
    """Return the rows of an evaluation; of a suite those of all parts, which name their part."""
    if not (folder / SUITE_FILE).is_file():
        return read_rows(folder)
    try:
        return rows_of_suite(folder, load_saved(folder).suite)
    except CorruptDataError:  # written by another version: the folders are the parts
        parts = [file.parent for file in sorted(folder.glob(f"**/{ROWS_NAME}"))]
        return [row | ({"part": part.name} if len(parts) > 1 else {}) for part in parts for row in read_rows(part)]


def models_of(run: RunFolder) -> dict[str, Any] | None:
    """Return the tables of a page that compare policies; None if no evaluation is finished."""
    played = played_in(run)
    if not played:
        return None
    suites = list(dict.fromkeys(one.suite for one in played))
    by_suite = [(suite, [one for one in played if one.suite == suite]) for suite in suites]
    return {
        "totals": [_totals(one) for one in played],
        "suites": [
            {
                "name": suite,
                "policies": [one.policy for one in some],
                "parts": _shares(some),
                "tasks": _matrix(some)[:_MOST_TASKS],
                "num_tasks": len(_matrix(some)),
                "pairs": _pairs(some),
            }
            for suite, some in by_suite
        ],
        "histograms": [_histograms(one) for one in played],
        "csv": tasks_csv(run),
    }


def tasks_csv(run: RunFolder) -> str:
    """Return a CSV with a row for each episode: its suite, policy, part, task, trial, result, tokens and cost."""
    names = ("part", "task_type", "task_id", "trial", "status", "success", "return", "score", "num_turns", "num_tokens",
             "num_prompt_tokens", "num_invalid_turns", "num_tool_errors", "num_truncated_completions", "num_retries",
             "seconds", "cost", "seed", "error")  # fmt: skip
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("suite", "policy", *names))
    for one in played_in(run):
        for row in _numbered(one.rows):
            writer.writerow((one.suite, one.policy, *(_safe(row.get(name)) for name in names)))
    return out.getvalue()


def _safe(value: object) -> object:
    """Return a cell that no spreadsheet reads as a formula."""
    if not isinstance(value, str):
        return value
    is_formula = value[:1] in ("\t", "\r") or value.lstrip(_UNSEEN)[:1] in tuple("=+-@")
    return f"'{value}" if is_formula else value


def _numbered(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows with the number of each trial of a task, counted from 1."""
    seen: dict[tuple[object, ...], int] = {}
    numbered = []
    for row in rows:
        key = _key(row)
        seen[key] = seen.get(key, 0) + 1
        numbered.append(row | {"trial": seen[key]})
    return numbered


def _key(row: Mapping[str, Any]) -> tuple[object, ...]:
    return row.get("part", ""), row["task_id"], row["content_hash"]


def _totals(one: Played) -> dict[str, str]:
    found = one.summary
    return {
        "suite": found.suite_or_env,
        "policy": found.policy,
        "success": as_share(round(found.success, 4)),
        "95 % interval": f"{found.success_low:.1%} to {found.success_high:.1%}",
        "return": f"{found.mean_return:.3g}",
        "turns": f"{found.mean_turns:.1f}",
        "tokens sampled": as_number(round(found.mean_tokens)),
        "tokens read": as_number(round(found.mean_prompt_tokens)),
        "invalid turns": f"{found.mean_invalid_turns:.2f}",
        "tool errors": f"{found.mean_tool_errors:.2f}",
        "truncated": f"{found.mean_truncated_completions:.2f}",
        "failed": f"{found.num_failed} of {found.num_episodes}",
        "cost per episode": cost_text(found.mean_cost),
        "spent in all": found.spent_text,
    }


def _shares(played: Sequence[Played]) -> list[tuple[str, list[str]]]:
    """Return the success of each policy by part and by task type; none if all tasks are of one kind."""
    names: list[tuple[str, str]] = []
    for name in ("part", "task_type"):
        kinds = sorted({str(row.get(name, "")) for one in played for row in one.rows})
        names += [(name, kind) for kind in kinds] if len(kinds) > 1 else []
    return [(f"{name.replace('_', ' ')} {kind or 'none'}", [_share(one, name, kind) for one in played])
            for name, kind in names]  # fmt: skip


def _share(one: Played, name: str, kind: str) -> str:
    rows = [row for row in one.rows if str(row.get(name, "")) == kind and Status(row["status"]).is_evidence]
    if not rows:
        return "–"
    found = success_of(rows)
    return f"{as_share(round(found.value, 4))} ({found.low:.0%} to {found.high:.0%}, {count(len(rows), 'episode')})"


def _matrix(played: Sequence[Played]) -> list[dict[str, Any]]:
    """Return a row for each task: the share of valid trials that each policy solved, and who alone solved it."""
    tasks: dict[tuple[object, ...], list[list[bool]]] = {}
    for place, one in enumerate(played):
        for row in one.rows:
            trials = tasks.setdefault(_key(row), [[] for _ in played])
            if Status(row["status"]).is_evidence:
                trials[place].append(bool(row["success"]))
    found = []
    for (part, task, _), trials in tasks.items():
        solved = [place for place, some in enumerate(trials) if any(some)]
        only = played[solved[0]].policy if len(solved) == 1 and len(played) > 1 else ""
        cells = [{"told": f"{sum(some)} of {len(some)}" if some else "failed",
                  "css": "won" if some and all(some) else "lost" if some and not any(some) else "mixed"}
                 for some in trials]  # fmt: skip
        found.append({"part": part, "task": task, "cells": cells, "only": only})
    return found


def _pairs(played: Sequence[Played]) -> list[dict[str, str]]:
    """Return the comparison of each pair of policies, with p-values corrected for their number."""
    try:
        found = compare_all([open_evaluation(one.folder) for one in played]) if len(played) > 1 else []
    except AgentGymError:  # an evaluation of another version; its page has the other tables
        return []
    return [_pair(one) for one in found]


def _pair(one: Comparison) -> dict[str, str]:
    return {
        "A": one.policy_a,
        "B": one.policy_b,
        "success A": as_share(round(one.success_a, 4)),
        "success B": as_share(round(one.success_b, 4)),
        "B minus A": as_points(one.difference),
        "95 % interval": f"{as_points(one.difference_low)} to {as_points(one.difference_high)}",
        "A alone": str(one.num_only_a),
        "B alone": str(one.num_only_b),
        "p": f"{one.p_value:.2g}",
        "p (Holm)": holm_text(one),
        "pairs": str(one.num_pairs) + (f", {one.num_left_out} left out" if one.num_left_out else ""),
    }


def _histograms(one: Played) -> dict[str, Any]:
    valid = [row for row in one.rows if Status(row["status"]).is_evidence]
    costs = [float(row["cost"]) for row in valid if row.get("cost") is not None]
    turns = histogram([float(row["num_turns"]) for row in valid], f"turns of {one.policy}")
    return {"name": f"{one.suite}, {one.policy}", "turns": turns, "cost": histogram(costs, f"cost of {one.policy}")}


def histogram(values: Sequence[float], name: str) -> Markup:
    """Return a histogram as a picture with a text alternative; empty without values."""
    if not values:
        return Markup()
    low, high = min(values), max(values)
    is_whole = all(value == int(value) for value in values) and high - low < _NUM_BARS
    num = int(high - low) + 1 if is_whole else _NUM_BARS if high > low else 1
    width = 1.0 if is_whole else (high - low) / num or 1.0
    counts = [0] * num
    for value in values:
        counts[min(num - 1, int((value - low) / width))] += 1
    tallest = max(counts)
    bars = "".join(
        f'<rect x="{at * 200 / num + 1:.1f}" y="{60 - 58 * count / tallest:.1f}" width="{200 / num - 2:.1f}" '
        f'height="{58 * count / tallest:.1f}"><title>{_range(low, width, at, is_whole)}: {count}</title></rect>'
        for at, count in enumerate(counts)
    )
    told = "; ".join(f"{_range(low, width, at, is_whole)}: {count}" for at, count in enumerate(counts) if count)
    return Markup(
        f'<svg class="histogram" viewBox="0 0 200 76" role="img" aria-label="{escape(f"{name}: {told}")}">{bars}'
        f'<text x="1" y="73">{as_number(low)}</text>'
        f'<text x="199" y="73" text-anchor="end">{as_number(high)}</text></svg>'
    )


def _range(low: float, width: float, at: int, is_whole: bool) -> str:
    begin = low + at * width
    return as_number(begin) if is_whole else f"{as_number(begin)} to {as_number(begin + width)}"

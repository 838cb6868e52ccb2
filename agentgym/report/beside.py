"""Comparison of a run with another one: results, settings and episodes."""

from __future__ import annotations

import json
from typing import Any

from agentgym.errors import UsageError
from agentgym.evals.compare import as_points, compare, config_differences, open_evaluations, pair_evaluations
from agentgym.report.charts import as_share
from agentgym.report.run_folder import RunFolder


def name_beside(run: RunFolder, other: RunFolder) -> str:
    """Return the name of the other run: its folder's name, or its path if both folders have the same name.

    Raises:
        UsageError: both are the same folder.
    """
    if run.path.resolve() == other.path.resolve():
        raise UsageError(f"{other.path} is the run itself; name another one beside it")
    return other.name if other.name != run.name else str(other.path)


def compared(run: RunFolder, other: RunFolder) -> dict[str, object]:
    """Return comparisons of evaluations of the same tasks and the settings that differ; empty if there are none.

    Differences are of this run minus the other one.
    """
    try:
        pairs = pair_evaluations(open_evaluations(other.path), open_evaluations(run.path))
        found = [compare(*pair) for pair in pairs]
        why = "" if found else "no evaluation is of the same environment in both runs"
    except UsageError as error:  # one of the runs has not finished or has no evaluation
        found, why = [], str(error)
    rows = [
        {
            "name": one.suite_or_env,
            "here": as_share(round(one.success_b, 4)),
            "there": as_share(round(one.success_a, 4)),
            "difference": as_points(one.difference),
            "interval": f"{as_points(one.difference_low)} to {as_points(one.difference_high)}",
            "p_value": f"{one.p_value:.2g}",
            "num_pairs": one.num_pairs,
        }
        for one in found
    ]
    settings = [
        {"name": name, "here": _shown(here), "there": _shown(there)}
        for name, (there, here) in config_differences(other.path, run.path).items()
    ]
    return {"name": name_beside(run, other), "path": str(other.path), "rows": rows, "why": why, "settings": settings}


def join_traces(traces: dict[str, Any], others: dict[str, Any], name: str) -> dict[str, object]:
    """Return the traces of both runs. Sections of the other run have its name."""
    for member in (m for section in others["sections"] for group in section["groups"] for m in group["members"]):
        member["at"] = [member["at"][0] + len(traces["blocks"]), member["at"][1]]
    named = [{**section, "label": f"{name}: {section['label']}", "of": name} for section in others["sections"]]
    own = [{**section, "of": ""} for section in traces["sections"]]
    return {
        **traces,
        "scale": max(traces["scale"], others["scale"]),
        "has_credit": traces["has_credit"] or others["has_credit"],
        "has_tokens": traces["has_tokens"] or others["has_tokens"],
        "blocks": [*traces["blocks"], *others["blocks"]],
        "sections": [*own, *named],
    }


def _shown(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)

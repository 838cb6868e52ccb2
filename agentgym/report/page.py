"""The report: one self-contained HTML file."""

from __future__ import annotations

import errno
import json
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from agentgym.canonical import readable_json, shell_word
from agentgym.errors import CorruptDataError, UsageError
from agentgym.evals.attempts import inner_policy
from agentgym.evals.cross_play import RESULT_NAME
from agentgym.evals.prices import cost_text
from agentgym.evals.repeats import repeat_texts
from agentgym.evals.runner import EvalSummary
from agentgym.report.beside import compared, join_traces, name_beside
from agentgym.report.charts import as_share
from agentgym.report.curves import (
    KNOWN,
    SFT_KNOWN,
    Rows,
    of_envs,
    other_curves,
    small_multiples,
    status_chart,
    success_curve,
    time_chart,
)
from agentgym.report.models import models_of
from agentgym.report.run_folder import RunFolder, open_run_folder
from agentgym.report.token_text import load_token_text
from agentgym.report.traces import MEGABYTES, sample_traces
from agentgym.report.verdict import verdict_of
from agentgym.rollout.record import read_json_object, replace_text
from agentgym.rollout.run_kind import saved_envs
from agentgym.trainers.models.sources import named_models

_PHASES = {"rl": "rl", "sft": "sft", "evals": "eval"}
"""Phases in the metrics by their names in :class:`~agentgym.report.curves.Rows`."""


CHART_JS, CHART_CSS = ("vendor/uplot/uPlot.iife.min.js",), ("vendor/uplot/uPlot.min.css",)
"""uPlot, as published (``vendor/versions.toml``)."""


def write_report(
    run_dir: Path, out: Path | None = None, megabytes: float = MEGABYTES, beside: Path | None = None
) -> Path:
    """Write the report of a finished or running training run, evaluation or suites.

    Args:
        run_dir: folder of the run.
        out: file to write; by default ``report.html`` in the run's folder.
        megabytes: size limit of the episodes in the page.
        beside: folder of another run to compare with.

    Returns:
        Path of the file.

    Raises:
        UsageError: there is no such folder, or the file cannot be written.
        CorruptDataError: it is no run, or something in it cannot be read.
    """
    page = render_report(run_dir, megabytes, beside)
    path = run_dir / "report.html" if out is None else out
    write_page(path, page)
    return path


def write_page(path: Path, page: str) -> None:
    """Write an HTML page.

    Raises:
        UsageError: the user may not write the file.
    """
    try:
        replace_text(path, page)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        raise UsageError(f"{path} cannot be written ({error.strerror}); name another file: --out FILE") from error


def render_report(
    run_dir: Path, megabytes: float = MEGABYTES, beside: Path | None = None, *, is_live: bool = False
) -> str:
    """Return the report as an HTML page.

    Args:
        is_live: the page requests updates from its server (``agentgym view --live``).

    Raises:
        UsageError: there is no such folder.
        CorruptDataError: it is no run, or something in it cannot be read.
    """
    run = open_run_folder(run_dir)
    other = None if beside is None else open_run_folder(beside)
    traces = sample_traces(run, load_token_text(_tokenizer_path(run)), megabytes if other is None else megabytes / 2)
    rl, sft, evals = (run.metrics.get(phase, []) for phase in ("rl", "sft", "eval"))
    rows = Rows(name="")
    if other is not None:
        name = name_beside(run, other)
        rows = Rows(name=name, **{phase: other.metrics.get(of, []) for phase, of in _PHASES.items()})
        traces = join_traces(traces, sample_traces(other, load_token_text(_tokenizer_path(other)), megabytes / 2), name)
    verdict, notes = verdict_of(run.path)
    return render(
        "report.html.jinja",
        run=run,
        verdict=verdict,
        notes=notes,
        facts=_facts(run) + ([] if is_live else _steps_so_far(run)),  # a live page has them among its numbers
        config=json.dumps(run.config, indent=2, ensure_ascii=False) if run.config else "",
        shown=_shown(run, traces),
        overview=_overview(run),
        repeats=_repeats(run),
        models=models_of(run),
        ratings=_ratings(run),
        types=_types(run),
        comparison=None if other is None else compared(run, other),
        success=success_curve(rl, evals, rows if other is not None else None),
        multiples=small_multiples(rl, of_envs(_env_names(run)) | KNOWN, rows.rl, rows.name),
        others=other_curves(rl, rows.rl, rows.name),
        warm_start=small_multiples(sft, SFT_KNOWN, rows.sft, rows.name),
        statuses=status_chart(rl),
        times=time_chart(rl),
        as_share=as_share,
        css=assets(*CHART_CSS, "report.css"),
        js=assets(*CHART_JS, "elements.js", "charts.js", "tokens.js", "episode.js", "report.js"),
        traces=script_data({name: value for name, value in traces.items() if name != "blocks"}),
        blocks=traces["blocks"],
        has_traces=bool(traces["sections"]),
        is_live=is_live,
        live_js=assets("live.js") if is_live else "",
    )


def _shown(run: RunFolder, traces: dict[str, object]) -> str:
    """Return a text on recorded steps and pictures that the page lacks; empty if it holds all."""
    lost: Any = traces["missing"]
    of_pictures = f"Pictures that are missing or were changed: {len(lost)}, such as {lost[0]}. " if lost else ""
    if traces["num_steps"] == len(run.steps):
        return of_pictures
    return (
        f"{of_pictures}{traces['num_steps']} of {len(run.steps)} steps are in this page; "
        f"agentgym view {shell_word(run.path)} --megabytes N holds more (N is {MEGABYTES:g} by default)."
    )


def _tokenizer_path(run: RunFolder) -> Path:
    """Return the path of the policy's tokenizer: the run's own, that of the enclosing training run, or the model's."""
    around = run.path.resolve().parent.parent
    folders = [folder / name for folder in (run.path, around) for name in ("model", "tokenizer")]
    model, plan = run.config.get("model"), run.config.get("eval")
    if isinstance(model, dict) and model.get("path"):
        folders += _folders_of(str(model["path"]))
    if isinstance(plan, dict) and isinstance(plan.get("policy"), str):
        policy = inner_policy(plan["policy"])
        served = parse_qs(urlsplit(policy).query).get("model", []) if policy.startswith("vllm:") else []
        folders += _folders_of(served[0] if served else policy)
    paths = [folder / "tokenizer.json" for folder in folders]
    return next((path for path in paths if path.is_file()), paths[0])


def _folders_of(source: str) -> list[Path]:
    """Return the folders that may hold a model's files. Nothing is downloaded."""
    cached = [model.folder for model in named_models() if source in (model.name, model.source)]
    return [Path(source), Path(source) / "model", *cached]


def _facts(run: RunFolder) -> list[tuple[str, str]]:
    """Return the facts about a run that its configuration contains."""
    saved = run.config.get("eval")
    config = saved if isinstance(saved, dict) and "policy" in saved else run.config
    env_id, kwargs = config.get("env", ""), config.get("kwargs")
    if isinstance(env_id, dict):
        envs = saved_envs(config)
        env_id, kwargs = ", ".join(str(one["id"]) for one in envs), envs[0]["kwargs"] if len(envs) == 1 else None
    credit = config.get("credit")
    rows = {
        "recipe": config.get("recipe"),
        "policy": config.get("policy"),
        "environment": env_id,
        "arguments": ", ".join(f"{k}={readable_json(v)}" for k, v in (kwargs or {}).items()),
        "credit": credit.get("estimator") if isinstance(credit, dict) else None,
        "seed": config.get("seed"),
    }
    suites = run.config.get("eval_suites")
    if isinstance(suites, dict):
        rows |= {
            "suites": ", ".join(str(suite["name"]) for suite in suites.get("suites", ())),
            "policies": ", ".join(map(str, suites.get("policies", ()))),
        }
    if isinstance(plan := run.config.get("cross_play"), dict):
        rows |= {"environment": plan.get("env"), "policies": ", ".join(map(str, plan.get("policies", ())))}
    if run.kind == "evaluation" and "" in run.summaries:
        summary = run.summaries[""]
        rows |= {
            "policy": summary.policy,
            "environment": summary.suite_or_env,
            "episodes": summary.num_episodes,
            "failed": summary.num_failed or None,
            "mean return": f"{summary.mean_return:.3g}",
            "mean turns": f"{summary.mean_turns:.1f}",
            "attempts": f"{summary.mean_attempts:.2f} per episode" if summary.mean_attempts != 1 else None,
            "cost": cost_text(summary.cost) if summary.mean_tokens else None,
        }
    return [(name, str(value)) for name, value in rows.items() if value not in (None, "")]


def _steps_so_far(run: RunFolder) -> list[tuple[str, str]]:
    """Return the steps of a training run that has not finished, as in ``3 of 40``; none for any other run."""
    done = max((row["step"] for row in run.metrics.get("rl", ())), default=0)
    num_steps = run.config.get("num_steps")
    is_unfinished = run.kind == "training run" and isinstance(num_steps, int) and done < num_steps
    return [("steps so far", f"{done} of {num_steps}")] if is_unfinished else []


def _row_label(run: RunFolder, label: str, summary: EvalSummary) -> str:
    # rows of suites have no headline, unlike all others
    cost = "" if summary.cost is None else f", cost {cost_text(summary.cost)}"
    return f"{label}: {as_share(round(summary.success, 4))}{cost}" if run.kind == "suites" else label or "success"


def _env_names(run: RunFolder) -> list[str]:
    """Return the names of a mixture's environments; none for a run on a single environment."""
    return [str(env["name"]) for env in saved_envs(run.config) if env["name"]]


def _by_env(run: RunFolder) -> dict[str, dict[str, EvalSummary]]:
    """Return the evaluations of each environment by moment. A run on one environment has a single, unnamed entry."""
    found: dict[str, dict[str, EvalSummary]] = {name: {} for name in _env_names(run)}
    for label, summary in run.summaries.items():
        name = next((name for name in found if label.endswith(f"-{name}")), "")
        found.setdefault(name, {})[label.removesuffix(f"-{name}") if name else label] = summary
    return {name: summaries for name, summaries in found.items() if summaries}


def _overview(run: RunFolder) -> dict[str, object] | None:
    """Return the success of each finished evaluation with its interval, grouped by environment."""
    if not run.summaries:
        return None
    by_env = _by_env(run)
    rows = [
        _interval(_row_label(run, f"{name} {label}".strip(), summary), summary)
        for name, summaries in by_env.items()
        for label, summary in summaries.items()
    ]
    return {
        "headlines": [
            {"name": name, "rows": [_headline(label, summary) for label, summary in summaries.items()]}
            for name, summaries in by_env.items()
            if run.kind not in ("suites", "cross-play")  # there may be many
        ],
        "intervals": rows,
    }


def _interval(label: str, summary: EvalSummary) -> dict[str, str]:
    """Return a row of the overview: success and interval, in per cent of the width."""
    low, value, high = (100 * share for share in (summary.success_low, summary.success, summary.success_high))
    return {
        "label": label,
        "told": f"{as_share(round(summary.success, 4))}, 95 % interval {low:.1f}% to {high:.1f}%",
        "low": f"{low:.2f}",
        "width": f"{high - low:.2f}",
        "value": f"{value:.2f}",
    }


def _repeats(run: RunFolder) -> list[dict[str, object]]:
    """Return the statistics of repeated episodes, one row per evaluation and measure."""
    return [
        {"evaluation": label or "this", "measure": title, "values": values}
        for label, summary in run.summaries.items()
        for title, values in repeat_texts(summary.repeats)
    ]


def _ratings(run: RunFolder) -> list[dict[str, str]]:
    """Return the ratings of a cross-play's policies, the best first; none for another run or an unfinished one.

    Raises:
        CorruptDataError: the file of the ratings was changed.
    """
    path = run.path / RESULT_NAME
    found = read_json_object(path) if run.kind == "cross-play" else {}
    try:
        return [
            {
                "policy": str(one["policy"]),
                "Elo": f"{one['elo']:.0f}",
                "95 % interval": f"{one['low']:.0f} to {one['high']:.0f}",
                "points a game": f"{one['points']:.3f}",
                "games": str(one["num_games"]),
            }
            for one in found.get("ratings", [])
        ]
    except (KeyError, TypeError, ValueError) as error:
        again = f"agentgym cross-play --resume {shell_word(run.path)}"
        raise CorruptDataError(f"{path} holds no ratings ({error!r}); {again} writes them anew") from error


def _types(run: RunFolder) -> dict[str, object] | None:
    """Return the success by task type in each evaluation; None if all tasks have one type."""
    shown = {label or "success": summary.by_type for label, summary in run.summaries.items() if summary.by_type}
    if not shown or run.kind in ("suites", "cross-play"):
        return None
    names = sorted({name for by_type in shown.values() for name in by_type})
    return {
        "evaluations": list(shown),
        "rows": [(name, [_of_type(one.get(name)) for one in shown.values()]) for name in names],
    }


def _of_type(found: dict[str, float] | None) -> dict[str, str]:
    if found is None:
        return {"success": "–", "interval": ""}
    number = f"{found['num_episodes']:.0f} episode{'' if found['num_episodes'] == 1 else 's'}"
    interval = f"{found['success_low']:.1%} to {found['success_high']:.1%}, {number}"
    return {"success": as_share(round(found["success"], 4)), "interval": interval}


def _headline(label: str, summary: EvalSummary) -> dict[str, object]:
    return {
        "label": label,
        "value": as_share(round(summary.success, 4)),
        "interval": f"{summary.success_low:.1%} to {summary.success_high:.1%}",
        "num_episodes": summary.num_episodes - summary.num_failed,
        "num_tasks": summary.num_tasks if summary.repeats else None,
        "num_failed": summary.num_failed,
    }


# ----- one self-contained HTML file: templates, assets, and data that cannot break out of its element


def render(template: str, **values: object) -> str:
    """Render one of this package's templates. Values that are not :class:`Markup` are escaped."""
    return str(_templates().get_template(template).render(**values))


def assets(*names: str) -> Markup:
    """Return style sheets or scripts of this package, joined."""
    return Markup("\n".join(_asset(name) for name in names))


def script_data(value: object) -> Markup:
    """Return JSON that cannot end its script element.

    Example:
        >>> print(script_data({"said": "</script>"}))
        {"said":"\\u003c/script\\u003e"}
    """
    text = json.dumps(value, separators=(",", ":"))
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def _asset(name: str) -> str:
    return (files("agentgym.report") / name).read_text(encoding="utf-8")


@cache
def _templates() -> Environment:
    return Environment(
        autoescape=True, loader=FunctionLoader(_asset), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )

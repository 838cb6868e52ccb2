"""The current state of a run, from the last rows of its metrics."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentgym.engine import EngineHealth
from agentgym.evals.episodes import read_rows
from agentgym.evals.prices import cost_text, sum_costs
from agentgym.evals.runner import success_of
from agentgym.report.charts import as_number, as_share
from agentgym.report.run_folder import RunFolder
from agentgym.rollout.journal import JOURNAL
from agentgym.rollout.pulse import Beat, read_pulse
from agentgym.types import Status

FAILED = ("status/env_error", "status/timeout", "status/aborted")
_QUIET_S = 600.0
"""Seconds without a new row after which the page highlights it."""
_SILENT_S = 30.0
"""Seconds without a heartbeat after which the page highlights it, unless the process is training and cannot send one.
"""

_NUMBERS = {
    "tokens_per_s": "sampled tokens per second",
    "groups_ahead": "groups ahead",
    "in_flight_limit": "episodes in flight at most",
    "staleness_mean": "mean staleness",
    "logprob_gap_max": "engine and trainer differ by",
}

Row = tuple[str, str, bool]
"""Name, value, and True if the value is a cause for concern."""


def version_of(path: Path) -> str:
    """Return a text that changes when a run gets a new row or evaluation, or stops."""
    metrics = path / "metrics.jsonl"
    files = [metrics] if metrics.is_file() else sorted(path.glob("**/episodes.jsonl"))
    also = (path / name for name in ("summary.json", JOURNAL))
    size = " ".join(str(file.stat().st_size) for file in (*files, *also) if file.is_file())
    done = sorted(found.parent.name for found in path.glob("eval/*/summary.json"))
    return f"{size} {' '.join(done)}"


def now_of(run: RunFolder) -> list[Row]:
    """Return the current state of a run.

    Example:
        >>> row = {"phase": "rl", "step": 3, "success": 0.5, "status/completed": 7, "status/timeout": 1}
        >>> run = RunFolder(path=Path("r"), config={"num_steps": 9}, metrics={"rl": [row]}, steps=(), evals={})
        >>> now_of(run)[:3]
        [('RL step', '3 of 9', False), ('success', '50%', False), ('failed episodes', '1 of 8', True)]
    """
    rl, sft = run.metrics.get("rl", []), run.metrics.get("sft", [])
    stopped = [("state", run.stopped, True)] if run.stopped else []
    beat = next((one for folder in (run.path, *run.evals.values()) if (one := read_pulse(folder))), None)
    now = [] if beat is None else _of_beat(beat)
    if run.kind != "training run":
        return [*_of_evaluation(run), *now]
    if not rl and not sft:
        return [*(stopped or [("state", "nothing measured yet", False)]), *now]
    last = (rl or sft)[-1]
    found = _of_rl(last, run) if rl else [("fine-tuning step", str(last["step"]), False), _value("loss", last, "loss")]
    if rl and last["step"] == run.config.get("num_steps") and (run.path / "model").is_dir():
        return [("state", "finished", False), *found]
    if stopped:
        return [*stopped, *found]
    metrics = run.path / "metrics.jsonl"
    if metrics.is_file():
        age = time.time() - metrics.stat().st_mtime
        found.append(("last row", f"{_duration(age)} ago", age > _QUIET_S))
    if beat is not None:  # this row has the current limit
        found = [row for row in found if row[0] != _NUMBERS["in_flight_limit"]]
    return [*found, *now]


def _of_evaluation(run: RunFolder) -> list[Row]:
    """Return the progress of an evaluation or of suites, from the rows written so far."""
    rows = [row for folder in run.evals.values() for row in read_rows(folder)]
    evidence = [row for row in rows if Status(row["status"]).is_evidence]
    state: list[Row] = [("state", "finished", False)] if "" in run.summaries else []
    won = as_share(round(success_of(evidence).value, 4)) if evidence else "–"
    failed = len(rows) - len(evidence)
    cost = sum_costs(rows) if rows else None
    return [
        *state,
        ("episodes", f"{len(rows):,}", False),
        ("success", won, False),
        ("failed episodes", f"{failed} of {len(rows)}", failed > 0),
        *([("cost so far", cost_text(cost), False)] if cost is not None else []),
    ]


def _of_beat(beat: Beat) -> list[Row]:
    """Return the current activity of the process: episodes, environments, and the engine."""
    age = max(0.0, time.time() - beat.at_s)
    is_quiet = age > (_QUIET_S if beat.doing == "training" else _SILENT_S)
    left = "" if beat.total is None else f", {max(0, beat.total - beat.done):,} to go"
    found: list[Row] = [
        ("now", f"{beat.doing}, {_duration(age)} ago", is_quiet),
        ("episodes in flight", f"{beat.playing} of {beat.limit}{left}", False),
    ]
    if beat.waiting and beat.total is None:
        found.append(("episodes waiting for a place", f"{beat.waiting}", False))
    named = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in sorted(beat.failures.items()))
    repeated = f"{beat.retries} repeated" if beat.retries else ""
    found.append(("environments", "; ".join(filter(None, [named, repeated])) or "no failure", bool(beat.failures)))
    if beat.last_failure:
        found.append(("last failure", beat.last_failure, True))
    return [*found, *_of_engine(beat.health)]


def _of_engine(health: EngineHealth | None) -> list[Row]:
    if health is None:
        return []
    queued = "" if health.queued is None else f", {health.queued} queued"
    found: list[Row] = [("engine", f"{health.running} requests{queued}", False)]
    if health.servers is not None:
        is_bad = health.ready != health.servers
        found.append(("servers that answer", f"{health.ready} of {health.servers}", is_bad))
    return [*found, *([("left out", health.fault, True)] if health.fault else [])]


def _of_rl(row: Mapping[str, Any], run: RunFolder) -> list[Row]:
    num_steps = run.config.get("num_steps")
    of = f" of {num_steps}" if isinstance(num_steps, int) else ""
    ended = {name: value for name, value in row.items() if name.startswith("status/")}
    num_failed, total = sum(ended.get(name, 0) for name in FAILED), sum(ended.values())
    found = [("RL step", f"{row['step']}{of}", False)]
    if isinstance(row.get("success"), int | float):
        found.append(("success", as_share(row["success"]), False))
    found.append(("failed episodes", f"{num_failed:.0f} of {total:.0f}", num_failed > 0))
    if row.get("num_retries"):
        found.append(("played again", f"{row['num_retries']:.0f}", False))
    if row.get("num_dropped_groups"):
        found.append(("groups that taught nothing", f"{row['num_dropped_groups']:.0f}", row.get("trained_tokens") == 0))
    if row.get("invalid_share"):
        found.append(("invalid turns", as_share(row["invalid_share"]), row["invalid_share"] > 0.5))
    found += [_value(label, row, name) for name, label in _NUMBERS.items() if row.get(name)]
    spent = {name: row.get(f"time/{name}_s") for name in ("rollout", "train")}
    if all(isinstance(value, int | float) for value in spent.values()):
        found.append(("seconds of rollouts, training", f"{spent['rollout']:.3g}, {spent['train']:.3g}", False))
    return found


def _value(label: str, row: Mapping[str, object], name: str) -> Row:
    value = row.get(name)
    return label, as_number(float(value)) if isinstance(value, int | float) else "–", False


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"

"""The state of a run now, from the last rows of its metrics."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentgym.report.charts import as_number, as_share
from agentgym.report.run_folder import RunFolder
from agentgym.rollout.journal import JOURNAL

FAILED = ("status/env_error", "status/timeout", "status/aborted")
_QUIET_S = 600.0
"""Seconds without a row after which it is said in colour."""

_NUMBERS = {
    "tokens_per_s": "sampled tokens per second",
    "groups_ahead": "groups ahead",
    "in_flight_limit": "episodes in flight at most",
    "staleness_mean": "mean staleness",
    "logprob_gap_max": "engine and trainer differ by",
}

Row = tuple[str, str, bool]
"""Name, value, and whether it is a cause for concern."""


def version_of(path: Path) -> str:
    """Return a text that changes whenever a row or an evaluation is added to a run, or the run stops."""
    size = sum(file.stat().st_size for name in ("metrics.jsonl", JOURNAL) if (file := path / name).is_file())
    done = sorted(found.parent.name for found in path.glob("eval/*/summary.json"))
    return f"{size} {' '.join(done)}"


def now_of(run: RunFolder) -> list[Row]:
    """Return what a run does now.

    Example:
        >>> row = {"phase": "rl", "step": 3, "success": 0.5, "status/completed": 7, "status/timeout": 1}
        >>> run = RunFolder(path=Path("r"), config={"num_steps": 9}, metrics={"rl": [row]}, steps=(), evals={})
        >>> now_of(run)[:3]
        [('RL step', '3 of 9', False), ('success', '50%', False), ('failed episodes', '1 of 8', True)]
    """
    rl, sft = run.metrics.get("rl", []), run.metrics.get("sft", [])
    stopped = [("state", run.stopped, True)] if run.stopped else []
    if not rl and not sft:
        return stopped or [("state", "nothing measured yet", False)]
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
    return found


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

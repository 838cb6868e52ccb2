"""Reader of run folders for the report: a training run, an evaluation, suites, or cross-play."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from agentgym.errors import CorruptDataError, UsageError
from agentgym.evals.episodes import PARTIAL_NAME, RECORD_NAME, ROWS_NAME
from agentgym.evals.runner import EvalSummary, load_summary
from agentgym.evals.suite_runner import SUITE_FILE
from agentgym.rollout import journal
from agentgym.rollout.record import read_json_lines, read_json_object, recorded_steps
from agentgym.rollout.run_kind import runs_in

Kind = Literal["training run", "evaluation", "suites", "cross-play"]
_COUNTS_IF_ANY = "voids/"
"""Beginning of metrics that a row has only where they are above 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolder:
    """The content of a run's folder; rollouts stay on disk."""

    path: Path
    config: dict[str, Any]
    """Saved configuration; empty if there is none."""
    metrics: dict[str, list[dict[str, Any]]]
    """Rows of ``metrics.jsonl`` by phase (``sft``, ``rl``, ``eval``), in order of step."""
    steps: tuple[int, ...]
    """Training steps with recorded rollouts."""
    evals: dict[str, Path]
    """Folders of evaluations by label, in order of time. If the run is itself an evaluation, its folder has an empty
    label."""
    summaries: dict[str, EvalSummary] = field(default_factory=dict)
    """Results of the evaluations that finished."""

    kind: Kind = "training run"
    stopped: str = ""
    """Error that ended the run, with its time; empty if there was none or the run has been resumed."""

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.path.resolve().name


def measured(rows: Sequence[Mapping[str, Any]], name: str) -> list[tuple[Mapping[str, Any], float]]:
    """Return the rows in which a metric is a finite number, each with it.

    A count of failures by their kind is written in the steps that have some; it is 0 in the others.

    Example:
        >>> rows = [{"success": 0.5, "voids/x/reset": 2.0}, {"success": None}]
        >>> [[number for _, number in measured(rows, name)] for name in ("success", "voids/x/reset")]
        [[0.5], [2.0, 0.0]]
    """
    absent = 0.0 if name.startswith(_COUNTS_IF_ANY) else None
    found = [(row, row.get(name, absent)) for row in rows]
    return [(row, float(one)) for row, one in found if isinstance(one, int | float) and math.isfinite(one)]


def open_run_folder(path: Path) -> RunFolder:
    """Read a run's folder.

    Raises:
        UsageError: there is no such folder.
        CorruptDataError: the folder is not a run, or a file in it cannot be read.
    """
    if not path.is_dir():
        raise UsageError(f"no folder {str(path)!r}; name the folder of a training run or an evaluation")
    kind: Kind = "training run"
    if _is_evaluation(path):
        kind, evals, summarised = "evaluation", {"": path}, {"": path}
    elif (path / "metrics.jsonl").is_file() or (path / "rollouts").is_dir():
        found = sorted((folder for folder in (path / "eval").glob("*") if folder.is_dir()), key=_order)
        evals = summarised = {folder.name: folder for folder in found}
    elif journal.last_stop(path):  # the run has not written a number yet
        evals, summarised = {}, {}
    elif played := sorted(file.parent for file in path.glob(f"**/{SUITE_FILE}")):
        kind, summarised = "suites", {_label(path, folder): folder for folder in played}
        folders = [each for folder in played for each in (folder, *sorted(folder.glob("*")))]
        evals = {_label(path, folder): folder for folder in folders if _is_evaluation(folder)}
    elif pairs := pairs_in(path):
        kind = "cross-play"
        evals = summarised = {label: folder for label, folder in pairs.items() if _is_evaluation(folder)}
    else:
        raise CorruptDataError(
            f"{path} is not a run: it has neither metrics.jsonl (a training run) nor {ROWS_NAME} (an evaluation) nor "
            f"folders with {SUITE_FILE} (suites) nor pairs of policies (cross-play){runs_in(path)}"
        )
    config = read_json_object(path / "config.json")
    summaries = {
        label: load_summary(folder) for label, folder in summarised.items() if (folder / "summary.json").is_file()
    }
    if kind == "suites":
        evals, summaries = _as_given(config, evals, summaries)
    return RunFolder(
        path=path,
        kind=kind,
        config=config,
        metrics=_read_metrics(path / "metrics.jsonl"),
        steps=recorded_steps(path),
        evals=evals,
        summaries=summaries,
        stopped=_stopped(path),
    )


def pairs_in(path: Path) -> dict[str, Path]:
    """Return the folders of a cross-play's pairs by ``POLICY against OPPONENT``; empty for another folder."""
    plan = read_json_object(path / "config.json").get("cross_play")
    policies = plan.get("policies", []) if isinstance(plan, dict) else []
    return {
        f"{policy} against {opponent}": path / "pairs" / f"{one}-{other}"
        for (one, policy), (other, opponent) in itertools.permutations(enumerate(policies, 1), 2)
    }


def _as_given(
    config: dict[str, Any], evals: dict[str, Path], summaries: dict[str, EvalSummary]
) -> tuple[dict[str, Path], dict[str, EvalSummary]]:
    """Return the evaluations of suites in the order in which the command named their policies."""
    policies = (config.get("eval_suites") or {}).get("policies", [])
    places = {label: policies.index(one.policy) for label, one in summaries.items() if one.policy in policies}

    def place(label: str) -> tuple[str, int]:
        """Return the suite, and the policy's position; a part is beside its suite."""
        at = next((at for of, at in places.items() if f"{label}/".startswith(f"{of}/")), len(policies))
        return label.split("/", maxsplit=1)[0], at

    return (
        {label: evals[label] for label in sorted(evals, key=place)},
        {label: summaries[label] for label in sorted(summaries, key=place)},
    )


def _stopped(path: Path) -> str:
    stop = journal.last_stop(path)
    return f"stopped after {stop.get('phase')} step {stop.get('step')}: {stop['stopped']}" if stop else ""


def _is_evaluation(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (ROWS_NAME, RECORD_NAME, PARTIAL_NAME))


def _label(root: Path, folder: Path) -> str:
    return folder.relative_to(root).as_posix() if folder != root else folder.name


def _order(folder: Path) -> tuple[int, str]:
    moment = folder.name.partition("-")[0]  # for a mixture, as in after-household
    return {"base": 0, "before": 1, "after": 3}.get(moment, 2), folder.name


def _read_metrics(path: Path) -> dict[str, list[dict[str, Any]]]:
    phases: dict[str, list[dict[str, object]]] = {}
    for number, row in enumerate(read_json_lines(path), 1):
        if not isinstance(row, dict) or not isinstance(row.get("step"), int) or "phase" not in row:
            raise CorruptDataError(f"{path}, line {number}: expected an object with phase and step")
        phases.setdefault(str(row["phase"]), []).append(row)
    return {phase: sorted(rows, key=lambda row: int(row["step"])) for phase, rows in phases.items()}

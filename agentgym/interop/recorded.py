"""The episodes of one evaluation in a run's folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from agentgym.errors import UsageError, require_known
from agentgym.evals.episodes import read_groups
from agentgym.report.run_folder import RunFolder, open_run_folder
from agentgym.types import Trajectory


@dataclass(frozen=True, slots=True)
class Recorded:
    """The episodes to export and their origin."""

    run: RunFolder
    label: str
    """Label of the evaluation; empty if the run is itself an evaluation."""
    folder: Path
    trajectories: tuple[Trajectory, ...]


def read_recorded(run_dir: Path, label: str | None = None) -> Recorded:
    """Read the episodes of an evaluation.

    Args:
        run_dir: folder of an evaluation, of suites, of a policy on a suite, or of a training run.
        label: label of the evaluation: ``before`` or ``after`` of a training run, ``SUITE/POLICY`` or
            ``SUITE/POLICY/PART`` of suites. None for the last one of a training run, and for all parts of a suite.

    Raises:
        UsageError: the run has no such evaluation, none at all, or several policies or suites of which none is named.
        CorruptDataError: the episodes cannot be read.
    """
    run = open_run_folder(run_dir)
    if not run.evals:
        raise UsageError(f"{run_dir} has no evaluation to export")
    if run.kind == "suites":
        return _of_suites(run, label)
    if run.kind == "cross-play" and label is None:
        raise UsageError(f"{run.path} has several pairs; name one by --evaluation: {', '.join(run.evals)}")
    chosen = list(run.evals)[-1] if label is None else label
    require_known("evaluation", chosen, run.evals)
    return Recorded(run, chosen, run.evals[chosen], _trajectories(run.evals[chosen]))


def _of_suites(run: RunFolder, label: str | None) -> Recorded:
    """Return the episodes of a policy on a suite with all parts, or those of one part."""
    whole = {name: _folder_of(run, name) for name in run.summaries} or run.evals
    choices = {**whole, **run.evals}
    if label is None and len(whole) > 1:
        raise UsageError(f"{run.path} has several evaluations; name one by --evaluation: {', '.join(whole)}")
    chosen = next(iter(whole)) if label is None else label
    require_known("evaluation", chosen, choices)
    parts = [chosen] if chosen in run.evals else [name for name in run.evals if _is_part(run, name, chosen)]
    played = tuple(one for name in parts for one in _trajectories(run.evals[name]))
    return Recorded(run, chosen, choices[chosen], played)


def _folder_of(run: RunFolder, label: str) -> Path:
    return run.path if label == run.path.name and not (run.path / label).is_dir() else run.path / label


def _is_part(run: RunFolder, label: str, suite: str) -> bool:
    return _folder_of(run, suite) in run.evals[label].parents


def _trajectories(folder: Path) -> tuple[Trajectory, ...]:
    return tuple(one for group in read_groups(folder) for one in group.trajectories)

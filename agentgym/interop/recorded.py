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
    trajectories: tuple[Trajectory, ...]


def read_recorded(run_dir: Path, label: str | None = None) -> Recorded:
    """Read the episodes of an evaluation.

    Args:
        run_dir: folder of an evaluation or of a training run.
        label: label of the evaluation, as in ``before`` and ``after`` of a training run; None for the last one.

    Raises:
        UsageError: the run has no such evaluation, or none at all.
        CorruptDataError: the episodes cannot be read.
    """
    run = open_run_folder(run_dir)
    if not run.evals:
        raise UsageError(f"{run_dir} has no evaluation to export")
    chosen = list(run.evals)[-1] if label is None else label
    require_known("evaluation", chosen, run.evals)
    groups = read_groups(run.evals[chosen])
    return Recorded(run, chosen, tuple(one for group in groups for one in group.trajectories))

"""The episodes of one evaluation in a run's folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from agentgym.errors import UsageError, unknown_name
from agentgym.evals.episodes import read_groups
from agentgym.report.run_folder import RunFolder, open_run_folder
from agentgym.types import Trajectory


@dataclass(frozen=True, slots=True)
class Recorded:
    """The episodes that are exported, and where they are from."""

    run: RunFolder
    label: str
    """Of the evaluation, empty if the run is one."""
    trajectories: tuple[Trajectory, ...]


def read_recorded(run_dir: Path, label: str | None = None) -> Recorded:
    """Read the episodes of an evaluation.

    Args:
        label: which one, as in ``before`` and ``after`` of a training run; None for the last.

    Raises:
        UsageError: the run has no such evaluation, or none.
        CorruptDataError: its episodes cannot be read.
    """
    run = open_run_folder(run_dir)
    if not run.evals:
        raise UsageError(f"{run_dir} has no evaluation to export")
    chosen = list(run.evals)[-1] if label is None else label
    if chosen not in run.evals:
        raise unknown_name("evaluation", chosen, run.evals)
    groups = read_groups(run.evals[chosen])
    return Recorded(run, chosen, tuple(one for group in groups for one in group.trajectories))

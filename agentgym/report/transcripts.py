"""Episodes as lines of text, for a terminal: the same tasks in each evaluation of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentgym.evals.episodes import read_groups
from agentgym.report.run_folder import RunFolder
from agentgym.report.traces import action_text
from agentgym.types import Trajectory, Turn

LONGEST_LINE = 220
ROLES = {"user": "env", "tool": "tool", "system": "env", "assistant": "agent"}


@dataclass(frozen=True, slots=True)
class Line:
    """One message of an episode: who speaks, and the text on one line."""

    speaker: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """One episode of one evaluation."""

    evaluation: str
    task: str
    lines: tuple[Line, ...]
    outcome: str


def sample_transcripts(run: RunFolder, num_tasks: int) -> list[list[Transcript]]:
    """Return the first tasks of a run's evaluations, each with its episode in every evaluation, in order of time.

    Raises:
        CorruptDataError: an evaluation's episodes cannot be read.
    """
    evaluations = {
        label: {group.task.id: group.trajectories[0] for group in read_groups(folder) if group.trajectories}
        for label, folder in run.evals.items()
    }
    task_ids = [task_id for played in list(evaluations.values())[:1] for task_id in played][:num_tasks]
    return [
        [transcript(played[task_id], label) for label, played in evaluations.items() if task_id in played]
        for task_id in task_ids
    ]


def transcript(trajectory: Trajectory, evaluation: str = "") -> Transcript:
    """Return an episode as lines."""
    lines = [Line(ROLES[message.role], _one_line(message.text)) for message in trajectory.observation]
    for turn in trajectory.turns:
        lines += _lines_of(turn)
    reward = trajectory.reward
    outcome = trajectory.error or trajectory.status.value if reward is None else f"return {reward:g}"
    if trajectory.success is not None:
        outcome = f"{'success' if trajectory.success else 'failure'}, {outcome}, {trajectory.status.value}"
    return Transcript(evaluation=evaluation, task=trajectory.task.id, lines=tuple(lines), outcome=outcome)


def _lines_of(turn: Turn) -> Sequence[Line]:
    said = Line("agent", _one_line(action_text(turn.action)))
    return [said, *(Line(ROLES[message.role], _one_line(message.text)) for message in turn.replies)]


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE - 1]}…"

"""Episodes as lines of text for a terminal: the same tasks in each evaluation of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from agentgym.evals.episodes import read_groups
from agentgym.report.pictures import missing_files
from agentgym.report.run_folder import RunFolder
from agentgym.report.traces import action_text
from agentgym.rollout.record import read_records, record_path
from agentgym.types import Message, Trajectory, Turn, TurnCredit

LONGEST_LINE = 220
ROLES = {"user": "env", "tool": "tool", "system": "env", "assistant": "agent"}


@dataclass(frozen=True, slots=True)
class Line:
    """One message of an episode: speaker and text on one line."""

    speaker: str
    text: str
    reward: str = ""
    """Reward of the turn that ends with this line, with its advantage if it was trained on; empty on other lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """One episode of an evaluation or of a training step."""

    played_in: str
    task: str
    lines: tuple[Line, ...]
    outcome: str


def sample_transcripts(run: RunFolder, num_tasks: int) -> list[list[Transcript]]:
    """Return the first tasks of a run's evaluations, each with its episodes in all evaluations, in order of time.

    Raises:
        CorruptDataError: an evaluation's episodes cannot be read.
    """
    evaluations = {
        label: {one.task.id: one.trajectories[0] for one in read_groups(folder, keeps_missing=True) if one.trajectories}
        for label, folder in run.evals.items()
    }
    task_ids = [task_id for played in list(evaluations.values())[:1] for task_id in played][:num_tasks]
    return [
        [
            transcript(played[task_id], f"evaluation {label}".strip())
            for label, played in evaluations.items()
            if task_id in played
        ]
        for task_id in task_ids
    ]


def last_step_transcripts(run: RunFolder, num_groups: int) -> list[list[Transcript]]:
    """Return the best and the worst episode, by return, of each of the first groups of the newest training step.

    Raises:
        CorruptDataError: the step's record cannot be read.
    """
    if not run.steps:
        return []
    step = run.steps[-1]
    found = []
    for record in read_records(record_path(run.path, step), keeps_missing=True)[:num_groups]:
        credit = record.credit or ((),) * len(record.group.trajectories)
        ranked = sorted(
            zip(record.group.trajectories, credit, strict=True), key=lambda member: -(member[0].reward or 0.0)
        )
        ends = ranked if len(ranked) < 3 else [ranked[0], ranked[-1]]
        found.append([transcript(played, f"training step {step + 1}", own) for played, own in ends])
    return found


def transcript(trajectory: Trajectory, played_in: str = "", credit: Sequence[TurnCredit] = ()) -> Transcript:
    """Return an episode as lines of text.

    Args:
        trajectory: the episode.
        played_in: label of the evaluation or step.
        credit: credit of its turns, if it was trained on.
    """
    lines = [Line(ROLES[message.role], _said(message)) for message in trajectory.observation]
    for number, turn in enumerate(trajectory.turns):
        lines += _lines_of(turn, credit[number] if number < len(credit) else None)
    reward = trajectory.reward
    outcome = trajectory.error or trajectory.status.value if reward is None else f"return {reward:g}"
    if trajectory.success is not None:
        outcome = f"{'success' if trajectory.success else 'failure'}, {outcome}, {trajectory.status.value}"
    return Transcript(played_in=played_in, task=trajectory.task.id, lines=tuple(lines), outcome=outcome)


def _lines_of(turn: Turn, credit: TurnCredit | None) -> Sequence[Line]:
    said = Line("agent", _one_line(action_text(turn.action)))
    lines = [said, *(Line(ROLES[message.role], _said(message)) for message in turn.replies)]
    earned = [f"reward {turn.reward:+.3g}"] if turn.reward_parts else []
    trained = [f"advantage {credit.advantage:+.3g}"] if credit is not None else []
    return [*lines[:-1], replace(lines[-1], reward=", ".join([*earned, *trained]))]


def _said(message: Message) -> str:
    lost = "".join(f" [{file} is missing or was changed]" for file in missing_files(message))
    return f"{_one_line(message.text)}{lost}"


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE - 1]}…"

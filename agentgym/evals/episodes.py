"""The files of an evaluation, written while it runs.

::

    episodes.jsonl       one line per finished episode: what is needed to sum up and to resume
    episodes.jsonl.gz    the full trajectories, one group of one member each (:mod:`agentgym.rollout.record`)
    summary.json         the result

While the evaluation runs, trajectories go to ``trajectories.partial.jsonl`` one by one, so that a killed process loses
only the episodes in flight; at the end they become the compressed record.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from agentgym.canonical import read_json, strict_json
from agentgym.errors import CorruptDataError
from agentgym.rollout.record import (
    GroupRecord,
    append_json_line,
    read_json_lines,
    read_records,
    replace_text,
    rewrite_json_lines,
    write_records,
)
from agentgym.types import Status, Trajectory, TrajectoryGroup

Key = tuple[str, str, int]
"""What makes an episode the same one: task id, content hash, seed of the policy's sampling."""

ROWS_NAME = "episodes.jsonl"
RECORD_NAME = "episodes.jsonl.gz"
PARTIAL_NAME = "trajectories.partial.jsonl"


def key_of(row: dict[str, Any]) -> Key:
    """The key of a row of ``episodes.jsonl``."""
    return str(row["task_id"]), str(row["content_hash"]), int(row["seed"])


def row_of(trajectory: Trajectory) -> dict[str, Any]:
    """One finished episode as a row of ``episodes.jsonl``; ``num_tokens`` counts sampled tokens."""
    return {
        "task_id": trajectory.task.id,
        "content_hash": trajectory.task.content_hash,
        "seed": trajectory.seed,
        "status": trajectory.status.value,
        "success": trajectory.success,
        "return": trajectory.reward,
        "num_turns": len(trajectory.turns),
        "num_tokens": sum(turn.num_sampled_tokens for turn in trajectory.turns),
        "num_retries": trajectory.num_retries,
        "error": trajectory.error,
    }


class EpisodeFiles:
    """Appends episodes to an evaluation's folder and knows which are already there.

    Args:
        out_dir: the folder; made if needed.
        resume: keep the episodes that are evidence about the policy; without it the folder starts empty.

    Raises:
        CorruptDataError: the files to resume from cannot be read.
    """

    def __init__(self, out_dir: Path, *, resume: bool) -> None:
        self._dir = out_dir
        out_dir.mkdir(parents=True, exist_ok=True)
        (out_dir / "summary.json").unlink(missing_ok=True)
        kept = read_rows(out_dir) if resume else []
        self.rows: dict[Key, dict[str, Any]] = {key_of(row): row for row in kept if Status(row["status"]).is_evidence}
        groups = read_groups(out_dir) if resume else ()
        self._groups = {key: group for group in groups if (key := _key_of_group(group)) in self.rows}
        # Rewritten whole: a killed process may have left half a line, and failed episodes are played again.
        replace_text(out_dir / PARTIAL_NAME, "".join(_as_line(group) + "\n" for group in self._groups.values()))
        rewrite_json_lines(out_dir / ROWS_NAME, self.rows.values())
        (out_dir / RECORD_NAME).unlink(missing_ok=True)

    def add(self, group: TrajectoryGroup) -> None:
        """Append one finished episode, its trajectory first: a row says that all of it is there."""
        key, row = _key_of_group(group), row_of(group.trajectories[0])
        with open(self._dir / PARTIAL_NAME, "a", encoding="utf-8") as out:
            out.write(_as_line(group) + "\n")
        append_json_line(self._dir / ROWS_NAME, row)
        self.rows[key], self._groups[key] = row, group

    def finish(self) -> None:
        """Turn the trajectories into the compressed record, in the order of the tasks."""
        groups = sorted(self._groups.values(), key=lambda group: group.ordinal)
        write_records(self._dir / RECORD_NAME, [GroupRecord(group=group) for group in groups])
        (self._dir / PARTIAL_NAME).unlink()


def read_rows(out_dir: Path) -> list[dict[str, Any]]:
    """The rows of ``episodes.jsonl``; empty if there is none.

    Raises:
        CorruptDataError: a row is not JSON, or lacks a field.
    """
    rows = read_json_lines(out_dir / ROWS_NAME)
    for number, row in enumerate(rows, 1):
        try:
            key_of(row), Status(row["status"])
        except (KeyError, ValueError, TypeError) as error:
            raise CorruptDataError(f"{out_dir / ROWS_NAME}, line {number}: not an episode ({error!r})") from error
    return rows


def read_groups(out_dir: Path) -> tuple[TrajectoryGroup, ...]:
    """The trajectories of an evaluation, finished or not, each as a group of one.

    Raises:
        CorruptDataError: a trajectory cannot be read (a last one that was cut short is left out).
    """
    if (out_dir / RECORD_NAME).is_file():
        return tuple(record.group for record in read_records(out_dir / RECORD_NAME))
    partial = out_dir / PARTIAL_NAME
    lines = partial.read_text(encoding="utf-8").split("\n") if partial.is_file() else []
    groups: list[TrajectoryGroup] = []
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            groups.append(_adapter().validate_python(read_json(line)))
        except ValueError as error:  # pydantic's are, too
            if number == len(lines):
                break
            raise CorruptDataError(f"{partial}, line {number}: not a trajectory") from error
    return tuple(groups)


def write_json(path: Path, value: object) -> None:
    """Write a JSON file, replacing the old one only when all of it is on disk."""
    replace_text(path, strict_json(value, indent=2) + "\n")


def _key_of_group(group: TrajectoryGroup) -> Key:
    return key_of(row_of(group.trajectories[0]))


def _as_line(group: TrajectoryGroup) -> str:
    # pydantic's own JSON writer rejects half surrogates, which a task's data may hold
    return strict_json(_adapter().dump_python(group), keeps_non_finite=True)


@cache
def _adapter() -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(TrajectoryGroup)

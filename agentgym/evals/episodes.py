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
from types import NoneType
from typing import Any

from agentgym.canonical import digest, read_json, strict_json
from agentgym.errors import CorruptDataError, InfrastructureError
from agentgym.evals.prices import Price, count_tokens
from agentgym.evals.scoring import Grader, Scored, Scoring
from agentgym.rollout.record import (
    GroupRecord,
    append_json_line,
    read_json_lines,
    read_records,
    replace_text,
    rewrite_json_lines,
    write_records,
)
from agentgym.scoring.answer import final_answer
from agentgym.tool import cut_output
from agentgym.types import FinishReason, Status, Trajectory, TrajectoryGroup

Key = tuple[str, str, int]
"""Identity of an episode: task id, content hash, seed of the policy's sampling."""

_SCORES = {"success": (bool, NoneType), "return": (int, float, NoneType)}
"""Types of the fields of a row that figures are made from."""
_LONGEST_ANSWER = 200
ROWS_NAME = "episodes.jsonl"
RECORD_NAME = "episodes.jsonl.gz"
PARTIAL_NAME = "trajectories.partial.jsonl"


def key_of(row: dict[str, Any]) -> Key:
    """Return the key of a row of ``episodes.jsonl``."""
    return str(row["task_id"]), str(row["content_hash"]), int(row["seed"])


def row_of(trajectory: Trajectory) -> dict[str, object]:
    """Return a finished episode as a row of ``episodes.jsonl``.

    Tokens are those of :func:`~agentgym.evals.prices.count_tokens`. ``num_invalid_turns`` counts turns with a malformed
    or rejected call, ``num_truncated_completions`` completions that a limit of tokens ended, and ``num_tool_errors``
    calls that a tool answered with an error. ``seconds`` is the time of sampling and of the environment in all turns,
    without queueing. For a policy with several attempts, tokens and seconds include all attempts; turns are those of
    the attempt that counts. ``models`` are those that servers said had answered.
    """
    turns = trajectory.turns
    results = [message.result for turn in turns for message in turn.replies if message.result is not None]
    return {
        "task_id": trajectory.task.id,
        "task_type": trajectory.task_type,
        "content_hash": trajectory.task.content_hash,
        "seed": trajectory.seed,
        "status": trajectory.status.value,
        "success": trajectory.success,
        "return": trajectory.reward,
        "num_turns": len(turns),
        **count_tokens(trajectory),
        "models": sorted({turn.completion.model for turn in trajectory.turns_of_attempts} - {""}),
        "num_attempts": 1 + len(trajectory.attempts),
        "num_invalid_turns": sum(not turn.is_valid for turn in turns),
        "num_truncated_completions": sum(turn.completion.finish_reason is FinishReason.LENGTH for turn in turns),
        "num_tool_errors": sum(result.is_error for result in results),
        "seconds": round(sum(one.latency.generate_s + one.latency.env_s for one in trajectory.turns_of_attempts), 3),
        "num_retries": trajectory.num_retries,
        "error": trajectory.error,
        "answer": _answer(trajectory),
    }


def _answer(trajectory: Trajectory) -> str | None:
    """Return the answer for majority votes: a digest if it is long, None if the task has no references."""
    if not trajectory.task.answers or not trajectory.status.is_evidence:
        return None
    answer = final_answer(trajectory)
    return answer if len(answer) <= _LONGEST_ANSWER else digest(answer)


def _unscored(row: dict[str, object], trajectory: Trajectory) -> dict[str, object]:
    """Return a row without its scores. A scorer may have failed for an episode that did not."""
    return row_of(trajectory) | {"seconds": row.get("seconds", 0.0)}  # records do not keep the error class


def _with_score(row: dict[str, object], scored: Scored | InfrastructureError) -> dict[str, object]:
    """Return a row with its score. The environment's own success is kept in another field."""
    if isinstance(scored, InfrastructureError):
        failed = {
            "status": Status.ABORTED.value,
            "success": None,
            "return": None,
            "error": cut_output(f"scorer: {scored}"),
        }
        return row | failed
    return row | {
        "success": scored.success,
        "score": scored.score,
        "scores": dict(scored.by_scorer),
        "env_success": row["success"],
    }


def _is_evidence(group: TrajectoryGroup) -> bool:
    return group.trajectories[0].status.is_evidence


class EpisodeFiles:
    """Files of an evaluation, to which episodes are appended.

    Args:
        out_dir: the folder, which is created if it is missing.
        resume: keep the valid episodes; otherwise the folder starts empty.
        price: price of the policy's tokens; None if it is not known, so that episodes have no cost.

    Raises:
        CorruptDataError: the files to resume from cannot be read.
    """

    def __init__(self, out_dir: Path, *, resume: bool, price: Price | None = None) -> None:
        self._dir, self._price = out_dir, price
        out_dir.mkdir(parents=True, exist_ok=True)
        kept = {key_of(row): row for row in read_rows(out_dir)} if resume else {}
        groups = [group for group in read_groups(out_dir) if _is_evidence(group)] if resume else []
        self._groups = {key: group for group in groups if (key := _key_of_group(group)) in kept}
        self.rows: dict[Key, dict[str, Any]] = {
            key: self._priced(_unscored(kept[key], group.trajectories[0])) for key, group in self._groups.items()
        }
        (out_dir / "summary.json").unlink(missing_ok=True)  # after reading: a corrupt record costs no result
        # Rewritten completely: a killed process may have left half a line, and failed episodes run again.
        replace_text(out_dir / PARTIAL_NAME, "".join(_as_line(group) + "\n" for group in self._groups.values()))
        rewrite_json_lines(out_dir / ROWS_NAME, self.rows.values())
        (out_dir / RECORD_NAME).unlink(missing_ok=True)

    @property
    def groups(self) -> tuple[TrajectoryGroup, ...]:
        """Episodes so far, each as a group of one."""
        return tuple(self._groups.values())

    def add(self, group: TrajectoryGroup) -> None:
        """Append a finished episode. The trajectory is written first, so that a row implies a complete trajectory."""
        key, row = _key_of_group(group), self._priced(row_of(group.trajectories[0]))
        with open(self._dir / PARTIAL_NAME, "a", encoding="utf-8") as out:
            out.write(_as_line(group) + "\n")
        append_json_line(self._dir / ROWS_NAME, row)
        self.rows[key], self._groups[key] = row, group

    def _priced(self, row: dict[str, object]) -> dict[str, object]:
        """Return a row with its cost, which is None if it is not known."""
        return row | {"cost": None if self._price is None else self._price.cost(row)}

    def take_over(self, source: Path) -> None:
        """Add all episodes of another evaluation, without their scores.

        Raises:
            CorruptDataError: its files cannot be read, or have no episodes.
        """
        rows, groups = {key_of(row): row for row in read_rows(source)}, read_groups(source)
        if not groups:
            raise CorruptDataError(f"{source} has no recorded episodes: its {RECORD_NAME} is missing or empty")
        for group in groups:
            key = _key_of_group(group)
            self.add(group)
            self.rows[key] = self._priced(_unscored(rows.get(key, {}), group.trajectories[0]))
        rewrite_json_lines(self._dir / ROWS_NAME, self.rows.values())

    async def score(self, scoring: Scoring) -> None:
        """Score all finished episodes and rewrite their rows.

        An episode whose scorer fails, for example because a judge cannot be reached, counts as failed. Without scorers
        the rows do not change.
        """
        if not scoring.scorers:
            return
        grader = Grader(scoring, self._dir)
        graded = [key for key, group in self._groups.items() if _is_evidence(group)]
        try:
            scored = await grader.scored_all([self._groups[key].trajectories[0] for key in graded])
        finally:
            await grader.close()
        for key, one in zip(graded, scored, strict=True):
            self.rows[key] = _with_score(self.rows[key], one)
        rewrite_json_lines(self._dir / ROWS_NAME, self.rows.values())

    def finish(self) -> None:
        """Write the compressed record and the rows in the order of the tasks.

        So trials have the same numbers, and bootstraps the same draws, however long each episode took.
        """
        self._groups = dict(sorted(self._groups.items(), key=lambda item: item[1].ordinal))
        self.rows = {key: self.rows[key] for key in self._groups}
        write_records(self._dir / RECORD_NAME, [GroupRecord(group=group) for group in self._groups.values()])
        rewrite_json_lines(self._dir / ROWS_NAME, self.rows.values())
        (self._dir / PARTIAL_NAME).unlink()


def read_rows(out_dir: Path) -> list[dict[str, Any]]:
    """Return the rows of ``episodes.jsonl``; empty if there is no file.

    Raises:
        CorruptDataError: a row is not JSON, lacks a field, or has a score of another type, as a row edited by hand.
    """
    rows = read_json_lines(out_dir / ROWS_NAME)
    for number, row in enumerate(rows, 1):
        try:
            key_of(row), Status(row["status"])
            for name, kinds in _SCORES.items():
                if type(row[name]) not in kinds:
                    raise ValueError(f"{name} is {row[name]!r}")
        except (KeyError, ValueError, TypeError) as error:
            raise CorruptDataError(f"{out_dir / ROWS_NAME}, line {number}: not an episode ({error!r})") from error
    return rows


def read_groups(out_dir: Path, *, keeps_missing: bool = False) -> tuple[TrajectoryGroup, ...]:
    """Return the trajectories of a finished or unfinished evaluation, each as a group of one.

    Args:
        keeps_missing: as in :func:`~agentgym.rollout.record.read_records`.

    Raises:
        CorruptDataError: a trajectory cannot be read. (An incomplete last one is skipped.)
    """
    if (out_dir / RECORD_NAME).is_file():
        return tuple(record.group for record in read_records(out_dir / RECORD_NAME, keeps_missing=keeps_missing))
    partial = out_dir / PARTIAL_NAME
    lines = partial.read_text(encoding="utf-8").split("\n") if partial.is_file() else []
    groups: list[TrajectoryGroup] = []
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            groups.append(_adapter().validate_python(read_json(line)))
        except ValueError as error:  # pydantic's errors are ValueErrors, too
            if number == len(lines):
                break
            raise CorruptDataError(f"{partial}, line {number}: not a trajectory") from error
    return tuple(groups)


def write_json(path: Path, value: object) -> None:
    """Write a JSON file. It replaces the old one only when it is completely on disk."""
    replace_text(path, strict_json(value, indent=2) + "\n")


def _key_of_group(group: TrajectoryGroup) -> Key:
    return key_of(row_of(group.trajectories[0]))


def _as_line(group: TrajectoryGroup) -> str:
    # pydantic's JSON writer rejects halves of surrogate pairs, which a task's data may contain
    return strict_json(_adapter().dump_python(group), keeps_non_finite=True)


@cache
def _adapter() -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(TrajectoryGroup)

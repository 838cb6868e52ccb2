"""Write and read files of expert traces, with one recorded episode per line."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from agentgym.canonical import read_json
from agentgym.env.env import Env
from agentgym.envs.gui.replay import Policy, Recording, record
from agentgym.envs.rows import lines_of
from agentgym.errors import CorruptDataError, error_text
from agentgym.types import Task


def record_traces(
    env: Env,
    tasks: Iterable[Task],
    path: str | Path,
    *,
    policy: Policy[Env] = lambda env: env.oracle(),
    max_turns: int = 100,
) -> tuple[Recording, ...]:
    """Play tasks with an expert, by default the environment's oracle, and write the episodes to a file.

    Episodes that do not end within ``max_turns`` are left out.

    Returns:
        The written recordings, in order.

    Example:
        >>> import tempfile
        >>> from agentgym.registry import make
        >>> maze = make("agentgym/Maze-v0")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     written = record_traces(maze, maze.tasks("train")[:2], Path(folder) / "maze.jsonl")
        ...     read_traces(Path(folder) / "maze.jsonl") == written
        True
    """
    played = (record(env, task, policy, max_turns) for task in tasks)
    recordings = tuple(recording for recording in played if recording.has_ended)
    write_traces(path, recordings)
    return recordings


def write_traces(path: str | Path, recordings: Iterable[Recording]) -> None:
    """Write recordings as JSON lines."""
    lines = "".join(json.dumps(recording.to_json()) + "\n" for recording in recordings)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(lines, encoding="utf-8")


def read_traces(path: str | Path) -> tuple[Recording, ...]:
    """Return the recordings of a file.

    Raises:
        CorruptDataError: the file does not exist, contains no traces, or has a line that is not a recording.
    """
    file = Path(path)
    if not file.is_file():
        raise CorruptDataError(f"no expert traces at {file}; record some with agentgym.envs.semi_online.traces")
    recordings = [_read(line, f"{file}, line {number}") for number, line in lines_of(file)]
    if not recordings:
        raise CorruptDataError(f"{file} holds no expert traces")
    return tuple(recordings)


def _read(line: str, where: str) -> Recording:
    try:
        recording = Recording.from_json(read_json(line))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CorruptDataError(f"{where}: not a recorded episode ({error_text(error)})") from error
    if not recording.actions or len(recording.state_keys) != len(recording.actions) + 1:
        raise CorruptDataError(
            f"{where}: {len(recording.actions)} actions and {len(recording.state_keys)} state keys; expected at least "
            "one action, and one key more than actions"
        )
    return recording

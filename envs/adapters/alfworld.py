"""``agentgym/ALFWorld-v0``: the original ALFWorld engine with the tools of ``Household-v0``.

Source: "ALFWorld: Aligning Text and Embodied Environments for Interactive Learning", the text games.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from agentgym.envs.adapters.worker_process import WorkerProcess
from agentgym.envs.household.commands import Command, format_command, parse_command
from agentgym.envs.household.interface import NOTHING_HAPPENS, CommandEnv
from agentgym.envs.household.vocabulary import TASK_TYPES
from agentgym.envs.interfaces import Interface
from agentgym.errors import (
    CorruptDataError,
    MissingDataError,
    ResetNeededError,
    UsageError,
    require_extra,
    require_known,
)
from agentgym.types import Message, Task

DATA_VARIABLE = "ALFWORLD_DATA"
GAME_FILE = "game.tw-pddl"

_FOLDERS: Mapping[str, str] = {"train": "train", "valid": "valid_seen", "test": "valid_unseen"}
_RELEASE = "json_2.1.1"
"""Folder of the official data release, relative to the data's root."""
_TAIL_BYTES = 1 << 15
_WORKER = "agentgym.envs.adapters.alfworld_worker"


class ALFWorldEnv(CommandEnv):
    """The original ALFWorld engine on games from a data folder.

    Tools, texts and commands are those of ``Household-v0``; the engine computes the results. The outcome is 1.0 when
    the engine reports that the game is won. Each instance runs the engine in its own process, which keeps its game
    between episodes.

    Args:
        data_dir: folder with ``game.tw-pddl`` files at any depth; by default ``$ALFWORLD_DATA``. Games below ``train``,
            ``valid_seen`` and ``valid_unseen`` are the splits train, valid and test. In a folder without these, all
            games are for training.
        games: a JSON file of games by kind, like AgentBench's ``data/alfworld/new_std.json``, with paths relative to
            ``data_dir``. These games then form the split test, in the file's order, and there is no other split.
        max_turns: turns after which an episode is truncated.
        interface: ``tools`` for tool calls, ``text`` for free text.
        step_timeout_s: time limit in seconds of a command (most take 0.1) or a plan.
        load_timeout_s: time limit in seconds for starting the engine and loading a game (most take 2).

    Raises:
        MissingExtraError: ALFWorld is not installed.
        UsageError: there is no such folder, or a game of ``games`` is not in it.
        CorruptDataError: ``games`` has another format.
    """

    is_blocking: ClassVar[bool] = True

    def __init__(
        self,
        *,
        data_dir: str | Path | None = None,
        games: str | Path | None = None,
        max_turns: int = 50,
        interface: Interface = "tools",
        step_timeout_s: float = 60.0,
        load_timeout_s: float = 180.0,
        render_mode: str | None = None,
    ) -> None:
        require_extra("agentgym/ALFWorld-v0", "alfworld", "alfworld", "textworld")
        self._data_dir = _data_dir(data_dir)
        self._listed = None if games is None else _listed(self._data_dir, Path(games).expanduser())
        self._step_timeout_s = step_timeout_s
        self._load_timeout_s = load_timeout_s
        self._worker: WorkerProcess | None = None
        self._seen: dict[str, Any] = {}
        self._plan: list[str] | None = None
        super().__init__(interface=interface, max_turns=max_turns, render_mode=render_mode)

    # ------------------------------------------------------------------------------------------------- an episode

    def start(self, task: Task) -> str:
        path = self._data_dir / str(task.data.get("path", ""))
        if not path.is_file():
            raise UsageError(f"no game {str(path)!r}; a task's data holds the path of a {GAME_FILE} below data_dir")
        if self._worker is None or not self._worker.is_alive:
            self.stop()
            self._worker = WorkerProcess(_WORKER)
        self._seen = self._worker.call(self._load_timeout_s, op="start", path=str(path))
        # A recorded walkthrough may take detours. If it is too long for the turn limit, it is no gold path; and
        # ``help`` is no tool.
        commands = [command for command in self.walkthrough if command != "help"]
        self._plan = commands if self.max_turns is None or len(commands) <= self.max_turns else None
        return str(self._seen["said"])

    def execute(self, command: Command) -> str | None:
        return self._step(format_command(command))

    def execute_line(self, line: str) -> str | None:
        command = parse_command(line)
        return self._step(line if command is None else format_command(command))

    def stop(self) -> None:
        if self._worker is not None:
            self._worker.close()

    def _step(self, command: str) -> str | None:
        before = self._seen["key"]
        answer = self._running().call(self._step_timeout_s, op="step", command=command)
        self._seen = {**self._seen, **answer}
        if self._plan and self._plan[0] == command:
            del self._plan[0]
        elif answer["key"] != before:
            self._plan = None
        if answer["won"]:
            self.finish(1.0)
        return None if answer["said"] == NOTHING_HAPPENS else str(answer["said"])

    def _running(self) -> WorkerProcess:
        if self._worker is None:
            raise ResetNeededError(f"{self.env_id}: no game before reset()")
        return self._worker

    # ----------------------------------------------------------------------------------------- beyond Gymnasium's API

    @property
    def walkthrough(self) -> tuple[str, ...]:
        """Recorded commands that win the current game; empty if there are none."""
        return tuple(self._seen.get("walkthrough", ()))

    @property
    def num_loads(self) -> int:
        """Number of games that the engine process has loaded. Restarting the same game loads nothing."""
        return int(self._seen.get("num_loads", 0))

    @property
    def worker_pid(self) -> int | None:
        """Process id of the engine; None before the first reset."""
        return None if self._worker is None else self._worker.pid

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the solvable games of a split, sorted by path. The ids are the games' folders."""
        require_known("split", split, _FOLDERS)
        if self._listed is None:
            return _tasks(self._data_dir, split)
        return self._listed if split == "test" else ()

    def state_key(self) -> str:
        """Return a key of the task, a digest of the constant facts, and every fact that commands change."""
        if not self._seen:
            raise ResetNeededError(f"{self.env_id}: no game before reset()")
        return str(self._seen["key"])

    def oracle(self) -> Message:
        """Return the next command of the recorded walkthrough while the episode follows it, else of the engine's
        planner.

        Raises:
            UsageError: the planner finds no plan from the current state.
        """
        if not self._plan:
            self._plan = list(self._running().call(self._step_timeout_s, op="plan")["plan"])
        command = parse_command(self._plan[0]) if self._plan else None
        if command is None:
            raise UsageError(
                f"{self.env_id}: the engine's planner finds no plan from this state; choose another policy"
            )
        return self.message_of(command)

    def admissible_actions(self) -> tuple[str, ...]:
        """Return the engine's admissible commands; with ``interface="tools"``, only those with a tool."""
        commands: Sequence[str] = self._seen.get("admissible", ())
        if self.interface == "text":
            return tuple(commands)
        parsed = ((text, parse_command(text)) for text in commands)
        return tuple(text for text, command in parsed if command is not None and command.name != "help")


def _data_dir(given: str | Path | None) -> Path:
    found = os.environ.get(DATA_VARIABLE) if given is None else given
    if not found:
        raise UsageError(
            f"ALFWorld needs its games: pass data_dir, or set {DATA_VARIABLE}, to a folder with {GAME_FILE} files "
            "below (alfworld-download fetches them, alfworld-generate makes them)"
        )
    path = Path(found).expanduser().resolve()
    if not path.is_dir():
        raise MissingDataError(f"ALFWorld's data folder {str(path)!r} does not exist")
    return path


@functools.cache
def _tasks(data_dir: Path, split: str) -> tuple[Task, ...]:
    bases = (data_dir, data_dir / _RELEASE)
    root = next((base for base in bases if any((base / name).is_dir() for name in _FOLDERS.values())), None)
    if root is not None:
        folder = root / _FOLDERS[split]
    elif split == "train":
        folder = data_dir
    else:
        return ()
    games = (game for game in sorted(folder.rglob(GAME_FILE)) if _is_playable(game))
    return tuple(
        Task(
            id=game.parent.relative_to(data_dir).as_posix(),
            split=split,
            seed=0,
            data={"path": game.relative_to(data_dir).as_posix(), "task_type": _task_type(game)},
        )
        for game in games
    )


def _listed(data_dir: Path, file: Path) -> tuple[Task, ...]:
    """Return the games in a file as tasks."""
    if not file.is_file():
        raise MissingDataError(f"there is no file {file}; games is a JSON file of games by kind")
    try:
        by_kind = json.loads(file.read_text(encoding="utf-8"))
        paths = [str(path) for paths in by_kind.values() for path in paths]
    except (ValueError, AttributeError, TypeError) as error:
        raise CorruptDataError(f"{file} holds no games by kind: {error}") from error
    roots = (data_dir, data_dir / _RELEASE, data_dir.parent)
    found = []
    for path in paths:
        game = next((root / path for root in roots if (root / path).is_file()), None)
        if game is None or not game.is_relative_to(data_dir):
            raise UsageError(
                f"{data_dir} has no game {path}, which {file} lists; data_dir is the folder above {_RELEASE}"
            )
        data = {"path": game.relative_to(data_dir).as_posix(), "task_type": _task_type(game)}
        found.append(Task(id=game.parent.relative_to(data_dir).as_posix(), split="test", seed=0, data=data))
    return tuple(found)


def _is_playable(game: Path) -> bool:
    """Return True for a game that ALFWorld's own loader accepts: no movable receptacles, nothing sliced, not
    unsolvable.
    """
    if any("movable" in part or "Sliced" in part for part in game.parts[-3:-1]):
        return False
    with game.open("rb") as file:
        file.seek(max(0, game.stat().st_size - _TAIL_BYTES))
        return b'"solvable": false' not in file.read()


def _task_type(game: Path) -> str:
    """Return the task type from the folder's name, as in the official layout, else from the file beside the game."""
    for name in TASK_TYPES:
        if any(part.startswith(name) for part in game.parts[-3:-1]):
            return name
    beside = game.with_name("traj_data.json")
    return str(json.loads(beside.read_text()).get("task_type", "")) if beside.is_file() else ""

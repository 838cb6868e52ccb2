"""Base class of environments whose engine runs in a separate process and takes lines of text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from agentgym.envs.adapters.line_env import LineEnv
from agentgym.envs.adapters.worker_process import WorkerProcess
from agentgym.envs.interfaces import Interface
from agentgym.envs.since_reset import SinceReset
from agentgym.errors import ToolError, UsageError
from agentgym.types import Message, Task

_LONGEST_COMMAND = 200
_TOLERANCE = 1e-9


class EngineEnv(LineEnv):
    """An environment on an engine with a score. Subclasses name the engine's module and the request that begins an
    episode.

    The module answers ``start`` (with the result of :meth:`request_of`), ``step`` (a command) and ``admissible`` with::

        {"said": text, "score": 0 to 1, "is_over": bool, "is_valid": bool, "key": text, "plan": commands or None}

    and ``{"commands": [...]}``. A command's reward is the increase of the score, so that the full score is a return and
    an outcome of 1. An impossible command earns nothing: points from the passing of time count with the next command.

    Args:
        max_turns: turns after which an episode is truncated.
        interface: ``tools`` for the tool ``act``, ``text`` for a command on the last line.
        step_timeout_s: time limit of a command in seconds.
        load_timeout_s: time limit in seconds for starting the engine and loading or making a game.
    """

    is_blocking: ClassVar[bool] = True
    worker_module: ClassVar[str]
    _game = SinceReset[dict[str, Any]]()
    """The engine's last answer."""
    takes_plain_commands: ClassVar[bool] = True
    """True if the engine hangs or fails on control characters and very long lines, so that they are rejected."""

    def __init__(
        self,
        *,
        max_turns: int,
        interface: Interface = "tools",
        step_timeout_s: float = 60.0,
        load_timeout_s: float = 300.0,
        render_mode: str | None = None,
    ) -> None:
        self._step_timeout_s, self._load_timeout_s = step_timeout_s, load_timeout_s
        self._worker: WorkerProcess | None = None
        self._awarded = 0.0
        super().__init__(interface=interface, max_turns=max_turns, render_mode=render_mode)

    def request_of(self, task: Task) -> Mapping[str, Any]:
        """Return the request that starts the engine."""
        raise NotImplementedError(f"{type(self).__name__} must implement request_of(task)")

    def start(self, task: Task) -> str:
        request = dict(self.request_of(task))
        answer = self._engine().call(self._load_timeout_s, op="start", **request)
        if "refused" in answer:
            raise UsageError(f"{self.env_id}: {answer['refused']}")
        self._game, self._awarded = answer, float(answer["score"])
        return str(answer["said"])

    def do(self, line: str) -> str:
        _ = self._game
        line = line.encode(errors="replace").decode()  # half of a surrogate pair
        is_plain = line.isascii() and line.isprintable() and len(line) <= _LONGEST_COMMAND
        if self.takes_plain_commands and not is_plain:
            raise ToolError(
                f"a command is one line of at most {_LONGEST_COMMAND} ASCII characters", "invalid_arguments"
            )
        self._game = self._engine().call(self._step_timeout_s, op="step", command=line)
        if self._game["is_valid"] or self._game["is_over"]:
            self._award_rise()
        if self._game["is_over"]:
            self.finish()
        if not self._game["is_valid"]:
            raise ToolError(str(self._game["said"]), "impossible_action")
        return str(self._game["said"])

    def _award_rise(self) -> None:
        rise = self._game["score"] - self._awarded
        if abs(rise) > _TOLERANCE:
            self.award(rise, "score")
            self._awarded = self._game["score"]

    def stop(self) -> None:
        if self._worker is not None:
            self._worker.close()

    def state_key(self) -> str:
        """Return the engine's state key; see its worker module."""
        return str(self._game["key"])

    def oracle(self) -> Message:
        """Return the next command of the engine's own plan.

        Raises:
            UsageError: the engine has no plan from the current state.
        """
        if not self._game["plan"]:
            raise UsageError(f"{self.env_id}: the engine has no plan from this state; choose another policy")
        return self.message_of(self._game["plan"][0])

    def admissible_actions(self) -> tuple[str, ...]:
        """Return the commands that the engine reports as possible; each call asks the engine."""
        if self.episode.is_over:
            return ()
        return tuple(self._engine().call(self._step_timeout_s, op="admissible")["commands"])

    def _engine(self) -> WorkerProcess:
        if self._worker is None or not self._worker.is_alive:
            self.stop()
            self._worker = WorkerProcess(self.worker_module)
        return self._worker

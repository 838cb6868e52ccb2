"""An environment whose world is an engine in a process of its own, which takes lines of text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from agentgym.envs.adapters.line_env import LineEnv
from agentgym.envs.adapters.worker_process import WorkerProcess
from agentgym.envs.interfaces import Interface
from agentgym.errors import ResetNeededError, ToolError, UsageError
from agentgym.types import Message, Task

_LONGEST_COMMAND = 200
_TOLERANCE = 1e-9


class EngineEnv(LineEnv):
    """Plays an engine that keeps a score; subclasses name its module and what begins an episode.

    The module answers ``start`` (with what :meth:`request_of` gives), ``step`` (a command) and ``admissible`` by::

        {"said": text, "score": 0 to 1, "is_over": bool, "is_valid": bool, "key": text, "plan": commands or None}

    and ``{"commands": [...]}``. What a command adds to the score is its reward, so that the whole score is a return
    and an outcome of 1. A command that was impossible earns nothing: what the engine's clock alone brought is counted
    with the next one.

    Args:
        max_turns: turns after which an episode is truncated.
        interface: ``tools`` for the tool ``act``, ``text`` for a command on the last line.
        step_timeout_s: seconds the engine may take for a command.
        load_timeout_s: seconds it may take to start and to load or make a game.
    """

    is_blocking: ClassVar[bool] = True
    worker_module: ClassVar[str]
    takes_plain_commands: ClassVar[bool] = True
    """False if the engine takes any text; others hang or fail on control characters and on endless lines."""

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
        self._seen: dict[str, Any] = {}
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
        self._seen, self._awarded = answer, float(answer["score"])
        return str(answer["said"])

    def do(self, line: str) -> str:
        self._now()
        line = line.encode(errors="replace").decode()  # half a surrogate pair
        is_plain = line.isascii() and line.isprintable() and len(line) <= _LONGEST_COMMAND
        if self.takes_plain_commands and not is_plain:
            raise ToolError(
                f"a command is one line of at most {_LONGEST_COMMAND} ASCII characters", "invalid_arguments"
            )
        self._seen = self._engine().call(self._step_timeout_s, op="step", command=line)
        if self._seen["is_valid"] or self._seen["is_over"]:
            self._award_rise()
        if self._seen["is_over"]:
            self.finish()
        if not self._seen["is_valid"]:
            raise ToolError(str(self._seen["said"]), "impossible_action")
        return str(self._seen["said"])

    def _award_rise(self) -> None:
        rise = self._seen["score"] - self._awarded
        if abs(rise) > _TOLERANCE:
            self.award(rise, "score")
            self._awarded = self._seen["score"]

    def stop(self) -> None:
        if self._worker is not None:
            self._worker.close()

    def state_key(self) -> str:
        """Return what the engine tells of its state; see its worker module."""
        return str(self._now()["key"])

    def oracle(self) -> Message:
        """The next command of the engine's own plan.

        Raises:
            UsageError: it has none from here.
        """
        if not self._now()["plan"]:
            raise UsageError(f"{self.env_id}: the engine has no plan from this state; choose another policy")
        return self.message_of(self._now()["plan"][0])

    def admissible_actions(self) -> tuple[str, ...]:
        """The commands that the engine says are possible; it is asked each time."""
        if not self._seen or self.episode.is_over:
            return ()
        return tuple(self._engine().call(self._step_timeout_s, op="admissible")["commands"])

    def _now(self) -> dict[str, Any]:
        if not self._seen:
            raise ResetNeededError(f"{self.env_id}: no game before reset()")
        return self._seen

    def _engine(self) -> WorkerProcess:
        if self._worker is None or not self._worker.is_alive:
            self.stop()
            self._worker = WorkerProcess(self.worker_module)
        return self._worker

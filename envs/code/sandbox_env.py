"""Base class of environments whose agent works in a sandbox and submits its work for grading in another one.

All environments of the process share a pool of sandboxes. An environment holds at most one at a time: at submission it
copies the workspace and gives the sandbox back before it acquires a new one for grading. Any number of environments can
therefore use a pool of any size without a deadlock.
"""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Final

from agentgym.canonical import canonical
from agentgym.env.env import Snapshot as EnvSnapshot
from agentgym.env.tool_env import ToolEnv
from agentgym.envs.code.cheats import cheats_for
from agentgym.envs.code.shared_pool import SandboxKind, SharedPool, Wanted, shared_pool
from agentgym.envs.code.workspace import Assignment, Files, Grade, content_key, packed, unpacked
from agentgym.envs.since_reset import SinceReset
from agentgym.errors import ClosedError, ConfigError, SandboxFileError, SandboxSpentError, ToolError
from agentgym.sandbox import Limits, Mount, Sandbox, Snapshot
from agentgym.sandboxes.images import DEFAULT_IMAGE
from agentgym.sandboxes.pool import PooledSandbox
from agentgym.settings import Range, check_number
from agentgym.tool import Tool
from agentgym.tools.in_sandbox import InSandbox
from agentgym.types import Call, Message, Observation, RewardRole, Task, TextPart, ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardValues:
    """Values of the reward's parts. They do not affect success, which is an outcome of 1.

    Example:
        >>> RewardValues.of({"turn_cost": 0.01}).turn_cost
        0.01
    """

    edit_made: float = 0.05
    """Process reward if the work differs from the initial files."""
    tests_collected: float = 0.05
    """Process reward if the work can be loaded, so that tests can run."""
    invalid_turn: float = 0.02
    """Format penalty for a turn with a call that was malformed, rejected or ended by a limit."""
    turn_cost: float = 0.0
    """Cost of every turn."""

    @classmethod
    def of(cls, given: dict[str, float] | None) -> RewardValues:
        """Build the values from names and values; missing names keep their defaults."""
        names = [entry.name for entry in fields(cls)]
        for name, value in (given or {}).items():
            if name not in names or not isinstance(value, int | float) or value < 0:
                raise ConfigError(f"rewards are numbers of at least 0 for {', '.join(names)}; got {name}={value!r}")
        return cls(**(given or {}))


LIMITS: Final = Limits(wall_s=45.0, cpu_s=10)
"""Limits of a sandbox. The CPU time limit ends endless work. The wall time limit is much higher, since work on a busy
machine would reach it earlier. It is still needed, so that work cannot turn its grading into an infrastructure failure.
"""

_SLACK_S: Final = 60.0
"""Additional seconds for other operations: reading the workspace, waiting for a sandbox for grading."""
_LEAST_CALL_S: Final = 0.05
_SUBMIT: Final = "submit"


class SandboxEnv(InSandbox, ToolEnv):
    """An environment in which an agent works in a sandbox. Subclasses implement :meth:`assign` and :meth:`grade` and
    mix tools in.

    Args:
        sandbox: ``docker``, ``namespaces``, ``process`` (isolates nothing), or ``auto``: the strongest kind that works
            here. ``reset`` returns the kind in ``info["sandbox"]``.
        require: required guarantees (:data:`agentgym.sandbox.GUARANTEES`).
        image: image for docker.
        max_sandboxes: most open sandboxes of this kind in this process; further environments wait.
        tool_timeout_s: limit of a tool call in wall seconds. A process may also use at most ``LIMITS.cpu_s`` seconds of
            CPU time. The model sees that a limit ended its call.
        rewards: values of :class:`RewardValues` by name that differ from the defaults.
        max_turns: turns after which an episode is truncated.
    """

    is_blocking: ClassVar[bool] = True
    turn_timeout_s: float = 60.0
    """Limit of all calls of a turn together in wall seconds; later calls are rejected."""
    test_command: str = ""
    assignment = SinceReset[Assignment]()
    """Assignment of the current episode."""
    _key = SinceReset[str]()

    def __init__(
        self,
        *,
        sandbox: Wanted = "auto",
        require: Sequence[str] = (),
        image: str = DEFAULT_IMAGE,
        max_sandboxes: int = 16,
        tool_timeout_s: float = 30.0,
        rewards: dict[str, float] | None = None,
        max_turns: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        check_number("tool_timeout_s", tool_timeout_s, Range(above=0, at_most=LIMITS.wall_s))
        self.kind = SandboxKind(
            backend=sandbox, require=frozenset(require), image=image, limits=LIMITS, max_open=max_sandboxes
        )
        self.tool_timeout_s = tool_timeout_s
        self.rewards = RewardValues.of(rewards)
        self._lease: PooledSandbox | None = None
        self._lease_lock = threading.Lock()  # another thread may call close() while this one waits for a sandbox
        self._workspace = Snapshot(b"")
        self._is_submitted = False
        self._has_stopped = False
        self._turn_ends_s = 0.0  # time of the monotonic clock
        self._hosting: dict[str, Any] = {}
        self.longest_step_s = self.turn_timeout_s + LIMITS.wall_s + _SLACK_S
        super().__init__(max_turns=max_turns, render_mode=render_mode)

    # ------------------------------------------------------------------------------------ methods to implement

    @abstractmethod
    def assign(self, task: Task) -> Assignment:
        """Return the text and files for the agent, which depend only on the task."""

    @abstractmethod
    def grade(self, work: Files) -> Grade:
        """Grade the files of the work where the agent cannot interfere (:mod:`agentgym.envs.code.grading`)."""

    def outcome_of(self, grade: Grade) -> float:
        """Return the outcome of a grade, from 0 to 1; 1 is success."""
        return float(grade.is_success)

    def is_edited(self, work: Files) -> bool:
        """Return True if the work differs from the initial files."""
        return dict(work) != dict(self.assignment.files)

    def variables(self, sandbox: Sandbox) -> Mapping[str, str]:
        """Return environment variables of all programs in the agent's sandbox; by default none."""
        return {}

    # ------------------------------------------------------------------------------------------------- an episode

    @property
    def pool(self) -> SharedPool:
        """Pool of this environment's sandboxes."""
        return shared_pool(self.kind)

    def host_agent(self, mounts: Sequence[Mount], limits: Limits) -> None:
        """Use sandboxes with these mounts and limits from the next reset on. They do not apply to grading."""
        self._hosting = {"mounts": tuple(mounts), "limits": limits}

    def start(self, task: Task) -> str:
        self._prepare(task)
        self._take_sandbox(packed(self.assignment.files))
        self._look()
        return self.assignment.text

    def respond(self, action: Message) -> str | Observation:
        self._turn_ends_s = time.monotonic() + self.turn_timeout_s
        said = super().respond(action)
        self._end_turn()
        return self._warned(said)

    async def arespond(self, action: Message) -> str | Observation:
        self._turn_ends_s = time.monotonic() + self.turn_timeout_s
        said = await super().arespond(action)
        await self._in_thread(self._end_turn)
        return self._warned(said)

    def _checked(self, call: Call) -> tuple[Tool, ToolCall, dict[str, object]]:
        checked = super()._checked(call)
        if checked[1].name != _SUBMIT:  # a late submission is better than none
            self.call_timeout_s()
        return checked

    def call_timeout_s(self) -> float:
        left_s = self._turn_ends_s - time.monotonic()
        if left_s < _LEAST_CALL_S:
            words = f"the calls of this turn have taken {self.turn_timeout_s:g} s; this one was not run"
            raise ToolError(words, "timeout")
        return min(self.tool_timeout_s, left_s)

    def hand_in(self) -> str:
        """Submit the work: copy it, give the sandbox back, and grade in a new one."""
        work = self.assignment.work(unpacked(self._taken_out()))
        self.close_work()
        try:
            grade = self.grade(work)
        except ToolError as error:  # work that ends its sandbox, or that no sandbox accepts, fails
            grade = Grade(num_tests=1, num_passed=0, is_collected=False, note=str(error))
        if self.is_edited(work):
            self.award(self.rewards.edit_made, "edit_made", RewardRole.PROCESS)
            if grade.is_collected:
                self.award(self.rewards.tests_collected, "tests_collected", RewardRole.PROCESS)
        self.award(self.outcome_of(grade), "tests_passed")
        self.finish()
        return str(grade)

    def close_work(self) -> None:
        """Give the sandbox back after the work has been copied."""
        self.end_episode()
        self._is_submitted = True

    def seen_work(self) -> dict[str, str]:
        """Return the files to grade at the end of the last turn."""
        return self.assignment.work(unpacked(self._workspace))

    def end_episode(self) -> None:
        """Give the sandbox back; the episode cannot continue."""
        with self._lease_lock:
            lease, self._lease = self._lease, None
        if lease is not None:
            lease.close()

    def stop(self) -> None:
        with self._lease_lock:
            self._has_stopped = True
        self.end_episode()

    # ----------------------------------------------------------------------------------------- beyond Gymnasium's API

    def state_key(self) -> str:
        """Return a digest of the workspace (which contains the interpreter's session) and whether it was submitted."""
        return self._key

    def cheats(self) -> Mapping[str, Sequence[Message]]:
        return cheats_for(self.assignment, self.tools)

    def dump_state(self) -> tuple[Snapshot, bool, str]:
        return self._workspace, self._is_submitted, self._key

    def load_state(self, state: tuple[Snapshot, bool, str]) -> None:
        self._prepare(self.task)
        self._workspace, self._is_submitted, self._key = state
        if not self._is_submitted:
            self._take_sandbox(self._workspace)
            self._look()

    def restore(self, snapshot: EnvSnapshot) -> None:
        super().restore(snapshot)
        if self.episode.is_over:  # truncated, so no further action is possible
            self.end_episode()

    # --------------------------------------------------------------------------------------------------- private

    def _begun(self, said: str | Observation) -> tuple[Observation, dict[str, object]]:
        observation, info = super()._begun(said)
        return observation, info | {"sandbox": self.pool.backend}

    def _prepare(self, task: Task) -> None:
        self.end_episode()
        self.assignment = self.assign(task)
        self.test_command = self.assignment.test_command
        self._is_submitted = False
        self._overflow = ""

    def _take_sandbox(self, content: Snapshot) -> None:
        lease = shared_pool(replace(self.pool.kind, **self._hosting)).acquire()
        with self._lease_lock:
            if not self._has_stopped:
                self._lease = self.sandbox = lease
        if self._lease is not lease:
            lease.close()
            raise ClosedError(f"{self.env_id} was closed while it waited for a sandbox")
        lease.restore(content)
        lease.env = self.variables(lease)

    def _end_turn(self) -> None:
        """Record the workspace after the turn, and give the sandbox back after the last turn."""
        if not self.episode.is_turn_valid and self.rewards.invalid_turn:
            self.award(-self.rewards.invalid_turn, "invalid_turn", RewardRole.FORMAT)
        if self.rewards.turn_cost:
            self.award(-self.rewards.turn_cost, "turn_cost", RewardRole.COST)
        if not self._is_submitted:
            self._look()
        else:
            self._key = canonical(["submitted", content_key(self._workspace)])
        if self.episode.is_over or (self.max_turns is not None and self.turn >= self.max_turns):
            self.end_episode()

    def _warned(self, said: str | Observation) -> str | Observation:
        """Add a warning for the agent if its workspace counts as empty."""
        if not self._overflow or self.episode.is_over:
            return said
        words = f"Warning: {self._overflow}. It counts as empty as long as it is so: remove what is not needed."
        if isinstance(said, str):
            return f"{said}\n{words}"
        *before, last = said
        content = f"{last.content}\n{words}" if isinstance(last.content, str) else (*last.content, TextPart(words))
        return (*before, replace(last, content=content))

    def _look(self) -> None:
        self._workspace = self._taken_out()
        self._key = canonical(["at work", content_key(self._workspace)])

    def _taken_out(self) -> Snapshot:
        """Return the workspace's files, including those that the agent has made unreadable, since it could undo that.

        A workspace above the limits of a snapshot counts as empty, and the agent sees a warning. It is not a failure.
        """
        try:
            self._workspace = self._read_workspace()
        except SandboxSpentError:  # the sandbox's files are lost; continue from the end of the previous turn
            self.end_episode()
            self._take_sandbox(self._workspace)
        return self._workspace

    def _read_workspace(self) -> Snapshot:
        try:
            self._overflow = ""
            return self.sandbox.snapshot()
        except SandboxFileError as error:
            if error.error_type in ("too_many", "too_large"):
                self._overflow = str(error)
                return packed({})
            self.sandbox.exec("chmod -R u+rwX .")
            try:
                return self.sandbox.snapshot()
            except SandboxFileError:  # for example, a file grows while it is read; count the workspace as empty
                return packed({})

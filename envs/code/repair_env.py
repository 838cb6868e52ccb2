"""Base class of environments with repair problems, used by CodeRepair and SWE."""

from __future__ import annotations

import shlex
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Final, Literal, get_args

from agentgym.call_syntax import format_call
from agentgym.canonical import digest, packaged
from agentgym.envs.code.grading import grade_suite, modules_of
from agentgym.envs.code.problems import RepairProblem, edits
from agentgym.envs.code.sandbox_env import SandboxEnv
from agentgym.envs.code.workspace import Assignment, Files, Grade
from agentgym.envs.since_reset import SinceReset
from agentgym.errors import require_known
from agentgym.types import Message, Task, ToolCall

Outcome = Literal["all", "share"]
"""``all``: 1.0 if all hidden tests pass, else 0. ``share``: share of passed tests among those that failed at the start
(for Harbor, the reward)."""


_FEW_EDITS = 4


class RepairEnv(SandboxEnv):
    """An environment of repair problems with hidden tests. Subclasses implement :meth:`problem_of` and
    :meth:`editable_of`.

    The parts of the reward: ``tests_passed`` (outcome), ``edit_made`` and ``tests_collected`` (process),
    ``invalid_turn`` (format), ``turn_cost`` (cost). Gated rewards can use these roles.

    Args:
        outcome: see :data:`Outcome`.
        others: see :class:`~agentgym.envs.code.sandbox_env.SandboxEnv`.
    """

    problem = SinceReset[RepairProblem]()
    """Problem of the current episode."""

    def __init__(self, *, outcome: Outcome = "all", **others: Any) -> None:
        require_known("outcome", outcome, get_args(Outcome))
        self.outcome: Outcome = outcome
        super().__init__(**others)

    @abstractmethod
    def problem_of(self, task: Task) -> RepairProblem:
        """Return the problem of a task, which depends only on the task."""

    @abstractmethod
    def editable_of(self, problem: RepairProblem) -> tuple[str, ...]:
        """Return patterns of the paths whose final content is graded."""

    def assign(self, task: Task) -> Assignment:
        self.problem = problem = self.problem_of(task)
        return Assignment(
            text=problem.statement,
            files=problem.files,
            editable=self.editable_of(problem),
            protected=problem.public_tests,
            test_command=command_for(problem.public_tests),
        )

    def grade(self, work: Files) -> Grade:
        tests = {path.removesuffix(".py"): source for path, source in self.problem.hidden_tests.items()}
        return grade_suite(self.pool, work, tests, modules_of(self.problem.files))

    def outcome_of(self, grade: Grade) -> float:
        if self.outcome == "all" or grade.is_success or not grade.is_collected:
            return float(grade.is_success)
        num_before = self._num_passing_at_start()
        return max(0.0, (grade.num_passed - num_before) / max(1, grade.num_tests - num_before))

    def oracle(self) -> Message:
        """Read the faulty file, repair it, run the visible tests, and submit."""
        work = self.seen_work()
        call = ToolCall("submit")
        for path, wanted in sorted(self.problem.solution.items()):
            if work.get(path) != wanted:
                call = self._repair(path, work.get(path), wanted)
                break
        else:
            if self.problem.public_tests and not self._has_tested():
                call = self.test_call()
        return Message("assistant", format_call(call, self.tools), (call,))

    def test_call(self) -> ToolCall:
        """Return the call with which the oracle runs the visible tests."""
        return ToolCall("run_tests")

    # --------------------------------------------------------------------------------------------------- private

    def _repair(self, path: str, found: str | None, wanted: str) -> ToolCall:
        is_shown = self.problem.files.get(path, "").strip() in self.problem.statement
        if found is not None and not is_shown and not self._has_read(path):
            return ToolCall("read_file", {"path": path})
        steps = edits(found or "", wanted)
        if found is None or len(steps) > _FEW_EDITS or found.count(steps[0].old) != 1:
            return ToolCall("write_file", {"path": path, "content": wanted})
        return ToolCall("edit_file", {"path": path, "old": steps[0].old, "new": steps[0].new})

    def _has_read(self, path: str) -> bool:
        calls = [call for action in self.episode.actions for call in action.calls if isinstance(call, ToolCall)]
        return any(call.name == "read_file" and call.arguments.get("path") == path for call in calls)

    def _has_tested(self) -> bool:
        """Return True if the last action ran the visible tests."""
        last = self.episode.actions[-1].calls if self.episode.actions else ()
        return any(isinstance(call, ToolCall) and call.name == self.test_call().name for call in last)

    def _num_passing_at_start(self) -> int:
        """Return the number of hidden tests that pass at the start; if unknown, grade once per process."""
        problem = self.problem
        if problem.num_passing_at_start is not None:
            return problem.num_passing_at_start
        key = digest([problem.files, problem.hidden_tests])
        if key not in _passing_at_start:
            _passing_at_start[key] = self.grade(problem.files).num_passed
        return _passing_at_start[key]


_passing_at_start: dict[str, int] = {}


# ---- the visible tests as a command for the agent's sandbox, with deterministic output

_PROGRAM: Final = packaged(__package__, "visible_tests.toml")["program"]
_MOST_SHOWN = 5
_WIDEST = 400


def command_for(tests: Sequence[str]) -> str:
    """Return a shell line that runs test files, shows the first failures, and prints the number of passed tests.

    Example:
        >>> command_for([])
        "echo 'There are no visible tests.'"
    """
    if not tests:
        return "echo 'There are no visible tests.'"
    names = [path.removesuffix(".py").replace("/", ".") for path in tests]
    program = _PROGRAM.replace("{most}", str(_MOST_SHOWN)).replace("{widest}", str(_WIDEST)).strip()
    return shlex.join(["python3", "-c", program, *names])

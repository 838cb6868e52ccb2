"""``agentgym/PythonMath-v0``: solve a problem with a Python interpreter and submit one whole number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentgym.call_syntax import format_call
from agentgym.canonical import canonical
from agentgym.env.tasks import SeededTasks
from agentgym.envs.code.math_problems import LEVELS, make_problem
from agentgym.envs.code.sandbox_env import SandboxEnv
from agentgym.envs.code.workspace import Assignment, Files, Grade
from agentgym.errors import ToolError, UsageError
from agentgym.tools.python import PythonTool
from agentgym.tools.submit import SubmitAnswerTool
from agentgym.types import Message, Task, ToolCall

_NUM_TRAIN, _NUM_HELD_OUT = 1_000_000, 1_000
_LONGEST_ANSWER = 4_000  # most digits that Python converts


class PythonMathEnv(PythonTool, SubmitAnswerTool, SandboxEnv):
    """Solve a problem whose answer is one whole number, with a Python interpreter that keeps variables.

    The outcome is 1.0 for the exact answer, which is never in the sandbox. An answer that is not a whole number is
    rejected, and the agent may answer again.

    Args:
        level: 0 to 3, see :mod:`agentgym.envs.code.math_problems`.
        max_turns: turns after which an episode is truncated.
        others: see :class:`~agentgym.envs.code.sandbox_env.SandboxEnv`.

    Example:
        >>> env = PythonMathEnv(sandbox="process")
        >>> observation, info = env.reset(options={"task": 3})
        >>> print(observation[0].text)
        What is 72714 * 57982 - 41625? Submit the number.
        >>> env.step("python: 72714 * 57982 - 41625")[0][0].text
        '4216061523'
        >>> env.step("submit: 4216061523")[4]["success"]
        True
        >>> env.close()
    """

    def __init__(self, *, level: int = 0, max_turns: int = 8, **others: Any) -> None:
        if level not in LEVELS:
            raise UsageError(f"level is one of {', '.join(map(str, LEVELS))}, got {level!r}")
        self.level = level
        super().__init__(max_turns=max_turns, **others)

    def assign(self, task: Task) -> Assignment:
        self._problem = make_problem(task.seed, int(task.data.get("level", self.level)))
        return Assignment(text=f"{self._problem.question} Submit the number.")

    def grade(self, work: Files) -> Grade:
        raise AssertionError("an answer is graded, no files")

    def hand_in_answer(self, answer: str) -> str:
        """Grade an answer from the tool ``submit``."""
        given = answer.strip().replace(",", "").replace("_", "").removesuffix(".0")
        if not given.removeprefix("-").isdecimal() or len(given) > _LONGEST_ANSWER:
            raise ToolError("the answer is one whole number, such as 42", "not_a_number")
        is_right = int(given) == self._problem.answer
        self.close_work()
        self.finish(float(is_right))
        return "Right." if is_right else "Wrong."

    def oracle(self) -> Message:
        problem = self._problem
        call = ToolCall("python", {"code": problem.code}) if self.turn == 0 else None
        call = call or ToolCall("submit", {"answer": str(problem.answer)})
        return Message("assistant", format_call(call, self.tools), (call,))

    def state_key(self) -> str:
        """Return a key of the workspace and the last output, since most calls leave no other trace."""
        return canonical([super().state_key(), [message.text for message in self.episode.last_observation]])

    def tasks(self, split: str) -> Sequence[Task]:
        """Return 1,000,000 tasks for training or 1,000 for another split, with the answer in ``data["answers"]``."""
        return SeededTasks(split, _NUM_TRAIN if split == "train" else _NUM_HELD_OUT, self._data_of)

    def _data_of(self, seed: int) -> dict[str, object]:
        return {"level": self.level, "answers": [str(make_problem(seed, self.level).answer)]}

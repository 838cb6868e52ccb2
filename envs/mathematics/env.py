r"""``agentgym/Math-v0`` and ``MathTools-v0``: problems of MATH, MATH-500 and AIME, answered in ``\boxed{}``."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from agentgym.canonical import canonical
from agentgym.env.env import Env
from agentgym.envs.code.sandbox_env import SandboxEnv
from agentgym.envs.code.workspace import Assignment, Files, Grade
from agentgym.envs.mathematics.equivalence import last_boxed
from agentgym.envs.mathematics.grading import Rule, checked_rule, is_right
from agentgym.envs.mathematics.problem_files import MathProblem, read_problems
from agentgym.envs.since_reset import SinceReset
from agentgym.errors import MissingDataError, UsageError, require_known
from agentgym.tools.python import PythonTool
from agentgym.types import Message, Observation, Task

DATA_VARIABLE: Final = "AGENTGYM_MATH_PROBLEMS"
INSTRUCTION: Final = "Reason step by step, and put your final answer within \\boxed{}."
_THINKING: Final = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
_LONGEST_STEP_S: Final = 600.0  # math-verify's, twice


class _MathTasks(Env):
    """The base of both environments: the problems and the grade."""

    problem = SinceReset[MathProblem]()
    """The current episode's problem."""

    def _read_sources(self, problems: str | Path | None, rule: Rule, name: str) -> None:
        source = problems or os.environ.get(DATA_VARIABLE)
        if not source:
            raise MissingDataError(
                f"problems is missing; set it, or {DATA_VARIABLE}, to a file of MATH-500 or AIME, or to MATH's folder"
            )
        self._rule = checked_rule(rule, f"{name} with rule=math_verify")
        self._problems = read_problems(source)

    def _look_up(self, task: Task) -> str:
        name = str(task.data.get("problem"))
        if name not in self._problems:
            raise UsageError(f"the problems have no {name!r}; take tasks from tasks(split)")
        self.problem = self._problems[name]
        if task.data.get("answers", (self.problem.answer,))[0] != self.problem.answer:
            raise UsageError(
                f"problem {name!r} had another answer when the task was made; use that version of the file"
            )
        return f"{self.problem.text}\n\n{INSTRUCTION}"

    def _grade_answer(self, text: str) -> str | None:
        """Grade the last boxed answer of a message and end the episode; None if the message has none."""
        answer = last_boxed(_THINKING.sub("", text))
        if answer is None:
            return None
        is_correct = is_right(answer, self.problem.answer, self._rule)
        self.finish(float(is_correct))
        return "That is right." if is_correct else "That is not right."

    @property
    def task_type(self) -> str:
        """The problem's subject and level, as far as the file has them."""
        level = f"level {self.problem.level}" if self.problem.level else ""
        return ", ".join(filter(None, (self.problem.kind, level)))

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the problems of ``train`` or ``test``, in the files' order; the answer is in ``data["answers"]``."""
        require_known("split of these problems", split, ("train", "test"))
        return [
            Task(id=one.id, split=split, seed=0, data={"problem": one.id, "answers": [one.answer]})
            for one in self._problems.values()
            if one.split == split
        ]

    def oracle(self) -> Message:
        """Return the file's answer in a box."""
        return Message("assistant", f"The answer is \\boxed{{{self.problem.answer}}}.")

    def cheats(self) -> Mapping[str, Sequence[Message]]:
        """Return boxed answers with several values or none, which must not be graded as right."""
        many = " ".join(f"\\boxed{{{number}}}" for number in range(50))
        return {
            "box many numbers": [Message("assistant", f"{many} \\boxed{{}}")],
            "box a list": [Message("assistant", "\\boxed{" + ", ".join(map(str, range(200))) + "}")],
            "box code": [Message("assistant", "\\boxed{__import__('os').environ}")],
        }


class MathEnv(_MathTasks):
    r"""Solve a problem in one message whose last ``\boxed{}`` is the answer.

    The outcome is 1.0 or 0.0. Text between ``<think>`` and ``</think>`` is not searched for an answer.

    Args:
        problems: a file of MATH-500 or AIME (JSON lines, JSON or Parquet), or a folder of such, such as MATH's; by
            default what the environment variable ``AGENTGYM_MATH_PROBLEMS`` names.
        rule: ``math_verify`` compares values with Hugging Face's math-verify; ``math`` compares normalised texts, as
            MATH's authors do.

    Raises:
        UsageError: there are no such problems.
        CorruptDataError: a file's format is not supported.
        MissingExtraError: math-verify is not installed and ``rule`` names it.
    """

    is_blocking: ClassVar[bool] = True
    max_turns = 1
    longest_step_s = _LONGEST_STEP_S
    _answered: bool | None = None

    def __init__(
        self,
        *,
        problems: str | Path | None = None,
        rule: Rule = "math_verify",
        max_turns: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        self._read_sources(problems, rule, "agentgym/Math-v0")
        super().__init__(max_turns=max_turns, render_mode=render_mode)

    def start(self, task: Task) -> str:
        self._answered = None
        return self._look_up(task)

    def respond(self, action: Message) -> str:
        said = self._grade_answer(action.text)
        if said is None:
            self.refuse()
            self.finish(0.0)
            said = "There is no \\boxed{} in your message, so that it has no answer."
        self._answered = self.is_success()
        return said

    def state_key(self) -> str:
        """Return a digest of the problem and of whether it was answered correctly."""
        return canonical([self.problem.id, self._answered])

    def dump_state(self) -> list[bool | None]:
        return [self._answered]

    def load_state(self, state: list[bool | None]) -> None:
        self._look_up(self.task)
        (self._answered,) = state


class MathToolsEnv(_MathTasks, PythonTool, SandboxEnv):
    r"""Solve a problem with a Python interpreter; a message without a call ends with the answer in ``\boxed{}``.

    Args:
        problems, rule: as for :class:`MathEnv`.
        max_turns: turns after which an episode is truncated.
        others: see :class:`~agentgym.envs.code.sandbox_env.SandboxEnv`.
    """

    takes_words: ClassVar[bool] = True
    phrases: ClassVar[Sequence[str]] = ("\\boxed{0}", "\\boxed{1}", "python: 1 + 1")

    def __init__(
        self, *, problems: str | Path | None = None, rule: Rule = "math_verify", max_turns: int = 8, **others: Any
    ) -> None:
        self._read_sources(problems, rule, "agentgym/MathTools-v0")
        super().__init__(max_turns=max_turns, **others)
        self.longest_step_s += _LONGEST_STEP_S

    def assign(self, task: Task) -> Assignment:
        return Assignment(text=f"{self._look_up(task)} You may run Python code before you answer.")

    def grade(self, work: Files) -> Grade:
        raise AssertionError("an answer is graded, no files")

    def respond(self, action: Message) -> str | Observation:
        return super().respond(action) if action.calls else self._take_answer(action)

    async def arespond(self, action: Message) -> str | Observation:
        return await super().arespond(action) if action.calls else await self._in_thread(self._take_answer, action)

    def _take_answer(self, action: Message) -> str:
        said = self._grade_answer(action.text)
        if said is None:
            self.refuse()
            said = f"Call a tool, or answer. {INSTRUCTION}"
        else:
            self.close_work()
        self._end_turn()
        return said

    def parse_action(self, text: str) -> Message:
        """Read a text as a call of ``python`` if it is one, else as words."""
        return super().parse_action(text) if text.lstrip().startswith("python") else Message("assistant", text)

    def admissible_actions(self) -> tuple[str, ...]:
        """Return some answers and a call, for a random policy."""
        return tuple(self.phrases)

    def state_key(self) -> str:
        """Return a digest of the problem, the workspace and the last message: most calls leave no trace but their
        output.
        """
        said = [message.text for message in self.episode.last_observation]
        return canonical([self.problem.id, SandboxEnv.state_key(self), said])

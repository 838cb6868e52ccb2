"""The real engine and the real HumanEval."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from agentgym.check.injection import cheats
from agentgym.check.subject import Subject
from agentgym.envs.code.env import CodeEnv, Problem, load_problems
from agentgym.envs.code.grading import grade_check
from agentgym.envs.code.shared_pool import SandboxKind, shared_pool

pytestmark = pytest.mark.docker


def test_all_canonical_solutions_of_humaneval_pass_and_all_stubs_fail() -> None:
    problems = load_problems()
    assert len(problems) == 164
    pool = shared_pool(SandboxKind(backend="docker", max_open=2))

    def grades(problem: Problem) -> tuple[bool, bool]:
        gold, stub = (
            grade_check(pool, {"solution.py": text}, f"solution:{problem.entry_point}", problem.grader).is_success
            for text in (problem.reference, problem.prompt + "    pass\n")
        )
        return gold, stub

    with ThreadPoolExecutor(2) as threads:
        found = dict(zip([problem.task_id for problem in problems], threads.map(grades, problems), strict=True))
    assert [name for name, (gold, stub) in found.items() if not gold or stub] == []


def test_an_episode_of_humaneval() -> None:
    env = CodeEnv(source="humaneval", sandbox="docker")
    assert env.reset(seed=1)[1]["sandbox"] == "docker"
    env.step(env.oracle())
    assert env.step(env.oracle())[4]["success"]
    env.close()


def test_no_cheat_scores() -> None:
    found = cheats(Subject(lambda: CodeEnv(sandbox="docker", require=["filesystem", "user"], level=1), None, 1, 0))
    assert found.startswith("none of 12 scores")

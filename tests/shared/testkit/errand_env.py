"""The smallest errand for an agent in a sandbox, which a model from scratch can do: say a word, and leave no file."""

from __future__ import annotations

from agentgym import Task, register
from agentgym.envs.code.sandbox_env import SandboxEnv
from agentgym.envs.code.workspace import Assignment, Files, Grade
from agentgym.tools.submit import SubmitTool


class Errand(SandboxEnv, SubmitTool):
    """Answer in one word. The reward is 1 if the workspace stays empty."""

    def assign(self, task: Task) -> Assignment:
        return Assignment(text="Answer in one word, and leave no file behind.", editable=("*",))

    def grade(self, work: Files) -> Grade:
        return Grade(num_tests=1, num_passed=int(not work))


register("Errand-v0", Errand, max_turns=4)

"""The smallest errand for an agent in a sandbox: leave one file there."""

from __future__ import annotations

from typing import Final

from agentgym import Task, register
from agentgym.envs.code.grading import Grade
from agentgym.envs.code.sandbox_env import SandboxEnv
from agentgym.envs.code.workspace import Assignment, Files
from agentgym.tools.submit import SubmitTool

WORDS: Final = ("amber", "birch", "cobalt", "dune", "ember", "fjord", "garnet", "hazel", "iris", "jade", "kelp")


class Note(SandboxEnv, SubmitTool):
    """Create an empty file of a name. The reward is 1 if it is the only one in the workspace."""

    def assign(self, task: Task) -> Assignment:
        first, second = (WORDS[int(place)] for place in self.np_random.integers(len(WORDS), size=2))
        self.wanted = f"{first}-{second}.txt"
        return Assignment(text=f"Create an empty file called {self.wanted}.", editable=("*",))

    def grade(self, work: Files) -> Grade:
        return Grade(num_tests=1, num_passed=int(set(work) == {self.wanted}))


register("Note-v0", Note, max_turns=4)
